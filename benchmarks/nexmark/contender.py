"""A query of Nexmark as a child process: as steps, with Spark's operators on recovery partitions, or in plain Spark.

All write each micro-batch's rows as Parquet into a directory of its own, which a repetition overwrites.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contenders.spark_totals import CONF, ROCKSDB
from benchmarks.harness.processes import SAMPLE_S, resident_bytes, spent
from benchmarks.nexmark import spark_queries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEPS, OPERATORS, SPARK, BYTEWAX = "steps", "operators", "spark-rocksdb", "bytewax"
KINDS = (STEPS, OPERATORS, SPARK)
"""The kinds that run here; Bytewax's queries run in bytewax_contender.py."""
BYTEWAX_QUERIES = (3, 7, 8, 11, 12, 17, 18, 19, 20)
PARTITIONS = 2
KILLED_S = 600.0
"""How long a process that is to be killed waits for that."""


def queries(kind: str) -> tuple[int, ...]:
    """The numbers of the queries that this kind has."""
    if kind == BYTEWAX:
        return BYTEWAX_QUERIES
    return tuple(sorted(spark_queries.QUERIES if kind != STEPS else spark_queries.QUERIES | {4: None}))


def appended(kind: str, number: int) -> bool:
    """Whether the query's rows are those of Spark's append mode."""
    return kind in (OPERATORS, SPARK) and spark_queries.QUERIES[number].mode == "append"


class Written:
    """A sink that writes each micro-batch once.

    stop_at: the micro-batch before which it waits for the end of the process; then `stopped` is set. `times_s`: when
    each micro-batch was written.
    """

    single_action = True

    def __init__(self, target: Path, stop_at: int | None = None) -> None:
        self._target = target.absolute()
        self._stop_at = stop_at
        self.stopped = threading.Event()
        self.times_s: dict[int, float] = {}

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """A foreachBatch function."""
        if batch_id == self._stop_at:
            self.stopped.set()
            threading.Event().wait(KILLED_S)
            raise TimeoutError(f"nobody has killed this process in {KILLED_S} s")
        batch.write.mode("overwrite").parquet(f"file:{self._target}/batch={batch_id}")
        self.times_s[batch_id] = time.perf_counter()


def session(kind: str, arguments: dict[str, Any]) -> SparkSession:
    """The session of a contender. Plain Spark's is Spark's own, the others' is that of `recovery run`."""
    conf = {**ROCKSDB, **arguments["conf"]}
    if kind != SPARK:
        from recovery.spark.jvm.session import create_session

        return create_session("nexmark", master=arguments["master"], conf=conf)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(arguments["master"]).appName("nexmark")
    for key, value in {**CONF, **conf}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def begin(
    spark: SparkSession, kind: str, number: int, files: str, directory: Path, sink: Written, interval_s: float
) -> Any:
    """Start the query, with its state and its position in the directory, to the end of the input."""
    if kind == SPARK:
        query = spark_queries.QUERIES[number]
        writer = query.build(spark_queries.events(spark, files)).writeStream.outputMode(query.mode)
        checkpoint = f"file:{(directory / 'checkpoint').absolute()}"
        started = writer.foreachBatch(sink.write).trigger(availableNow=True)
        return started.option("checkpointLocation", checkpoint).start()
    from benchmarks.nexmark import steps
    from recovery import RecoveryConfig, init_partitions, start

    mode = "append"
    if kind == STEPS:
        build = steps.QUERIES[number]
    else:
        build, mode = spark_queries.QUERIES[number].build, spark_queries.QUERIES[number].mode
    partitions = directory / "db"
    if not partitions.exists():
        directory.mkdir(parents=True, exist_ok=True)
        init_partitions(partitions, PARTITIONS)
    config = RecoveryConfig(partitions, snapshot_interval=interval_s)
    frame = build(spark_queries.events(spark, files))
    return start(frame, config, sink=sink, name=f"query{number}", output_mode=mode, trigger="available-now")


