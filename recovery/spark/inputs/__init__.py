"""What a run asks of its sources before it starts: whether the input that the run has to read is still there."""
