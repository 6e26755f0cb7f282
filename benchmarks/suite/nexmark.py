"""Nexmark's queries that keep state: as steps, with Spark's operators on recovery partitions, in plain Spark, and some
in Bytewax.

A process for each of these kinds runs all queries to the middle of the input and is killed there. Another one resumes
each query in turn, and runs it once more over all input: that run is measured.
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
from benchmarks.nexmark import bytewax_contender
from benchmarks.nexmark import contender as contenders
from benchmarks.nexmark.contender import BYTEWAX, KINDS, SPARK
from benchmarks.nexmark.events import CYCLE, Shape, generate
from benchmarks.nexmark.truth import wrong

CORES = 2
SESSION = ((13, ("--events", "200_000", "--files", "5", "--repeat", "1")),)
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
    "All queries of a kind run in one session, one after the other. Each first resumes what was killed, then runs "
    "over all input, which is measured, from its start to its end; CPU and written bytes, those of the output and "
    "of Spark's shuffle included, are of all processes. Memory is the highest sum of their resident sizes "
    "meanwhile, in a JVM that earlier queries have used. Resume: until the micro-batch is written in which the "
    "process was killed, with all that has to be computed again.",
    "4: Spark's operators have no such query, since a second aggregation cannot follow results of a first that still "
    "change; the steps add what changed. 7: of equal prices one bid counts. 18: of equal times the highest bid counts. "
    "16: Spark has no exact `COUNT(DISTINCT)` on a stream; sets of values are in its rows instead.",
    "`bytewax`: two worker processes for each query, from the moment at which both have imported all. Bytewax has no "
    "micro-batches: one worker reads file after file, and an epoch closes every {interval:g} s. Windows of 7, 8, 11 "
    "and 12 come out when they are over. Its other results are a key's newest with each file that it has read.",
)
"""Below the table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--events", type=int, default=500_000, help="of all kinds (default: %(default)s)")
    parser.add_argument("--files", type=int, default=10, help="of equal size, one a micro-batch (default: %(default)s)")
    parser.add_argument("--interval", type=float, default=2, help="seconds between two epochs of a flow (default: 2)")
    parser.add_argument(
        "--queries", type=keyed.numbers, default=tuple(TITLES), help=f"comma-separated (default: {_listed(TITLES)})"
    )
    keyed.add_contenders(parser, (*KINDS, BYTEWAX))


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    if unknown := set(arguments.queries) - set(TITLES):
        raise SystemExit(f"no query {_listed(sorted(unknown))}; there are {_listed(TITLES)}")
    if arguments.files < 2 or arguments.events % (arguments.files * CYCLE):
        raise SystemExit(f"--events must make --files equal files, two or more, of a multiple of {CYCLE} events")
    files = generate(Shape(arguments.events, arguments.files), arguments.work / "inputs")
    environment = environments.java_environment()
    made = [_contender(kind, arguments, files) for kind in arguments.contenders]
    for each in made:
        _kill(each, environment, arguments.timeout)

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        kind = contender.arguments["kind"]
        for number in contender.arguments["queries"]:
            answered = answer["queries"][str(number)]
            for name in ("resumed", "whole"):
                written = directory / name / str(number) / "out"
                if not answered.get("problem"):
                    found = wrong(number, files, written, contenders.appended(kind, number))
                    answered["problem"] = found and f"wrong result, {name}: {found}"
        return None

    rounds = Rounds(arguments.repeat, arguments.work / "runs", environment, arguments.timeout, arguments.keep)
    return report(arguments, by_query(arguments.queries, rounds.measure(made, check)))


def by_query(queries: Sequence[int], measurements: Sequence[Measurement]) -> list[Measurement]:
    """Each measurement of a kind as measurements of its queries."""
    found = []
    for number in queries:
        for each in measurements:
            if number not in contenders.queries(each.contender):
                continue
            answer = each.answer.get("queries", {}).get(str(number), {})
            problem = each.problem or answer.get("problem")
            answer = {**answer, "versions": each.answer.get("versions", {})}
            found.append(Measurement(f"{number}: {each.contender}", each.round, answer, each.usage, problem))
    return found


def _contender(kind: str, arguments: argparse.Namespace, files: Path) -> Contender:
    peer = {SPARK: environments.SPARK, BYTEWAX: environments.BYTEWAX_ARROW}.get(kind)
    python = environments.python_of(peer, arguments.work / "venvs") if peer else environments.own_python()
    module = bytewax_contender.__name__ if kind == BYTEWAX else contenders.__name__
    given = {
        "kind": kind,
        "queries": [each for each in arguments.queries if each in contenders.queries(kind)],
        "files": str(files.absolute()),
        "target": str((arguments.work / "killed" / kind).absolute()),
        "stop_at": arguments.files // 2,
        "interval_s": arguments.interval,
        "master": f"local[{CORES}]",
        "conf": {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": str(CORES)},
    }
    return Contender(kind, python, f"{module}:measure", given)


def _kill(contender: Contender, environment: dict[str, str], timeout_s: float) -> None:
    """Run a kind's queries to the micro-batch in which their process is killed. Ends the program if it is not."""
    given, module = contender.arguments, contender.target.partition(":")[0]
    target = Path(given["target"])
    shutil.rmtree(target, ignore_errors=True)
    print(f"killing {contender.name} … ", end="", file=sys.stderr, flush=True)
    try:
        run_child(contender.python, f"{module}:killed", given, target, environment, timeout_s)
    except ChildFailedError as error:
        if not str(error).startswith(f"it ended with code {-signal.SIGKILL}"):
            raise SystemExit(f"{contender.name} was not killed in micro-batch {given['stop_at']}: {error}") from None
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
            rows.append((title, kind, *(_cells(each, base) if each else [*[table.NONE] * 9, "no such query"])))
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
        if of is None or any(name not in run.answer for run in of.runs):
            return None
        return of.correct(lambda run: float(run.answer[name]))

    def both(name: str) -> tuple[str, str]:
        mine = middle(name, each)
        return table.seconds(mine), table.ratio(mine, middle(name, base))

    return (
        *both("seconds"),
        *both("used_cpu_s"),
        table.mebibytes(middle("memory_bytes", each)),
        table.mebibytes(middle("written_bytes", each)),
        table.mebibytes(middle("kept_bytes", each)),
        *both("resume_s"),
        "correct" if each.problem is None else "failed",
    )
