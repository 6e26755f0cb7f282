"""Keys, states and tables as values, and how they become text."""
