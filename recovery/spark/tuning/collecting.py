"""Pass rows from the JVM to the driver's Python, and back, through a temporary file.

PySpark's `toArrow` and `createDataFrame` for that take 20 and 5 ms longer for a thousand rows: they first make a frame
of a plan, a thread and a socket, and look at every type. Collecting is a part of merging, and has no switch of its own.
"""

from __future__ import annotations

import tempfile
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from recovery.spark.jvm.java_sources import new
from recovery.spark.jvm.session import is_on
from recovery.spark.jvm.versions import to_arrow_schema


class Collector:
    """Takes rows out of one session's JVM."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._collecting = new(spark, "Collecting")

    def collect(self, plan: Any) -> list[pa.RecordBatch]:
        """Run a physical plan, and return all its rows, as Spark gives them to Python functions."""
        zone = self._spark.conf.get("spark.sql.session.timeZone")
        with tempfile.NamedTemporaryFile(prefix="recovery-rows-") as file:
            self._collecting.collect(plan, zone, file.name)
            read = file.read()
        return pa.ipc.open_stream(read).read_all().to_batches() if read else []

    def count(self, exchange: Any, most_bytes: int) -> int:
        """Run what is below an exchange, and return the number of rows, or the greatest long if they have more bytes.
        The part below the exchange does not run again when its plan does."""
        return int(self._collecting.count(exchange, most_bytes))


def local_frame(spark: SparkSession, table: pa.Table, schema: T.StructType, time_zone: str) -> DataFrame:
    """Move a table into the JVM, and return a frame of its rows. The table has the columns of `schema`."""
    jvm = spark._jvm
    assert jvm is not None
    # The JVM takes the types from the session, not from the file. Buffers of other types end it by SIGSEGV.
    large = is_on(spark, "spark.sql.execution.arrow.useLargeVarTypes")
    table = table.cast(to_arrow_schema(schema, time_zone, prefers_large_types=large))
    with tempfile.NamedTemporaryFile(prefix="recovery-rows-") as file:
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
        file.flush()
        batches = jvm.PythonSQLUtils.readArrowStreamFromFile(file.name)
    return DataFrame(jvm.PythonSQLUtils.toDataFrame(batches, schema.json(), spark._jsparkSession), spark)
