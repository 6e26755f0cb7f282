"""What open pages of `recovery ui` cost a run: the same flow without, with one page of it open, and with ten."""

from __future__ import annotations

import argparse

from benchmarks import keyed, keyed_lines
from benchmarks.harness import table
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Measurement

QUICK = ("--keys", "20_000", "--events", "40_000", "--batches", "8", "--interval", "0")
ALONE = "no page"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    keyed.add_size(parser, events=5_000_000, keys=200_000, batches=100)
    parser.add_argument("--interval", type=float, default=2, help="between two epochs, in s (default: %(default)s)")
    parser.add_argument("--pages", type=keyed.numbers, default=(1, 10), help="how many are open (default: 1,10)")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    shape = keyed_lines.Shape(arguments.events, arguments.keys, arguments.batches, held=True)
    lines = keyed_lines.generate(shape, arguments.work / "inputs")
    names = {ALONE: 0, **{f"{count} open": count for count in arguments.pages}}
    contenders = [
        keyed.contender("ours", lines, keyed.Setting(arguments.interval, pages=count), arguments.work, label=name)
        for name, count in names.items()
    ]

    def check(contender: object, answer: dict[str, object], directory: object) -> str | None:
        wrong = keyed_lines.check(lines, directory / "totals")  # type: ignore[operator]
        return f"wrong totals: {wrong}" if wrong else None

    return report(arguments, keyed.rounds(arguments).measure(contenders, check))


def report(arguments: argparse.Namespace, measurements: list[Measurement]) -> Report:
    """The table of what was measured."""
    summaries = {each.contender: each for each in table.summarise(measurements)}
    alone = summaries[ALONE]

    def row(mine: table.Summary) -> tuple[str, ...]:
        cpu_s, base_s = (each.middle(lambda run: run.answer["run_cpu_s"]) for each in (mine, alone))
        return (
            mine.contender,
            table.seconds(mine.seconds),
            table.ratio(alone.seconds, mine.seconds),
            table.seconds(cpu_s),
            table.ratio(cpu_s, base_s),
            table.seconds(mine.middle(lambda run: run.answer["server_cpu_s"])),
            table.count(mine.middle(lambda run: run.answer["epochs"])),
            table.count(mine.middle(lambda run: sum(run.answer["looks"]))),
            "correct" if mine.problem is None else "failed",
        )

    return Report(
        name="watching",
        headers=(
            "pages of the flow",
            "s",
            "throughput × alone",
            "CPU s",
            "× alone",
            "server's",
            "epochs",
            "looks",
            "state",
        ),
        rows=[row(each) for each in summaries.values()],
        measurements=measurements,
        notes=[
            f"{arguments.keys:,} keys, {arguments.events:,} events in {arguments.batches} micro-batches, an epoch each "
            f"{arguments.interval:g} s; medians over {arguments.repeat} interleaved rounds. Each open page looks every "
            "two seconds. The server and the readers run on the cores of the run; their processor time counts. They "
            "have started, and each page has looked, before the measured time begins: pages are open for hours."
        ],
    )
