"""Targets of every sink that shows epochs, and the recovery directories that run on them, without Spark."""

from __future__ import annotations

import copy
import itertools
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recovery.sinks.tables.columns import nullable
from tests.sinks import support, tables
from tests.sinks.memory_disk import MemoryDisk
from tests.sinks.support import Store

_values = itertools.count(1)


class Target(ABC):
    """A target of one sink. Each epoch that a run closes has one row, which no other epoch has."""

    @abstractmethod
    def start(self, store: Store, resume_epoch: int | None) -> Any:
        """Begin an execution of a store."""

    @abstractmethod
    def epoch(self, run: Any) -> None:
        """Let a run write a row, and close an epoch."""

    @abstractmethod
    def shown(self) -> list:
        """What a reader sees, sorted."""

    @abstractmethod
    def closed(self, store: Store) -> list:
        """What a reader has to see if this store owns the target."""

    def everything(self) -> Any:
        """All that the target holds, to see that it is untouched."""
        return self.shown()


class Files(Target):
    """The directory of a FileSink."""

    def __init__(self, _path: Path) -> None:
        self.disk = MemoryDisk()

    def start(self, store: Store, resume_epoch: int | None) -> support.Run:
        return support.Run(store, self.disk, resume_epoch=resume_epoch)

    def epoch(self, run: support.Run) -> None:
        run.write(run.closed_batch + 1, files=1)
        run.close(run.closed_batch + 1)

    def shown(self) -> list:
        return support.visible(self.disk)

    def closed(self, store: Store) -> list:
        return store.records()

    def everything(self) -> dict:
        return {path: inode.data for path, inode in self.disk.names.items()}


class Table(Target):
    """The table of an UpsertSink. Each epoch changes the row of one key."""

    def __init__(self, path: Path) -> None:
        self.path = path / "db"
        self._run("CREATE TABLE words (word TEXT, part INTEGER, n INTEGER, PRIMARY KEY (word, part))")

    def connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    def start(self, store: Store, resume_epoch: int | None) -> Any:
        from tests.sinks.test_upsert import Run

        return Run(store, self, resume_epoch=resume_epoch)

    def epoch(self, run: Any) -> None:
        run.write(run.closed_batch + 1, "abc"[next(_values) % 3])
        run.close(run.closed_batch + 1)

    def shown(self) -> list:
        return sorted(self._run("SELECT word, part, n FROM words"))

    def closed(self, store: Store) -> list:
        last = {(word, part): n for each in store.closed for n, word, part in each.records}
        return sorted((*key, n) for key, n in last.items())

    def everything(self) -> list:
        # A statement that changed nothing may still have been written.
        connection = sqlite3.connect(self.path)
        try:
            return list(connection.iterdump())
        finally:
            connection.close()

    def _run(self, sql: str) -> list:
        connection = self.connect()
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()


class OfFormat(Target):
    """A table of a format, whose sink `make` returns. mode: "append" or "merge"."""

    def __init__(self, make: Callable[[], Any], shown: Callable[[], list], mode: str = "append") -> None:
        self._make, self.shown, self._mode = make, shown, mode
        make()._log.create(nullable(tables.Batch([]).json()), ())

    def start(self, store: Store, resume_epoch: int | None) -> tables.Run:
        return tables.Run(store, self._make(), resume_epoch)

    def epoch(self, run: tables.Run) -> None:
        number = next(_values)
        run.write([("abc"[number % 3], number)])
        run.close()

    def shown(self) -> list:
        raise NotImplementedError

    def closed(self, store: Store) -> list:
        return tables.truth(store, self._mode)

    def everything(self) -> Any:
        log = self._make()._log
        return self.shown(), log.version(log.open())


def delta(path: Path, mode: str = "append") -> Target:
    pytest.importorskip("deltalake")
    from recovery import DeltaSink
    from tests.sinks.test_delta import KINDS, shown

    return OfFormat(lambda: DeltaSink(path / "table", **KINDS[mode]), lambda: shown(path / "table"), mode)


def merged(path: Path) -> Target:
    return delta(path, "merge")


def iceberg(path: Path) -> Target:
    pytest.importorskip("pyiceberg")
    pytest.importorskip("sqlalchemy")
    from tests.sinks.test_iceberg import Warehouse

    warehouse = Warehouse(path)
    return OfFormat(warehouse.sink, warehouse.rows)


TARGETS: dict[str, Callable[[Path], Target]] = {
    "FileSink": Files,
    "UpsertSink": Table,
    "DeltaSink": delta,
    "DeltaSink, merging": merged,
    "IcebergSink": iceberg,
}


class World:
    """A target, and recovery directories by name. Each knows what it has seen: every start, and every epoch shown."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.stores: dict[str, Store] = {}
        self.shown: set[tuple[str, int]] = set()
        self.seen: dict[str, set[tuple[str, int]]] = {}

    def create(self, name: str) -> None:
        self.stores[name], self.seen[name] = Store(past=[]), set()

    def copy(self, name: str, of: str) -> None:
        self._made(name, of, self.stores[of].copied())

    def repartition(self, name: str, of: str) -> None:
        self._made(name, of, self.stores[of].repartitioned())

    def fork(self, name: str, of: str) -> None:
        self._made(name, of, self.stores[of].forked())

    def run(
        self, name: str, epochs: int = 1, back_to: int | None = None, copy_as: str = "", loses: bool = False
    ) -> None:
        """Run a directory. back_to: resume at that epoch. copy_as: copy the directory before the last epoch."""
        # A refused run has not begun: the directory stays as before.
        store = copy.deepcopy(self.stores[name])
        store.loses = loses
        run = self.target.start(store, back_to)
        store.loses = False
        self.stores[name] = store
        execution = run.resume.execution.id if hasattr(run, "resume") else run.lease.id
        if loses:
            self.shown &= self.seen[name]
        self._see(name, (execution, 0))
        for left in range(epochs, 0, -1):
            if left == 1 and copy_as:
                self.copy(copy_as, name)
            self.target.epoch(run)
            self._see(name, (execution, len(store.closed)))

    def may_run(self, name: str) -> bool:
        """Whether the directory has seen all that the target shows: the promise, in other words than the code's."""
        return self.shown <= self.seen[name]

    def _see(self, name: str, event: tuple[str, int]) -> None:
        self.shown.add(event)
        self.seen[name].add(event)

    def _made(self, name: str, of: str, store: Store) -> None:
        self.stores[name], self.seen[name] = store, set(self.seen[of])