def finish(query: Any) -> None:
    """Wait for the end of a query; an error of it is raised."""
    (query.awaitTermination if hasattr(query, "awaitTermination") else query.await_termination)()


def killed(arguments: dict[str, Any]) -> dict[str, Any]:
    """Let every query of a kind come to the micro-batch `stop_at`, and kill this process and its JVM in it.

    Each query leaves what it has in `target`/NUMBER.
    """
    # The JVM belongs to this process's group, and the benchmark does not.
    os.setsid()
    spark = session(arguments["kind"], arguments)
    for number in arguments["queries"]:
        directory = Path(arguments["target"]) / str(number)
        sink = Written(directory / "out", arguments["stop_at"])
        query = begin(spark, arguments["kind"], number, arguments["files"], directory, sink, arguments["interval_s"])
        while not sink.stopped.wait(0.2):
            active = query.isActive if arguments["kind"] == SPARK else query.is_active
            if not active:
                finish(query)
                raise RuntimeError(f"query {number} ended before micro-batch {arguments['stop_at']}")
    os.killpg(0, signal.SIGKILL)
    raise AssertionError


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """Resume each query of the kind that was killed, to its end, and run the query once more over all input.

    `queries` of the answer: by number, what the two runs took; `problem` where a query failed.
    """
    spark = session(arguments["kind"], arguments)
    spark.sparkContext.setLogLevel("ERROR")
    started_s = time.perf_counter()
    found: dict[str, dict[str, Any]] = {}
    for number in arguments["queries"]:
        # An earlier query's garbage is not this one's memory.
        spark._jvm.java.lang.System.gc()
        try:
            found[str(number)] = {**_resumed(spark, arguments, number), **_whole(spark, arguments, number)}
        except Exception as error:
            found[str(number)] = {"problem": f"{type(error).__name__}: {error}"}
        print(f"{number} … ", end="", file=sys.stderr, flush=True)
    java = spark._jvm.java.lang.System.getProperty("java.version")
    spark.stop()
    return {
        "seconds": time.perf_counter() - started_s,
        "queries": found,
        "versions": {"python": platform.python_version(), "pyspark": version("pyspark"), "java": java},
    }


def _resumed(spark: SparkSession, arguments: dict[str, Any], number: int) -> dict[str, Any]:
    """Run what was killed to the end; `resume_s`: until the micro-batch is written in which the process was killed."""
    directory = Path("resumed", str(number))
    shutil.copytree(Path(arguments["target"], str(number)), directory)
    # What was copied is not the run's to wait for.
    os.sync()
    sink = Written(directory / "out")
    started_s = time.perf_counter()
    finish(begin(spark, arguments["kind"], number, arguments["files"], directory, sink, arguments["interval_s"]))
    os.sync()
    return {"resume_s": sink.times_s[arguments["stop_at"]] - started_s, "resumed_with": min(sink.times_s)}


def _whole(spark: SparkSession, arguments: dict[str, Any], number: int) -> dict[str, Any]:
    """Run the query over all input."""
    directory = Path("whole", str(number))
    sink = Written(directory / "out")
    with Peak() as peak:
        before, started_s = spent(), time.perf_counter()
        finish(begin(spark, arguments["kind"], number, arguments["files"], directory, sink, arguments["interval_s"]))
        seconds = time.perf_counter() - started_s
        used = spent() - before
    kept = [path for name in ("db", "checkpoint") for path in (directory / name).rglob("*") if path.is_file()]
    return {
        "seconds": seconds,
        "used_cpu_s": used.cpu_s,
        "written_bytes": used.written_bytes,
        "kept_bytes": sum(path.stat().st_size for path in kept),
        "memory_bytes": peak.bytes,
    }


class Peak:
    """The highest sum of resident sizes of this process and its descendants, sampled while the context lasts."""

    def __init__(self) -> None:
        self.bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peak", daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self.bytes = max(self.bytes, resident_bytes())
            if self._ended.wait(SAMPLE_S):
                return
