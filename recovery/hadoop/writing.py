"""Write a frame's rows as files, each under a name that only one attempt of one task uses.

Spark's FileStreamSink does that: nothing is renamed, and a task that succeeds reports its files to the driver with
their sizes. What other attempts leave is not reported. A rename of each task's directory, as Spark's other way to write
files has, is neither atomic on an object store, nor complete where the driver does not see the disks of the tasks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CLASSES = {"parquet": "parquet.ParquetFileFormat", "json": "json.JsonFileFormat", "csv": "csv.CSVFileFormat"}

_BEFORE_TASKS = re.compile(r"\tat \S*\.(?:FileStreamSinkLog|FileStreamSink)\.<init>")
_OF_ROWS = ("Traceback (most recent call last)", "[FAILED_READ_FILE", "SPARK_JOB_CANCELLED", "cancelled job group")
_CAUSE = re.compile(r"^(?:Caused by: |: )?(?P<kind>(?:[a-z]\w*\.)+\w+): (?P<said>[^\n]*)", re.MULTILINE)
_OF_FILES = (
    "java.io.", "java.nio.", "java.net.", "javax.net.", "java.lang.ClassNotFoundException", "org.apache.hadoop.",
    "com.amazonaws.", "software.amazon.", "com.azure.", "com.google.",
)  # fmt: skip
"""Packages of exceptions that a file system, or the client of an object store, raises."""


def write_files(
    frame: DataFrame, address: str, format: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
) -> None:
    """Write the rows into a directory that is missing or empty. Raises OSError if the directory cannot be written to,
    and Spark's errors for all else.

    address: with the scheme of its file system. format: "parquet", "json" or "csv". partition_by: columns whose values
    become directories instead.
    """
    # It needs Spark, and sinks are also imported without it.
    from recovery.places.hadoop import number_of

    jvm: Any = frame.sparkSession._jvm
    package, name = _CLASSES[format].split(".")
    kind = getattr(getattr(jvm.org.apache.spark.sql.execution.datasources, package), name)
    convert = jvm.org.apache.spark.api.python.PythonUtils
    streaming = jvm.org.apache.spark.sql.execution.streaming
    # Spark 4.1 gave the sinks a package of their own.
    sinks = streaming if frame.sparkSession.version.startswith("4.0.") else streaming.sinks
    try:
        sinks.FileStreamSink(
            frame.sparkSession._jsparkSession,
            address,
            kind(),
            convert.toSeq(list(partition_by)).toList(),
            convert.toScalaMap(dict(options)),
        ).addBatch(0, frame._jdf)
    except Exception as error:
        stack = getattr(error, "_stackTrace", None)
        said = not_written(f"{error}\n{stack}" if isinstance(stack, str) else str(error))
        if said is None:
            raise
        raise OSError(number_of(*said), ": ".join(said), address) from error


def not_written(text: str) -> tuple[str, str] | None:
    """Return what a file system says according to the text of a job that could not write: a Java exception and its
    message. None if the job failed for another reason, such as the rows that it had to compute."""
    of_writer = "[TASK_WRITE_FAILED]" in text or _BEFORE_TASKS.search(text) is not None
    if not of_writer or any(each in text for each in _OF_ROWS):
        return None
    causes = [(found["kind"], found["said"].strip()) for found in _CAUSE.finditer(text)]
    return next((each for each in reversed(causes) if each[0].startswith(_OF_FILES)), None)
