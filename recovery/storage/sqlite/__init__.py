"""Partitions as SQLite files: tables, deltas, and how they are opened."""
