"""Totals per key over a large input: ours, Spark's own, Bytewax; all keep their state.

Every contender reads the same lines `key,value` and keeps count and sum per key in state that survives a crash. Ours
and Bytewax do so with a Python function and a snapshot every --interval seconds: ours-readme as people write it first,
with a function as the sink, over `format("appended")`; ours over Spark's text source, without output, as Spark's own;
ours-function and ours-appended with one of the two; ours-arrow with a function of Arrow tables; ours-aggregate is
declared; ours-owners is ours with its partitions at two owners, processes of this host. Spark has compiled code, its
aggregation or a function in Java, and a checkpoint every micro-batch. Contenders on Spark read equal micro-batches.
What each kept is compared with the truth before its time counts.
"""

from __future__ import annotations

import argparse

from benchmarks import keyed, keyed_lines
from benchmarks.harness import table
from benchmarks.harness.glance import Compared
from benchmarks.harness.pictures import bars
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Measurement

BASELINE = "ours"
SIZES = (
    (),
    ("--keys", "1_000"),
    ("--events", "20_000_000", "--keys", "10_000_000", "--batches", "40"),
)
COMPARED = {"ours-readme": "the README's flow", "ours-aggregate": "declared with aggregate"}
"""The contenders with recovery partitions that RESULTS.md begins with."""
SESSION = (
    (1, (
        "--events", "5_000_000", "--keys", "500_000", "--batches", "10", "--repeat", "2", "--contenders",
        "ours-readme,ours-function,ours-appended,ours,ours-aggregate,spark-rocksdb,spark-hdfs,spark-java,bytewax-processes",
    )),
    (4, (
        "--events", "5_000_000", "--keys", "1_000", "--batches", "10", "--repeat", "1", "--contenders",
        "ours-readme,ours,ours-aggregate,spark-rocksdb,spark-java,bytewax-processes",
    )),
)  # fmt: skip
QUICK = ("--events", "200_000", "--keys", "20_000", "--batches", "4")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    keyed.add_size(parser, events=10_000_000, keys=1_000_000, batches=20)
    parser.add_argument(
        "--interval", type=float, default=10, help="snapshot interval in seconds (default: %(default)s)"
    )
    parser.add_argument("--cores", type=int, default=2, help="tasks, partitions and workers (default: %(default)s)")
    parser.add_argument("--driver-memory", default="4g", help="of each JVM (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the input (default: %(default)s)")
    keyed.add_contenders(parser, keyed.NAMES)


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    shape = keyed_lines.Shape(arguments.events, arguments.keys, arguments.batches, arguments.seed)
    lines = keyed_lines.generate(shape, arguments.work / "inputs")
    setting = keyed.Setting(arguments.interval, cores=arguments.cores, driver_memory=arguments.driver_memory)
    contenders = [keyed.contender(name, lines, setting, arguments.work) for name in arguments.contenders]
    return report(
        arguments, keyed.rounds(arguments).measure(contenders, keyed.checked({str(lines.files_directory): lines}))
    )


def report(arguments: argparse.Namespace, measurements: list[Measurement]) -> Report:
    """The table of what was measured."""
    summaries = table.summarise(measurements)
    baseline = next((s.seconds for s in summaries if s.contender == BASELINE), None)
    rows = []
    for each in summaries:
        middle = each.seconds
        rows.append(
            (
                each.contender,
                table.seconds(middle),
                table.spread(run.seconds for run in each.runs),
                table.ratio(middle, baseline),
                table.count(arguments.events / middle if middle else None),
                table.seconds(each.middle(lambda run: run.usage.total_s)),
                table.seconds(each.middle(lambda run: run.usage.cpu_s)),
                table.mebibytes(each.middle(lambda run: run.usage.python_rss_bytes)),
                table.mebibytes(each.middle(lambda run: run.usage.java_rss_bytes)),
                table.mebibytes(each.middle(lambda run: run.answer["state_bytes"])),
                "correct" if each.problem is None else "WRONG" if each.problem.startswith("wrong") else "failed",
            )
        )
    return Report(
        name="throughput",
        compared=_compared(arguments, summaries),
        title=f"throughput: {arguments.events:,} events over {arguments.keys:,} keys",
        picture=bars(
            f"{arguments.events:,} events over {arguments.keys:,} keys, state kept",
            "seconds; less is better",
            [(each.contender, each.seconds) for each in summaries],
        ),
        headers=(
            "contender",
            "median s",
            "spread s",
            "× ours",
            "events/s",
            "with start s",
            "CPU s",
            "Python MiB",
            "JVM MiB",
            "kept MiB",
            "state",
        ),
        rows=rows,
        measurements=measurements,
        notes=[
            f"{arguments.events:,} events over {arguments.keys:,} keys in {arguments.batches} equal files; "
            f"{arguments.cores} tasks, partitions or workers; snapshot interval {arguments.interval:g} s (Spark's own "
            "state stores: every micro-batch).",
            f"Medians over {arguments.repeat} interleaved rounds. Measured from a ready session, or imported workers, "
            "to the end of the input with all state kept; `with start s` is the whole process, CPU s is of the "
            "whole process too, reading the state back included.",
            "MiB of memory are the highest sums of resident sizes, of Python's processes and of the JVM; kept MiB is "
            "what state and positions take on disk at the end.",
        ],
    )


def _compared(arguments: argparse.Namespace, summaries: list[table.Summary]) -> list[Compared]:
    """Each of COMPARED that took part, beside all peers."""
    size = f"{arguments.events:,} events over {arguments.keys:,} keys"
    cpu_s = {each.contender: each.correct(lambda run: run.usage.cpu_s) for each in summaries}
    peers = [each for each in summaries if each.contender.startswith(tuple(keyed.PEERS))]
    return [
        Compared(
            f"{size}, {COMPARED[ours.contender]}",
            f"{table.seconds(ours.seconds)} s",
            {
                each.contender: Compared.times(each.seconds, ours.seconds, cpu_s[each.contender], cpu_s[ours.contender])
                for each in peers
            },
        )
        for ours in summaries
        if ours.contender in COMPARED
    ]
