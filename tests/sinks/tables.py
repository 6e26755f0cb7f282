"""A sink of a table format without Spark: micro-batches that pyarrow writes as Spark does, runs, and their kills."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recovery.base import faults
from recovery.errors import LeaseLostError, OutputLostError, StaleDirectoryError
from recovery.hadoop.reports import REPORTS
from recovery.sinks.iceberg.partitions import GROUP
from recovery.sinks.protocol import EpochOutput
from recovery.sinks.tables import log, sink
from recovery.sinks.tables.commits import CommitHistory
from tests.sinks.support import Closed, Store

_numbers = itertools.count(1)

TYPES = {"key": "string", "n": "long"}
ODD = ["a", "b c", "d:e", "f%2Fg", "é/ü", "k=v", None]


class Batch:
    """The part of a DataFrame that the sink uses: rows of key and n."""

    def __init__(self, rows, types=TYPES) -> None:
        self.rows, self.types = rows, types
        fields = [{"name": name, "type": kind, "nullable": False, "metadata": {}} for name, kind in types.items()]
        self.schema = self
        self.text = json.dumps({"type": "struct", "fields": fields})

    def json(self):
        return self.text

    def selectExpr(self, *columns):  # noqa: N802 - Spark's name
        return self


def write_files(batch, address, format, options, partition_by=()) -> None:
    """Write rows as Spark does, in the place of `recovery.hadoop.writing.write_files`."""
    directory = Path(address.removeprefix("file://").removeprefix("file:"))
    table = pa.table({name: [row[at] for row in batch.rows] for at, name in enumerate(batch.types)})
    files = {}
    if partition_by == (GROUP,):
        for number, key in enumerate(dict.fromkeys(row[0] for row in batch.rows)):
            part = table.filter(pa.array([row[0] == key for row in batch.rows]))
            files[directory / f"{GROUP}={number}" / "part-0.parquet"] = part
    elif not partition_by:
        for number, part in enumerate([table.slice(0, 1), table.slice(1), table.slice(0, 0)]):
            files[directory / f"part-{number:05}.parquet"] = part
    else:
        for key in dict.fromkeys(row[0] for row in batch.rows):
            escaped = "".join(f"%{ord(c):02X}" if c in "\"#%'*/:=?\\{[]^" else c for c in str(key))
            below = directory / f"key={'__HIVE_DEFAULT_PARTITION__' if key is None else escaped}"
            files[below / "part-0.parquet"] = pa.table({"n": [n for k, n in batch.rows if k == key]})
    lines = ["v1"]
    for path, part in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(part, path)
        lines.append(json.dumps({"path": f"file://{quote(str(path))}", "size": path.stat().st_size, "action": "add"}))
    (directory / "part-00009-failed.parquet").write_bytes(b"of an attempt that failed")
    (directory / REPORTS).mkdir()
    (directory / REPORTS / "0").write_text("\n".join(lines))


class Killed(BaseException):
    """The process has died."""


class Run:
    """One execution. `kill_at`: the crash point, and which visit of it."""

    def __init__(self, store: Store, sink, resume_epoch: int | None = None) -> None:
        self.store, self.sink = store, sink
        self.batch = store.closed[-1].batch if store.closed else -1
        self.rows: list = []
        self.resume = store.begin(resume_epoch)
        if resume_epoch is not None:
            self.batch = store.closed[-1].batch if store.closed else -1
        sink.check(self.resume)
        sink.rollback(self.resume)

    def write(self, rows) -> None:
        self.batch += 1
        self.sink.write(Batch(rows), self.batch)
        self.rows += rows

    def close(self, *, before_publishing: Callable[[], None] | None = None) -> None:
        """before_publishing: what happens between closing and publishing; it may raise `Killed`."""
        epoch = len(self.store.closed) + 1
        output = EpochOutput(
            epoch, self.batch, self.resume.execution, self.store.store_id, self.store.flow_id, self.store.floor
        )
        note = self.sink.prepare(output)
        self.store.closed.append(Closed(self.resume.execution, self.batch, note, self.rows))
        self.rows = []
        if before_publishing is not None:
            before_publishing()
        self.sink.publish(output)


def truth(store: Store, mode: str = "append") -> list:
    """The rows that the table has to have."""
    rows = [row for each in store.closed for row in each.records]
    return sorted(rows if mode == "append" else dict(rows).items(), key=str)


def check_random_history(monkeypatch, make: Callable, shown: Callable[[], list], mode: str = "append") -> None:
    """Runs that are killed at any crash point, go on, and go back: the table has the rows of the closed epochs.

    make: returns a sink of the table. shown: returns its rows, sorted.
    """
    generator = random.Random(int(os.environ.get("RECOVERY_TEST_SEED", "1")))
    store = Store()
    kill_in = 0

    def reach(point):
        nonlocal kill_in
        kill_in -= 1
        if kill_in == 0:
            raise Killed

    monkeypatch.setattr(faults, "reach", reach)
    kills = rewinds = 0
    for _ in range(25):
        kill_in = generator.randrange(1, 16)
        if generator.random() < 0.2:
            store.edit()
        back = generator.randrange(1, len(store.closed) + 1) if store.closed and generator.random() < 0.4 else None
        rewinds += back is not None
        try:
            run = Run(store, make(), back)
            assert shown() == truth(store, mode)
            for _ in range(generator.randrange(1, 4)):
                for _ in range(generator.randrange(3)):
                    keys = generator.sample(ODD[: -1 if mode == "merge" else None], 3)
                    run.write([(key, next(_numbers)) for key in keys])
                run.close()
                assert shown() == truth(store, mode)
        except Killed:
            kills += 1
        kill_in = 0
    Run(store, make())
    assert shown() == truth(store, mode)
    assert kills > 3
    assert rewinds > 3


def two_epochs(sink, store: Store | None = None, count: int = 2) -> tuple[Store, Run]:
    """A store, and its run, which has closed two epochs, or more, of two rows."""
    store = store or Store()
    run = Run(store, sink)
    for number in range(count):
        run.write([("a", number), ("b", number)])
        run.close()
    return store, run


def check_two_directories(make: Callable, shown: Callable[[], list], mode: str = "append") -> None:
    """Two directories of one store, whose executions have equal numbers: the old one is refused before it changes
    anything, and so is its run that goes on; on the user's word it takes the table back. The arguments are as above."""
    old = Store(past=[])
    run = Run(old, make())
    run.write([("a", 1)])
    run.close()
    copy = old.copied()
    run.write([("a", 2)])
    run.close()
    before = shown()
    with pytest.raises(StaleDirectoryError, match="this directory has that execution only up to epoch 1"):
        Run(copy, make())
    assert shown() == before
    new = old.copied()
    successor = Run(new, make())
    for published in range(2):
        before = shown()
        for resume_epoch in (None, 1):
            store = old.copied()
            with pytest.raises(StaleDirectoryError, match=r"execution 2 \(") as caught:
                Run(store, make(), resume_epoch=resume_epoch)
            assert successor.resume.execution.id in caught.value.found
        assert shown() == before == truth(new, mode)
        unknown = make()
        unknown._log.history = lambda *_: CommitHistory((), whole=False)
        for later in (0, 3):
            # Other runs of the old directory, without this sink, may have given it higher numbers.
            with pytest.raises(StaleDirectoryError, match="no longer in the table's history"):
                Run(replace(old.copied(), executions=old.executions + later), unknown)
        assert shown() == before
        if not published:
            successor.write([("b", 2)])
            successor.close()
    run.write([("late", 1)])
    with pytest.raises(LeaseLostError, match="execution 2 "):
        run.close()
    del old.closed[1:]
    assert shown() == truth(new, mode)
    # The directory has seen fewer executions than the one whose place it takes.
    Run(new, make())
    back = replace(old.copied(), loses=True)
    successor = Run(new, make())
    taken = Run(back, make())
    assert shown() == truth(back, mode)
    successor.write([("late", 2)])
    with pytest.raises(LeaseLostError):
        successor.close()
    for _ in range(2):
        taken.write([("c", next(_numbers))])
        taken.close()
        back.loses = False
        taken = Run(back, make())
    assert taken.resume.execution.number < taken.sink.resume.execution.number
    # Also when the table's history has expired: the numbers of its executions stay lower than those before.
    sink = make()
    with pytest.MonkeyPatch.context() as expired:
        expired.setattr(type(sink._log), "history", lambda *_: CommitHistory((), whole=False))
        taken = Run(back, sink)
        with pytest.raises(StaleDirectoryError, match="no longer in the table's history") as caught:
            Run(new, make())
        assert "--lose-epochs" in caught.value.remedy
    taken.write([("c", next(_numbers))])
    taken.close()
    Run(back, make())
    assert shown() == truth(back, mode)
    with pytest.raises(StaleDirectoryError):
        Run(new, make())


def check_missing_files(monkeypatch, make: Callable, shown: Callable[[], list]) -> None:
    """A task whose host has no mount reports a file that is not here: the micro-batch fails, and nothing is committed.
    The arguments are as above."""
    store, run = two_epochs(make())

    def written_elsewhere(batch, address, format, options, partition_by=()) -> None:
        write_files(batch, address, format, options, partition_by)
        path = sorted(Path(address.removeprefix("file://").removeprefix("file:")).rglob("part-0*.parquet"))[0]
        path.unlink()

    monkeypatch.setattr(log, "PATIENCE_S", 0)
    monkeypatch.setattr(sink, "write_files", written_elsewhere)
    with pytest.raises(OutputLostError, match=r"a task wrote .*, and it is missing here"):
        run.write([("lost", 1), ("lost", 2)])
    assert shown() == truth(store)
