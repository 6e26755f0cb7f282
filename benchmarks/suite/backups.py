"""What a backup costs when few keys changed since the one before: whole copies, incremental ones, and Litestream.

Each case closes epochs on partitions without Spark, and backs them up to a directory after each one. A tenth of the
touched keys are new. The processor time is that of the backup, or of the restore of the last one with all its checks.
What was restored is also copied with `cp`, which checks nothing and unpacks nothing: the time that the disk needs.
Litestream, if it is installed, ships each epoch to a directory; its restore checks no row, and each file by itself.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import litestream
from benchmarks.epoch_store import DIRECTORY, EpochStore, key, rows_of, value
from benchmarks.harness import environments, table
from benchmarks.harness.machine import versions
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement, Rounds

PARTITIONS = 4
QUICK = ("--keys", "20000", "--touched", "200", "--backups", "10")


@dataclass(frozen=True, slots=True)
class Case:
    """incremental: only what changed is stored. noted: epochs note the keys that they make."""

    name: str
    incremental: bool
    noted: bool


CASES = [
    Case("whole copies", False, False),
    Case("incremental", True, True),
    Case("incremental, new keys not noted", True, False),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--keys", type=int, default=500_000, help="keys in the state (default: %(default)s)")
    parser.add_argument("--touched", type=int, default=1_000, help="of them, in each epoch (default: %(default)s)")
    parser.add_argument("--backups", type=int, default=20, help="after the first one (default: %(default)s)")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    sizes = {"keys": arguments.keys, "touched": arguments.touched, "backups": arguments.backups}
    contenders = [
        Contender(
            case.name,
            environments.own_python(),
            f"{__name__}:measure",
            {"incremental": case.incremental, "noted": case.noted, **sizes},
        )
        for case in CASES
    ]
    program = litestream.program()
    if program is not None:
        given = {"program": program, **sizes}
        contenders.append(
            Contender(litestream.NAME, environments.own_python(), f"{__name__}:measure_litestream", given)
        )

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        return answer["wrong"] or None

    rounds = Rounds(arguments.repeat, arguments.work / "runs", {}, arguments.timeout, arguments.keep)
    return report(rounds.measure(contenders, check), arguments)


def report(measurements: Sequence[Measurement], arguments: argparse.Namespace) -> Report:
    """The table of what was measured."""
    summaries = {summary.contender: summary for summary in table.summarise(measurements)}
    whole = summaries[CASES[0].name].seconds
    rows = []
    for summary in summaries.values():

        def shown(name: str, each: float, digits: int, summary: table.Summary = summary) -> str:
            found = summary.middle(lambda run: run.answer[name]) if name in _measured(summary) else None
            return table.NONE if found is None else f"{found / each:,.{digits}f}"

        rows.append(
            (
                summary.contender,
                shown("stored_bytes", arguments.touched, 0),
                shown("seconds", arguments.touched / 1e6, 1),
                table.ratio(summary.seconds, whole),
                shown("close_s", arguments.touched / 1e6, 1),
                shown("objects", PARTITIONS, 0),
                shown("restore_s", 1, 2),
                shown("restored_after_s", 1, 2),
                shown("cp_s", 1, 2),
                "correct" if summary.problem is None else "failed",
            )
        )
    return Report(
        name="backups",
        headers=(
            "case", "bytes a key", "backup µs a key", "× whole", "close µs a key", "objects", "restore CPU s",
            "restore s", "cp s", "state",
        ),
        rows=rows,
        measurements=measurements,
        notes=[
            f"{arguments.keys:,} keys in {PARTITIONS} partitions, {arguments.touched:,} touched in each of "
            f"{arguments.backups} epochs, a tenth of them new, with a backup after each; medians over the backups. "
            "Bytes and processor time per touched key. `objects`: what a restore reads for a partition. `restore s`, "
            "`cp s`: elapsed time, of the restore and of copying what it made.",
            *([] if litestream.NAME in summaries else [litestream.MISSING]),
        ],
    )  # fmt: skip


def _measured(summary: table.Summary) -> set[str]:
    return set.intersection(*(set(run.answer) for run in summary.runs)) if summary.runs else set()


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child of one case."""

    from recovery.backup.make import make_backup
    from recovery.backup.repository import list_backups
    from recovery.backup.restore import restore
    from recovery.backup.sources import open_source
    from recovery.base.clock import SystemClock
    from recovery.places.directory import DirectoryPlace

    ids = iter(range(1_000_000))

    def random_id() -> str:
        return f"{next(ids):08x}"

    clock, target, chance = SystemClock(), DirectoryPlace(Path("backups")), random.Random(1)
    store = EpochStore(PARTITIONS, noted=arguments["noted"])
    store.fill(arguments["keys"], chance)
    samples = []
    close_s = 0.0
    try:
        for number in range(arguments["backups"] + 1):
            began_s = time.process_time()
            made = make_backup(
                DIRECTORY, target, clock=clock, random_id=random_id, incremental=arguments["incremental"]
            )
            backup_s = time.process_time() - began_s
            if number:
                samples.append((made.stored_bytes, backup_s, close_s))
            close_s = store.close(_touched(arguments, number, chance))
    finally:
        store.release()
    manifest = list_backups(target).manifests[-1]
    began_s, began_at_s = time.process_time(), time.monotonic()
    done = restore(open_source(target, Path(), clock), Path("restored"), clock=clock, random_id=random_id)
    restore_s, restored_after_s = time.process_time() - began_s, time.monotonic() - began_at_s
    stored_bytes, backup_s, close_s = (median(values) for values in zip(*samples, strict=True))
    return {
        "versions": versions(),
        "seconds": backup_s,
        "stored_bytes": stored_bytes,
        "close_s": close_s,
        "restore_s": restore_s,
        "restored_after_s": restored_after_s,
        "cp_s": _copied(Path("restored")),
        "objects": sum(len(copy.objects) for copy in manifest.copies),
        "wrong": _wrong(arguments, done.paths),
    }


