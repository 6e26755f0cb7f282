"""Deltas: the state that was touched since the last closed epoch, as scratch files."""
