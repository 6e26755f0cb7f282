"""Rows that the driver takes from its JVM, and gives back to it, by way of a file among the temporary ones.

PySpark has `toArrow` and `createDataFrame` for that, which take 20 and 5 ms longer for a thousand rows: they make a
frame of a plan first, and a thread and a socket, and look at every type.
"""

from __future__ import annotations

import tempfile
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from recovery.spark.jvm.java_sources import new
from recovery.spark.jvm.session import is_on


class Collector:
    """Takes rows out of one session's JVM."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._collecting = new(spark, "Collecting")

    def collect(self, plan: Any) -> list[pa.RecordBatch]:
        """Run a physical plan, and take all its rows, as Spark gives them to Python functions."""
        zone = self._spark.conf.get("spark.sql.session.timeZone")
        with tempfile.NamedTemporaryFile(prefix="recovery-rows-") as file:
            self._collecting.collect(plan, zone, file.name)
            read = file.read()
        return pa.ipc.open_stream(read).read_all().to_batches() if read else []

    def count(self, exchange: Any) -> int:
        """Run what is below an exchange, which does not run again when its plan does; how many rows there are."""
        return int(self._collecting.count(exchange))


def local_frame(spark: SparkSession, table: pa.Table, schema: T.StructType, time_zone: str) -> DataFrame:
    """A frame of rows that the JVM has from now on. The table has the columns of `schema`."""
    jvm = spark._jvm
    assert jvm is not None
    # The JVM asks the session for the types, not the file, and takes any buffers for those: others end it by SIGSEGV.
    large = is_on(spark, "spark.sql.execution.arrow.useLargeVarTypes")
    table = table.cast(to_arrow_schema(schema, timezone=time_zone, prefers_large_types=large))
    with tempfile.NamedTemporaryFile(prefix="recovery-rows-") as file:
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
        file.flush()
        batches = jvm.PythonSQLUtils.readArrowStreamFromFile(file.name)
    return DataFrame(jvm.PythonSQLUtils.toDataFrame(batches, schema.json(), spark._jsparkSession), spark)
