"""Shipping each closed epoch of a run to a place of backups, in a process beside the run."""
