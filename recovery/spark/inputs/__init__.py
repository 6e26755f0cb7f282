"""What a run asks of its sources before it starts: whether the input that it has to read is still there."""
