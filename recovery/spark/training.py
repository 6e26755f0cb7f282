"""`python -m recovery.spark.training JAVA_OPTIONS`: one small flow from start to end, for `make_archive`.

It does what most flows do, so that the JVM needs the classes that they need: reads growing files and a table of lines,
keeps state in steps and in an operator of Spark's own, closes epochs, and resumes. Prints the JVM's class path, and
ends when the JVM has ended.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recovery.aggregates import count, sum_
from recovery.config import RecoveryConfig
from recovery.flow import Flow
from recovery.group_state import GroupState
from recovery.runner import run
from recovery.spark.aggregate import aggregate
from recovery.spark.session import create_session
from recovery.spark.step import stateful
from recovery.storage.initialize import init_partitions

_EXIT_S = 120
_LINES = "".join(f"key-{number % 10},{number},2026-01-01T00:{number % 60:02}:00\n" for number in range(100))


def main(java_options: str) -> None:
    """Run it; see the module."""
    spark: SparkSession = create_session(
        "warmup", master="local[2]", conf={"spark.driver.extraJavaOptions": java_options}
    )
    with tempfile.TemporaryDirectory(prefix="recovery-warmup-") as name:
        home = Path(name)
        (home / "input").mkdir()
        for flow, directory in ((_steps(home / "input"), home / "steps"), (_windows(home / "input"), home / "windows")):
            init_partitions(directory, 2)
            for number in range(2):
                (home / "input" / f"{flow.name}-{number}.csv").write_text(_LINES)
                run(flow, RecoveryConfig(directory, snapshot_interval=0, backup_interval=0), spark=spark)
    class_path = spark._jvm.System.getProperty("java.class.path")
    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_EXIT_S)
    print(class_path)


def _steps(path: Path) -> Flow:
    def build(spark: SparkSession) -> DataFrame:
        events = spark.readStream.format("appended").load(str(path)).select(*_columns())
        totals = events.transform(stateful("totals", key="key", update=_update, output="key string, n long"))
        return totals.transform(aggregate("sums", key="key", rows=count(), n=sum_("n")))

    return Flow("steps", build, sink=lambda batch, _: batch.count())


def _windows(path: Path) -> Flow:
    def build(spark: SparkSession) -> DataFrame:
        events = spark.readStream.text(str(path)).select(*_columns()).withWatermark("at", "1 minute")
        return events.groupBy(F.window("at", "10 minutes"), "key").agg(F.count("*").alias("n"))

    return Flow("windows", build, sink=lambda batch, _: batch.collect(), output_mode="update")


def _columns() -> list[Any]:
    parts = F.split("value", ",")
    return [
        parts.getItem(0).alias("key"),
        parts.getItem(1).cast("long").alias("value"),
        F.to_timestamp(parts.getItem(2)).alias("at"),
    ]


def _update(key: str, rows: list[Any], state: GroupState) -> Iterator[tuple[str, int]]:
    n = (state.getOption or 0) + len(rows)
    state.update(n)
    yield key, n


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
