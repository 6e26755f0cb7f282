"""The class of Spark's state store, as the session's settings name it."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from recovery.errors import UnsupportedPlanError

PROVIDER_SETTING = "spark.sql.streaming.stateStore.providerClass"
_PACKAGE = "org.apache.spark.sql.execution.streaming.state"


def check_provider(spark: SparkSession) -> None:
    """Check that Spark can load the class of its state store. Raises UnsupportedPlanError; Spark itself would fail in
    the tasks of the first micro-batch."""
    name = str(spark.conf.get(PROVIDER_SETTING))
    jvm: Any = spark._jvm
    try:
        found = jvm.org.apache.spark.util.Utils.classForName(name, False, True)
        kind = jvm.org.apache.spark.util.Utils.classForName(f"{_PACKAGE}.StateStoreProvider", False, True)
        if kind.isAssignableFrom(found):
            return
        wrong = "is not a StateStoreProvider"
    except Py4JJavaError:
        wrong = "is not a class that Spark can load"
    raise UnsupportedPlanError(
        f"Spark's state store {wrong}: {PROVIDER_SETTING}={name}",
        cause="The name is misspelt, its jar is missing, or it is a class of Python: a state store runs in the JVM.",
        remedy=f"Leave the setting out, or use {_PACKAGE}.RocksDBStateStoreProvider.",
    )
