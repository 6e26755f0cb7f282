"""A partition store in memory, for tests: it keeps the promises of `recovery.storage.seam`, without files.

`MemoryDirectory` stands for a recovery directory, and `MemoryPartitions` for a driver's view of one. Two views of the
same directory are two executions: the later one fences the earlier one. Everything lives in this process, and so must
the tasks. `tests/storage/test_contract.py` states the promises, and checks them for this store and for the real one.

A snapshot is a dictionary of all states, copied for every epoch, and a delta keeps the changes of each micro-batch. So
every value that an operation needs can be looked up, at the cost of memory. Digests are 0, and no call waits: `close`
and `fold` work on one partition after the other.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from recovery.base.ids import BatchId, Epoch, Lease, PartitionIndex, StepId
from recovery.errors import LeaseLostError, StorageError
from recovery.planning.measures import ClosedPartition, Measure, StepSize, outdated
from recovery.planning.values import Execution, PartitionDescription
from recovery.storage.reach import KINDS
from recovery.storage.seam import BatchCount, Changes, CloseRequest, Collected, FencingStore, Keys, KeyToErase, States
from tests.memory_contents import Delta, Partition, Scratch, State, states_of, unpacked

_names = itertools.count(1)
_directories: WeakValueDictionary[str, MemoryDirectory] = WeakValueDictionary()
"""The directories of this process by name, for addresses."""


class MemoryDirectory:
    """The partitions of one store. Several executions, one after the other, can open it."""

    def __init__(self, count: int) -> None:
        self.name = f"memory-{next(_names)}"
        self.partitions = [Partition(Path(self.name, f"part-{index}.sqlite3"), index, count) for index in range(count)]
        self.measures: dict[int, Measure] = {}
        """What `record` stored, by number."""
        self.scratch: Scratch | None = None
        self.lock = threading.RLock()
        _directories[self.name] = self

    def scratch_of(self, lease: Lease) -> Scratch:
        """Return the scratch content of an execution. Raises LeaseLostError if it was removed."""
        if self.scratch is None or self.scratch.lease != lease:
            raise LeaseLostError(f"the scratch content of execution {lease.number} is gone", path=self.name)
        return self.scratch


class MemoryPartitions:
    """The driver's view of a directory in memory: a `PartitionStore`."""

    def __init__(self, directory: MemoryDirectory) -> None:
        self.directory = directory
        self.partition_count = len(directory.partitions)
        self._partitions = directory.partitions
        self._lock = directory.lock
        self._scratch: Scratch | None = None

    def describe(self) -> list[PartitionDescription]:
        """See `PartitionStore.describe`."""
        with self._lock:
            return [partition.describe() for partition in self._partitions]

    def prepare(self, execution: Execution) -> Path:
        """See `PartitionStore.prepare`. Nothing but the caller's files are in the directory."""
        with self._lock:
            if self.directory.scratch is not None:
                shutil.rmtree(self.directory.scratch.path, ignore_errors=True)
            self._scratch = Scratch(execution.lease, Path(tempfile.mkdtemp(prefix=f"recovery-{self.directory.name}-")))
            self.directory.scratch = self._scratch
            return self._scratch.path

    def start(
        self,
        execution: Execution,
        steps: Sequence[StepId],
        planned: Sequence[PartitionDescription] = (),
        *,
        keeps_log: bool = False,
        erases: Sequence[KeyToErase] = (),
    ) -> None:
        """See `PartitionStore.start`. What is logged and what is folded are the same here but for their names."""
        with self._lock:
            # Partitions that lacked an epoch first, as in the real store: see `FilePartitions.start`.
            for index in sorted(range(self.partition_count), key=lambda i: planned[i].newest_epoch if planned else 0):
                self._partitions[index].start(execution, planned[index] if planned else None, erases)
            self._make_deltas(execution, steps)

    def fence(self, plan: Callable[[Sequence[PartitionDescription]], Execution]) -> Execution:
        """Begin the execution that `plan` returns for the partitions. No epoch is closed meanwhile."""
        with self._lock:
            execution = plan(self.describe())
            for partition in self._partitions:
                partition.start(execution, None)
            self._make_deltas(execution, ())
            return execution

    def _make_deltas(self, execution: Execution, steps: Sequence[StepId]) -> None:
        if self._scratch is None or self._scratch.lease != execution.lease or self._scratch.deltas:
            self.prepare(execution)
        assert self._scratch is not None
        self._scratch.deltas = {step: [Delta() for _ in self._partitions] for step in steps}

    @property
    def _deltas(self) -> dict[StepId, list[Delta]]:
        return {} if self._scratch is None else self._scratch.deltas

    def address(self, lease: Lease) -> str:
        """See `PartitionStore.address`. Tasks of other processes cannot use it."""
        return json.dumps({"kind": "memory", "name": self.directory.name, "number": lease.number, "id": lease.id})

    def open(self, lease: Lease, batch: BatchId) -> None:
        """See `PartitionStore.open`."""
        with self._lock:
            self.check(lease)
            for delta in itertools.chain.from_iterable(self._deltas.values()):
                delta.open_batch = max(delta.open_batch, batch)
                delta.counts = {counted: count for counted, count in delta.counts.items() if counted >= batch}

    def check(self, lease: Lease) -> None:
        """See `PartitionStore.check`. There are no files that could be replaced."""
        with self._lock:
            for partition in self._partitions:
                partition.check(lease)

    def seal(self, lease: Lease, batch: BatchId, *, apart: bool = True) -> None:
        """See `PartitionStore.seal`."""
        with self._lock:
            for delta in itertools.chain.from_iterable(self._deltas.values()):
                delta.seal(batch, apart)

    def close(self, lease: Lease, requests: Sequence[CloseRequest]) -> list[ClosedPartition]:
        """See `PartitionStore.close`."""
        with self._lock:
            self.check(lease)
            closed = [self.close_partition(index, lease, request) for index, request in enumerate(requests)]
            if not all(request.logged for request in requests):
                self._clear()
            return closed

    def close_partition(self, index: int, lease: Lease, request: CloseRequest) -> ClosedPartition:
        """Close an epoch in one partition. The epoch is closed when all partitions have it."""
        with self._lock:
            deltas = {step: deltas[index] for step, deltas in self._deltas.items()}
            for delta in deltas.values():
                delta.seal(request.batch, apart=not request.logged)
            return self._partitions[index].close(lease, request, deltas)

    def fold(self, lease: Lease, epoch: Epoch, floor: Epoch) -> list[Mapping[str, StepSize]]:
        """See `PartitionStore.fold`."""
        with self._lock:
            self.check(lease)
            for delta in itertools.chain.from_iterable(self._deltas.values()):
                assert not delta.pending, "what was logged is not set apart"
            for partition in self._partitions:
                assert partition.folded_epoch == partition.newest_epoch or partition.newest_epoch == epoch
                partition.fold(floor)
            self._clear()
            return [partition.sizes() for partition in self._partitions]

    def _clear(self) -> None:
        for delta in itertools.chain.from_iterable(self._deltas.values()):
            delta.apart = False

    def scrub(self) -> None:
        """See `PartitionStore.scrub`. Memory keeps nothing of what was deleted."""

    def collect(self, floor: Epoch) -> list[Collected]:
        """See `PartitionStore.collect`."""
        with self._lock:
            collected = []
            for partition in self._partitions:
                rows = partition.collect(floor)
                collected.append(Collected(rows, partition.fold(floor) if floor == partition.newest_epoch else 0))
            return collected

    def begin_input(self, lease: Lease, content: str) -> None:
        """See `PartitionStore.begin_input`."""
        with self._lock:
            self.check(lease)
            for partition in self._partitions:
                partition.beginning = (lease.number, lease.id, content)

    def beginning(self) -> str | None:
        """See `PartitionStore.beginning`."""
        with self._lock:
            found = [each.beginning for each in self._partitions if each.beginning is not None]
            return max(found)[-1] if found else None

    def checkpoint(self) -> None:
        """See `PartitionStore.checkpoint`. There are no logs."""

    def record(self, measure: Measure) -> None:
        """See `PartitionStore.record`."""
        with self._lock:
            number = max(self.directory.measures, default=0) + 1
            self.directory.measures[number] = measure
            for old in outdated(number):
                self.directory.measures.pop(old, None)

    def counts(self, lease: Lease, batch: BatchId) -> BatchCount:
        """See `PartitionStore.counts`. `seam_s` is 0."""
        by_step = self.counts_of_steps(batch)
        every = list(by_step.values())
        return BatchCount(
            rows=max((count.rows for step, count in by_step.items() if not step.startswith("$bad ")), default=0),
            keys=sum(count.keys for count in every),
            row_bytes=max((count.row_bytes for count in every), default=0),
            looked_up=sum(count.looked_up for count in every),
            waiting=sum(count.waiting for count in every),
        )

    def counts_of_steps(self, batch: BatchId) -> dict[StepId, BatchCount]:
        """See `PartitionStore.counts_of_steps`. `seam_s` is 0."""
        with self._lock:
            by_step = {
                step: [delta.counts[batch] for delta in deltas if batch in delta.counts]
                for step, deltas in self._deltas.items()
            }
        return {
            step: BatchCount(
                rows=sum(count.rows for count in counts),
                keys=sum(count.keys for count in counts),
                row_bytes=max(count.row_bytes for count in counts),
                looked_up=sum(count.looked_up for count in counts),
                waiting=sum(count.waiting for count in counts),
            )
            for step, counts in by_step.items()
            if counts
        }

    def next_due_ms(self, lease: Lease, steps: Collection[StepId] | None = None) -> int | None:
        """See `PartitionStore.next_due_ms`."""
        with self._lock:
            found = [
                timeout_ms
                for step in (self._deltas if steps is None else steps)
                for partition, delta in zip(self._partitions, self._deltas[step], strict=True)
                for _, timeout_ms in states_of(partition, step, delta.touched()).values()
                if timeout_ms is not None
            ]
            return min(found, default=None)

    def driver_values(self, step: StepId, resume_epoch: Epoch | None = None) -> dict[str, str | bytes]:
        """See `PartitionStore.driver_values`."""
        return dict(self.driver_rows(step, resume_epoch))

    def driver_rows(
        self, step: StepId, resume_epoch: Epoch | None = None
    ) -> Generator[tuple[str, str | bytes], None, None]:
        """See `PartitionStore.driver_rows`."""
        for partition in self._partitions:
            with self._lock:
                states = partition.snapshot(resume_epoch).get(step, {})
            for key, (value, _) in states.items():
                yield key, value

    def known_steps(self, resume_epoch: Epoch | None = None) -> set[StepId]:
        """See `PartitionStore.known_steps`."""
        with self._lock:
            snapshots = [partition.snapshot(resume_epoch) for partition in self._partitions]
        return {step for snapshot in snapshots for step, states in snapshot.items() if states}

    def release(self) -> None:
        """See `PartitionStore.release`. Safe to repeat."""
        with self._lock:
            if self._scratch is not None:
                shutil.rmtree(self._scratch.path, ignore_errors=True)
                if self.directory.scratch is self._scratch:
                    self.directory.scratch = None
            self._scratch = None


