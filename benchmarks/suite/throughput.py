"""Totals per key over a large input: ours, Spark's own aggregation, Bytewax; all keep their state.

Every contender reads the same lines `key,value` and keeps count and sum per key in state that survives a
crash: ours and Bytewax with a Python function and a snapshot every --interval seconds (ours-arrow with a function of
Arrow tables, ours-aggregate declared), Spark with compiled code and a checkpoint every micro-batch. Contenders on
Spark read equal micro-batches. What each kept is compared with the truth before its time counts.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks import keyed_lines
from benchmarks.harness import environments, table
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement, Rounds

BASELINE = "ours"
NAMES = (
    "ours",
    "ours-appended",
    "ours-arrow",
    "ours-aggregate",
    "spark-rocksdb",
    "spark-hdfs",
    "bytewax-processes",
    "bytewax-threads",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--events", type=int, default=10_000_000, help="lines of input (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=1_000_000, help="different keys (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=20, help="micro-batches, equal in size (default: %(default)s)")
    parser.add_argument(
        "--interval", type=float, default=10, help="snapshot interval in seconds (default: %(default)s)"
    )
    parser.add_argument("--cores", type=int, default=2, help="tasks, partitions and workers (default: %(default)s)")
    parser.add_argument("--driver-memory", default="4g", help="of each JVM (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the input (default: %(default)s)")
    parser.add_argument(
        "--contenders",
        type=contender_names,
        default=NAMES,
        help=f"comma-separated: {', '.join(NAMES)} (default: all)",
    )


def contender_names(text: str) -> tuple[str, ...]:
    """Names of contenders, from the command line. Raises argparse.ArgumentTypeError."""
    names = tuple(dict.fromkeys(text.split(",")))
    unknown = set(names) - set(NAMES)
    if unknown:
        raise argparse.ArgumentTypeError(f"no contender {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    return names


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    shape = keyed_lines.Shape(arguments.events, arguments.keys, arguments.batches, arguments.seed)
    venvs = arguments.work / "venvs"
    contenders = [_contender(name, shape, arguments, venvs) for name in arguments.contenders]
    lines = keyed_lines.generate(shape, arguments.work / "inputs")
    for contender in contenders:
        contender.arguments.update(files=str(lines.files_directory), one_file=str(lines.one_file))

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        batches = answer.get("batches", shape.files)
        if batches != shape.files:
            return f"read {batches} micro-batches instead of {shape.files}"
        wrong = keyed_lines.check(lines, directory / contender.arguments["totals"])
        return f"wrong totals: {wrong}" if wrong else None

    rounds = Rounds(
        arguments.repeat,
        arguments.work / "runs",
        environments.java_environment(),
        arguments.timeout,
        arguments.keep,
    )
    measurements = rounds.measure(contenders, check)
    return report(arguments, measurements)


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


def _contender(name: str, shape: keyed_lines.Shape, arguments: argparse.Namespace, venvs: Path) -> Contender:
    kind, _, variant = name.partition("-")
    peer = {"spark": environments.SPARK, "bytewax": environments.BYTEWAX}.get(kind)
    python = environments.python_of(peer, venvs) if peer else environments.own_python()
    module = {"ours": "recovery_totals", "spark": "spark_totals", "bytewax": "bytewax_totals"}[kind]
    given: dict[str, Any] = {
        "interval_s": arguments.interval,
        "partitions": arguments.cores,
        "workers": arguments.cores,
        "master": f"local[{arguments.cores}]",
        "conf": {
            "spark.driver.memory": arguments.driver_memory,
            "spark.sql.shuffle.partitions": str(arguments.cores),
        },
        "batch_bytes": shape.file_bytes,
        "totals": "totals",
        "appended": variant == "appended",
        "step": variant if variant in ("arrow", "aggregate") else "python",
        "rocksdb": variant == "rocksdb",
        "processes": variant == "processes",
    }
    return Contender(name, python, f"benchmarks.contenders.{module}:measure", given)
