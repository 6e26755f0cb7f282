"""The store of one task: states read from and applied to the deltas of its partitions."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path

from recovery.base.clock import Clock
from recovery.base.ids import NO_BATCH, BatchId, Lease, PartitionIndex, StepId
from recovery.errors import (
    LeaseLostError,
    StorageError,
)
from recovery.host.durable import open_own
from recovery.host.locks import lock_file
from recovery.storage.deltas.delta import CACHE_BYTES as CACHE_BYTES_OF_DELTA
from recovery.storage.deltas.delta import Delta
from recovery.storage.deltas.open_deltas import MOST_KEPT, cache_bytes, kept
from recovery.storage.seam import BatchCount, Changes, Keys, States
from recovery.storage.sqlite.file.watched_files import Identity, not_the_same

_NOTE_BYTES = 20
"""Width of a micro-batch's number in a `.gathered` file."""


class FileTaskStore:
    """The `TaskStore` of one task: deltas that this task has for itself, and that may be kept for later tasks of its
    process."""

    def __init__(
        self,
        partitions: Mapping[PartitionIndex, Path],
        files: Mapping[PartitionIndex, Identity],
        scratch: Path,
        lease: Lease,
        clock: Clock,
        line: str | None = None,
        attempt: int = 0,
    ) -> None:
        """files: the partition files that the driver has open. line: the address of the execution's lifeline, if deltas
        are to be kept (see `recovery.storage.deltas.open_deltas`). attempt: as in `reach`."""
        self._partitions = partitions
        self._files = files
        self._scratch = scratch
        self._lease = lease
        self._clock = clock
        self._line = line
        self._attempt = attempt
        self._deltas: dict[tuple[StepId, PartitionIndex], Delta] = {}
        self._failed = False
        self._looked_up = 0
        self._seam_s = 0.0

    def read(self, step: StepId, batch: BatchId, wanted: Mapping[PartitionIndex, Keys]) -> States:
        found: States = {}
        with self._timed():
            for partition, keys in wanted.items():
                with self._delta_of(step, partition) as delta:
                    self._looked_up += len(keys)
                    found[partition] = delta.read(batch, keys)
        return found

    def apply(
        self,
        step: StepId,
        batch: BatchId,
        changes: Mapping[PartitionIndex, Iterable[Changes]],
        count: BatchCount,
    ) -> None:
        for partition in sorted(changes):
            # Lookups count with the next partition that is written to.
            counted, spent_s = count._replace(looked_up=count.looked_up + self._looked_up), count.seam_s + self._seam_s
            self._looked_up, self._seam_s = 0, 0.0
            began_s = self._clock.elapsed_s()
            with self._delta_of(step, partition) as delta:
                spent = partial(self._spent_s, spent_s, began_s)
                delta.apply(batch, changes[partition], counted, spent, self._attempt)
            count = BatchCount(0, 0)

    def _spent_s(self, before_s: float, began_s: float) -> float:
        return before_s + self._clock.elapsed_s() - began_s

    def gathered(self, step: StepId, batch: BatchId, *, note: bool) -> bool:
        path = self._scratch / f"{file_name(step)}.gathered"
        try:
            file = open_own(path)
            try:
                lock_file(file)
                noted = int(os.pread(file, _NOTE_BYTES, 0) or NO_BATCH)
                # A late task of an earlier batch must not erase the note of a later one.
                if note and noted < batch:
                    os.pwrite(file, f"{batch:<{_NOTE_BYTES}}".encode(), 0)
            finally:
                os.close(file)
        except OSError as error:
            if self._scratch.exists():
                raise StorageError(str(error), path=path) from error
            raise LeaseLostError(f"the scratch file of execution {self._lease.number} is gone", path=path) from error
        return noted == batch

    def withdraw(self, step: StepId, batch: BatchId, partitions: Collection[PartitionIndex]) -> None:
        for partition in partitions:
            with self._delta_of(step, partition) as delta:
                delta.withdraw(batch, self._attempt)

    def due(
        self, step: StepId, batch: BatchId, partitions: Collection[PartitionIndex], up_to_ms: int
    ) -> dict[PartitionIndex, list[str]]:
        found = {}
        with self._timed():
            for partition in partitions:
                with self._delta_of(step, partition) as delta:
                    found[partition] = delta.due(batch, up_to_ms)
        return found

    def release(self) -> None:
        for delta in self._deltas.values():
            self._put_away(delta)
        self._deltas.clear()

    def _put_away(self, delta: Delta) -> None:
        if self._line is not None and not self._failed:
            kept.give(delta, self._line)
        else:
            delta.close()

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        began_s = self._clock.elapsed_s()
        yield
        self._seam_s += self._clock.elapsed_s() - began_s

    @contextlib.contextmanager
    def _delta_of(self, step: StepId, partition: PartitionIndex) -> Iterator[Delta]:
        """Open the task's delta. If a successor has removed the delta, an error means a lost lease, not a failed
        disk."""
        place = step, partition
        delta = self._deltas.get(place)
        path = delta_path(self._scratch, step, partition) if delta is None else delta.path
        try:
            if delta is None:
                if len(self._deltas) == MOST_KEPT:
                    self._put_away(self._deltas.pop(next(iter(self._deltas))))
                delta = self._deltas[place] = self._open(path, step, partition)
            yield delta
        except StorageError as error:
            self._failed = True
            if path.exists():
                raise
            raise LeaseLostError(f"the scratch file of execution {self._lease.number} is gone", path=path) from error
        except BaseException:
            self._failed = True
            raise

    def _open(self, path: Path, step: StepId, index: PartitionIndex) -> Delta:
        partition = self._partitions[index]
        found = None if self._line is None else kept.take(path)
        if found is None:
            size = CACHE_BYTES_OF_DELTA if self._line is None else cache_bytes(len(self._partitions))
            found = Delta(path, partition, self._lease, step, cache_bytes=size)
        if found.base_file != self._files[index]:
            found.close()
            raise not_the_same(partition)
        return found


@lru_cache(maxsize=1024)
def delta_path(scratch: Path, step: StepId, index: int) -> Path:
    """Return where a delta is. Cached, because an owner asks for the path with every call."""
    return scratch / f"{file_name(step)}-{index}.delta"


def file_name(step: StepId) -> str:
    """Return a file name for a step: step ids may have any characters and any length, file names may not."""
    return hashlib.sha1(step.encode()).hexdigest()[:16]
