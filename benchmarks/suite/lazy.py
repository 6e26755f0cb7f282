"""Time to resume on an empty directory: lazily from a backup, after an ordinary restore, and from the local disk.

A store is filled without Spark and backed up into a directory. Each run begins with a ready session and ends with the
first call of the sink; what it fetches before that is counted by the pages that are there then.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import environments, table
from benchmarks.harness.processes import run_child
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement, Rounds

CORES = 2
QUICK = ("--keys", "50000", "--rows", "20")
LOCAL, LAZY, FULL = "local disk", "lazy, from a backup", "restored in full, then"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys in the state (default: %(default)s)")
    parser.add_argument("--key-bytes", type=int, default=60, help="of each key (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=50, help="lines of new input (default: %(default)s)")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    environment = environments.java_environment()
    stores = arguments.work / "lazy"
    shutil.rmtree(stores, ignore_errors=True)
    stores.mkdir(parents=True)
    given = {
        "stores": str(stores),
        "keys": arguments.keys,
        "key_bytes": arguments.key_bytes,
        "rows": arguments.rows,
    }
    run_child(environments.own_python(), f"{__name__}:make", given, stores, environment, arguments.timeout)
    contenders = [
        Contender(name, environments.own_python(), f"{__name__}:measure", {**given, "how": name})
        for name in (LOCAL, LAZY, FULL)
    ]

    def check(_contender: Contender, answer: dict[str, Any], _directory: Path) -> str | None:
        found = answer["continued"]
        return None if found == arguments.rows else f"{found} of {arguments.rows} keys continued from their state"

    rounds = Rounds(arguments.repeat, arguments.work / "runs", environment, arguments.timeout, arguments.keep)
    measurements = rounds.measure(contenders, check)
    shutil.rmtree(stores, ignore_errors=True)
    return report(arguments, measurements)


def report(arguments: argparse.Namespace, measurements: Sequence[Measurement]) -> Report:
    """The table of what was measured; ratios to the local disk."""
    summaries = table.summarise(measurements)

    def value(summary: table.Summary, name: str) -> float | None:
        return None if summary.problem else summary.middle(lambda each: each.answer[name])

    def row(summary: table.Summary) -> tuple[str, ...]:
        first, share = value(summary, "seconds"), value(summary, "fetched")
        return (
            summary.contender,
            table.seconds(first),
            table.ratio(first, value(summaries[0], "seconds")),
            "" if share is None else f"{share:.2%}",
            table.mebibytes(value(summary, "store_bytes")),
            "correct" if summary.problem is None else "failed",
        )

    return Report(
        name="lazy",
        headers=("resumed", "first output s", "×", "of it fetched before", "store MiB", "state"),
        rows=[row(summary) for summary in summaries],
        measurements=measurements,
        notes=[
            f"{arguments.keys:,} keys of {arguments.key_bytes} bytes in {CORES} partitions; from a ready session, with "
            f"the restore, to the first call of the sink with {arguments.rows} lines for as many keys.",
            f"Medians over {arguments.repeat} interleaved rounds, each in a process of its own. The backup lies in a "
            "directory, so a fetched frame costs no network.",
        ],
    )


def make(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child that fills a store with a flow's state, and backs it up."""
    from benchmarks.contenders.recovery_totals import files_flow
    from recovery import RecoveryConfig, init_partitions
    from recovery.backup.make import make_backup
    from recovery.base.clock import SystemClock
    from recovery.places.directory import DirectoryPlace
    from recovery.spark.jvm.session import create_session
    from recovery.spark.run.blocking import run as run_flow

    stores = Path(arguments["stores"])
    files = stores / "files"
    files.mkdir()
    width = arguments["key_bytes"]
    with (files / "old.txt").open("w") as file:
        file.writelines(f"{_key(key, width)},1\n" for key in range(arguments["keys"]))
    init_partitions(stores / "db", CORES)
    spark = create_session("make", master=f"local[{CORES}]")
    run_flow(files_flow(str(files)), RecoveryConfig(stores / "db"), spark=spark)
    spark.stop()
    make_backup(stores / "db", DirectoryPlace(stores / "backups"), clock=SystemClock(), random_id=lambda: "0" * 8)
    step = max(1, arguments["keys"] // arguments["rows"])
    with (files / "new.txt").open("w") as file:
        file.writelines(f"{_key(number * step, width)},1\n" for number in range(arguments["rows"]))
    return {}


def _key(number: int, width: int) -> str:
    return f"key-{number:0{width - 4}}"


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child that resumes in one way."""
    from benchmarks.contenders.recovery_totals import files_flow, versions
    from recovery import Flow, RecoveryConfig, run
    from recovery.backup.restore import restore
    from recovery.backup.sources import BackupSource
    from recovery.base.clock import SystemClock
    from recovery.places.directory import DirectoryPlace
    from recovery.spark.jvm.session import create_session
    from recovery.storage.hydration import hydrating

    stores, directory = Path(arguments["stores"]), Path("recovery")
    size = sum(path.stat().st_size for path in (stores / "db").glob("part-*"))
    called_s: list[float] = []
    shares: list[float] = []
    continued: list[int] = []

    def sink(batch: Any, _batch_id: int) -> None:
        called_s.append(time.perf_counter())
        found = hydrating(directory)
        shares.append(sum(each.there_bytes for each in found) / size if found else 1.0)
        continued.extend(row.n for row in batch.collect() if row.n > 1)

    flow = files_flow(str(stores / "files"))
    spark = create_session("lazy", master=f"local[{CORES}]")
    if arguments["how"] == LOCAL:
        shutil.copytree(stores / "db", directory)
    # What was copied is not this run's to wait for.
    os.sync()
    started_s = time.perf_counter()
    if arguments["how"] != LOCAL:
        place, clock = str(stores / "backups"), SystemClock()
        lazily = place if arguments["how"] == LAZY else None
        source = BackupSource(DirectoryPlace(Path(place)), clock)
        restore(source, directory, clock=clock, random_id=lambda: "1" * 8, lazy_from=lazily)
    run(Flow(flow.name, flow.build, sink), RecoveryConfig(directory), spark=spark)
    found = versions(spark)
    spark.stop()
    return {
        "seconds": called_s[0] - started_s,
        "fetched": shares[0] if arguments["how"] != LOCAL else 0.0,
        "continued": len(continued),
        "store_bytes": size,
        "versions": found,
    }
