"""Our totals per key, on recovery partitions: a `stateful` step with a plain Python function, a `stateful_arrow` step
with one of Arrow and NumPy, or declared with `aggregate`."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.contenders.changed_rows import Changes
from benchmarks.contenders.owners import serving
from benchmarks.contenders.readers import watching
from benchmarks.harness import machine
from benchmarks.harness.processes import spent
from recovery import (
    DiscardSink,
    Flow,
    GroupState,
    RecoveryConfig,
    aggregate,
    init_partitions,
    run,
    stateful,
    stateful_arrow,
)
from recovery.aggregates import count, sum_
from recovery.spark.jvm.session import create_session
from recovery.storage.snapshot import snapshot_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEP = "totals"
OUTPUT = "key string, n long, total long"


def totals(key: str, rows: list[Any], state: GroupState) -> Iterator[tuple[str, int, int]]:
    """The step's function."""
    n, total = state.get if state.exists else (0, 0)
    for row in rows:
        n += 1
        total += row.value
    state.update([n, total])
    yield key, n, total


def totals_arrow(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The function of the vectorised step."""
    sums = np.add.reduceat(rows["value"].to_numpy(), states["_start"])
    new = pa.table({
        "key": states["key"],
        "n": pc.add(states["n"].fill_null(0), states["_rows"]),
        "total": pc.add(states["total"].fill_null(0), pa.array(sums)),
    })  # fmt: skip
    return new, new


STEPS = {
    "python": stateful(STEP, key="key", update=totals, output=OUTPUT),
    "quarantine": stateful(STEP, key="key", update=totals, output=OUTPUT, on_error="quarantine"),
    "arrow": stateful_arrow(STEP, key="key", update=totals_arrow, state_schema="n long, total long", output=OUTPUT),
    "aggregate": aggregate(STEP, key="key", n=count(), total=sum_("value")),
}


def events(lines: DataFrame) -> DataFrame:
    """Lines `key,value` as columns."""
    from pyspark.sql import functions as F

    return lines.select(
        F.substring_index("value", ",", 1).alias("key"), F.substring_index("value", ",", -1).cast("long").alias("value")
    )


def step(lines: DataFrame, kind: str = "python") -> DataFrame:
    """Lines `key,value` to running totals per key, by one of STEPS."""
    return events(lines).transform(STEPS[kind])


def write(batch: DataFrame, batch_id: int) -> None:
    """A function as the sink: it reads the batch once, and keeps nothing."""
    batch.write.format("noop").mode("overwrite").save()


def files_flow(files: str, kind: str = "python", batch_files: int = 1) -> Flow:
    """The flow over Spark's file source, so many files a micro-batch."""

    def build(spark: SparkSession) -> DataFrame:
        return step(spark.readStream.option("maxFilesPerTrigger", batch_files).text(files), kind)

    return Flow("keyed", build, DiscardSink())


def appended_flow(path: str, batch_bytes: int) -> Flow:
    """The flow over our own source."""

    def build(spark: SparkSession) -> DataFrame:
        return step(spark.readStream.format("appended").option("maxBytesPerTrigger", batch_bytes).load(path))

    return Flow("keyed", build, DiscardSink())


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """Runs the flow over all input; seconds from a ready session to a closed last epoch."""
    directory = Path("recovery")
    init_partitions(directory, arguments["partitions"])
    if arguments["appended"]:
        flow = appended_flow(arguments["one_file"], arguments["batch_bytes"])
    else:
        flow = files_flow(arguments["files"], arguments["step"])
    if arguments.get("function"):
        flow = Flow(flow.name, flow.build, write)
    changes = Changes() if arguments.get("changes") else None
    if changes:
        flow = Flow(flow.name, flow.build, changes.write)
    spark = create_session(flow.name, master=arguments["master"], conf=arguments["conf"])

    pages = arguments.get("pages", 0)
    with watching(directory, pages) as watched, serving(directory, arguments.get("owners", 0)) as reaching:
        started_s = time.perf_counter()
        interval_s = arguments["interval_s"]
        config = None
        if interval_s is not None:
            config = RecoveryConfig(
                directory, snapshot_interval=interval_s, backup_interval=arguments["backup_s"],
                replicate=arguments.get("replicate"), **reaching,
            )  # fmt: skip
        ended_before_s, before = _ended_children_s(), spent()
        server_s, readers_s = watched.server_cpu_s(), watched.readers_cpu_s()
        summary = run(flow, config, spark=spark)
        seconds, used = time.perf_counter() - started_s, spent() - before
        server_s, readers_s = watched.server_cpu_s() - server_s, watched.readers_cpu_s() - readers_s
        steady = changes.steady() if changes else {}
        # The JVM and its workers go on: the process that ships is all that has ended.
        shipping_s = _ended_children_s() - ended_before_s

    found = versions(spark)
    spark.stop()
    wrong = None
    if config:
        write_totals(directory, Path(arguments["totals"]))
    elif summary.states != arguments["touched"]:
        wrong = f"wrote {summary.states} states instead of {arguments['touched']}"
    return {
        "wrong": wrong,
        "seconds": seconds,
        "run_cpu_s": used.cpu_s,
        "server_cpu_s": server_s,
        "readers_cpu_s": readers_s,
        **steady,
        "batches": summary.batches,
        "epochs": summary.epochs,
        "snapshot_s": summary.snapshot_s,
        "replica": summary.replica,
        "shipping_s": shipping_s,
        "looks": watched.looks,
        "versions": found,
        "state_bytes": sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()),
    }


def _ended_children_s() -> float:
    """Processor time of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def versions(spark: SparkSession) -> dict[str, str]:
    """Of what ran."""
    return {
        **machine.versions("pyspark", "pyarrow"),
        "java": spark._jvm.java.lang.System.getProperty("java.version"),
    }


def write_totals(directory: Path, target: Path) -> None:
    """The newest snapshot: the run may end with epochs that are only logged."""
    target.mkdir()
    with (target / "part-0.csv").open("w") as file:
        for each in snapshot_at(directory).states(STEP):
            state = json.loads(each.value)
            n, total = (state["n"], state["total"]) if isinstance(state, dict) else state
            file.write(f"{each.key},{n},{total}\n")