def measure_litestream(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child that ships epochs by Litestream."""

    chance = random.Random(1)
    store = EpochStore(PARTITIONS, noted=False)
    store.fill(arguments["keys"], chance)
    replicating = litestream.Replicating(arguments["program"], store.paths)
    samples = []
    try:
        for number in range(arguments["backups"]):
            close_s = store.close(_touched(arguments, number, chance))
            samples.append((*replicating.shipped(), close_s))
    finally:
        replicating.end()
        store.release()
    restored, restore_s = replicating.restore(Path("restored"))
    stored_bytes, shipping_s, close_s = (median(values) for values in zip(*samples, strict=True))
    return {
        "versions": {**versions(), "litestream": litestream.version(arguments["program"])},
        "seconds": shipping_s,
        "stored_bytes": stored_bytes,
        "close_s": close_s,
        "restore_s": restore_s,
        "wrong": _wrong(arguments, restored),
    }


def _copied(directory: Path) -> float:
    """Seconds that `cp` takes for a directory, synced as a restore is."""
    began_s = time.monotonic()
    subprocess.run(["cp", "-r", directory, f"{directory}-copy"], check=True)
    subprocess.run(["sync", "-f", f"{directory}-copy"], check=True)
    return time.monotonic() - began_s


def _touched(arguments: dict[str, Any], number: int, chance: random.Random) -> dict[str, str]:
    """What an epoch writes: a tenth are new keys."""
    keys, touched = arguments["keys"], arguments["touched"]
    changed = chance.sample(range(keys), touched * 9 // 10)
    new = range(keys + number * touched, keys + number * touched + touched // 10)
    return {key(n): value(chance) for n in (*changed, *new)}


def _wrong(arguments: dict[str, Any], restored: Sequence[Path]) -> str:
    expected = arguments["keys"] + arguments["backups"] * (arguments["touched"] // 10)
    return "" if rows_of(restored) == expected else "the restored directory has other keys"
