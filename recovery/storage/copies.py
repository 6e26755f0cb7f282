"""Copies of partitions: taking them while a run writes, and making a restored one ready for use.

A copy is taken through SQLite's backup API from a read transaction. The transactions of all partitions can be
opened at one moment. Copying may then take any time: each copy is as of that moment, however much is written
meanwhile. Until copying ends, SQLite cannot empty the log beside the file, so the log grows by what the run writes.

Instead of the whole partition, what changed since an earlier epoch can be written (`write_changes`); `merge` and
`replay` are for those files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import apsw

from recovery.base.ids import NO_EPOCH, Epoch
from recovery.base.untrusted_paths import open_received
from recovery.errors import CorruptPartitionError, RecoveryError
from recovery.host.cloned import clone
from recovery.host.durable import create, sync
from recovery.planning.values import PartitionDescription
from recovery.storage.lazy.names import is_lazy, lazy_path
from recovery.storage.lazy.pages import pages_at
from recovery.storage.sqlite.beginning import BEGINNING
from recovery.storage.sqlite.describe import content_digest, describe, set_store
from recovery.storage.sqlite.digests import MODULUS, load_digests, record_digest
from recovery.storage.sqlite.file.connections import connect
from recovery.storage.sqlite.file.log_files import (
    beside,
    draft_of,
    has_log,
    is_left_alone,
    reading_mode,
    refuse_odd_logs,
    stamp,
)
from recovery.storage.sqlite.file.opening import has_beginning, has_states, open_partition
from recovery.storage.sqlite.file.reading import read_partition
from recovery.storage.sqlite.file.statements import rows, transaction, translated, value
from recovery.storage.sqlite.file.tables import SCHEMA_VERSION
from recovery.storage.sqlite.measures import has_measures
from recovery.storage.sqlite.rewind import rewind
from recovery.storage.sqlite.transfer.changes_file import NO_MARKS, Marks, merge, read_links, write_link
from recovery.storage.sqlite.transfer.replay import replay

__all__ = [
    "NO_MARKS",
    "Marks",
    "PinnedPartition",
    "copy_with_log",
    "describe_copy",
    "merge",
    "pin",
    "put_in_place",
    "read_links",
    "replay",
    "settle",
]

PAGES_PER_STEP = 2048
CHUNK_BYTES = 4 << 20
ATTEMPTS = 3

# Changes whenever operational state does. No epoch shows that.
TOTALS = "SELECT states, states_digest FROM totals"
CHANGED = "SELECT max(changed_ms) FROM states"

CopyObserver = Callable[[int, int], None]
"""Called with the bytes copied so far and the bytes in total."""


def ignore(_done: int, _total: int) -> None:
    """An observer that does nothing."""


class PinnedPartition:
    """A partition as of one moment, held by a read transaction until `release`. Creates no file beside the
    partition. fingerprint: equal for two partitions with the same content."""

    def __init__(self, path: Path, since: Epoch = NO_EPOCH) -> None:
        """since: see `describe`. Raises what `open_partition` and `describe` raise."""
        self.path = path
        self._since = since
        self._connection = self._open()

    def _open(self, *, alone: bool = True) -> apsw.Connection:
        # Even a reader would make a log beside a file that has none.
        self._alone = alone and is_left_alone(self.path)
        self._stamp = stamp(self.path)
        try:
            return self._begin()
        except RecoveryError:
            # A run may have moved its log into the file while this read the file without a log.
            if not self._alone or stamp(self.path) == self._stamp:
                raise
        self._alone = False
        return self._begin()

    def _begin(self) -> apsw.Connection:
        connection = open_partition(self.path, reading_mode(self.path) if self._alone else "ro")
        try:
            with translated(self.path):
                connection.execute("BEGIN")
            self.description: PartitionDescription = describe(connection, self.path, self._since)
            self.operational = _operational(connection, self.path)
            content = content_digest(connection, self.path, self.description)
            self.fingerprint = record_digest(content, *self.operational)
            with translated(self.path):
                self.is_current = connection.pragma("user_version") == SCHEMA_VERSION
                measure = value(connection, "SELECT max(measure_id) FROM measures") if has_measures(connection) else 0
                self.marks = Marks(self.operational, measure or 0)
        except BaseException:
            connection.close()
            raise
        return connection

    def describe_from(self, since: Epoch) -> None:
        """Describe the partition with the epochs from this one on. Raises what `describe` raises."""
        if since < self._since:
            self._since = since
            self.description = describe(self._connection, self.path, since)

    def copy_to(self, target: Path, observe: CopyObserver = ignore) -> PartitionDescription:
        """Write the copy to the new file `target`, check that its description is the same, and return the description.

        The file is complete without a log, and not synced. If a run began on a partition that nobody used before,
        and moved its log into the file, the copy is as of a later moment than the transaction's beginning.
        Raises CorruptPartitionError or StorageError; `target` is then unusable.
        """
        for attempt in range(ATTEMPTS):
            self._copy(target, observe)
            if not self._alone or stamp(self.path) == self._stamp:
                break
            self._connection.close()
            with translated(target):
                target.unlink()
            # A run that writes so often has a log, so the ordinary way of reading creates no new file.
            self._connection = self._open(alone=attempt < ATTEMPTS - 2)
        described, operational = read_partition(
            target, lambda connection: (describe(connection, target, self._since), _operational(connection, target))
        )
        if replace(described, path=self.path) != self.description or operational != self.operational:
            raise CorruptPartitionError("the description of its copy differs from its own", path=self.path)
        return self.description

    def _copy(self, target: Path, observe: CopyObserver) -> None:
        with translated(target):
            destination = connect(target, "rwc")
            try:
                # An incomplete copy is never used, so it needs no protection against a crash.
                destination.pragma("journal_mode", "OFF")
                destination.pragma("synchronous", "OFF")
                with destination.backup("main", self._connection, "main") as backup:
                    while not backup.done:
                        backup.step(PAGES_PER_STEP)
                        share = 1 - backup.remaining / max(1, backup.page_count)
                        observe(int(share * self.description.size_bytes), self.description.size_bytes)
            finally:
                destination.close()

    def write_changes(
        self, target: Path, link: int, after: Epoch, executions: int, since: Marks, taken_ms: int
    ) -> bool:
        """Write what changed since the epoch `after` as the new changes file `target`, which is not synced. The work is
        in proportion to the changes; if epochs made keys without noting them, also to the state.

        link: its number in the chain. executions, since: what the chain has already. Returns False if a run began
        meanwhile on a partition that nobody used: `target` is then unusable. The partition must be of this version.
        Raises CorruptPartitionError or StorageError.
        """
        try:
            write_link(self._connection, self.path, self.description, target, link=link, after=after,
                       executions=executions, taken_ms=taken_ms, since=since, operational=self.operational)  # fmt: skip
        except RecoveryError:
            if not self._alone or stamp(self.path) == self._stamp:
                raise
            return False
        return not self._alone or stamp(self.path) == self._stamp

    def clone_to(self, target: Path) -> bool:
        """Clone the file, with its log, to the new file `target`; return whether that was possible. If cloning was not
        possible, use `copy_to`, after `discard_copy`.

        The log may hold more than it did when the transaction began, so the clone is of that moment or a later one.
        Until `release`, a checkpoint moves only what the transaction sees from the log into the file, so both fit
        together whenever they are cloned. Raises StorageError.
        """
        log = beside(self.path, "-wal")
        with translated(target):
            if not clone(self.path, target) or (log.exists() and not clone(log, beside(target, "-wal"))):
                return False
        # The transaction of a file without a log takes no lock.
        return not self._alone or stamp(self.path) == self._stamp

    def release(self) -> None:
        """End the read transaction. Safe to repeat."""
        self._connection.close()


def _operational(connection: apsw.Connection, path: Path) -> tuple[int, int]:
    """Return the number of rows of operational state and the sum of their digests; zeros for files of older versions.

    The row that says where the input begins also changes without an epoch, so its digest is added.
    """
    with translated(path):
        if not has_states(connection):
            return 0, 0
        [found] = rows(connection, TOTALS) or [(0, 0)]
        beginning = rows(connection, BEGINNING) if has_beginning(connection) else []
        return found[0], (found[1] + sum(row[-1] for row in beginning)) % MODULUS


def _changed_ms(connection: apsw.Connection) -> int:
    return (value(connection, CHANGED) or 0) if has_states(connection) else 0


def pin(paths: Iterable[Path], since: Epoch = NO_EPOCH) -> list[PinnedPartition]:
    """Pin all partitions as of one moment: their transactions begin within milliseconds of each other. since: see
    `describe`."""
    pinned: list[PinnedPartition] = []
    try:
        for path in paths:
            pinned.append(PinnedPartition(path, since))
    except BaseException:
        for each in pinned:
            each.release()
        raise
    return pinned


def discard_copy(path: Path) -> None:
    """Remove a copy that is not to be used, and what lies beside it. Raises StorageError."""
    with translated(path):
        for each in (path, *(beside(path, suffix) for suffix in ("-wal", "-shm"))):
            each.unlink(missing_ok=True)


def put_in_place(copy: Path, path: Path) -> None:
    """Give a whole copy, which is synced, the name `path`, in place of the partition there, whose log goes too; if that
    is a link, where it leads. Nobody else may write to the partition. If `put_in_place` is cut off, repeat it. Raises
    StorageError."""
    with translated(path):
        for suffix in ("-wal", "-shm"):
            # SQLite would take it for the log of the new file.
            beside(path, suffix).unlink(missing_ok=True)
        real = Path(os.path.realpath(path))
        if real.parent.stat().st_dev != copy.stat().st_dev:
            draft = draft_of(real)
            draft.unlink(missing_ok=True)
            _copy_file(copy, draft)
            draft.chmod(copy.stat().st_mode)
            sync(draft)
            draft.replace(real)
            copy.unlink()
        else:
            copy.replace(real)
        sync(real.parent)


def settle(path: Path, newest: Epoch, *, store_id: str | None = None) -> PartitionDescription:
    """Make a copied file ready for use: move a log beside it into it, discard the epochs after `newest`, sync it.
    store_id: make it a file of this store.

    Afterwards the file is complete by itself. Raises CorruptPartitionError or StorageError.
    """
    connection = open_partition(path, "rw")
    try:
        with translated(path):
            load_digests(connection)
            connection.pragma("synchronous", "FULL")
        rewind(connection, path, newest)
        with translated(path):
            if store_id is not None:
                with transaction(connection):
                    set_store(connection, store_id)
            connection.wal_checkpoint("main", mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        described = describe(connection, path)
    finally:
        # Closing the last connection removes the log, which is empty now.
        connection.close()
    with translated(path):
        sync(path)
        if is_lazy(path):
            pages_at(lazy_path(path)).sync()
    return described


def describe_copy(path: Path, scratch: Path) -> tuple[PartitionDescription, int]:
    """Return the description of a copied file, including a log beside it, and the time of the last change of its
    operational state, in milliseconds since 1970. Neither the copy nor the log is changed.

    Raises what `open_partition` and `describe` raise.
    """

    def read(connection: apsw.Connection) -> tuple[PartitionDescription, int]:
        described = describe(connection, path)
        with translated(path):
            return described, _changed_ms(connection)

    if not has_log(path):
        return read_partition(path, read)
    # Reading a log creates its index beside it.
    with tempfile.TemporaryDirectory(dir=scratch) as name, translated(path):
        copied = Path(name) / path.name
        copy_with_log(path, copied)
        return read_partition(copied, read)


def copy_with_log(source: Path, target: Path) -> None:
    """Copy a file that nobody uses, and the log beside it if there is one, byte for byte. Raises OSError, and
    StorageError for a log that is no file."""
    refuse_odd_logs(source)
    _copy_file(source, target)
    log = beside(source, "-wal")
    if log.exists():
        _copy_file(log, beside(target, "-wal"))


def _copy_file(source: Path, target: Path) -> None:
    with open_received(source, through_links=True) as old, os.fdopen(create(target), "wb") as new:
        shutil.copyfileobj(old, new, CHUNK_BYTES)
