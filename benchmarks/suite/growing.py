"""`format("appended")` beside Spark's text source, on the same lines in files of three shapes.

Few large files, many small ones, and one file: `appended` reads as many bytes a micro-batch as the text source, which
gets as many files, of the same lines in the same order. The text source cannot read a file that grows, so beside the
one file it reads the few large ones. Both have the same step with a Python function, on recovery partitions.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import keyed, keyed_lines
from benchmarks.harness import environments, table
from benchmarks.harness.processes import spent
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement

CORES = 2
QUICK = ("--events", "20_000", "--keys", "1_000", "--few", "4", "--many", "40")
SESSION = ((9, ("--repeat", "1")),)
PHASES = {
    "latestOffset": "find input s",
    "queryPlanning": "plan s",
    "walCommit": "log s",
    "addBatch": "compute s",
}
"""What Spark's progress calls the parts of a micro-batch, and what the table calls them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """files: how many, of equal size; batches: micro-batches. whole: `appended` reads one file with all lines."""

    name: str
    files: int
    batches: int
    whole: bool = False


def layouts(arguments: argparse.Namespace) -> list[Layout]:
    """The three."""
    few, many = arguments.few, arguments.many
    return [
        Layout(f"{few:,} files", few, few),
        Layout(f"{many:,} files", many, few),
        Layout("one file", few, few, whole=True),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--events", type=int, default=5_332_000, help="lines of 15 bytes (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=500_000, help="different keys (default: %(default)s)")
    parser.add_argument("--few", type=int, default=20, help="large files, and micro-batches (default: %(default)s)")
    parser.add_argument("--many", type=int, default=2_000, help="small files (default: %(default)s)")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    inputs, contenders = {}, []
    for layout in layouts(arguments):
        lines = keyed_lines.generate(
            keyed_lines.Shape(arguments.events, arguments.keys, layout.files), arguments.work / "inputs"
        )
        for appended in (False, True):
            given = {
                "appended": appended,
                "files": str(lines.files_directory),
                "path": str(lines.one_file if layout.whole else lines.files_directory),
                "batch_files": layout.files // layout.batches,
                "batch_bytes": lines.shape.file_bytes * (layout.files // layout.batches),
                "batches": layout.batches,
            }
            name = _name(layout, appended)
            inputs[name] = lines
            contenders.append(Contender(name, environments.own_python(), f"{__name__}:measure", given))

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        if answer["batches"] != contender.arguments["batches"]:
            return f"read {answer['batches']} micro-batches instead of {contender.arguments['batches']}"
        wrong = keyed_lines.check(inputs[contender.name], directory / "totals")
        return f"wrong totals: {wrong}" if wrong else None

    return report(arguments, keyed.rounds(arguments).measure(contenders, check))


def report(arguments: argparse.Namespace, measurements: Sequence[Measurement]) -> Report:
    """The table of what was measured."""
    summaries = {each.contender: each for each in table.summarise(measurements)}
    rows = []
    for layout in layouts(arguments):
        text = summaries[_name(layout, False)]
        for appended in (False, True):
            each = summaries[_name(layout, appended)]
            cpu_s, text_cpu_s = (one.middle(lambda run: run.answer["cpu_s"]) for one in (each, text))
            rows.append(
                (
                    each.contender,
                    table.seconds(each.seconds),
                    table.ratio(each.seconds, text.seconds) if appended else "",
                    table.seconds(cpu_s),
                    table.ratio(cpu_s, text_cpu_s) if appended else "",
                    *(table.seconds(each.middle(lambda run, p=phase: run.answer["phases"].get(p))) for phase in PHASES),
                    "correct" if each.problem is None else "failed",
                )
            )
    return Report(
        name="growing",
        headers=("source", "median s", "× text", "CPU s", "× text", *PHASES.values(), "state"),
        rows=rows,
        measurements=measurements,
        notes=[
            f"{arguments.events:,} lines over {arguments.keys:,} keys in {arguments.few} micro-batches; medians over "
            f"{arguments.repeat} interleaved rounds, from a ready session to a closed last epoch. CPU s is of all "
            "processes meanwhile. The last columns are sums over all micro-batches, as Spark reports them.",
        ],
    )


def _name(layout: Layout, appended: bool) -> str:
    return f"{layout.name}, {'appended' if appended else 'text'}"


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child: runs the flow over one source."""
    from benchmarks.contenders.recovery_totals import appended_flow, files_flow, versions, write_totals
    from recovery import RecoveryConfig, init_partitions, start
    from recovery.spark.jvm.session import create_session

    directory = Path("recovery")
    init_partitions(directory, CORES)
    if arguments["appended"]:
        flow = appended_flow(arguments["path"], arguments["batch_bytes"])
    else:
        flow = files_flow(arguments["files"], batch_files=arguments["batch_files"])
    conf = {
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
    }
    spark = create_session("growing", master=f"local[{CORES}]", conf=conf)
    started_s, before = time.perf_counter(), spent()
    running = start(flow, RecoveryConfig(directory, snapshot_interval=10), spark=spark, trigger="available-now")
    query = running.streaming_query
    running.await_termination()
    seconds, used = time.perf_counter() - started_s, spent() - before
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    phases: Counter[str] = Counter()
    for each in progress:
        phases.update(each["durationMs"])
    found = versions(spark)
    spark.stop()
    write_totals(directory, Path("totals"))
    return {
        "seconds": seconds,
        "cpu_s": used.cpu_s,
        "batches": len(progress),
        "phases": {name: milliseconds / 1000 for name, milliseconds in phases.items()},
        "each": [each["durationMs"] for each in progress],
        "versions": found,
    }
