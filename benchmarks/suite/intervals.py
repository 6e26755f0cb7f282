"""What snapshots and the backup interval cost: the same flow without recovery, and with several `-s` and `-b`.

The same totals per key as `throughput`. Ours reads every micro-batch whole; Bytewax has epochs of its own.
"""

from __future__ import annotations

import argparse

from benchmarks import keyed, keyed_lines
from benchmarks.harness import table
from benchmarks.harness.pictures import bars
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Measurement

NAMES = ("ours", "bytewax-processes", "bytewax-threads")
SETTINGS: dict[str, keyed.Setting] = {
    "none": keyed.Setting(None),
    "-s 10": keyed.Setting(10),
    "-s 10 -b 10m": keyed.Setting(10, backup_s=600),
    "-s 1": keyed.Setting(1),
}
SESSION = (
    (7, (
        "--events", "5_000_000", "--keys", "500_000", "--batches", "10", "--repeat", "1", "--contenders", "ours",
    )),
)  # fmt: skip
QUICK = ("--events", "200_000", "--keys", "20_000", "--batches", "4")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    keyed.add_size(parser, events=10_000_000, keys=1_000_000, batches=20)
    parser.add_argument(
        "--contenders",
        type=keyed.chosen_from(NAMES),
        default=NAMES[:2],
        help=f"comma-separated: {', '.join(NAMES)} (default: {','.join(NAMES[:2])})",
    )


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    lines = keyed_lines.generate(
        keyed_lines.Shape(arguments.events, arguments.keys, arguments.batches), arguments.work / "inputs"
    )
    contenders = [
        keyed.contender(name, lines, setting, arguments.work, label=f"{name} {label}")
        for name in arguments.contenders
        for label, setting in SETTINGS.items()
    ]
    check = keyed.checked({str(lines.files_directory): lines})
    return report(arguments, keyed.rounds(arguments).measure(contenders, check))


def report(arguments: argparse.Namespace, measurements: list[Measurement]) -> Report:
    """The table of what was measured."""
    summaries = {each.contender: each for each in table.summarise(measurements)}

    def row(name: str, label: str) -> tuple[str, ...]:
        mine = summaries[f"{name} {label}"]
        none, ten = summaries[f"{name} none"].seconds, summaries[f"{name} -s 10"].seconds
        epochs = mine.middle(lambda run: run.answer.get("epochs") or 0)
        return (
            mine.contender,
            table.seconds(mine.seconds),
            table.spread(run.seconds for run in mine.runs),
            table.ratio(mine.seconds, none),
            table.ratio(mine.seconds, ten),
            table.count(epochs) if epochs else table.NONE,
            table.seconds(mine.middle(lambda run: run.usage.cpu_s)),
            "correct" if mine.problem is None else "failed",
        )

    return Report(
        name="intervals",
        headers=("contender", "median s", "spread s", "× none", "× -s 10", "epochs", "CPU s", "state"),
        rows=[row(name, label) for name in arguments.contenders for label in SETTINGS],
        measurements=measurements,
        notes=[
            f"{arguments.events:,} events over {arguments.keys:,} keys in {arguments.batches} equal files; medians "
            f"over {arguments.repeat} interleaved rounds. `-b` is 0 where it is not named.",
        ],
        picture=bars(
            "What snapshots cost", "seconds; less is better", [(s.contender, s.seconds) for s in summaries.values()]
        ),
    )