class MemoryTaskStore:
    """A task's view of a directory in memory: a `TaskStore`."""

    def __init__(self, directory: MemoryDirectory, lease: Lease, attempt: int = 0) -> None:
        self._directory = directory
        self._lease = lease
        self._attempt = attempt
        self._looked_up = 0

    def read(self, step: StepId, batch: BatchId, wanted: Mapping[PartitionIndex, Keys]) -> States:
        """See `TaskStore.read`."""
        found: States = {}
        with self._directory.lock:
            for partition, keys in wanted.items():
                states = self._before(step, partition, batch)
                self._looked_up += len(keys)
                found[partition] = [states[key][0] if key in states else None for key in keys]  # type: ignore[misc]
        return found

    def apply(
        self,
        step: StepId,
        batch: BatchId,
        changes: Mapping[PartitionIndex, Iterable[Changes]],
        count: BatchCount,
    ) -> None:
        """See `TaskStore.apply`."""
        with self._directory.lock:
            for partition in sorted(changes):
                looked_up, self._looked_up = self._looked_up, 0
                delta = self._delta(step, partition, batch)
                delta.attempted(batch, self._attempt)
                # Complete before anything is replaced: reading the changes may fail.
                touched = {key: state for chunk in changes[partition] for key, state in unpacked(chunk)}
                delta.changes[batch] = touched
                delta.counts[batch] = count._replace(looked_up=count.looked_up + looked_up, seam_s=0.0)
                delta.applied_batch = batch
                count = BatchCount(0, 0)

    def gathered(self, step: StepId, batch: BatchId, *, note: bool) -> bool:
        """See `TaskStore.gathered`."""
        with self._directory.lock:
            begun = self._directory.scratch_of(self._lease).gathered
            before = (step, batch) in begun
            if note:
                begun.add((step, batch))
            return before

    def withdraw(self, step: StepId, batch: BatchId, partitions: Collection[PartitionIndex]) -> None:
        """See `TaskStore.withdraw`."""
        with self._directory.lock:
            for partition in partitions:
                delta = self._delta(step, partition, batch)
                delta.attempted(batch, self._attempt)
                delta.changes.pop(batch, None)
                delta.counts.pop(batch, None)

    def due(
        self, step: StepId, batch: BatchId, partitions: Collection[PartitionIndex], up_to_ms: int
    ) -> dict[PartitionIndex, list[str]]:
        """See `TaskStore.due`."""
        with self._directory.lock:
            states = {partition: self._before(step, partition, batch) for partition in partitions}
        return {
            partition: sorted(key for key, (_, at_ms) in found.items() if at_ms is not None and at_ms <= up_to_ms)
            for partition, found in states.items()
        }

    def release(self) -> None:
        """See `TaskStore.release`. Nothing is held open."""

    def _delta(self, step: StepId, partition: PartitionIndex, batch: BatchId) -> Delta:
        """Return a delta. Raises LeaseLostError for a task of another execution, or of a micro-batch that is over."""
        deltas = self._directory.scratch_of(self._lease).deltas
        if step not in deltas:
            raise LeaseLostError(f"execution {self._lease.number} has no step {step!r}", path=self._directory.name)
        deltas[step][partition].check(batch)
        return deltas[step][partition]

    def _before(self, step: StepId, partition: PartitionIndex, batch: BatchId) -> dict[str, State]:
        """Return the states before a micro-batch."""
        delta = self._delta(step, partition, batch)
        return states_of(self._directory.partitions[partition], step, delta.touched(BatchId(batch - 1)))


def _open(
    parsed: Mapping[str, Any], lease: Lease, keep: bool, task_key: bytes | None, attempt: int
) -> tuple[MemoryTaskStore, int]:
    """Return a task's store at the address of a directory, and the number of partitions."""
    name = parsed["name"]
    directory = _directories.get(name)
    if directory is None:
        raise StorageError("this store was in the memory of another process, or is gone", path=name)
    return MemoryTaskStore(directory, lease, attempt), len(directory.partitions)


KINDS["memory"] = _open
_FENCING: type[FencingStore] = MemoryPartitions
"""So that the type checker compares the store with the protocol."""
