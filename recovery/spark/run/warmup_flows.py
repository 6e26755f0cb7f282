"""`python -m recovery.spark.run.warmup_flows JAVA_OPTIONS [--profile]`: run flows to their end, for `make_archive`.

The flows do what most flows do, so that the JVM loads the classes that most flows need: they read growing files and a
table of lines, keep state in steps and in an operator of Spark's own, close epochs, and resume. `--profile` adds flows
with small and with large micro-batches, which show the JVM which methods are worth compiling. Prints the JVM's class
path and module options as JSON, and ends when the JVM has ended.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recovery.aggregates import count, sum_
from recovery.config import RecoveryConfig
from recovery.flow import Flow
from recovery.group_state import GroupState
from recovery.sinks import DiscardSink
from recovery.spark.jvm.session import create_session
from recovery.spark.run.blocking import run
from recovery.spark.steps.aggregate import aggregate
from recovery.spark.steps.stateful import stateful
from recovery.storage.initialize import init_partitions

_EXIT_S = 120
_WORK = (("small", 40, 100, 50), ("large", 6, 250_000, 20_000))
"""Micro-batches: name of their size, how many, lines in each, number of keys."""


def main(java_options: str, profile: bool = False) -> None:
    """Run the flows, as the module's docstring describes."""
    spark: SparkSession = create_session(
        "warmup", master="local[2]", conf={"spark.driver.extraJavaOptions": java_options}
    )
    with tempfile.TemporaryDirectory(prefix="recovery-warmup-") as name:
        home = Path(name)
        (home / "input").mkdir()
        for flow, directory in ((_steps(home / "input"), home / "steps"), (_windows(home / "input"), home / "windows")):
            init_partitions(directory, 2)
            for number in range(2):
                (home / "input" / f"{flow.name}-{number}.csv").write_text(_lines(100, 10))
                run(flow, RecoveryConfig(directory, snapshot_interval=0, backup_interval=0), spark=spark)
        if profile:
            _work(spark, home)
    java: Any = spark._jvm
    given = java.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    facts = {
        "class_path": java.System.getProperty("java.class.path"),
        "module_options": [str(option) for option in given if str(option).startswith("--")],
    }
    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_EXIT_S)
    print(json.dumps(facts))


def _work(spark: SparkSession, home: Path) -> None:
    """Run a step and an aggregation over small micro-batches, then over large ones."""
    for size, files, lines, keys in _WORK:
        (home / size).mkdir()
        for number in range(files):
            (home / size / f"{number}.csv").write_text(_lines(lines, keys))
        for name, step in (("totals", _totals), ("sums", _sums)):
            directory = home / f"{size}-{name}"
            init_partitions(directory, 2)
            flow = Flow(directory.name, partial(_files, home / size, step), DiscardSink())
            run(flow, RecoveryConfig(directory, snapshot_interval=0, backup_interval=0), spark=spark)


def _files(path: Path, step: Callable[[DataFrame], DataFrame], spark: SparkSession) -> DataFrame:
    return spark.readStream.option("maxFilesPerTrigger", 1).text(str(path)).select(*_columns()).transform(step)


def _lines(count_: int, keys: int) -> str:
    return "".join(f"key-{number % keys},{number},2026-01-01T00:{number % 60:02}:00\n" for number in range(count_))


def _steps(path: Path) -> Flow:
    def build(spark: SparkSession) -> DataFrame:
        events = spark.readStream.format("appended").load(str(path)).select(*_columns())
        return events.transform(_totals).transform(aggregate("sums", key="key", rows=count(), n=sum_("n")))

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


_totals = stateful("totals", key="key", update=_update, output="key string, n long")
_sums = aggregate("sums", key="key", rows=count(), total=sum_("value"))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "", "--profile" in sys.argv[2:])
