"""Sessions of Spark Connect, which flows cannot use."""

from __future__ import annotations

from pyspark.sql import SparkSession

from recovery.errors import ConfigurationError


def check_classic(spark: SparkSession) -> None:
    """Raise ConfigurationError for a session of Spark Connect."""
    if not hasattr(spark, "_jsparkSession"):
        raise ConfigurationError(
            "flows, native state and register cannot use a session of Spark Connect",
            cause="Such a session reaches neither the plan of a stream nor the JVM that runs the stream.",
            remedy="Use a session of this process: SparkSession.builder.master('local[*]').getOrCreate()",
        )
