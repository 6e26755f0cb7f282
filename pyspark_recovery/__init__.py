"""Where Spark looks for data sources that were installed with pip: modules whose names begin with `pyspark_`."""

from recovery.spark.state_source import RecoveryDataSource as DefaultSource

__all__ = ["DefaultSource"]
