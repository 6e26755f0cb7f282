"""The state stores of Spark's own operators in a checkpoint: which operators have state, which of its files an epoch
needs, and its schemas."""
