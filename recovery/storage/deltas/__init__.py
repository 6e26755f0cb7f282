"""Deltas: scratch files with the state that was touched since the last closed epoch."""
