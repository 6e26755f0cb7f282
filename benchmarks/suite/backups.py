"""What a backup costs when few keys changed since the one before: whole copies, and incremental ones.

Each case closes epochs on partitions without Spark, and backs them up to a directory after each one. A tenth of the
touched keys are new. The processor time is that of the backup, or of the restore of the last one with all its checks.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import environments, table
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

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        return answer["wrong"] or None

    rounds = Rounds(arguments.repeat, arguments.work / "runs", {}, arguments.timeout, arguments.keep)
    return report(rounds.measure(contenders, check), arguments)


def report(measurements: Sequence[Measurement], arguments: argparse.Namespace) -> Report:
    """The table of what was measured."""
    summaries = {summary.contender: summary for summary in table.summarise(measurements)}
    whole = summaries[CASES[0].name].seconds
    rows = []
    for case in CASES:
        summary = summaries[case.name]

        def shown(name: str, each: float, digits: int, summary: table.Summary = summary) -> str:
            found = summary.middle(lambda run: run.answer[name])
            return table.NONE if found is None else f"{found / each:,.{digits}f}"

        rows.append(
            (
                case.name,
                shown("stored_bytes", arguments.touched, 0),
                shown("seconds", arguments.touched / 1e6, 1),
                table.ratio(summary.seconds, whole),
                shown("close_s", arguments.touched / 1e6, 1),
                shown("objects", PARTITIONS, 0),
                shown("restore_s", 1, 2),
                "correct" if summary.problem is None else "failed",
            )
        )
    return Report(
        name="backups",
        headers=(
            "case", "bytes a key", "backup µs a key", "× whole", "close µs a key", "objects", "restore CPU s", "state",
        ),
        rows=rows,
        measurements=measurements,
        notes=[
            f"{arguments.keys:,} keys in {PARTITIONS} partitions, {arguments.touched:,} touched in each of "
            f"{arguments.backups} epochs, a tenth of them new, with a backup after each; medians over the backups. "
            "Bytes and processor time per touched key. `objects`: what a restore reads for a partition."
        ],
    )  # fmt: skip


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child of one case."""
    import platform
    from importlib.metadata import version

    from recovery.backup.make import make_backup
    from recovery.backup.repository import list_backups
    from recovery.backup.restore import restore
    from recovery.backup.sources import open_source
    from recovery.backup.target import DirectoryTarget
    from recovery.base.clock import SystemClock

    ids = iter(range(1_000_000))

    def random_id() -> str:
        return f"{next(ids):08x}"

    clock, target, chance = SystemClock(), DirectoryTarget(Path("backups")), random.Random(1)
    store = _Store(arguments["noted"])
    keys, touched = arguments["keys"], arguments["touched"]
    store.close({f"key-{n:08d}": _value(chance) for n in range(keys)})
    samples = []
    close_s = 0.0
    try:
        for number in range(arguments["backups"] + 1):
            began_s = time.process_time()
            made = make_backup(
                Path("recovery"), target, clock=clock, random_id=random_id, incremental=arguments["incremental"]
            )
            backup_s = time.process_time() - began_s
            if number:
                samples.append((made.stored_bytes, backup_s, close_s))
            changed = chance.sample(range(keys), touched * 9 // 10)
            new = range(keys + number * touched, keys + number * touched + touched // 10)
            close_s = store.close({f"key-{n:08d}": _value(chance) for n in (*changed, *new)})
    finally:
        store.release()
    manifest = list_backups(target).manifests[-1]
    began_s = time.process_time()
    done = restore(open_source(target, Path(), clock), Path("restored"), clock=clock, random_id=random_id)
    restore_s = time.process_time() - began_s
    expected = keys + arguments["backups"] * (touched // 10)
    stored_bytes, backup_s, close_s = (median(values) for values in zip(*samples, strict=True))
    return {
        "versions": {"python": platform.python_version(), "recovery": version("recovery"), "apsw": version("apsw")},
        "seconds": backup_s,
        "stored_bytes": stored_bytes,
        "close_s": close_s,
        "restore_s": restore_s,
        "objects": sum(len(copy.objects) for copy in manifest.copies),
        "wrong": "" if store.rows_of(done.paths) == expected else "the restored directory has other keys",
    }


def _value(chance: random.Random) -> str:
    return f'{{"count":{chance.randrange(10**6)},"sum":{chance.random()}}}'


class _Store:
    """Partitions on which epochs are closed, with a backup interval that keeps everything."""

    def __init__(self, noted: bool) -> None:
        from recovery.base.ids import ExecutionNumber, StepId
        from recovery.planning.resume import plan_resume
        from recovery.planning.values import Execution
        from recovery.storage.initialize import init_partitions
        from recovery.storage.scan import scan
        from recovery.storage.sqlite.store import FilePartitions

        paths = init_partitions("recovery", PARTITIONS)
        plan = plan_resume(scan(Path("recovery")))
        self._store = FilePartitions(paths, Path("recovery/scratch"))
        execution = Execution(
            ExecutionNumber(1), "benchmark", "benchmark", plan.resume_epoch, 0, 10.0, 3600.0, "host", os.getpid(), "0"
        )
        self._step = StepId("totals")
        self._store.start(execution, [self._step])
        self._lease = execution.lease
        self._epoch = 0
        self._noted = noted

    def close(self, states: dict[str, str]) -> float:
        """Close an epoch that writes these states; the processor time of the closing."""
        from recovery.base.ids import BatchId, Epoch
        from recovery.storage.reach import reach
        from recovery.storage.seam import BatchCount, Changes, CloseRequest
        from recovery.values.keys import partition_of

        self._epoch += 1
        batch = BatchId(self._epoch)
        by_partition: dict[int, list[str]] = {index: [] for index in range(PARTITIONS)}
        for key, value in states.items():
            by_partition[partition_of(key, PARTITIONS)].append(f"{value}\x1f{key}")
        task = reach(self._store.address(self._lease), keep=False)[0]
        changes = {index: [Changes(tuple(packed), False)] for index, packed in by_partition.items()}
        task.apply(self._step, batch, changes, BatchCount(len(states), len(states)))
        task.release()
        now_ms = time.time_ns() // 1_000_000
        request = CloseRequest(Epoch(self._epoch), batch, now_ms, now_ms, Epoch(0), {}, notes_made=self._noted)
        began_s = time.process_time()
        self._store.close(self._lease, [request] * PARTITIONS)
        spent_s = time.process_time() - began_s
        self._store.checkpoint()
        return spent_s

    def rows_of(self, paths: Sequence[Path]) -> int:
        """The number of keys in partitions."""
        from recovery.storage.scan import scan

        return sum(found.description.newest.live_rows for found in scan(paths[0].parent))  # type: ignore[union-attr]

    def release(self) -> None:
        """Close the partitions."""
        self._store.release()
