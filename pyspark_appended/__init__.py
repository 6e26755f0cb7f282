"""Where Spark finds `format("appended")`: see pyspark_recovery."""

from recovery.spark.sources.appended import AppendedDataSource as DefaultSource

__all__ = ["DefaultSource"]
