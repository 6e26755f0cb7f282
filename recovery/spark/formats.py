"""The formats of this package in a session: `appended` to read growing files, `recovery` to read the partitions."""

from __future__ import annotations

from pyspark.sql import SparkSession

from recovery.spark.appended import AppendedDataSource
from recovery.spark.relay import address_for
from recovery.spark.state_source import RecoveryDataSource


def register(spark: SparkSession) -> None:
    """Let `format("recovery")` in this session read the state of Spark's own operators, too, which it asks this process
    for. For all else Spark finds it and `format("appended")` by itself, where the package is installed."""
    spark.dataSource.register(AppendedDataSource)
    spark.dataSource.register(RecoveryDataSource.of(address_for(spark)))
