"""A Python function per key, beside Spark's own ways to have one. All write what changed as CSV.

The first micro-batch pays for what starts, in every contender; what counts is the steady state after it.
"""

from __future__ import annotations

import argparse

from benchmarks import keyed, keyed_lines
from benchmarks.harness import environments, table
from benchmarks.harness.glance import Compared
from benchmarks.harness.pictures import bars
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement

OURS = "ours"
PEERS = {
    "applyInPandasWithState": "pandas",
    "transformWithState": "transform",
    "transformWithStateInPandas": "transform-pandas",
}
NAMES = (OURS, *PEERS)
QUICK = ("--events", "2_000", "--keys", "1_000", "--batches", "2")
SESSION = ((2, ("--batches", "2", "--repeat", "1", "--contenders", "ours,applyInPandasWithState,transformWithState")),)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    keyed.add_size(parser, events=2_000_000, keys=200_000, batches=4)
    keyed.add_contenders(parser, NAMES)


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    if arguments.batches < 2:
        raise SystemExit("--batches must be at least 2: the first one is not counted")
    lines = keyed_lines.generate(
        keyed_lines.Shape(arguments.events, arguments.keys, arguments.batches), arguments.work / "inputs"
    )
    ours = keyed.contender(OURS, lines, keyed.Setting(), arguments.work)
    ours.arguments["changes"] = True

    def contender(name: str) -> Contender:
        if name == OURS:
            return ours
        python = environments.python_of(environments.SPARK_PANDAS, arguments.work / "venvs")
        given = {**ours.arguments, "variant": PEERS[name]}
        return Contender(name, python, "benchmarks.contenders.python_state:measure", given)

    check = keyed.checked({str(lines.files_directory): lines})
    return report(arguments, keyed.rounds(arguments).measure([contender(name) for name in arguments.contenders], check))


def report(arguments: argparse.Namespace, measurements: list[Measurement]) -> Report:
    """The table of what was measured."""
    summaries = table.summarise(measurements)
    wall_s = {each.contender: each.correct(lambda run: run.answer["steady_s"]) for each in summaries}
    cpu_s = {each.contender: each.correct(lambda run: run.answer["steady_cpu_s"]) for each in summaries}
    steady = arguments.events // arguments.batches * (arguments.batches - 1)
    ours_s = wall_s.get(OURS)
    rates = {name: steady / took_s if took_s else None for name, took_s in wall_s.items()}
    compared = Compared(
        f"a Python function per key, {arguments.keys:,} keys, steady state",
        f"{table.count(rates.get(OURS))} events/s",
        {name: Compared.times(wall_s[name], ours_s, cpu_s[name], cpu_s.get(OURS)) for name in wall_s if name != OURS},
    )
    return Report(
        name="python_state",
        headers=(
            "contender",
            "events/s",
            "steady s",
            "spread s",
            "× ours",
            "steady CPU s",
            "× ours",
            "all s",
            "with start s",
            "state",
        ),
        rows=[
            (
                each.contender,
                table.count(rates[each.contender]),
                table.seconds(wall_s[each.contender]),
                table.spread(run.answer["steady_s"] for run in each.runs),
                table.ratio(wall_s[each.contender], ours_s),
                table.seconds(cpu_s[each.contender]),
                table.ratio(cpu_s[each.contender], cpu_s.get(OURS)),
                table.seconds(each.seconds),
                table.seconds(each.middle(lambda run: run.usage.total_s)),
                "correct" if each.problem is None else "failed",
            )
            for each in summaries
        ],
        measurements=measurements,
        notes=[
            f"{arguments.events:,} events over {arguments.keys:,} keys in {arguments.batches} equal files; medians "
            f"over {arguments.repeat} interleaved rounds. Steady: from the end of the first micro-batch's output to "
            "the end of the query with all state kept, with the processor time of all processes in it. `all s` is the "
            "whole query from a ready session.",
        ],
        picture=bars("A Python function per key, steady state", "events/s; more is better", list(rates.items())),
        compared=[compared],
    )
