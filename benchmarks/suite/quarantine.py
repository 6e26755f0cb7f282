"""What `on_error="quarantine"` costs while no row fails: the same step beside `on_error="fail"`, in pairs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median

from benchmarks import keyed, keyed_lines
from benchmarks.harness import table
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Measurement

FAIL, QUARANTINE = "ours", "ours-quarantine"
QUICK = ("--events", "2_000", "--keys", "1_000", "--batches", "2")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    keyed.add_size(parser, events=4_000_000, keys=400_000, batches=8)


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    shape = keyed_lines.Shape(arguments.events, arguments.keys, arguments.batches)
    lines = keyed_lines.generate(shape, arguments.work / "inputs")
    contenders = [keyed.contender(name, lines, keyed.Setting(), arguments.work) for name in (FAIL, QUARANTINE)]
    check = keyed.checked({str(lines.files_directory): lines})
    return report(arguments, keyed.rounds(arguments).measure(contenders, check))


def pairs(measurements: list[Measurement], value: Callable[[Measurement], float]) -> list[float]:
    """What "fail" took of what "quarantine" took, in each round in which both were correct: 1 is no difference, less is
    a cost."""
    rounds: dict[int, dict[str, float]] = {}
    for each in measurements:
        if each.problem is None:
            rounds.setdefault(each.round, {})[each.contender] = value(each)
    return [found[FAIL] / found[QUARANTINE] for found in rounds.values() if len(found) == 2]


def report(arguments: argparse.Namespace, measurements: list[Measurement]) -> Report:
    """The table of what was measured."""
    summaries = table.summarise(measurements)
    of_wall = pairs(measurements, lambda each: each.seconds)
    of_cpu = pairs(measurements, lambda each: each.answer["run_cpu_s"])
    said = {FAIL: 'on_error="fail"', QUARANTINE: 'on_error="quarantine"'}

    def ratio(name: str, found: list[float]) -> str:
        if name == FAIL or not found:
            return "–"
        return f"{median(found):.3f} ({min(found):.3f} – {max(found):.3f})"

    return Report(
        name="quarantine",
        headers=("step", "seconds", "speed of a pair", "CPU s", "CPU speed of a pair", "state"),
        rows=[
            (
                said[each.contender],
                table.seconds(each.seconds),
                ratio(each.contender, of_wall),
                table.seconds(each.correct(lambda run: run.answer["run_cpu_s"])),
                ratio(each.contender, of_cpu),
                "correct" if each.problem is None else "failed",
            )
            for each in summaries
        ],
        measurements=measurements,
        notes=[
            f"{arguments.events:,} events over {arguments.keys:,} keys in {arguments.batches} equal files, none of "
            f"which fails; {arguments.repeat} rounds, each a pair in alternating order. Speed of a pair: what "
            '`"fail"` took, divided by what `"quarantine"` took in the same round, as the median and the range over '
            "the rounds: 1 is no difference. Processor time is that of all processes from a ready session on.",
        ],
    )
