"""Duration of small micro-batches: on plain Spark, on recovery partitions, with a Python function, with a step, and
with a function as the sink.

Each contender runs its query several times in one session, each time from the beginning. A run reads small files one a
micro-batch; a duration is what Spark reports for the whole trigger. The first micro-batches of a run are left out. The
first run tells of a stream that has just begun; the second half of the runs, together, of a stream that goes on, for
which the JVM has compiled.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import keyed, keyed_lines, micro_batches
from benchmarks.harness import table
from benchmarks.harness.pictures import bars
from benchmarks.harness.processes import spent
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement

CORES = 2
SESSION = ((8, ("--runs", "4", "--repeat", "1")),)
QUICK = ("--rows", "20", "--batches", "6", "--skip", "2", "--keys", "100", "--runs", "2")
BASELINE = "without a step"
VARIANTS: dict[str, dict[str, Any]] = {
    "plain Spark": {"plain": True, "work": "none", "interval_s": 0},
    BASELINE: {"plain": False, "work": "none", "interval_s": 10},
    "with a function": {"plain": False, "work": "function", "interval_s": 10},
    "with a step": {"plain": False, "work": "step", "interval_s": 10},
    "with a step, -s 0": {"plain": False, "work": "step", "interval_s": 0},
    "with a step, to a function": {"plain": False, "work": "step", "interval_s": 10, "function": True},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--rows", type=int, default=100, help="lines in a micro-batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=80, help="micro-batches of a run (default: %(default)s)")
    parser.add_argument("--skip", type=int, default=20, help="of them not counted (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=10, help="of the same in one session (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=10_000, help="different keys (default: %(default)s)")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    micro_batches.check_skip(arguments)
    if arguments.runs < 1:
        raise SystemExit("--runs must be at least 1")
    shape = keyed_lines.Shape(arguments.rows * arguments.batches, arguments.keys, arguments.batches)
    lines = keyed_lines.generate(shape, arguments.work / "inputs")
    contenders = micro_batches.contenders(
        __name__, VARIANTS, lines.files_directory, skip=arguments.skip, runs=arguments.runs
    )

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        every_batch = contender.arguments["interval_s"] == 0 and not contender.arguments["plain"]
        for number, (batches, epochs) in enumerate(zip(answer["batches"], answer["epochs"], strict=True)):
            if batches != arguments.batches:
                return f"read {batches} micro-batches instead of {arguments.batches}"
            if every_batch and epochs != arguments.batches:
                return f"closed {epochs} epochs instead of {arguments.batches}"
            if contender.arguments["work"] == "step":
                wrong = keyed_lines.check(lines, directory / f"{contender.arguments['totals']}-{number}")
                if wrong:
                    return f"wrong totals: {wrong}"
        return None

    return report(arguments, keyed.rounds(arguments).measure(contenders, check))


def report(arguments: argparse.Namespace, measurements: Sequence[Measurement]) -> Report:
    """The table of what was measured."""
    summaries = table.summarise(measurements)
    first = {each.contender: each.middle(lambda run: run.answer["first_s"]) for each in summaries}
    baseline = next((s.seconds for s in summaries if s.contender == BASELINE), None)
    return Report(
        name="latency",
        picture=bars(
            f"A micro-batch of {arguments.rows} rows",
            "milliseconds; less is better",
            [(each.contender, each.seconds and each.seconds * 1000) for each in summaries],
        ),
        headers=(
            "micro-batches",
            "at first ms",
            "×",
            "median ms",
            "spread of medians ms",
            "95 % ms",
            "×",
            "CPU ms",
            "state",
        ),
        rows=[
            (
                each.contender,
                table.milliseconds(first[each.contender]),
                table.ratio(first[each.contender], first.get(BASELINE)),
                table.milliseconds(each.seconds),
                table.spread((run.seconds for run in each.runs), table.milliseconds),
                table.milliseconds(each.middle(lambda run: run.answer["high_s"])),
                table.ratio(each.seconds, baseline),
                table.milliseconds(each.middle(lambda run: run.answer["cpu_s"])),
                "correct" if each.problem is None else "failed",
            )
            for each in summaries
        ],
        measurements=measurements,
        notes=[
            f"{arguments.batches} micro-batches of {arguments.rows} rows, the first {arguments.skip} not counted, "
            f"{arguments.runs} times in one session: of the first time `at first`, of the second half of the times the "
            "others; CPU ms of all processes, for each micro-batch of these, the start of each run included. Medians "
            f"over {arguments.repeat} interleaved rounds; × is against `{BASELINE}`.",
            "`-s 0` closes an epoch, durably, after every micro-batch; the others every 10 s. Plain Spark writes the "
            "same query to the same sink without recovery partitions. `with a function`: the lines taken apart, as for "
            "the step, and given to a Python function by `mapInArrow`, which keeps nothing. `to a function`: the sink "
            "is a function that collects the rows; that of the others drops them.",
        ],
    )


def _given(batches: Iterator[Any]) -> Iterator[Any]:
    """A function without state."""
    yield from batches


def _collect(batch: Any, batch_id: int) -> None:
    """A function as the sink."""
    batch.collect()


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child: runs one of the variants."""
    from benchmarks.contenders.recovery_totals import events, step, versions, write_totals
    from recovery import DiscardSink, Flow, RecoveryConfig, init_partitions, start
    from recovery.spark.jvm.session import create_session

    spark = create_session(
        "latency", master=f"local[{CORES}]", conf={"spark.sql.streaming.numRecentProgressUpdates": "100000"}
    )
    sink: Any = _collect if arguments.get("function") else DiscardSink()

    def build(session: Any) -> Any:
        lines = session.readStream.option("maxFilesPerTrigger", 1).text(arguments["files"])
        if arguments["work"] == "step":
            return step(lines)
        return lines if arguments["work"] == "none" else events(lines).mapInArrow(_given, "key string, value long")

    durations_s: list[list[float]] = []
    epochs: list[int] = []
    for number in range(arguments["runs"]):
        if number == arguments["runs"] // 2:
            before = spent()
        query: Any
        if arguments["plain"]:
            writer = build(spark).writeStream.foreachBatch(sink.write).trigger(availableNow=True)
            query = writer.option("checkpointLocation", f"file:{Path(f'checkpoint-{number}').absolute()}").start()
            query.awaitTermination()
            epochs.append(0)
        else:
            directory = Path(f"recovery-{number}")
            init_partitions(directory, CORES)
            config = RecoveryConfig(directory, snapshot_interval=arguments["interval_s"])
            running = start(Flow("latency", build, sink), config, spark=spark, trigger="available-now")
            query = running.streaming_query
            running.await_termination()
            epochs.append(running.summary.epochs)
        durations_s.append(micro_batches.durations_s(query))
    used = spent() - before
    found = versions(spark)
    spark.stop()
    if arguments["work"] == "step":
        for number in range(arguments["runs"]):
            write_totals(Path(f"recovery-{number}"), Path(f"{arguments['totals']}-{number}"))
    counted = [each[arguments["skip"] :] for each in durations_s]
    measured_batches = sum(len(each) for each in durations_s[arguments["runs"] // 2 :])
    later = list(chain.from_iterable(counted[len(counted) // 2 :]))
    return {
        "seconds": median(later),
        "first_s": median(counted[0]),
        "cpu_s": used.cpu_s / measured_batches,
        "high_s": micro_batches.high_s(later),
        "durations_s": durations_s,
        "batches": [len(each) for each in durations_s],
        "epochs": epochs,
        "versions": found,
    }
