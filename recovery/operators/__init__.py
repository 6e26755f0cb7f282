"""Spark's own state in the recovery partitions, from outside: listed, exported, imported. Does not use Spark."""
