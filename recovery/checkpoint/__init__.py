"""A Spark checkpoint as rows of the recovery partitions: which files a query needs to resume after a micro-batch,
how they are captured while it runs, and how they become a checkpoint again.

These modules know directories and rows, but neither Spark nor SQLite.
"""
