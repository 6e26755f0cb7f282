"""What a run begins and ends besides its micro-batches: one part a module."""
