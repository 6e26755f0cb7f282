"""A partition that leaves its directory for another owner: locked while its last blocks are copied, then removed.

Between `note` and `remove`, two copies of the same age may be in place. The note says that the one here does not count
if there is another one. A run that begins on the one here makes it newer, and removes the note.
"""

from __future__ import annotations

import time
from pathlib import Path

import apsw

from recovery.base.faults import reach
from recovery.errors import FileReplacedError, StorageError
from recovery.host.durable import sync
from recovery.planning.copies import Departed, age_of
from recovery.planning.values import PartitionDescription
from recovery.storage.lazy.names import is_lazy
from recovery.storage.moving.departed import remove_note, write_note
from recovery.storage.sqlite.describe import describe
from recovery.storage.sqlite.file.forked import is_at
from recovery.storage.sqlite.file.log_files import beside
from recovery.storage.sqlite.file.opening import open_partition
from recovery.storage.sqlite.file.statements import translated

READERS_S = 30.0
"""How long a partition that leaves waits for its readers and for writers of operational state."""
PAUSE_S = 0.02


class LeavingPartition:
    """A partition of which everything is in its file, and to which nobody else can write, until `release`. The caller
    holds the lock of the directory."""

    def __init__(self, path: Path) -> None:
        """Raises StorageError if readers keep the log beside the file for too long, and what `open_partition`
        raises."""
        self.path = path
        if path.is_symlink() or is_lazy(path):
            raise StorageError(
                "it is a link" if path.is_symlink() else "its pages are still being fetched from a backup",
                path=path,
                cause="Only a whole file that is in the owner's directory can be moved.",
                remedy="Stop the run, and put the file itself there.",
            )
        self._noted: Departed | None = None
        self._connection = open_partition(path, "rw")
        try:
            self._lock()
            self.description: PartitionDescription = describe(self._connection, path)
            with translated(path):
                self.size_bytes = path.stat().st_size
        except BaseException:
            self._connection.close()
            raise

    def _lock(self) -> None:
        """Move the log into the file, and begin a transaction that keeps writers out."""
        connection, log = self._connection, beside(self.path, "-wal")
        until_s = time.monotonic() + READERS_S
        with translated(self.path):
            connection.set_busy_timeout(0)
            connection.pragma("synchronous", "FULL")
            while True:
                try:
                    connection.wal_checkpoint("main", mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                    connection.execute("BEGIN IMMEDIATE")
                    if not log.exists() or log.stat().st_size == 0:
                        return
                    connection.execute("ROLLBACK")
                except apsw.BusyError:
                    pass
                if time.monotonic() > until_s:
                    raise StorageError(
                        f"it was in use for {READERS_S:.0f} s",
                        path=self.path,
                        cause="A command reads it, or a process writes operational state to it.",
                        remedy="Run the same command again when the other one has ended.",
                    )
                time.sleep(PAUSE_S)

    def note(self, to: str, now_ms: int) -> None:
        """Note where the partition goes. Raises StorageError."""
        found = self.description
        execution, epoch = age_of(found)
        note = Departed(found.index, found.store_id, execution, epoch, to, now_ms)
        write_note(self.path.parent, note)
        self._noted = note
        reach("leave.noted")

    def stay(self) -> None:
        """Remove the note, if one was written: the partition does not leave. Raises StorageError."""
        if self._noted is not None:
            remove_note(self.path.parent, self._noted.index)
            self._noted = None

    def remove(self) -> str:
        """Remove the file, and return the location of the owner that has the copy that counts. Raises FileReplacedError
        or StorageError."""
        assert self._noted is not None, "the note comes first"
        if not is_at(self._connection, self.path):
            raise FileReplacedError("another file has its name now", path=self.path)
        with translated(self.path):
            logs = [beside(self.path, suffix) for suffix in ("-wal", "-shm")]
            # A writer that waits for the transaction sees that its file is gone, and says so.
            self.path.unlink()
            reach("leave.removed")
            self.release()
            for log in logs:
                log.unlink(missing_ok=True)
            sync(self.path.parent)
        return self._noted.to

    def release(self) -> None:
        """End the transaction. May be called again."""
        self._connection.close()
