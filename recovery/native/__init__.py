"""Spark's own state in the recovery partitions, seen from outside: listed, exported, imported. Knows no Spark."""
