"""A run: prepare, start, micro-batches, end."""
