"""The format `recovery`, which reads the partitions, with what it needs to read the state of Spark's own operators."""

from __future__ import annotations

from pyspark.sql import SparkSession

from recovery.spark.sources.driver_relay import address_for
from recovery.spark.sources.state_source import RecoveryDataSource


def register(spark: SparkSession) -> None:
    """Let `format("recovery")` in this session read the state of Spark's own operators, too, which it asks this process
    for. For all else Spark finds it and `format("appended")` by itself, where the package is installed."""
    spark.dataSource.register(RecoveryDataSource.of(address_for(spark)))
