"""Native state in a checkpoint: which operators have some, which of its files an epoch needs, and its schemas."""
