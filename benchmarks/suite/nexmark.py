"""Nexmark's queries that keep state: as steps, with Spark's operators on recovery partitions, and in plain Spark.

A process for each kind runs all its queries to the middle of the input and is killed there. Then each query resumes in
a process of its own, and runs once more over all input, in the same session: that run is measured.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import keyed
from benchmarks.harness import environments, table
from benchmarks.harness.processes import ChildFailedError, run_child
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement, Rounds
from benchmarks.nexmark import contender as contenders
from benchmarks.nexmark.contender import KINDS, SPARK
from benchmarks.nexmark.events import CYCLE, Shape, generate
from benchmarks.nexmark.truth import TRUTHS, wrong

CORES = 2
QUICK = ("--events", "20_000", "--files", "4", "--queries", "3,17")
TITLES = {
    3: "local items, a join",
    4: "mean winning price of a category",
    5: "hot items in sliding windows",
    7: "highest bid of a window",
    8: "new sellers, a join in windows",
    11: "sessions",
    12: "windows in processing time",
    16: "channels, different bidders",
    17: "auctions, a day",
    18: "last bid of a pair",
    19: "ten highest bids",
    20: "bids with their auction, a join",
}
NOT_WRITTEN = {(4, contenders.OPERATORS), (4, SPARK)}
"""No query of Spark's operators: a second aggregation, over results of the first that still change."""
NOTES = (
    "{events:,} events, persons, auctions and bids as 1 : 3 : 46, in {files} equal files, one a micro-batch; {cores} "
    "tasks and partitions; medians over {repeat} interleaved rounds. Every result, after the kill and of the measured "
    "run, equals that of a batch query in DuckDB over the same files.",
    "`steps`: steps of recovery. `operators`: Spark's own operators in a flow, with their state in the snapshot. Both "
    "close an epoch every {interval:g} s. `spark-rocksdb`: the same plan as `operators` in plain Spark, which "
    "checkpoints every micro-batch. Spark's operators have RocksDB with changelog in both.",
    "Steps output the results of windows and sessions as they grow; in 5, 7 and 11 Spark's operators (append mode) "
    "output a result when the watermark has passed its window. The steps of 5, 7, 8 and 11 keep states that a "
    "watermark drops.",
    "Measured in a session that has resumed the same query before, from the start of the query to its end; CPU and "
    "written bytes, those of the output and of Spark's shuffle included, are of all processes. Memory is the highest "
    "sum of resident sizes in the whole process. Resume: the process's first query, from a ready session until the "
    "micro-batch is written in which the process was killed, with all that has to be computed again.",
    "4: Spark's operators have no such query, since a second aggregation cannot follow results of a first that still "
    "change; the steps add what changed. 7: of equal prices one bid counts. 18: of equal times the highest bid counts. "
    "16: Spark has no exact `COUNT(DISTINCT)` on a stream; sets of values are in its rows instead. 19: Spark has no "
    "top k on a stream; lists of all prices are in its rows instead. Bytewax did not take part.",
)
"""Below the table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--events", type=int, default=500_000, help="of all kinds (default: %(default)s)")
    parser.add_argument("--files", type=int, default=10, help="of equal size, one a micro-batch (default: %(default)s)")
    parser.add_argument("--interval", type=float, default=2, help="seconds between snapshots of ours (default: 2)")
    parser.add_argument(
        "--queries", type=keyed.numbers, default=tuple(TITLES), help=f"comma-separated (default: {_listed(TITLES)})"
    )
    keyed.add_contenders(parser, KINDS)


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    if unknown := set(arguments.queries) - set(TITLES):
        raise SystemExit(f"no query {_listed(sorted(unknown))}; there are {_listed(TITLES)}")
    if arguments.files < 2 or arguments.events % (arguments.files * CYCLE):
        raise SystemExit(f"--events must make --files equal files, two or more, of a multiple of {CYCLE} events")
    files = generate(Shape(arguments.events, arguments.files), arguments.work / "inputs")
    left = arguments.work / "killed"
    environment = environments.java_environment()
    chosen = [_given(kind, arguments, files, left) for kind in arguments.contenders]
    for given, python in chosen:
        _kill(python, given, environment, arguments.timeout)
    made = [
        Contender(
            f"{number}: {given['kind']}", python, "benchmarks.nexmark.contender:measure", _one(given, number, left)
        )
        for number in arguments.queries
        for given, python in chosen
        if number in given["queries"]
    ]

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        number, kind = contender.arguments["query"], contender.arguments["kind"]
        for name in ("resumed", "whole"):
            found = wrong(number, files, directory / name / "out", contenders.appended(kind, number))
            if found:
                return f"wrong result, {name}: {found}"
        return None

    rounds = Rounds(arguments.repeat, arguments.work / "runs", environment, arguments.timeout, arguments.keep)
    return report(arguments, rounds.measure(made, check))


def _given(kind: str, arguments: argparse.Namespace, files: Path, left: Path) -> tuple[dict[str, Any], Path]:
    """The arguments of a kind's processes, and their Python."""
    plain = kind == SPARK
    python = (
        environments.python_of(environments.SPARK, arguments.work / "venvs") if plain else environments.own_python()
    )
    given = {
        "kind": kind,
        "queries": [each for each in arguments.queries if each in contenders.queries(kind)],
        "files": str(files.absolute()),
        "target": str((left / kind).absolute()),
        "stop_at": arguments.files // 2,
        "interval_s": arguments.interval,
        "master": f"local[{CORES}]",
        "conf": {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": str(CORES)},
    }
    return given, python


def _one(given: dict[str, Any], number: int, left: Path) -> dict[str, Any]:
    return {**given, "query": number, "killed": str((left / given["kind"] / str(number)).absolute())}


def _kill(python: Path, given: dict[str, Any], environment: dict[str, str], timeout_s: float) -> None:
    """Run a kind's queries to the micro-batch in which their process is killed. Ends the program if it is not."""
    target = Path(given["target"])
    shutil.rmtree(target, ignore_errors=True)
    print(f"killing {given['kind']} … ", end="", file=sys.stderr, flush=True)
    try:
        run_child(python, f"{contenders.__name__}:killed", given, target, environment, timeout_s)
    except ChildFailedError as error:
        if not str(error).startswith(f"it ended with code {-signal.SIGKILL}"):
            raise SystemExit(f"{given['kind']} was not killed in micro-batch {given['stop_at']}: {error}") from None
    print("killed", file=sys.stderr, flush=True)


def _listed(numbers: Any) -> str:
    return ",".join(str(each) for each in numbers)


def report(arguments: argparse.Namespace, measurements: Sequence[Measurement]) -> Report:
    """One line for each query and kind; ratios to plain Spark."""
    summaries = {each.contender: each for each in table.summarise(measurements)}
    rows = []
    for number in arguments.queries:
        base = summaries.get(f"{number}: {SPARK}")
        for kind in arguments.contenders:
            each = summaries.get(f"{number}: {kind}")
            title = f"{number} {TITLES[number]}"
            if each is not None:
                rows.append((title, kind, *_cells(each, base)))
            elif (number, kind) in NOT_WRITTEN:
                rows.append((title, kind, *[table.NONE] * 9, "no such query"))
    return Report(
        name="nexmark",
        title=f"nexmark: {arguments.events:,} events",
        headers=(
            "query",
            "contender",
            "seconds",
            "× Spark",
            "CPU s",
            "× Spark",
            "MiB of memory",
            "MiB written",
            "MiB kept",
            "resume s",
            "× Spark",
            "state",
        ),
        rows=rows,
        measurements=measurements,
        notes=[note.format(**vars(arguments), cores=CORES) for note in NOTES],
    )


def _cells(each: table.Summary, base: table.Summary | None) -> tuple[str, ...]:
    def middle(name: str, of: table.Summary | None) -> float | None:
        return None if of is None else of.correct(lambda run: float(run.answer[name]))

    def both(name: str) -> tuple[str, str]:
        mine = middle(name, each)
        return table.seconds(mine), table.ratio(mine, middle(name, base))

    memory = each.correct(lambda run: run.usage.python_rss_bytes + run.usage.java_rss_bytes)
    return (
        *both("seconds"),
        *both("used_cpu_s"),
        table.mebibytes(memory),
        table.mebibytes(middle("written_bytes", each)),
        table.mebibytes(middle("kept_bytes", each)),
        *both("resume_s"),
        "correct" if each.problem is None else "failed",
    )


assert set(TITLES) == set(TRUTHS)
