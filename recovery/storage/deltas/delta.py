"""Deltas: the state touched since the last closed epoch, one scratch file per step and partition.

A delta need not survive a crash: the recovery partitions do. So a delta is never synced. But a delta is journalled,
because a task that is killed within its transaction must leave no trace of the transaction. Every row keeps the value
before the newest batch that touched it, and the value after, so a task that runs again sees what the first attempt saw.

A delta has two tables of touched keys, which take turns. Tasks write to the active table. When an epoch ends with batch
b, the delta is sealed: from then on it refuses tasks of b and before. If the touched keys are to be moved into the
partition, they are set apart: in the same transaction the other table becomes the active one, and rows that tasks of
b+1 wrote early move there. The table set apart no longer changes, so it can be moved while micro-batches continue. A
read looks into the active table, then the table set apart, then the partition. An epoch that is only logged stays in
the active table, to which the next epochs add.

A delta belongs to one execution, which `meta` names. A task's transaction checks `meta`, so zombie tasks are refused.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from recovery.base.ids import NO_BATCH, BatchId, Lease, StepId
from recovery.errors import LeaseLostError
from recovery.storage.deltas.touched import (
    APPLY_OF_ONE_LENGTH,
    APPLY_PLAIN,
    APPLY_WITH_TIMEOUTS,
    CREATE_META,
    CREATE_TOUCHED,
    DUE,
    DUE_BEFORE,
    LOAD,
    META,
    NEXT_DUE,
    READ,
    READ_OVER_SEALED,
    SPLIT,
    TABLES,
    UNDO,
)
from recovery.storage.seam import BatchCount, Changes
from recovery.storage.sqlite.epoch_log import Sealed, changes_of
from recovery.storage.sqlite.file.connections import connect, open_database, use_log
from recovery.storage.sqlite.file.statements import rows, snapshot, transaction, translated, value

PAGE_BYTES = 8192
"""Twice SQLite's default: a micro-batch that touches many keys searches a shallower tree; a micro-batch that touches
few keys writes more."""

LOG_PAGES = 16
"""Pages in a delta's log before they move into its file. Then the log begins again from its start, so micro-batches
that touch few keys write to the same pages of both files until the system writes these to the disk."""

CACHE_BYTES = 16 << 20
BASE_CACHE_BYTES = 2000 << 10
"""SQLite's default."""


def create_delta(path: Path, lease: Lease) -> None:
    """Create an empty delta of an execution."""
    with translated(path), contextlib.closing(connect(path, "rwc")) as connection:
        connection.pragma("synchronous", "OFF")
        connection.pragma("page_size", PAGE_BYTES)
        use_log(connection, path)
        connection.execute(CREATE_META).fetchall()
        for table in TABLES:
            connection.execute(CREATE_TOUCHED.format(table=table)).fetchall()
        connection.execute("INSERT INTO meta VALUES (?, ?, -1, -1, -1, 0, 0, 0, -1, 0)", (lease.number, lease.id))


class Meta(NamedTuple):
    """The single row with the delta's execution, its progress, and the roles of its tables.

    attempted, attempt: the last micro-batch that a numbered attempt of a task wrote, and its greatest number."""

    ex_num: int
    ex_id: str
    open_batch: BatchId
    closed_batch: BatchId
    applied_batch: BatchId
    turn: int
    sealed: bool
    pending: bool
    attempted: BatchId
    attempt: int

    @property
    def active(self) -> str:
        """The table that tasks write to."""
        return TABLES[self.turn]

    @property
    def other(self) -> str:
        """The table that holds what was set apart until it is moved; empty otherwise."""
        return TABLES[1 - self.turn]

    def sql(self, statement: str) -> str:
        """Return the statement with the names of the tables filled in."""
        return statement.format(active=self.active, other=self.other)


