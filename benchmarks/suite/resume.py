"""Time to resume: from a ready session to the first sink call, for stores that hold few and many keys.

A store is made for each number of keys; each run resumes copies of it, with new input of --rows lines. The first
resume of a process also pays for what Spark does once (`cold`); the others show what is ours (`warm`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import keyed, keyed_lines
from benchmarks.harness import environments, table
from benchmarks.harness.glance import Compared
from benchmarks.harness.pictures import bars
from benchmarks.harness.processes import run_child
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement, Rounds

CORES = 2
BYTEWAX = "Bytewax"
SESSION = ((6, ("--keys", "1_000,1_000_000", "--warm", "2", "--repeat", "1")),)
QUICK = ("--keys", "1_000,10_000", "--bytewax", "1_000", "--warm", "1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument(
        "--keys",
        type=keyed.numbers,
        default=(1_000, 1_000_000, 10_000_000),
        help="of the stores, comma-separated (default: 1_000,1_000_000,10_000_000)",
    )
    parser.add_argument("--rows", type=int, default=100, help="lines of new input (default: %(default)s)")
    parser.add_argument(
        "--bytewax",
        type=int,
        default=1_000_000,
        help="keys that Bytewax resumes; 0: it does not (default: %(default)s)",
    )
    parser.add_argument("--warm", type=int, default=4, help="further resumes in each process (default: %(default)s)")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    environment = environments.java_environment()
    stores = arguments.work / "stores"
    shutil.rmtree(stores, ignore_errors=True)
    contenders = []
    for keys in arguments.keys:
        made = stores / str(keys)
        files, lines = _input(keys, arguments, made)
        given = {"files": str(files), "store": str(made / "store" / "recovery"), "rounds": 1 + arguments.warm}
        run_child(environments.own_python(), f"{__name__}:make", given, made / "store", environment, arguments.timeout)
        shutil.copy2(lines, files / "new.txt")
        contenders.append(Contender(f"{keys:,} keys", environments.own_python(), f"{__name__}:measure", given))

    truth = None
    if arguments.bytewax:
        truth = keyed_lines.generate(
            keyed_lines.Shape(arguments.bytewax, arguments.bytewax, CORES), arguments.work / "inputs"
        )
        bytewax = keyed.contender("bytewax-processes", truth, keyed.Setting(cores=CORES), arguments.work)
        name = f"{BYTEWAX}, {arguments.bytewax:,} keys"
        contenders.append(
            Contender(name, bytewax.python, bytewax.target.replace("measure", "resume"), bytewax.arguments)
        )

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        if truth is not None and contender.name.startswith(BYTEWAX):
            wrong_totals = keyed_lines.check(truth, directory / "totals")
            return f"wrong totals: {wrong_totals}" if wrong_totals else None
        if answer["batches"] != [1] * (1 + arguments.warm):
            return f"wrong number of micro-batches after resuming: {answer['batches']}"
        wrong = [n for n in answer["continued"] if n != arguments.rows]
        return f"{wrong[0]} of {arguments.rows} keys continued from their state" if wrong else None

    rounds = Rounds(arguments.repeat, arguments.work / "runs", environment, arguments.timeout, arguments.keep)
    measurements = rounds.measure(contenders, check)
    shutil.rmtree(stores, ignore_errors=True)
    return report(arguments, measurements)


def report(arguments: argparse.Namespace, measurements: Sequence[Measurement]) -> Report:
    """The table of what was measured; ratios to the first number of keys."""
    summaries = table.summarise(measurements)

    def value(summary: table.Summary, name: str) -> float | None:
        """Of Bytewax there is only one figure, of the whole of it."""
        return None if summary.problem else summary.middle(lambda run: run.answer.get(name, 0.0)) or None

    def row(summary: table.Summary) -> tuple[str, ...]:
        cells = [summary.contender]
        for name in ("cold_s", "warm_s", "closed_s"):
            mine = value(summary, name)
            cells += [table.seconds(mine), table.ratio(mine, value(summaries[0], name))]
        cells.append(table.mebibytes(value(summary, "store_bytes")))
        return (*cells, "correct" if summary.problem is None else "failed")

    return Report(
        name="resume",
        compared=_compared(summaries),
        picture=bars(
            "Time to resume, cold",
            "seconds to the first sink call; less is better",
            [(each.contender, each.seconds) for each in summaries],
        ),
        headers=("store", "cold s", "×", "warm s", "×", "to the end s", "×", "store MiB", "state"),
        rows=[row(summary) for summary in summaries],
        measurements=measurements,
        notes=[
            f"From a ready session to the first call of the sink, with {arguments.rows} lines of new input for as many "
            "keys that have state; × is against the first line.",
            f"Medians over {arguments.repeat} interleaved rounds: cold is the first resume of a process, warm the "
            f"median of {arguments.warm} further ones, to the end is a warm run until its epoch is "
            "closed, which waits for the full check of the store.",
            "Bytewax resumes in two processes without new input, from imported workers to the end: it loads all state.",
        ],
    )


def _compared(summaries: Sequence[table.Summary]) -> list[Compared]:
    """Bytewax, and the store of recovery partitions with as many keys."""
    found = {each.contender: each.correct(lambda run: run.answer["closed_s"]) for each in summaries}
    return [
        Compared(
            f"resume of {name}, to the end",
            f"{table.seconds(closed_s)} s",
            {"bytewax": Compared.times(found[f"{BYTEWAX}, {name}"], closed_s)},
        )
        for name, closed_s in found.items()
        if f"{BYTEWAX}, {name}" in found
    ]


def make(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child that fills a store."""
    from benchmarks.contenders.recovery_totals import files_flow
    from recovery import RecoveryConfig, init_partitions, run
    from recovery.spark.jvm.session import create_session

    init_partitions("recovery", CORES)
    spark = create_session("make", master=f"local[{CORES}]")
    summary = run(files_flow(arguments["files"]), RecoveryConfig("recovery"), spark=spark)
    spark.stop()
    return {"rows": summary.rows}


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child that resumes copies of a store, one after the other in one session."""
    from benchmarks.contenders.recovery_totals import versions
    from recovery.spark.jvm.session import create_session

    size = sum(path.stat().st_size for path in Path(arguments["store"]).glob("part-*"))
    spark = create_session("resume", master=f"local[{CORES}]")
    runs = []
    for _ in range(arguments["rounds"]):
        copy = Path("recovery")
        shutil.copytree(arguments["store"], copy)
        # What was copied, and what the run before wrote, is not this one's to wait for.
        os.sync()
        runs.append(_resume(arguments["files"], copy, spark))
        shutil.rmtree(copy)
    found = versions(spark)
    spark.stop()
    warm = runs[1:] or runs
    return {
        "seconds": runs[0]["first_call_s"],
        "cold_s": runs[0]["first_call_s"],
        "warm_s": median(each["first_call_s"] for each in warm),
        "closed_s": median(each["closed_s"] for each in warm),
        "batches": [each["batches"] for each in runs],
        "continued": [each["continued"] for each in runs],
        "store_bytes": size,
        "versions": found,
    }


def _resume(files: str, directory: Path, spark: Any) -> dict[str, Any]:
    from benchmarks.contenders.recovery_totals import files_flow
    from recovery import Flow, RecoveryConfig, run

    called_s: list[float] = []
    continued: list[int] = []

    def sink(batch: Any, batch_id: int) -> None:
        called_s.append(time.perf_counter())
        continued.extend(row.n for row in batch.collect() if row.n > 1)

    flow = files_flow(files)
    started_s = time.perf_counter()
    summary = run(Flow(flow.name, flow.build, sink), RecoveryConfig(directory), spark=spark)
    return {
        "first_call_s": called_s[0] - started_s,
        "closed_s": time.perf_counter() - started_s,
        "batches": summary.batches,
        "continued": len(continued),
    }


def _input(keys: int, arguments: argparse.Namespace, made: Path) -> tuple[Path, Path]:
    """A directory with a file of one line for each key, and a file with new lines, not in there yet."""
    rows = min(arguments.rows, keys)
    files = made / "files"
    files.mkdir(parents=True)
    _write_lines(files / "old.txt", range(keys))
    _write_lines(made / "new.txt", range(0, keys, max(1, keys // rows)))
    return files, made / "new.txt"


def _write_lines(path: Path, keys: range) -> None:
    with path.open("w") as file:
        file.writelines(f"key-{key:0{keyed_lines.KEY_DIGITS}},1\n" for key in keys)
