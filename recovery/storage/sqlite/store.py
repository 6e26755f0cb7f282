"""The store behind the seam: recovery partitions as local SQLite files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw

from recovery.base import faults
from recovery.base.clock import Clock, SystemClock
from recovery.base.ids import NO_EPOCH, BatchId, Epoch, Lease, PartitionIndex, StepId
from recovery.errors import (
    FileReplacedError,
    UnsupportedPlanError,
)
from recovery.host.open_files import allow_open_files
from recovery.planning.measures import ClosedPartition, Measure, StepSize
from recovery.planning.values import Execution, PartitionDescription
from recovery.storage.deltas.lifeline import Lifeline
from recovery.storage.deltas.open_deltas import MOST_KEPT
from recovery.storage.deltas.scratch import Scratch
from recovery.storage.hydration import Hydration
from recovery.storage.lazy.names import remove_left_log
from recovery.storage.lock import held_lock
from recovery.storage.seam import BatchCount, CloseRequest, Collected, KeyToErase, of_all_steps
from recovery.storage.sqlite import close, describe, erase, fold, rewind
from recovery.storage.sqlite.beginning import Beginning, keep_beginning, read_beginning
from recovery.storage.sqlite.execution_deltas import ExecutionDeltas
from recovery.storage.sqlite.file.connections import prepare_writer
from recovery.storage.sqlite.file.log_files import beside
from recovery.storage.sqlite.file.opening import open_partition
from recovery.storage.sqlite.file.reading import read_partition
from recovery.storage.sqlite.file.statements import transaction, translated
from recovery.storage.sqlite.file.watched_files import Watch, check_opened
from recovery.storage.sqlite.measures import add_measure

CACHE_BYTES = 256 << 20
CHECKPOINT_BYTES = 1 << 20
"""How much of a log is in use before `FilePartitions.checkpoint` moves it into its file: a page that small epochs write
again and again is moved once. Every user of the file finds the newest pages in the log, and a crash leaves them
there."""
MAX_THREADS = 16

# A database in use is a file, its log and the log's index. The writer has the partition open, and each delta. The
# connection to a delta has the delta open, and the partition below it. A process opens an index only once.
FILES_PER_PARTITION = 3
FILES_PER_DELTA = 7

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionShare:
    """Partitions of a store that lie in one directory: which ones, and how many the store has. A directory may have no
    partitions."""

    directory: Path
    indexes: tuple[PartitionIndex, ...]
    count: int


class FilePartitions:
    """The `PartitionStore` of one directory, for the driver that holds the directory's lock.

    Where other partitions lie elsewhere, `recovery.storage.owned` puts the views together. Then results and arguments
    that are one for each partition are those of `indexes`, in this order.
    """

    def __init__(
        self, paths: Sequence[Path], scratch: Path, clock: Clock | None = None, share: PartitionShare | None = None
    ) -> None:
        """paths: in the order of their indexes. scratch: a directory that stores may share. share: which of the store's
        partitions these are; all by default."""
        share = share or PartitionShare(paths[0].parent, tuple(map(PartitionIndex, range(len(paths)))), len(paths))
        self._directory = share.directory
        self.paths = list(paths)
        self.indexes = share.indexes
        self.partition_count = share.count
        self._clock = clock or SystemClock()
        self._lock = held_lock(share.directory)
        modes_of = share.directory / self.paths[0].name if self.paths else share.directory
        self._scratch = Scratch(scratch, share.directory, modes_of)
        self._writers: list[apsw.Connection] = []
        self._reader: apsw.Connection | None = None
        self._deltas = ExecutionDeltas()
        self._lifeline: Lifeline | None = None
        self._open_files = Watch(share.directory)
        self._logs: list[Path] = []
        self._hydration: Hydration | None = None
        held = max(1, len(self.paths))
        self._pool = ThreadPoolExecutor(min(MAX_THREADS, held), thread_name_prefix="partition")
        allow_open_files(held * FILES_PER_PARTITION)
        cache = max(4 << 20, min(64 << 20, CACHE_BYTES // held))
        try:
            for path in self.paths:
                with translated(path):
                    remove_left_log(path)
                self._writers.append(open_partition(path, "rw"))
                with translated(path):
                    prepare_writer(self._writers[-1], path, cache_bytes=cache)
                self._watch(self._writers[-1], path)
            self._hydration = Hydration(share.directory)
        except BaseException:
            self.release()
            raise

    def _watch(self, writer: apsw.Connection, path: Path) -> None:
        with translated(path):
            # Reading opens the log, even if the file had another journal mode before.
            writer.pragma("user_version")
        self._open_files.add(path, grows=True)
        # The writer's log has this name until the writer is closed, also when the partition becomes an ordinary file.
        self._logs.append(beside(path, "-wal"))
        self._open_files.add_log(self._logs[-1], writer, partial(_logged_frames, path))
        self._open_files.add(beside(path, "-shm"))
        check_opened(writer, path)

    def check(self, lease: Lease) -> None:
        self._open_files.check()
        self._check_own(lease)

    def _check_own(self, lease: Lease) -> None:
        """Check that the lock and the scratch files are in their places."""
        try:
            if self._lock is not None:
                self._lock.check()
            if self._scratch.files is not None:
                self._scratch.files.check()
        except FileReplacedError:
            # A successor removes earlier scratch files. Then this raises LeaseLostError instead.
            for path in self.paths[:1]:
                read_partition(path, partial(describe.check_lease, path=path, lease=lease))
            raise

    def describe(self) -> list[PartitionDescription]:
        return self._each(lambda index: describe.describe(self._writers[index], self.paths[index]))

    def start(
        self,
        execution: Execution,
        steps: Sequence[StepId],
        planned: Sequence[PartitionDescription] = (),
        *,
        keeps_log: bool = False,
        erases: Sequence[KeyToErase] = (),
    ) -> None:
        """Begin an execution: abandon everything at or above its resume epoch, and remove the scratch files of earlier
        executions. Safe to repeat."""
        self.allow(steps)
        # Files that lacked an epoch come before those that hold it. Either the epoch was closed in them since, and
        # nothing is abandoned yet, or from now on it can never be closed in them.
        seen: dict[PartitionIndex, PartitionDescription | None] = dict.fromkeys(self.indexes)
        seen.update(zip(self.indexes, planned, strict=bool(planned)))
        for epoch in sorted({epoch_of(each) for each in seen.values()}):
            mine = {index: each for index, each in seen.items() if epoch_of(each) == epoch}
            self.begin(execution, mine, keeps_log, erases)
        self.make_deltas(execution, steps)

    def allow(self, steps: Sequence[StepId]) -> None:
        """Make room for the deltas of an execution. Raises UnsupportedPlanError for too many steps, StorageError for
        too many files."""
        attachable = min((writer.limit(apsw.SQLITE_LIMIT_ATTACHED) for writer in self._writers[:1]), default=len(steps))
        if len(steps) > attachable:
            raise UnsupportedPlanError(
                f"the flow has {len(steps)} stateful steps",
                cause=f"A partition takes the state of {attachable} steps at a time. One with a quarantine is two.",
                remedy="Split the flow in two.",
            )
        # The driver may also do the work of tasks (see `recovery.spark.tuning.merging`).
        needed = len(self.paths) * (FILES_PER_PARTITION + FILES_PER_DELTA * len(steps))
        allow_open_files(needed + min(MOST_KEPT, len(self.paths)) * FILES_PER_DELTA)

    def begin(
        self,
        execution: Execution,
        planned: Mapping[PartitionIndex, PartitionDescription | None],
        keeps_log: bool = False,
        erases: Sequence[KeyToErase] = (),
    ) -> None:
        """Begin an execution in some partitions. planned: as the plan saw them, if there is one; see
        `PartitionStore.start`."""

        def begin_one(place: int) -> None:
            writer, path, found = self._writers[place], self.paths[place], planned[self.indexes[place]]
            rewind.start(writer, path, execution, found, keeps_log=keeps_log, erases=erases)
            faults.reach("start.3.partition")

        self._each(begin_one, [self.indexes.index(index) for index in planned])

    def fence(self, plan: Callable[[Sequence[PartitionDescription]], Execution]) -> Execution:
        """Begin the execution that `plan` returns, while another execution may be closing epochs; return it.

        Write transactions hold all partitions from before they are read until the new execution is recorded in each.
        So an epoch that the other execution closes is either seen here or refused everywhere.
        """
        with contextlib.ExitStack() as held:
            for writer, path in zip(self._writers, self.paths, strict=True):
                held.enter_context(translated(path))
                held.enter_context(transaction(writer))
            execution = plan(
                [describe.describe(writer, path) for writer, path in zip(self._writers, self.paths, strict=True)]
            )
            for writer, path in zip(self._writers, self.paths, strict=True):
                rewind.begin(writer, path, execution)
        self.make_deltas(execution, ())
        return execution

    def prepare(self, execution: Execution) -> Path:
        self._discard_scratch()
        return self._scratch.make(execution)

    def make_deltas(self, execution: Execution, steps: Sequence[StepId]) -> None:
        """Create the deltas of the steps of an execution that has begun."""
        if self._deltas or not self._scratch.belongs_to(execution):
            self.prepare(execution)
        self._scratch.remove_others()
        files = self._scratch.files
        assert files is not None
        if steps:
            self._lifeline = Lifeline(execution.id, self._clock)
        for step in steps:
            partitions = zip(self.indexes, self.paths, self._writers, strict=True)
            self._deltas.create(step, execution.lease, self.scratch, files, partitions)

    @property
    def scratch(self) -> Path:
        """The scratch directory of the execution that has started or is about to start."""
        return self._scratch.path

    def address(self, lease: Lease) -> str:
        return json.dumps(
            {
                "kind": "files",
                "count": self.partition_count,
                "partitions": {
                    index: (str(path.absolute()), *identity)
                    for index, path, identity in zip(
                        self.indexes, self.paths, self._open_files.identities(self.paths), strict=True
                    )
                },
                "scratch": str(self.scratch.absolute()),
                "number": lease.number,
                "id": lease.id,
                "line": self._lifeline.address if self._lifeline else None,
            }
        )

    def open(self, lease: Lease, batch: BatchId) -> None:
        self._open_files.check()
        if self._hydration is not None:
            self._hydration.batch()
        # Ends a fenced run at its next micro-batch. Without steps, or with its deltas elsewhere, no task would notice.
        for path in self.paths[:1]:
            if self._reader is None:
                self._reader = open_partition(path, "ro")
            describe.check_lease(self._reader, path, lease)
        self._check_own(lease)
        if self._lifeline is not None:
            self._lifeline.admit()
        self._deltas.open(batch)

    def seal(self, lease: Lease, batch: BatchId, apart: bool = True) -> None:
        self._deltas.seal(batch, apart=apart)
        if not apart:
            self._each(self._hold)

    def _hold(self, index: int) -> None:
        """Make the partition's writer see its deltas as they are now, until its transaction ends."""
        with translated(self.paths[index]):
            self._deltas.hold(self._writers[index])

    def close(self, lease: Lease, requests: Sequence[CloseRequest]) -> list[ClosedPartition]:
        self.check(lease)
        written = self._each(lambda index: self.close_partition(index, lease, requests[index]))
        # A commit to a file that has lost its name is not in the directory: then the epoch is not closed.
        self.check(lease)
        faults.reach("close.3")
        if not all(request.logged for request in requests):
            self._each(self._deltas.clear_apart)
        faults.reach("close.4")
        return written

    def close_partition(self, index: int, lease: Lease, request: CloseRequest) -> ClosedPartition:
        """Close an epoch in one partition. The epoch is closed when all partitions have it."""
        writer, path = self._writers[index], self.paths[index]
        sealed = self._deltas.sealed(index, request.batch, apart=not request.logged)
        if request.logged:
            return close.log_epoch(writer, path, lease, request, sealed)
        tables = {step: each.table for step, each in sealed.items()}
        return close.close_epoch(writer, path, lease, request, tables, self._clock.elapsed_s)

    def fold(self, lease: Lease, epoch: Epoch, floor: Epoch) -> list[Mapping[str, StepSize]]:
        faults.reach("fold.1")
        self.check(lease)
        folded = self._each(lambda index: self.fold_partition(index, lease, epoch, floor))
        self.check(lease)
        faults.reach("fold.3")
        self._each(self._deltas.clear_apart)
        faults.reach("fold.4")
        return folded

    def fold_partition(self, index: int, lease: Lease, epoch: Epoch, floor: Epoch) -> Mapping[str, StepSize]:
        """Fold the log of one partition."""
        tables = self._deltas.set_apart(index)
        return fold.fold(self._writers[index], self.paths[index], lease, epoch, tables, floor)

    def begin_input(self, lease: Lease, content: str) -> None:
        def keep(index: int) -> None:
            keep_beginning(self._writers[index], self.paths[index], lease, content)
            faults.reach("start.5.partition")

        self._open_files.check()
        self._each(keep)
        self._open_files.check()

    def beginning(self) -> str | None:
        found = self.newest_beginning()
        return None if found is None else found.content

    def newest_beginning(self) -> Beginning | None:
        """Return the newest row that says where the input begins."""
        each = (read_beginning(writer, path) for writer, path in zip(self._writers, self.paths, strict=True))
        return max((beginning for beginning in each if beginning is not None), default=None)

    def record(self, measure: Measure) -> None:
        """Store a measure, in the first partition."""
        add_measure(self._writers[0], self.paths[0], measure)

    def checkpoint(self) -> None:
        self._open_files.check()
        for path, log in zip(self.paths, self._logs, strict=True):
            if self._open_files.log_bytes(log) < CHECKPOINT_BYTES:
                continue
            # A separate connection, because another thread may be using the writer.
            connection = open_partition(path, "rw")
            try:
                with translated(path):
                    connection.wal_checkpoint("main", mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            finally:
                connection.close()

    def collect(self, floor: Epoch) -> list[Collected]:
        return self._rewritten(lambda index: fold.collect_file(self._writers[index], self.paths[index], floor))

    def scrub(self) -> None:
        self._rewritten(lambda index: erase.scrub(self._writers[index], self.paths[index]))
        erase.remove_older_copies(self._directory)
        self._scratch.remove_copies()

    def _rewritten(self, work: Callable[[int], T]) -> list[T]:
        """Do `work`, which makes files smaller, for all partitions."""
        self._check_shared()
        try:
            found = self._each(work)
        finally:
            self._open_files.resized()
        self._check_shared()
        return found

    def _check_shared(self) -> None:
        """Check that all files that do not belong to one execution are in their places."""
        self._open_files.check()
        if self._lock is not None:
            self._lock.check()

    def counts(self, lease: Lease, batch: BatchId) -> BatchCount:
        return of_all_steps(self.counts_of_steps(batch))

    def counts_of_steps(self, batch: BatchId) -> dict[StepId, BatchCount]:
        """Return what was applied for a batch so far, by step."""
        return self._deltas.counts(batch)

    def next_due_ms(self, lease: Lease, steps: Collection[StepId] | None = None) -> int | None:
        return self._deltas.next_due_ms(steps)

    def driver_values(self, step: StepId, resume_epoch: Epoch | None = None) -> dict[str, str | bytes]:
        return dict(self.driver_rows(step, resume_epoch))

    def driver_rows(
        self, step: StepId, resume_epoch: Epoch | None = None
    ) -> Generator[tuple[str, str | bytes], None, None]:
        for writer, path in zip(self._writers, self.paths, strict=True):
            yield from describe.step_values(writer, path, step, resume_epoch)

    def known_steps(self, resume_epoch: Epoch | None = None) -> set[StepId]:
        return set().union(
            *(
                describe.known_steps(writer, path, resume_epoch)
                for writer, path in zip(self._writers, self.paths, strict=True)
            )
        )

    def release(self) -> None:
        """Close the files. Safe to repeat."""
        if self._hydration is not None:
            self._hydration.end()
        self._pool.shutdown()
        self._discard_scratch()
        self._open_files.forget()
        # The reader first: closing the last connection moves the log into the file. If that fails, the log stays and
        # nothing is lost.
        for connection in filter(None, [self._reader, *self._writers]):
            with contextlib.suppress(apsw.Error):
                connection.close()
        self._reader = None
        self._writers.clear()

    def _discard_scratch(self) -> None:
        """Close the deltas and remove their files, which nobody else has open any more."""
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None
        self._deltas.close(self._writers)
        self._scratch.remove()

    def _each(self, work: Callable[[int], T], indexes: Sequence[int] | None = None) -> list[T]:
        """Do `work` for all partitions, or those given, in parallel. Waits for all before raising the first error."""
        wanted = range(len(self.paths)) if indexes is None else indexes
        futures = [self._pool.submit(work, index) for index in wanted]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]


def epoch_of(seen: PartitionDescription | None) -> Epoch:
    """Return the newest epoch that the plan saw in a partition; 0 without a plan."""
    return NO_EPOCH if seen is None else seen.newest_epoch


def _logged_frames(path: Path) -> int:
    """Return the number of valid frames in the log of a partition."""
    connection = open_partition(path, "rw")
    try:
        with translated(path):
            frames, _ = connection.wal_checkpoint("main", mode=apsw.SQLITE_CHECKPOINT_NOOP)
        return frames
    finally:
        connection.close()
