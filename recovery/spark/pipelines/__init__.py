"""Batch pipelines and incremental loads."""
