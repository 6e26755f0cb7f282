"""What the JVM's libraries of table formats say about a table."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession


def delta_table_id(spark: SparkSession, path: str) -> str | None:
    """Return the id of the Delta table at a path; None if the session's Delta does not say it."""
    try:
        jvm: Any = spark._jvm
        return str(jvm.io.delta.tables.DeltaTable.forPath(spark._jsparkSession, path).detail().first().getAs("id"))
    except (Py4JError, PySparkException, TypeError):
        return None
