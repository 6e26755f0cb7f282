"""Write a frame's rows as files, each under a name that only one attempt of one task uses.

Spark's FileStreamSink does that: nothing is renamed, and a task that succeeds reports its files to the driver with
their sizes. What other attempts leave is not reported. A rename of each task's directory, as Spark's other way to write
files has, is neither atomic on an object store, nor complete where the driver does not see the disks of the tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CLASSES = {"parquet": "parquet.ParquetFileFormat", "json": "json.JsonFileFormat", "csv": "csv.CSVFileFormat"}


def write_files(
    frame: DataFrame, address: str, format: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
) -> None:
    """Write the rows into a directory that is missing or empty. Raises Spark's errors.

    address: with the scheme of its file system. format: "parquet", "json" or "csv". partition_by: columns whose values
    become directories instead.
    """
    jvm: Any = frame.sparkSession._jvm
    package, name = _CLASSES[format].split(".")
    kind = getattr(getattr(jvm.org.apache.spark.sql.execution.datasources, package), name)
    convert = jvm.org.apache.spark.api.python.PythonUtils
    streaming = jvm.org.apache.spark.sql.execution.streaming
    # Spark 4.1 gave the sinks a package of their own.
    sinks = streaming if frame.sparkSession.version.startswith("4.0.") else streaming.sinks
    sinks.FileStreamSink(
        frame.sparkSession._jsparkSession,
        address,
        kind(),
        convert.toSeq(list(partition_by)).toList(),
        convert.toScalaMap(dict(options)),
    ).addBatch(0, frame._jdf)
