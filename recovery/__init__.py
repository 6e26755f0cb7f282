"""Recovery partitions for PySpark."""
