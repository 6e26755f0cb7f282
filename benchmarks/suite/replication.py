"""What `--replicate` costs a run: the same flow with it and without, for an epoch that touches little of the state, and
much of it.

The totals per key of `throughput`, behind a file that brings every key. Processor time is that of all processes of a
run, Spark's start included; that of the shipping process is shown by itself: it is small beside the noise of the
rest.
"""

from __future__ import annotations

import argparse
from statistics import median

from benchmarks import keyed, keyed_lines
from benchmarks.harness import table
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Measurement

QUICK = ("--keys", "20_000", "--events", "40_000", "--batches", "8", "--interval", "0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    keyed.add_size(parser, events=3_000_000, keys=500_000, batches=300)
    parser.add_argument("--interval", type=float, default=10, help="between two epochs, in s (default: %(default)s)")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    shape = keyed_lines.Shape(arguments.events, arguments.keys, arguments.batches, held=True)
    lines = keyed_lines.generate(shape, arguments.work / "inputs")
    settings = {
        "-b 0": keyed.Setting(arguments.interval),
        "-b 10m": keyed.Setting(arguments.interval, backup_s=600),
        "-b 10m --replicate": keyed.Setting(arguments.interval, backup_s=600, replicates=True),
    }
    contenders = [
        keyed.contender("ours", lines, setting, arguments.work, label=label) for label, setting in settings.items()
    ]

    def check(contender: object, answer: dict[str, object], directory: object) -> str | None:
        wrong = keyed_lines.check(lines, directory / "totals")  # type: ignore[operator]
        return f"wrong totals: {wrong}" if wrong else _lacking(answer)

    return report(arguments, keyed.rounds(arguments).measure(contenders, check))


def _lacking(answer: dict[str, object]) -> str | None:
    replica = answer.get("replica")
    if isinstance(replica, dict) and (replica["lag_epochs"] or replica["problem"]):
        return f"the replica lacks {replica['lag_epochs']} epochs"
    return None


def report(arguments: argparse.Namespace, measurements: list[Measurement]) -> Report:
    """The table of what was measured."""
    summaries = {each.contender: each for each in table.summarise(measurements)}
    without = summaries["-b 10m"]

    def row(mine: table.Summary) -> tuple[str, ...]:
        cpu_s, base_s = (each.middle(lambda run: run.usage.cpu_s) for each in (mine, without))
        shipping_s = mine.middle(lambda run: run.answer["shipping_s"])
        shipped = [run.answer["replica"] for run in mine.runs if run.answer.get("replica")]
        return (
            mine.contender,
            table.seconds(mine.seconds),
            table.ratio(mine.seconds, without.seconds),
            table.seconds(cpu_s),
            table.ratio(cpu_s, base_s),
            table.seconds(shipping_s) if shipped else table.NONE,
            table.count(mine.middle(lambda run: run.answer["epochs"])),
            f"{median(each['shippings'] for each in shipped):.0f}" if shipped else table.NONE,
            table.mebibytes(median(each["shipped_bytes"] for each in shipped)) if shipped else table.NONE,
            "correct" if mine.problem is None else "failed",
        )

    return Report(
        name="replication",
        headers=(
            "run",
            "s",
            "× without",
            "CPU s",
            "× without",
            "of it shipping",
            "epochs",
            "shippings",
            "MiB",
            "state",
        ),
        rows=[row(each) for each in summaries.values()],
        measurements=measurements,
        notes=[
            f"{arguments.keys:,} keys, then {arguments.events:,} events in {arguments.batches} micro-batches, an epoch "
            f"each {arguments.interval:g} s; medians over {arguments.repeat} interleaved rounds. `× without`: beside "
            "`-b 10m`. The first shipping is a whole copy, made while the stream goes on; its time counts."
        ],
    )
