"""Nexmark, the benchmark of an auction house: its events, and those of its queries that keep state."""