class Delta:
    """One delta, with the partition below it attached as `base`, read-only. Its `read`, `apply`, `withdraw` and `due`
    do what a `TaskStore` does, for one step and partition.

    Each task has its own object. The driver's object is used by the thread of the micro-batch and by the thread that
    closes an epoch.
    """

    def __init__(
        self, path: Path, partition: Path, lease: Lease, step: StepId, *, cache_bytes: int = CACHE_BYTES
    ) -> None:
        """cache_bytes: cache size of the delta, and the most for the partition below it."""
        self.path = path
        self._partition = partition
        self._lease = lease
        self._step = step
        self._lock = threading.Lock()
        self._since = NO_BATCH
        # Read before the files are opened: if they are replaced meanwhile, `is_current` is false.
        self._files = self._identities()
        if not path.exists():
            raise LeaseLostError(f"the scratch file of execution {lease.number} is gone", path=path)
        self._connection = connect(path, "rw")
        try:
            with translated(path):
                self._connection.pragma("synchronous", "OFF")
                self._connection.pragma("cache_size", -(cache_bytes >> 10))
                self._connection.pragma("wal_autocheckpoint", LOG_PAGES)
            with translated(partition):
                attach = self._connection.execute
                open_database(partition, "?mode=ro", lambda uri: attach("ATTACH ? AS base", (uri,)))
                if cache_bytes < BASE_CACHE_BYTES:
                    self._connection.pragma("cache_size", -(cache_bytes >> 10), schema="base")
        except BaseException:
            self.close()
            raise

    @property
    def base_file(self) -> tuple[int, int] | None:
        """Device and inode of the partition below, from before it was opened."""
        return None if self._files is None else (self._files[2], self._files[3])

    def is_current(self) -> bool:
        """Return whether the open files are still in their places."""
        return self._files is not None and self._files == self._identities()

    def _identities(self) -> tuple[int, int, int, int] | None:
        try:
            found = self.path.stat(), self._partition.stat()
        except OSError:
            return None
        delta, base = found
        return delta.st_dev, delta.st_ino, base.st_dev, base.st_ino

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def read(self, batch: BatchId, keys: tuple[str, ...]) -> list[str | None]:
        """Return the states of `keys` before `batch`.

        The check reads from the delta first, so the delta's snapshot is taken before the partition's. The closer
        commits to the partition before it clears the delta. So at least one of delta and partition shows each value.
        """
        with translated(self._partition), snapshot(self._connection):
            meta = self._check(batch)
            if not keys:
                return []
            bindings = {"batch": batch, "step": self._step, "keys": apsw.carray(keys)}
            statement = meta.sql(READ_OVER_SEALED if meta.sealed else READ)
            # `get` builds the list in half the time of fetching rows. For a single row it is the value itself.
            found: Any = self._connection.execute(statement, bindings).get
            return [found] if len(keys) == 1 else found

    def apply(
        self,
        batch: BatchId,
        changes: Iterable[Changes],
        count: BatchCount,
        seam_s: Callable[[], float] = lambda: 0.0,
        attempt: int = 0,
    ) -> None:
        """Record what `batch` changed, in one transaction, in place of an earlier apply of this batch. seam_s: called
        before the commit; returns the seconds that the task spent here. attempt: the number of the task's attempt; 0:
        not numbered. Raises LeaseLostError if a later attempt has written."""
        with translated(self.path), transaction(self._connection):
            meta = self._attempted(batch, attempt)
            self._undo(meta, batch)
            for chunk in changes:
                if chunk.packed:
                    form = APPLY_OF_ONE_LENGTH if chunk.key_chars else APPLY_PLAIN
                    statement = meta.sql(APPLY_WITH_TIMEOUTS if chunk.timeouts else form)
                    packed = apsw.carray(chunk.packed)
                    bindings = {"batch": batch, "packed": packed, "key_chars": chunk.key_chars}
                    self._connection.execute(statement, bindings)
            self._connection.execute("UPDATE meta SET applied_batch = ?", (batch,))
            self._connection.execute(
                "INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)",
                (batch, *count[:4], seam_s(), count.waiting),
            )

    def withdraw(self, batch: BatchId, attempt: int = 0) -> None:
        with translated(self.path), transaction(self._connection):
            self._undo(self._attempted(batch, attempt), batch)
            self._connection.execute("DELETE FROM batches WHERE batch = ?", (batch,))

    def _attempted(self, batch: BatchId, attempt: int) -> Meta:
        """Return `meta`, and note the attempt that writes. Raises LeaseLostError if a later one has written."""
        meta = self._check(batch)
        if attempt and meta.attempted == batch and attempt < meta.attempt:
            raise LeaseLostError(
                f"attempt {attempt} of a task of micro-batch {batch} is over: attempt {meta.attempt} has written",
                path=self.path,
                cause="Its executor was cut off, and Spark has run the task again elsewhere.",
                remedy="Nothing: the late attempt was refused, and the other one has done its work.",
            )
        if attempt:
            self._connection.execute("UPDATE meta SET attempted = ?, attempt = ?", (batch, attempt))
        return meta

    def _undo(self, meta: Meta, batch: BatchId) -> None:
        if meta.applied_batch == batch:
            for statement in UNDO:
                self._connection.execute(meta.sql(statement), {"batch": batch})

    def due(self, batch: BatchId, up_to_ms: int) -> list[str]:
        with translated(self._partition), snapshot(self._connection):
            meta = self._check(batch)
            statement = meta.sql(f"{DUE} UNION ALL {DUE_BEFORE}" if meta.applied_batch == batch else DUE)
            bindings = {"batch": batch, "step": self._step, "up_to": up_to_ms}
            # Sorted here: with ORDER BY, SQLite scans by key instead of searching by time.
            return sorted(row[0] for row in rows(self._connection, statement, bindings))

    def next_due_ms(self) -> int | None:
        """Return the earliest timeout of this step in this partition, or None."""
        with self._lock, translated(self._partition), snapshot(self._connection):
            # The delta's snapshot before the partition's, as in `read`.
            statement = self._meta().sql(NEXT_DUE)
            due: int | None = value(self._connection, statement, {"step": self._step})
            return due

    def load_logged(self) -> None:
        """Take over what the partition's log has of this step, as touched in an earlier epoch. To be called on a new
        delta."""
        with self._lock, translated(self._partition), transaction(self._connection):
            statement = self._meta().sql(LOAD)
            for changes in changes_of(self._connection, self._step):
                self._connection.executemany(statement, changes)
                self._connection.execute("UPDATE meta SET pending = 1")

    def open(self, batch: BatchId) -> None:
        """Refuse batches earlier than `batch` from now on, and delete their counts."""
        with self._lock, translated(self.path), transaction(self._connection):
            self._connection.execute("UPDATE meta SET open_batch = ? WHERE open_batch < ?", (batch, batch))
            self._connection.execute("DELETE FROM batches WHERE batch < ?", (batch,))

    def seal(self, batch: BatchId, *, apart: bool = True) -> Sealed:
        """Refuse `batch` and earlier ones from now on. Return where the rows that they left are.

        apart: set apart the rows touched since the last time this was done. The cost does not depend on the number of
        rows, except when tasks of the next batch were early: then all rows are scanned. Otherwise the rows stay where
        they are, and must be read before tasks of the batch after the next one write.
        Sealing the same batch again changes nothing, except that it may set the rows apart. If the rows were cleared
        since, the table is empty.
        """
        with self._lock, translated(self.path), transaction(self._connection):
            meta = self._meta()
            closed, applied = meta.closed_batch, meta.applied_batch
            assert not meta.sealed or batch <= closed, f"{closed} is sealed and not cleared, so {batch} cannot be"
            again = batch <= closed
            if not again:
                self._since = closed
            if meta.sealed or (again and not meta.pending):
                return Sealed(meta.other, self._since)
            if again and not apart:
                return Sealed(meta.active, self._since)
            assert applied <= batch + 1, f"{applied} was applied: what {batch} left is not known any more"
            if not apart:
                self._connection.execute("UPDATE meta SET closed_batch = ?, pending = 1", (batch,))
                return Sealed(meta.active, self._since)
            if applied > batch:
                for statement in SPLIT:
                    self._connection.execute(meta.sql(statement), {"batch": batch})
            self._connection.execute(
                "UPDATE meta SET closed_batch = ?, turn = 1 - turn, sealed = 1, pending = 0", (batch,)
            )
            return Sealed(meta.active, self._since)

    def set_apart(self) -> str:
        """Return the table that holds what was set apart; it is empty if that was cleared."""
        with self._lock, translated(self.path):
            meta = self._meta()
        assert not meta.pending, "what was logged is not set apart"
        return meta.other

    def clear(self) -> None:
        """Delete what was set apart, which is in the partition now."""
        with self._lock, translated(self.path), transaction(self._connection):
            meta = self._meta()
            if meta.sealed:
                # Without a condition SQLite drops whole pages instead of rows.
                self._connection.execute(f"DELETE FROM {meta.other}")
                self._connection.execute("UPDATE meta SET sealed = 0")

    def count(self, batch: BatchId) -> BatchCount:
        """Return what was applied for `batch`."""
        with self._lock, translated(self.path):
            found = rows(
                self._connection,
                "SELECT row_count, key_count, row_bytes, looked_up, seam_s, waiting FROM batches WHERE batch = ?",
                (batch,),
            )
        return BatchCount(*found[0]) if found else BatchCount(0, 0)

    def _meta(self) -> Meta:
        [found] = rows(self._connection, META)
        return Meta(*found)

    def _check(self, batch: BatchId) -> Meta:
        """Return `meta`. Raises LeaseLostError for a task of another execution, or of a batch that is over."""
        meta = self._meta()
        if (meta.ex_num, meta.ex_id) != (self._lease.number, self._lease.id):
            raise LeaseLostError(
                f"execution {self._lease.number} may not write any more: {meta.ex_num} began", path=self.path
            )
        if batch < meta.open_batch or batch <= meta.closed_batch or batch < meta.applied_batch:
            raise LeaseLostError(
                f"micro-batch {batch} is over "
                f"(open: {meta.open_batch}, closed: {meta.closed_batch}, applied: {meta.applied_batch})",
                path=self.path,
                cause="A task was still running after its micro-batch had ended.",
                remedy="Nothing: the late task was refused, and another task has done its work.",
            )
        return meta
