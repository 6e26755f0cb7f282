"""The formats of this package in a session: `appended` to read growing files, `recovery` to read the partitions."""

from __future__ import annotations

from pyspark.sql import SparkSession

from recovery.spark.appended import AppendedDataSource
from recovery.spark.relay import address_for
from recovery.spark.state_source import RecoveryDataSource


def register(spark: SparkSession) -> None:
    """Make `format("appended")` and `format("recovery")` known to a session; `run` and `start` do it for theirs."""
    spark.dataSource.register(AppendedDataSource)
    spark.dataSource.register(RecoveryDataSource.of(address_for(spark)))
