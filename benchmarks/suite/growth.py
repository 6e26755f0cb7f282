"""How cost grows: with events, with recovery partitions, and with cores.

The same totals per key as `throughput`, ours alone unless --contenders names more. Events grow in micro-batches of
--batch events; keys stay as they are.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import keyed, keyed_lines
from benchmarks.harness import table
from benchmarks.harness.pictures import curves
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Measurement

QUICK = ("--events", "100_000,200_000", "--keys", "10_000", "--batch", "50_000", "--partitions", "1,2", "--cores", "2")


@dataclass(frozen=True, slots=True)
class Point:
    """One measured size."""

    name: str
    events: int
    partitions: int
    cores: int

    @property
    def label(self) -> str:
        """Of the contender that runs it."""
        return f"{self.name}, {self.events:,} events, {self.partitions} partitions, {self.cores} cores"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    whole = keyed.numbers
    parser.add_argument("--events", type=whole, default=whole("1_000_000,2_000_000,5_000_000,10_000_000,20_000_000"))
    parser.add_argument("--partitions", type=whole, default=whole("1,2,4,8,16"), help="at the middle of the events")
    parser.add_argument("--cores", type=whole, default=whole("1,2"), help="at the middle of the events")
    parser.add_argument("--keys", type=int, default=1_000_000, help="different keys (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=500_000, help="events in a micro-batch (default: %(default)s)")
    parser.add_argument(
        "--contenders",
        type=keyed.chosen_from(keyed.NAMES),
        default=("ours",),
        help=f"whose events grow, comma-separated: {', '.join(keyed.NAMES)} (default: ours)",
    )


def points(arguments: argparse.Namespace) -> Iterator[Point]:
    """All sizes, each once. Partitions and cores vary for ours alone."""
    usual, middle = max(arguments.cores), arguments.events[len(arguments.events) // 2]
    for name in arguments.contenders:
        for events in arguments.events:
            yield Point(name, events, usual, usual)
    for partitions in arguments.partitions:
        if partitions != usual:
            yield Point("ours", middle, partitions, usual)
    for cores in arguments.cores:
        if cores != usual:
            yield Point("ours", middle, usual, cores)


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    inputs: dict[str, keyed_lines.KeyedLines] = {}
    contenders = []
    for point in points(arguments):
        shape = keyed_lines.Shape(point.events, arguments.keys, max(1, point.events // arguments.batch))
        lines = keyed_lines.generate(shape, arguments.work / "inputs")
        inputs[str(Path(lines.files_directory))] = lines
        setting = keyed.Setting(cores=point.cores, partitions=point.partitions)
        contenders.append(keyed.contender(point.name, lines, setting, arguments.work, label=point.label))
    return report(arguments, keyed.rounds(arguments).measure(contenders, keyed.checked(inputs)))


def report(arguments: argparse.Namespace, measurements: list[Measurement]) -> Report:
    """The table of what was measured."""
    summaries = {each.contender: each for each in table.summarise(measurements)}
    rows = []
    lines: dict[str, list[tuple[float, float | None]]] = {name: [] for name in arguments.contenders}
    usual = max(arguments.cores)
    for point in points(arguments):
        mine = summaries[point.label]
        if point.partitions == point.cores == usual:
            lines[point.name].append((point.events / 1e6, mine.seconds))
        rows.append(
            (
                point.name,
                table.count(point.events),
                str(point.partitions),
                str(point.cores),
                table.seconds(mine.seconds),
                table.spread(run.seconds for run in mine.runs),
                table.count(point.events / mine.seconds if mine.seconds else None),
                table.seconds(mine.middle(lambda run: run.usage.cpu_s)),
                table.mebibytes(mine.middle(lambda run: run.usage.python_rss_bytes)),
                "correct" if mine.problem is None else "failed",
            )
        )
    return Report(
        name="growth",
        headers=(
            "contender", "events", "partitions", "cores", "median s", "spread s", "events/s", "CPU s", "Python MiB",
            "state",
        ),
        rows=rows,
        measurements=measurements,
        notes=[
            f"{arguments.keys:,} keys, micro-batches of {arguments.batch:,} events, `-s 10`; medians over "
            f"{arguments.repeat} interleaved rounds.",
        ],
        picture=curves("Cost as the input grows", "million events", "seconds", lines),
    )  # fmt: skip
