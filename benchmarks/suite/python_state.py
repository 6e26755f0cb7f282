"""A Python function per key, beside Spark's own: `applyInPandasWithState` and `transformWithState`.

A small input: those two take half a minute for what ours does in a second. All write what changed as CSV.
"""

from __future__ import annotations

import argparse

from benchmarks import keyed, keyed_lines
from benchmarks.harness import environments, table
from benchmarks.harness.pictures import bars
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement

OURS = "ours"
PEERS = {"applyInPandasWithState": "pandas", "transformWithState": "transform"}
QUICK = ("--events", "2_000", "--keys", "1_000", "--batches", "2")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    keyed.add_size(parser, events=200_000, keys=40_000, batches=4)


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    lines = keyed_lines.generate(
        keyed_lines.Shape(arguments.events, arguments.keys, arguments.batches), arguments.work / "inputs"
    )
    ours = keyed.contender(OURS, lines, keyed.Setting(), arguments.work)
    ours.arguments["changes"] = True
    others = [
        Contender(
            name,
            environments.python_of(environments.SPARK_PANDAS, arguments.work / "venvs"),
            "benchmarks.contenders.python_state:measure",
            {**ours.arguments, "variant": variant},
        )
        for name, variant in PEERS.items()
    ]
    check = keyed.checked({str(lines.files_directory): lines})
    return report(arguments, keyed.rounds(arguments).measure([ours, *others], check))


def report(arguments: argparse.Namespace, measurements: list[Measurement]) -> Report:
    """The table of what was measured."""
    summaries = table.summarise(measurements)
    baseline = next((s.seconds for s in summaries if s.contender == OURS), None)
    return Report(
        name="python_state",
        headers=("contender", "median s", "spread s", "× ours", "events/s", "CPU s", "state"),
        rows=[
            (
                each.contender,
                table.seconds(each.seconds),
                table.spread(run.seconds for run in each.runs),
                table.ratio(each.seconds, baseline),
                table.count(arguments.events / each.seconds if each.seconds else None),
                table.seconds(each.middle(lambda run: run.usage.cpu_s)),
                "correct" if each.problem is None else "failed",
            )
            for each in summaries
        ],
        measurements=measurements,
        notes=[
            f"{arguments.events:,} events over {arguments.keys:,} keys in {arguments.batches} equal files; medians "
            f"over {arguments.repeat} interleaved rounds. The session's first micro-batch is part of it.",
        ],
        picture=bars(
            "A Python function per key", "seconds; less is better", [(s.contender, s.seconds) for s in summaries]
        ),
    )
