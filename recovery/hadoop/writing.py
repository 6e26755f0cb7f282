"""Write a frame's rows as files, each under a name that only one attempt of one task uses.

Spark's FileStreamSink does that: nothing is renamed, and a task that succeeds reports its files to the driver with
their sizes. What other attempts leave is not reported. A rename of each task's directory, as Spark's other way to write
files has, is neither atomic on an object store, nor complete where the driver does not see the disks of the tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REPORTS = "_spark_metadata"
"""The directory beside the files with the reports of the tasks."""
REPORT_NAMES = ("0", "0.compact")
_CLASSES = {"parquet": "parquet.ParquetFileFormat", "json": "json.JsonFileFormat", "csv": "csv.CSVFileFormat"}
_MOST_TASKS = 1 << 20


class _Report(msgspec.Struct):
    path: str
    size: int


def write_files(frame: DataFrame, address: str, format: str, options: Mapping[str, str]) -> None:
    """Write the rows into a directory that is missing or empty. Raises Spark's errors.

    address: with the scheme of its file system. format: "parquet", "json" or "csv".
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
        convert.toSeq([]).toList(),
        convert.toScalaMap(dict(options)),
    ).addBatch(0, frame._jdf)


def reported(content: bytes) -> dict[str, int]:
    """Return the files by name, with their sizes in bytes, from the content of a file of `REPORTS`. Raises ValueError
    if it is not what Spark writes."""
    version, *lines = content.split(b"\n")
    if version != b"v1":
        raise ValueError(f"version {version[:40]!r}")
    each = (msgspec.json.decode(line, type=_Report) for line in lines if line)
    return {PurePath(report.path).name: report.size for report in each}


def host_of_task(frame: DataFrame, file: str) -> str | None:
    """Return the host where the task ran that wrote a file in the newest job of this thread's group; None if it is not
    known."""
    number = file.removeprefix("part-").partition("-")[0]
    with suppress(Exception):
        # Spark's own records, which may be gone: this only makes an error clearer.
        context: Any = frame.sparkSession.sparkContext
        tracker = context.statusTracker()
        jobs = tracker.getJobIdsForGroup(context.getLocalProperty("spark.jobGroup.id"))
        stage = max(tracker.getJobInfo(max(jobs)).stageIds)
        tasks = context._jsc.sc().statusStore().taskList(stage, 0, _MOST_TASKS)
        found = [tasks.apply(i) for i in range(tasks.size())]
        hosts = {str(task.host()) for task in found if task.index() == int(number) and task.status() == "SUCCESS"}
        return ", ".join(sorted(hosts)) or None
    return None
