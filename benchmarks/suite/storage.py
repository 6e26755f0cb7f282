"""What the partitions cost by themselves, without Spark: closing, writing a snapshot, collecting, space on disk.

Every case runs in a process of its own on one partition, through the calls that a run makes. The raw cases are one
plain `INSERT … SELECT` into the same table by apsw, with the same durability, without digests, without keeping what
is replaced: the limit of what SQLite can do.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import environments, table
from benchmarks.harness.machine import versions
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement, Rounds

STEP = "totals"
CHUNK = 32_768
QUICK = ("--few", "1_000", "--many", "10_000", "--keys", "1_000", "--touched", "100")


@dataclass(frozen=True, slots=True)
class Case:
    """held: keys with state. touched: those that change in the epoch. `against`: the case to compare with."""

    name: str
    kind: str
    held: int
    touched: int
    against: str | None = None


def cases(few: int, many: int, keys: int, touched: int) -> list[Case]:
    """All of them, each after the one it is compared with."""
    logged, moved = (f"close {touched:,} touched of {few:,}, {how}" for how in ("logged", "moved"))
    raw_new, raw_same = f"raw insert of {keys:,} new keys", f"raw upsert of {keys:,} keys"
    tenth = f"collect {keys // 10:,} rows"
    return [
        Case(logged, "log", few, touched),
        Case(f"close {touched:,} touched of {many:,}, logged", "log", many, touched, logged),
        Case(moved, "close", few, touched),
        Case(f"close {touched:,} touched of {many:,}, moved", "close", many, touched, moved),
        Case(raw_new, "raw", 0, keys),
        Case(f"log {keys:,} new keys", "log once", 0, keys, raw_new),
        Case(f"fold {keys:,} new keys", "fold", 0, keys, raw_new),
        Case(f"first snapshot of {keys:,} keys", "snapshot", 0, keys, raw_new),
        Case(raw_same, "raw", keys, keys),
        Case(f"log {keys:,} keys", "log once", keys, keys, raw_same),
        Case(f"fold {keys:,} keys", "fold", keys, keys, raw_same),
        Case(f"snapshot of {keys:,} keys again", "snapshot", keys, keys, raw_same),
        Case("collect nothing", "collect", keys, 0),
        Case(tenth, "collect", keys, keys // 10),
        Case(f"collect {keys:,} rows", "collect", keys, keys, tenth),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--few", type=int, default=10_000, help="keys of the small store (default: %(default)s)")
    parser.add_argument("--many", type=int, default=10_000_000, help="keys of the large store (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys of a snapshot (default: %(default)s)")
    parser.add_argument("--touched", type=int, default=1_000, help="keys of a small epoch (default: %(default)s)")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    chosen = cases(arguments.few, arguments.many, arguments.keys, arguments.touched)
    contenders = [
        Contender(
            case.name,
            environments.own_python(),
            f"{__name__}:measure",
            {"kind": case.kind, "held": case.held, "touched": case.touched},
        )
        for case in chosen
    ]

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        return answer["wrong"] or None

    rounds = Rounds(arguments.repeat, arguments.work / "runs", {}, arguments.timeout, arguments.keep)
    return report(chosen, rounds.measure(contenders, check), arguments.repeat)


def report(chosen: Sequence[Case], measurements: Sequence[Measurement], repeat: int) -> Report:
    """The table of what was measured."""
    summaries = {summary.contender: summary for summary in table.summarise(measurements)}
    rows = []
    for case in chosen:
        summary = summaries[case.name]
        against = summaries[case.against].seconds if case.against else None
        seconds = summary.seconds
        written = summary.middle(lambda run: run.answer["written_bytes"])
        rows.append(
            (
                case.name,
                table.milliseconds(seconds),
                table.ratio(seconds, against),
                f"{seconds / case.touched * 1e6:.2f}" if seconds and case.touched else table.NONE,
                table.count(written / case.touched if written and case.touched else None),
                table.ratio(
                    summary.middle(lambda run: run.answer["size_bytes"]),
                    summary.middle(lambda run: run.answer["live_bytes"]),
                ),
                "correct" if summary.problem is None else "failed",
            )
        )
    return Report(
        name="storage",
        headers=("case", "median ms", "× the one above", "µs a key", "bytes a key", "file / live rows", "state"),
        rows=rows,
        measurements=measurements,
        notes=[
            f"Medians over {repeat} interleaved rounds, one partition, state `[n,total]`, keys of 11 bytes. Closing is "
            "the whole of it: sealing, the transaction with its sync, forgetting the delta. An epoch is moved into the "
            "snapshots, or logged, and folded into them later with the others since.",
            "`bytes a key` is what the transaction appended to the log for each touched key. `file / live rows` is the "
            "file after collection and `gc`, against the rows' own bytes: key, value, digest and epoch.",
        ],
    )


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child of one case."""
    kind, held, touched = arguments["kind"], arguments["held"], arguments["touched"]
    measured: dict[str, Callable[[int, int], dict[str, Any]]] = {
        "close": _close,
        "log": partial(_close, logged=True),
        "snapshot": _snapshot,
        "log once": partial(_snapshot, logged=True),
        "fold": partial(_snapshot, logged=True, folding=True),
        "raw": _raw,
        "collect": _collect,
    }
    answer = measured[kind](held, touched)

    return {"versions": versions(), **answer}


