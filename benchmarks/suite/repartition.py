"""What another number of partitions costs: `recovery repartition`, beside `cp` of the same files.

A store of two partitions is made once, without Spark. Each case reads it, or what the first case would make of it, and
writes a new directory. `--keys 10_000_000` is the size of the promise: 500,000 keys/s, at most 256 MiB.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import environments, table
from benchmarks.harness.machine import versions
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement, Rounds

STEP = "totals"
FEW, MANY = 2, 8
EPOCHS = 4
"""How many epochs write the keys, and are held."""
QUICK = ("--keys", "20_000")


@dataclass(frozen=True, slots=True)
class Case:
    """source: the number of partitions read. target: that of the new store; None: `cp`."""

    name: str
    source: int
    target: int | None


CASES = [
    Case(f"{FEW} → {MANY}", FEW, MANY),
    Case(f"{MANY} → {FEW}", MANY, FEW),
    Case(f"cp of {FEW}", FEW, None),
    Case(f"cp of {MANY}", MANY, None),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys in the state (default: %(default)s)")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    home = arguments.work / "runs" / "repartition"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    stores = {FEW: home / str(FEW), MANY: home / str(MANY)}
    subprocess.run([sys.executable, "-c", f"from {__name__} import make; make({str(home)!r}, {arguments.keys})"],
                   check=True, cwd=Path(__file__).parents[2])  # fmt: skip
    contenders = [
        Contender(
            case.name,
            environments.own_python(),
            f"{__name__}:measure",
            {"source": str(stores[case.source]), "count": case.target, "keys": arguments.keys},
        )
        for case in CASES
    ]

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        return answer["wrong"] or None

    rounds = Rounds(arguments.repeat, arguments.work / "runs", {}, arguments.timeout, arguments.keep)
    try:
        return report(rounds.measure(contenders, check), arguments)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def report(measurements: Sequence[Measurement], arguments: argparse.Namespace) -> Report:
    """The table of what was measured."""
    summaries = {summary.contender: summary for summary in table.summarise(measurements)}
    rows = []
    for case in CASES:
        summary, copied = summaries[case.name], summaries[f"cp of {case.source}"]
        seconds, cpu_s = summary.seconds, summary.middle(lambda run: run.answer["cpu_s"])
        size = summary.middle(lambda run: run.answer["size_bytes"])
        moved = case.target is not None
        rows.append(
            (
                case.name,
                table.seconds(seconds),
                table.ratio(seconds, copied.seconds),
                table.count(arguments.keys / seconds if seconds and moved else None),
                table.seconds(cpu_s),
                f"{cpu_s / arguments.keys * 1e6:.2f}" if cpu_s is not None else table.NONE,
                table.mebibytes(summary.middle(lambda run: run.usage.python_rss_bytes) if moved else None),
                table.mebibytes(size),
                "correct" if summary.problem is None else "failed",
            )
        )
    return Report(
        name="repartition",
        headers=("case", "median s", "× cp", "keys/s", "CPU s", "CPU µs a key", "MiB", "size MiB", "state"),
        rows=rows,
        measurements=measurements,
        notes=[
            f"{arguments.keys:,} keys with a state of `[n,total]`, written in {EPOCHS} held epochs; medians over "
            f"{arguments.repeat} interleaved rounds. Time until the new directory is whole, checked and synced; for "
            "`cp`, until the copies are synced. `MiB`: the memory of all processes together."
        ],
    )


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child of one case."""

    source, count, keys = Path(arguments["source"]), arguments["count"], arguments["keys"]
    wrong = ""
    if count is None:
        began_s, began_cpu_s = time.perf_counter(), _cpu_s()
        Path("new").mkdir()
        files = [str(path) for path in source.glob("part-*.sqlite3")]
        subprocess.run(["cp", "--reflink=never", *files, "new"], check=True)
        subprocess.run(["sync", *(str(path) for path in Path("new").iterdir())], check=True)
        seconds, cpu_s = time.perf_counter() - began_s, _cpu_s() - began_cpu_s
    else:
        from recovery.partitioning.repartition import repartition

        began_s, began_cpu_s = time.perf_counter(), _cpu_s()
        done = repartition(source, "new", count)
        seconds, cpu_s = time.perf_counter() - began_s, _cpu_s() - began_cpu_s
        moved = [pair[1].rows for pair in done.of(STEP)]
        wrong = "" if moved[-1] == keys else f"{moved[-1]} keys were moved"
    return {
        "versions": versions(),
        "seconds": seconds,
        "cpu_s": cpu_s,
        "size_bytes": sum(path.stat().st_size for path in Path("new").glob("part-*")),
        "wrong": wrong,
    }


def _cpu_s() -> float:
    """The processor time of this process, and of those that it started and that have ended."""
    return sum(os.times()[:4])


def make(home: str, keys: int) -> None:
    """Make the stores that all cases read."""
    from recovery.partitioning.repartition import repartition

    _write(Path(home, str(FEW)), keys)
    repartition(Path(home, str(FEW)), Path(home, str(MANY)), MANY)


def _write(directory: Path, keys: int) -> None:
    from recovery.base.ids import BatchId, Epoch, ExecutionNumber, StepId
    from recovery.planning.resume import plan_resume
    from recovery.planning.values import Execution
    from recovery.storage.initialize import init_partitions
    from recovery.storage.reach import reach
    from recovery.storage.scan import scan
    from recovery.storage.seam import BatchCount, Changes, CloseRequest
    from recovery.storage.sqlite.store import FilePartitions
    from recovery.values.keys import partition_of

    paths = init_partitions(directory, FEW)
    plan = plan_resume(scan(directory))
    store, step = FilePartitions(paths, directory / "scratch"), StepId(STEP)
    execution = Execution(
        ExecutionNumber(1), "benchmark", "benchmark", plan.resume_epoch, 0, 1.0, 3600.0, "host", os.getpid(), "0"
    )
    store.start(execution, [step])
    for number in range(EPOCHS):
        packed: dict[int, list[str]] = {index: [] for index in range(FEW)}
        for key in (f"key-{n:08d}" for n in range(number, keys, EPOCHS)):
            packed[partition_of(key, FEW)].append(f"[{number + 1},{len(packed[0]) % 99_991}]\x1f{key}")
        batch, epoch = BatchId(number), Epoch(number + 1)
        store.open(execution.lease, batch)
        task, _ = reach(store.address(execution.lease))
        changes = {index: [Changes(tuple(texts), False)] for index, texts in packed.items()}
        task.apply(step, batch, changes, BatchCount(0, 0))
        task.release()
        store.seal(execution.lease, batch, apart=True)
        store.close(execution.lease, [CloseRequest(epoch, batch, 0, number + 1, Epoch(0), {})] * FEW)
    store.checkpoint()
    store.release()
