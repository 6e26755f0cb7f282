"""A Spark checkpoint as rows of the recovery partitions: which of its files a query needs to go on after a micro-batch,
how they are taken while it runs, and how they become a checkpoint again.

Knows directories and rows, neither Spark nor SQLite.
"""
