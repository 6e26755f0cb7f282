"""Runs that find no new input: what a run notes, and whether the next one can end without Spark."""
