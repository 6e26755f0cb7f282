"""What a task of a step does."""
