"""The pages of a run, in a process beside it: `recovery run --ui`."""