class Store:
    """One partition and an execution on it, driven as a run does."""

    def __init__(self) -> None:
        from recovery.base.ids import ExecutionNumber, StepId
        from recovery.planning.resume import plan_resume
        from recovery.planning.values import Execution
        from recovery.storage.initialize import init_partitions
        from recovery.storage.scan import scan
        from recovery.storage.sqlite.store import FilePartitions

        [self.path] = init_partitions("recovery", 1)
        plan = plan_resume(scan(Path("recovery")))
        self.files = FilePartitions([self.path], Path("recovery/scratch"))
        execution = Execution(
            ExecutionNumber(1), "benchmark", "benchmark", plan.resume_epoch, 0, 1.0, 0.0, "host", os.getpid(), "0"
        )
        self.files.start(execution, [StepId(STEP)])
        self.lease = execution.lease
        self.batch = -1

    def touch(self, keys: Iterable[str]) -> None:
        """Apply one micro-batch that changes these keys."""
        from recovery.base.ids import BatchId, PartitionIndex, StepId
        from recovery.storage.reach import reach
        from recovery.storage.seam import BatchCount, Changes

        self.batch += 1
        self.files.open(self.lease, BatchId(self.batch))
        task, _ = reach(self.files.address(self.lease))
        packed = (f"[{self.batch + 1},{number % 99_991}]\x1f{key}" for number, key in enumerate(keys))
        changes = (Changes(tuple(chunk), False) for chunk in _chunks(packed))
        task.apply(StepId(STEP), BatchId(self.batch), {PartitionIndex(0): changes}, BatchCount(0, 0))
        task.release()

    def close(self, floor: int = 0, logged: bool = False) -> float:
        """Close an epoch; the seconds it took."""
        from recovery.base.ids import BatchId, Epoch
        from recovery.storage.seam import CloseRequest

        request = CloseRequest(
            Epoch(self.batch + 1), BatchId(self.batch), 0, self.batch + 1, Epoch(floor), {}, logged=logged
        )
        started_s = time.perf_counter()
        self.files.seal(self.lease, BatchId(self.batch), apart=not logged)
        self.files.close(self.lease, [request])
        return time.perf_counter() - started_s

    def fold(self) -> float:
        """Fold what is logged; the seconds it took."""
        from recovery.base.ids import BatchId, Epoch

        started_s = time.perf_counter()
        self.files.seal(self.lease, BatchId(self.batch), apart=True)
        self.files.fold(self.lease, Epoch(self.batch + 1), Epoch(self.batch + 1))
        return time.perf_counter() - started_s

    def empty_log(self) -> None:
        """Move the partition's log into the file."""
        import apsw

        [writer] = self.files._writers
        writer.wal_checkpoint("main", mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def log_bytes(self) -> int:
        """Bytes in the partition's log."""
        return self.path.with_name(f"{self.path.name}-wal").stat().st_size

    def answer(self, seconds: float, written_bytes: int, held: int) -> dict[str, Any]:
        """Collects what is left, and checks that the state is whole."""
        from recovery.base.ids import Epoch
        from recovery.storage.verify import PartitionCheck

        self.files.collect(Epoch(self.batch + 1))
        self.files.release()
        checked = PartitionCheck(self.path).run()
        wrong = "; ".join(checked.problems)
        found, live_bytes = _live(self.path)
        if not wrong and found != held:
            wrong = f"{found} keys instead of {held}"
        size = self.path.stat().st_size
        return {
            "seconds": seconds, "written_bytes": written_bytes, "size_bytes": size, "live_bytes": live_bytes,
            "wrong": wrong,
        }  # fmt: skip


def _close(held: int, touched: int, logged: bool = False) -> dict[str, Any]:
    store = Store()
    store.touch(_keys(held))
    store.close()
    store.empty_log()
    seconds, written = [], []
    every = max(1, held // touched)
    # Made before, so that what is measured finds the processor's caches alike.
    turns = [list(islice(_keys(held), turn % every, None, every)) for turn in range(7)]
    for keys in turns:
        store.touch(keys)
        before = store.log_bytes()
        seconds.append(store.close(floor=store.batch, logged=logged))
        written.append(max(0, store.log_bytes() - before))
    if logged:
        store.fold()
    return store.answer(median(seconds), int(median(written)), held)


def _snapshot(held: int, touched: int, logged: bool = False, folding: bool = False) -> dict[str, Any]:
    """The seconds of closing, or of folding what was logged then."""
    store = Store()
    if held:
        store.touch(_keys(held))
        store.close()
        store.empty_log()
    store.touch(_keys(touched))
    before = store.log_bytes() if held else 0
    seconds = store.close(logged=logged)
    written = store.log_bytes() - before
    if logged:
        before = store.log_bytes()
        folded_s = store.fold()
        if folding:
            seconds, written = folded_s, store.log_bytes() - before
    return store.answer(seconds, written, max(held, touched))


def _collect(held: int, touched: int) -> dict[str, Any]:
    store = Store()
    store.touch(_keys(held))
    store.close()
    store.touch(_keys(touched))
    store.close(floor=1)
    from recovery.storage.sqlite import fold
    from recovery.storage.sqlite.file.statements import transaction

    [writer] = store.files._writers
    started_s = time.perf_counter()
    with transaction(writer):
        fold.collect(writer, 2)  # type: ignore[arg-type]
    seconds = time.perf_counter() - started_s
    return store.answer(seconds, 0, held)


def _raw(held: int, touched: int) -> dict[str, Any]:
    import apsw

    from recovery.storage.deltas.touched import CREATE_TOUCHED
    from recovery.storage.sqlite.file.connections import prepare_writer
    from recovery.storage.sqlite.file.tables import CREATE_TABLES

    source = apsw.Connection("touched.sqlite3")
    source.execute(CREATE_TOUCHED.format(table="touched")).fetchall()
    with source:
        source.executemany(
            "INSERT INTO touched VALUES (?, 1, ?, NULL, 0, NULL, NULL)",
            ((key, f"[2,{number % 99_991}]") for number, key in enumerate(_keys(touched))),
        )
    source.close()
    path = Path("raw.sqlite3")
    writer = apsw.Connection(str(path))
    prepare_writer(writer, path, cache_bytes=64 << 20)
    writer.execute(CREATE_TABLES).fetchall()
    writer.execute("ATTACH 'touched.sqlite3' AS delta")
    statement = f"""
        INSERT INTO snaps SELECT '{STEP}', state_key, 1, after, after_timeout, 0 FROM delta.touched WHERE true
        ON CONFLICT DO UPDATE SET snap_epoch = 2, ser_change = excluded.ser_change, timeout_ms = excluded.timeout_ms
    """
    log = path.with_name("raw.sqlite3-wal")
    if held:
        writer.execute(statement)
        writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    before = log.stat().st_size
    started_s = time.perf_counter()
    writer.execute(statement)
    seconds = time.perf_counter() - started_s
    written = log.stat().st_size - before
    writer.close()
    found, live_bytes = _live(path)
    return {
        "seconds": seconds, "written_bytes": written, "size_bytes": path.stat().st_size, "live_bytes": live_bytes,
        "wrong": "" if found == touched else f"{found} keys",
    }  # fmt: skip


def _live(path: Path) -> tuple[int, int]:
    """Rows of the step, and the bytes that their key, value, epoch and digest take."""
    import apsw

    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    statement = "SELECT count(*), sum(length(state_key) + length(ser_change) + 2 + 8) FROM snaps"
    [(count, size)] = connection.execute(statement).fetchall()
    connection.close()
    return count, (size or 0) + count * len(STEP)


def _keys(count: int) -> Iterator[str]:
    return (f"key-{number:07}" for number in range(count))


def _chunks(values: Iterator[str]) -> Iterator[list[str]]:
    while chunk := list(islice(values, CHUNK)):
        yield chunk
