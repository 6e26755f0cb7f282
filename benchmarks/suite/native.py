"""Spark's own windowed aggregation: on a checkpoint of plain Spark, and with its state in recovery partitions.

Both run the same query with the same sink, trigger and state store. The keys stay in their window to the end, so the
state grows to `--keys` rows, and what an epoch takes is what its micro-batches changed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import keyed, keyed_lines
from benchmarks.contenders.spark_totals import ROCKSDB
from benchmarks.harness import environments, table
from benchmarks.harness.pictures import bars
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement

CORES = 2
STORES = {"hdfs": {}, "rocksdb": ROCKSDB}
BASELINE = "plain Spark"
QUICK = ("--events", "20_000", "--keys", "2_000", "--batches", "4", "--store", "hdfs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--events", type=int, default=8_000_000, help="lines in all (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=1_000_000, help="different keys (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=40, help="micro-batches of a run (default: %(default)s)")
    parser.add_argument("--trigger", type=float, help="seconds between micro-batches; left out: one after the other")
    parser.add_argument("-s", dest="interval", type=float, default=10, help="snapshot interval (default: %(default)s)")
    parser.add_argument("--store", choices=[*STORES, "both"], default="both", help="state store (default: %(default)s)")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    shape = keyed_lines.Shape(arguments.events, arguments.keys, arguments.batches)
    lines = keyed_lines.generate(shape, arguments.work / "inputs")
    stores = list(STORES) if arguments.store == "both" else [arguments.store]
    contenders = [
        Contender(
            f"{name}, {store}",
            environments.own_python(),
            f"{__name__}:measure",
            {
                "files": str(lines.files_directory),
                "store": store,
                "plain": name == BASELINE,
                "interval_s": arguments.interval,
                "trigger_s": arguments.trigger,
                "batches": arguments.batches,
            },
        )
        for store in stores
        for name in (BASELINE, "recovery")
    ]

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        found = answer["events"], answer["total"]
        expected = int(lines.counts.sum()), int(lines.totals.sum())
        return None if found == expected else f"events and their total are {found} instead of {expected}"

    return report(arguments, keyed.rounds(arguments).measure(contenders, check))


def report(arguments: argparse.Namespace, measurements: Sequence[Measurement]) -> Report:
    """The table of what was measured."""
    summaries = table.summarise(measurements)
    seconds = {each.contender: each.seconds for each in summaries}
    return Report(
        name="native",
        picture=bars(
            "A windowed aggregation of Spark's own",
            "seconds; less is better",
            [(each.contender, each.seconds) for each in summaries],
        ),
        headers=("query", "median s", "spread s", "×", "epochs", "partitions MiB", "result"),
        rows=[
            (
                each.contender,
                table.seconds(each.seconds),
                table.spread(run.seconds for run in each.runs),
                table.ratio(each.seconds, seconds.get(f"{BASELINE}, {each.contender.rpartition(' ')[2]}")),
                table.count(each.middle(lambda run: run.answer["epochs"]) or None),
                table.mebibytes(each.middle(lambda run: run.answer["partition_bytes"]) or None),
                "correct" if each.problem is None else "failed",
            )
            for each in summaries
        ],
        measurements=measurements,
        notes=[
            f"{arguments.events:,} events over {arguments.keys:,} keys in {arguments.batches} micro-batches, "
            f"`-s {arguments.interval:g}`; medians over {arguments.repeat} interleaved rounds; × is against plain "
            "Spark on the same state store. Seconds are from a ready session to the end of the query, the last epoch "
            "included.",
        ],
    )


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child: runs one of the contenders."""
    from pyspark.sql import functions as F

    from benchmarks.contenders.recovery_totals import versions
    from recovery import Flow, RecoveryConfig, init_partitions, start
    from recovery.spark.jvm.session import create_session

    conf = {"spark.sql.shuffle.partitions": str(CORES), **STORES[arguments["store"]]}
    spark = create_session("native", master=f"local[{CORES}]", conf=conf)
    latest: dict[str, Any] = {}

    def build(session: Any) -> Any:
        lines = session.readStream.option("maxFilesPerTrigger", 1).text(arguments["files"])
        events = lines.select(
            F.substring_index("value", ",", 1).alias("key"),
            F.substring_index("value", ",", -1).cast("long").alias("value"),
            F.timestamp_seconds(F.lit(1_700_000_000)).alias("t"),
        ).withWatermark("t", "1 hour")
        return events.groupBy(F.window("t", "1 hour"), "key").agg(
            F.count("*").alias("n"), F.sum("value").alias("total"), F.max("value").alias("highest")
        )

    def sink(batch: Any, batch_id: int) -> None:
        batch.write.format("noop").mode("overwrite").save()
        latest["batch"] = batch_id

    trigger = arguments["trigger_s"]
    directory = Path("recovery")
    epochs = 0
    started_s = time.perf_counter()
    if arguments["plain"]:
        writer = build(spark).writeStream.foreachBatch(sink).outputMode("update")
        checkpoint = f"file:{Path('checkpoint').absolute()}"
        writer = writer.option("checkpointLocation", checkpoint)
        query = _triggered(writer, trigger).start()
        _until(query, arguments["batches"], latest)
        # The sink has returned, but Spark has not committed the micro-batch yet.
        query.awaitTermination() if trigger is None else query.processAllAvailable()
        query.stop()
        seconds = time.perf_counter() - started_s
    else:
        init_partitions(directory, CORES)
        config = RecoveryConfig(directory, snapshot_interval=arguments["interval_s"])
        flow = Flow("native", build, _Exposed(sink), output_mode="update")
        running = start(flow, config, spark=spark, trigger="available-now" if trigger is None else trigger)
        _until(running.streaming_query, arguments["batches"], latest)
        running.await_termination() if trigger is None else running.stop()
        seconds = time.perf_counter() - started_s
        epochs = running.summary.epochs
    events, total = _totals(spark, arguments, directory)
    found = versions(spark)
    spark.stop()
    held = sum(path.stat().st_size for path in directory.glob("part-*")) if directory.exists() else 0
    return {
        "seconds": seconds,
        "events": events,
        "total": total,
        "epochs": epochs,
        "partition_bytes": held,
        "versions": found,
    }


class _Exposed:
    """A sink of one complete action, which needs no copy of the micro-batch."""

    single_action = True

    def __init__(self, write: Any) -> None:
        self.write = write


def _triggered(writer: Any, trigger_s: float | None) -> Any:
    if trigger_s is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{trigger_s:g} seconds")


def _until(query: Any, batches: int, latest: dict[str, Any]) -> None:
    """Wait for the last micro-batch with input."""
    while latest.get("batch", -1) < batches - 1:
        if not query.isActive:
            query.awaitTermination()
            return
        time.sleep(0.01)


def _totals(spark: Any, arguments: dict[str, Any], directory: Path) -> tuple[int, int]:
    """Events and their total as the state has them: Spark's own reader of checkpoints, on the restored one."""
    from pyspark.sql import functions as F

    from recovery.base.reserved import CHECKPOINT_STEP
    from recovery.checkpoint.restore import restore
    from recovery.storage.scan import read_step

    checkpoint = Path("checkpoint")
    if not arguments["plain"]:
        restore(read_step(sorted(directory.glob("part-*.sqlite3")), CHECKPOINT_STEP), checkpoint)
    state = spark.read.format("statestore").load(f"file:{checkpoint.absolute()}").select("value.*")
    count, total, _ = state.columns
    [row] = state.agg(F.sum(F.col(f"`{count}`")), F.sum(F.col(f"`{total}`"))).collect()
    return int(row[0]), int(row[1])
