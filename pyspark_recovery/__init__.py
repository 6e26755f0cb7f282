"""Where Spark looks for data sources that were installed with pip: modules whose names begin with `pyspark_`."""

from recovery.spark.sources.state_source import RecoveryDataSource as DefaultSource

__all__ = ["DefaultSource"]
