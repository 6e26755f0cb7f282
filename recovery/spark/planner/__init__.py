"""From the plan that a user built to the plan that runs."""
