"""Registration of the format `recovery`, so that it can also read what only the driver's process can give it."""

from __future__ import annotations

from importlib.util import find_spec

from pyspark.sql import SparkSession

from recovery.config import RecoveryConfig
from recovery.errors import ConfigurationError
from recovery.spark.clusters import TaskServing
from recovery.spark.jvm import versions
from recovery.spark.jvm.connect_sessions import check_classic
from recovery.spark.jvm.installed import installed_version
from recovery.spark.sources.driver_relay import address_for
from recovery.spark.sources.state_source import RecoveryDataSource


def register(spark: SparkSession, config: RecoveryConfig | None = None) -> None:
    """Register `format("recovery")` in this session, so that it can read the state of Spark's own operators, for which
    it asks this process, and so that executors on other hosts can read the state of steps. For everything else, Spark
    finds it and `format("appended")` by itself if the package is installed.

    config: its `serve_at`, `owner_deadline` and certificates say how executors reach this host; the port is a free one.
    None: as before, or by default.
    """
    register_serving(spark, None if config is None else TaskServing.of(config).at_a_free_port())


def register_serving(spark: SparkSession, serving: TaskServing | None) -> None:
    """Register the formats. serving: how executors on other hosts reach this process, None: by default."""
    check_classic(spark)
    if not versions.REPLACES_FORMATS and find_spec("pyspark_recovery") is not None:
        raise ConfigurationError(
            f'PySpark {installed_version()} has found format("recovery") by itself, and lets no session register it',
            cause="Only a registered one can ask this process, for state of Spark's own operators and on a cluster.",
            remedy="Read that state with native_state. On a cluster, and for the format, use PySpark 4.1 or newer.",
        )
    spark.dataSource.register(RecoveryDataSource.of(address_for(spark, serving)))
