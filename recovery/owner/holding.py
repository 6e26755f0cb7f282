"""One run that holds an owner's partitions, and what is open for that run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from recovery.base.clock import Clock
from recovery.base.ids import PartitionIndex
from recovery.errors import LeaseLostError, OwnerUnreachableError, RecoveryError
from recovery.host.durable import Modes
from recovery.owner.given import GivenRows
from recovery.planning.values import PartitionDescription
from recovery.storage.connect import FilePartitions, PartitionShare, connect_share
from recovery.storage.lock import DirectoryLock
from recovery.storage.moving.departed import remove_note
from recovery.storage.moving.leaving import LeavingPartition
from recovery.storage.staged import StagedRestore
from recovery.storage.verify import PartitionCheck
from recovery.wire.calls import BegunExecution


class Holding:
    """A run's hold on the directory of an owner: the lock, the partitions that it has taken, and the calls that use
    them. `end` waits for these calls."""

    def __init__(self, run: str, task_key: bytes, directory: Path, scratch: Path, purpose: str, clock: Clock) -> None:
        """Raises DirectoryLockedError."""
        self.run = run
        self.purpose = purpose
        self.task_key = task_key
        self.store: FilePartitions | None = None
        self.cuts: set[Callable[[], None]] = set()
        """What ends the connections of this run."""
        self.given = GivenRows()
        self.restore: StagedRestore | None = None
        """The restore that puts partitions here."""
        self._leaving: dict[str, LeavingPartition] = {}
        self.directory = directory
        self._scratch = scratch
        self._clock = clock
        self._checks: set[PartitionCheck] = set()
        self._checks_end = False
        self._changed = threading.Condition()
        self._using = 0
        self._ends = False
        self._closes = False
        self._lock = DirectoryLock(directory, clock, purpose)
        self._lock.acquire()

    def take(self, store_id: str, indexes: Sequence[PartitionIndex], count: int) -> None:
        """Open these partitions for writing. Raises FileReplacedError for files of another store."""
        assert self.store is None, "partitions are taken once"
        for index in indexes:
            # A note says that the partition was to leave, and this run begins on the one here.
            remove_note(self.directory, index)
        share = PartitionShare(self.directory, tuple(indexes), count)
        self.store = connect_share(store_id, share, self._scratch, self._clock)

    def stage(self, name: str, home: str | None, indexes: Sequence[PartitionIndex], modes: Modes) -> None:
        """Begin a restore to the directory. Raises what `StagedRestore` raises."""
        with self._changed:
            if self._ends:
                raise LeaseLostError("this restore does not hold the directory any more")
            self.restore = StagedRestore(self.directory, name, home, indexes, modes)

    def begin_leaving(self, path: Path) -> LeavingPartition:
        """Lock a partition that is to leave. Raises what `LeavingPartition` raises."""
        with self.busy():
            partition = LeavingPartition(path)
            with self._changed:
                before = self._leaving.pop(path.name, None)
                self._leaving[path.name] = partition
            if before is not None:
                before.release()
            return partition

    @contextlib.contextmanager
    def leaving(self, name: str, *, ends: bool = False) -> Iterator[LeavingPartition]:
        """Use a partition that is to leave. ends: it is locked no longer afterwards."""
        with self.busy():
            partition = self._leaving.get(name)
            if partition is None:
                raise LeaseLostError(f"{name} is not about to leave", path=self.directory)
            yield partition
            if ends:
                with self._changed:
                    self._leaving.pop(name, None)
                partition.release()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Within this context, the hold does not end: `end` waits."""
        with self._changed:
            if self._ends:
                raise let_go_error()
            self._using += 1
        try:
            yield
        finally:
            with self._changed:
                self._using -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def using(self, *, closes: bool | None = None) -> Iterator[FilePartitions]:
        """Use the partitions, which stay open meanwhile. closes: whether an epoch is being closed afterwards; None: as
        before."""
        with self.busy():
            if self.store is None:
                raise let_go_error()
            yield self.store
            if closes is not None:
                self._closes = closes

    def verify(self, path: Path) -> PartitionCheck:
        """Return a full check that ends when the hold does."""
        check = PartitionCheck(path)
        with self._changed:
            self._checks.add(check)
            if self._checks_end:
                check.cancel()
        return check

    def end_checks(self) -> None:
        """End full checks, now and later."""
        with self._changed:
            self._checks_end = True
            for check in self._checks:
                check.cancel()

    def wait_closed(self, wait_s: float) -> bool:
        """Wait until no epoch is being closed, and no call uses the partitions. Return whether this happened within
        `wait_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._using and not self._closes, wait_s)

    def end(self) -> None:
        """Close everything, when the calls that use the partitions have returned. What the calls have begun is whole: a
        transaction of an epoch that not all partitions close is abandoned by the next run."""
        with self._changed:
            self._ends = True
        self.end_checks()
        for cut in list(self.cuts):
            cut()
        with self._changed:
            self._changed.wait_for(lambda: not self._using)
        try:
            if self.store is not None:
                with contextlib.suppress(RecoveryError):
                    self.store.release()
            if self.restore is not None:
                with contextlib.suppress(RecoveryError):
                    self.restore.end()
            for each in self._leaving.values():
                each.release()
        finally:
            self.given.clear()
            self._lock.release()


def let_go_error() -> OwnerUnreachableError:
    """Return the error for a run that does not hold the partitions, though no later run is known."""
    return OwnerUnreachableError(
        "the owner holds no partitions for this run any more",
        cause="The owner was started again, or has not heard of the run for too long.",
        remedy="Run the same command again: it continues from the last closed epoch.",
    )


def why_not_held(
    begun: BegunExecution | None, there: Sequence[PartitionDescription], holder: Holding | None, directory: Path
) -> RecoveryError:
    """Return why a run does not hold a directory: LeaseLostError if a later execution has begun in the partitions that
    are there or another run holds them, else OwnerUnreachableError. begun: by the run, None: nothing yet."""
    if begun is not None and any(each.store_id != begun.store_id for each in there):
        return OwnerUnreachableError(
            "the owner serves partitions of another store now",
            path=directory,
            cause="The owner was started with another directory, or another owner listens at this address.",
            remedy="Serve the store's directory there, and run the same command again: it continues from the last "
            "closed epoch.",
        )
    newest = max(((each.number, each.id) for found in there for each in found.executions), default=None)
    if begun is not None and newest is not None and newest[0] >= begun.lease.number and newest[1] != begun.lease.id:
        return LeaseLostError(
            f"execution {begun.lease.number} may not write any more: execution {newest[0]} began here", path=directory
        )
    if holder is not None:
        return LeaseLostError(f"the partitions are held by {holder.purpose} now", path=directory)
    return let_go_error()
