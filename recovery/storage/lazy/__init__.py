"""Partitions whose pages come from a backup when they are first read."""
