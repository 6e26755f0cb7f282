"""Small micro-batches of a stream that holds many keys: ours against Spark's own aggregation, in sessions alike.

The first micro-batch brings every key once; each one after it a few lines, at random keys. A duration is what Spark
reports for the whole trigger; the first ones are left out, in which the JVM compiles the most. What each kept is
compared with the truth.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import keyed, keyed_lines, micro_batches
from benchmarks.contenders.spark_totals import ROCKSDB
from benchmarks.harness import table
from benchmarks.harness.glance import Compared
from benchmarks.harness.pictures import bars
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement

CORES = 2
SESSION = (
    (5, (
        "--batches", "120", "--skip", "40", "--repeat", "1", "--contenders",
        "nothing kept,ours,ours -s 0,ours-aggregate -s 0,spark-rocksdb",
    )),
)  # fmt: skip
QUICK = ("--keys", "2_000", "--rows", "100", "--batches", "6", "--skip", "2")
STORES = {
    "rocksdb": ROCKSDB,
    "rocksdb whole": {**ROCKSDB, "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false"},
    "hdfs": {},
}
BASELINE = "ours"
DURABLE = "ours -s 0"
"""It closes an epoch after every micro-batch, as Spark commits each: what RESULTS.md begins with."""
CONTENDERS: dict[str, dict[str, Any]] = {
    "nothing kept": {"step": None, "store": None},
    "ours": {"store": None, "step": "python", "interval_s": 10},
    "ours -s 0": {"store": None, "step": "python", "interval_s": 0},
    "ours-arrow": {"store": None, "step": "arrow", "interval_s": 10},
    "ours-aggregate": {"store": None, "step": "aggregate", "interval_s": 10},
    "ours-aggregate -s 0": {"store": None, "step": "aggregate", "interval_s": 0},
    "spark-rocksdb": {"step": None, "store": "rocksdb"},
    "spark-hdfs": {"step": None, "store": "hdfs"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys that are held (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=1_000, help="lines in a micro-batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=300, help="small micro-batches (default: %(default)s)")
    parser.add_argument("--skip", type=int, default=100, help="of them not counted (default: %(default)s)")
    parser.add_argument("--driver-memory", default="4g", help="of each JVM (default: %(default)s)")
    keyed.add_contenders(parser, tuple(CONTENDERS))


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    micro_batches.check_skip(arguments)
    shape = keyed_lines.Shape(arguments.rows * arguments.batches, arguments.keys, arguments.batches, held=True)
    lines = keyed_lines.generate(shape, arguments.work / "inputs")
    contenders = micro_batches.contenders(
        __name__,
        {name: CONTENDERS[name] for name in arguments.contenders},
        lines.files_directory,
        skip=arguments.skip,
        driver_memory=arguments.driver_memory,
    )

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        if answer["batches"] != arguments.batches + 1:
            return f"read {answer['batches']} micro-batches instead of {arguments.batches + 1}"
        if contender.arguments["step"] is None and contender.arguments["store"] is None:
            return None
        wrong = keyed_lines.check(lines, directory / contender.arguments["totals"])
        return f"wrong totals: {wrong}" if wrong else None

    return report(arguments, keyed.rounds(arguments).measure(contenders, check))


def report(arguments: argparse.Namespace, measurements: Sequence[Measurement]) -> Report:
    """The table of what was measured."""
    summaries = table.summarise(measurements)
    baseline = next((s.seconds for s in summaries if s.contender == BASELINE), None)
    cpu_s = {each.contender: each.correct(lambda run: run.usage.cpu_s) for each in summaries}
    return Report(
        name="trickle",
        compared=[
            Compared(
                f"a micro-batch of {arguments.rows:,} rows, {arguments.keys:,} keys held, durable after each",
                f"{table.milliseconds(each.seconds)} ms",
                {
                    peer.contender: Compared.times(
                        peer.seconds, each.seconds, cpu_s[peer.contender], cpu_s[each.contender]
                    )
                    for peer in summaries
                    if peer.contender.startswith("spark")
                },
            )
            for each in summaries
            if each.contender == DURABLE
        ],
        picture=bars(
            f"A micro-batch of {arguments.rows:,} rows, {arguments.keys:,} keys held",
            "milliseconds; less is better",
            [(each.contender, each.seconds and each.seconds * 1000) for each in summaries],
        ),
        headers=("micro-batches", "median ms", "spread of medians ms", "× ours", "95 % ms", "all s", "CPU s", "state"),
        rows=[
            (
                each.contender,
                table.milliseconds(each.seconds),
                table.spread((run.seconds for run in each.runs), table.milliseconds),
                table.ratio(each.seconds, baseline),
                table.milliseconds(each.middle(lambda run: run.answer["high_s"])),
                table.seconds(each.middle(lambda run: run.answer["all_s"])),
                table.seconds(each.middle(lambda run: run.usage.cpu_s)),
                "correct" if each.problem is None else "failed",
            )
            for each in summaries
        ],
        measurements=measurements,
        notes=[
            f"A micro-batch that brings {arguments.keys:,} keys, then {arguments.batches} of {arguments.rows:,} rows, "
            f"the first {arguments.skip} of them not counted. Medians over {arguments.repeat} interleaved rounds; "
            "`all s` is from a ready session to the end, with the first micro-batch and all state kept; CPU s is of "
            "all processes, their start included.",
            "`-s 0` closes an epoch, durably, after every micro-batch, as Spark's own state stores do; the others do "
            "every 10 s. All run in sessions that recovery starts, with the local file system of those, and give their "
            "output to a sink that drops it. `nothing kept`: the lines taken apart and dropped.",
        ],
    )


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child: runs one of the contenders."""
    from benchmarks.contenders.recovery_totals import events, files_flow, versions, write_totals
    from benchmarks.contenders.spark_totals import totals, write_states
    from recovery import DiscardSink, Flow, RecoveryConfig, init_partitions, start
    from recovery.spark.jvm.session import create_session

    conf = {
        "spark.driver.memory": arguments["driver_memory"],
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
        **(STORES[arguments["store"]] if arguments["store"] else {}),
    }
    spark = create_session("trickle", master=f"local[{CORES}]", conf=conf)
    target = Path(arguments["totals"])
    started_s = time.perf_counter()
    query: Any
    counted = micro_batches.Counted(1 + arguments["skip"]) if arguments.get("counted") else None
    sink = counted or DiscardSink()
    directory = Path("recovery")
    if arguments["step"]:
        init_partitions(directory, CORES)
        config = RecoveryConfig(
            directory,
            snapshot_interval=arguments["interval_s"],
            backup_interval=arguments.get("backup_interval_s", 0),
        )
        flow = files_flow(arguments["files"], arguments["step"])
        running = start(Flow(flow.name, flow.build, sink), config, spark=spark, trigger="available-now")
        query = running.streaming_query
        running.await_termination()
    else:
        rows = events(spark.readStream.option("maxFilesPerTrigger", 1).text(arguments["files"]))
        rows = totals(rows) if arguments["store"] else rows
        checkpoint = f"file:{Path('checkpoint').absolute()}"
        writer = rows.writeStream.outputMode("update").foreachBatch(sink.write).trigger(availableNow=True)
        query = writer.option("checkpointLocation", checkpoint).start()
        query.awaitTermination()
    all_s = time.perf_counter() - started_s
    used = counted.until_now() if counted else {}
    found = versions(spark)
    if not arguments["step"] and arguments["store"]:
        write_states(spark, checkpoint, target)
    spark.stop()
    if arguments["step"]:
        write_totals(directory, target)
    durations_s = micro_batches.durations_s(query)
    timed = durations_s[1 + arguments["skip"] :]
    kept = [directory, Path("checkpoint")]
    return {
        "seconds": median(timed),
        "high_s": micro_batches.high_s(timed),
        **used,
        "kept_bytes": sum(p.stat().st_size for each in kept for p in each.rglob("*") if p.is_file()),
        "all_s": all_s,
        "durations_s": durations_s,
        "batches": len(durations_s),
        "versions": found,
    }
