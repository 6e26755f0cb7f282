"""Turn the plan that a user built into the plan that runs."""
