"""Registration of the format `recovery`, so that it can also read the state of Spark's own operators."""

from __future__ import annotations

from pyspark.sql import SparkSession

from recovery.spark.jvm.connect_sessions import check_classic
from recovery.spark.sources.driver_relay import address_for
from recovery.spark.sources.state_source import RecoveryDataSource


def register(spark: SparkSession) -> None:
    """Register `format("recovery")` in this session, so that it can read the state of Spark's own operators, for which
    it asks this process. For everything else, Spark finds it and `format("appended")` by itself if the package is
    installed."""
    check_classic(spark)
    spark.dataSource.register(RecoveryDataSource.of(address_for(spark)))
