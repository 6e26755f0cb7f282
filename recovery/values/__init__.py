"""Keys, states and tables as values, and their text forms."""
