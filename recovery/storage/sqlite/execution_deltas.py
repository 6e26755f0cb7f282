"""The deltas of one execution as the driver has them: created, open, and attached to the writers of the partitions."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import apsw

from recovery.base.ids import BatchId, Lease, PartitionIndex, StepId
from recovery.storage.deltas.delta import Delta, create_delta
from recovery.storage.seam import BatchCount, added_up
from recovery.storage.sqlite.epoch_log import Sealed
from recovery.storage.sqlite.file.connections import file_uri
from recovery.storage.sqlite.file.log_files import beside
from recovery.storage.sqlite.file.statements import translated, value
from recovery.storage.sqlite.file.watched_files import Watch
from recovery.storage.sqlite.task_store import delta_path


class ExecutionDeltas(dict[StepId, list[Delta]]):
    """The deltas of each step, one for each partition of the store, in the order of the partitions."""

    def create(
        self,
        step: StepId,
        lease: Lease,
        scratch: Path,
        files: Watch,
        partitions: Iterable[tuple[PartitionIndex, Path, apsw.Connection]],
    ) -> None:
        """Create a step's deltas in the directory `scratch`, each with what its partition has logged of the step, and
        attach each to the writer of its partition."""
        deltas = self.setdefault(step, [])
        for index, base, writer in partitions:
            path = delta_path(scratch, step, index)
            create_delta(path, lease)
            # Kept open, because closing a file's last connection moves its whole log into it.
            deltas.append(Delta(path, base, lease, step))
            deltas[-1].load_logged()
            files.add(path)
            files.add(beside(path, "-wal"))
            files.add(beside(path, "-shm"))
            # Read-only: otherwise every transaction of the writer would lock out tasks of the next micro-batch.
            with translated(path):
                writer.execute(f"ATTACH ? AS {self._schema(step)}", (file_uri(path, "?mode=ro&vfs=unix"),))

    def open(self, batch: BatchId) -> None:
        """Let tasks of a micro-batch write to the deltas."""
        for deltas in self.values():
            for delta in deltas:
                delta.open(batch)

    def seal(self, batch: BatchId, *, apart: bool) -> None:
        """Fix all deltas as of a micro-batch; see `PartitionStore.seal`."""
        for deltas in self.values():
            for delta in deltas:
                delta.seal(batch, apart=apart)

    def hold(self, writer: apsw.Connection) -> None:
        """Make a partition's writer see the deltas as they are now, until its transaction ends."""
        if self and not writer.in_transaction:
            writer.execute("BEGIN")
        for step in self:
            value(writer, f"SELECT turn FROM {self._schema(step)}.meta")

    def sealed(self, index: int, batch: BatchId, *, apart: bool) -> dict[StepId, Sealed]:
        """Return where a partition's deltas have the epoch's changes, with table names for the partition's writer."""
        found = {step: deltas[index].seal(batch, apart=apart) for step, deltas in self.items()}
        return {step: each._replace(table=f"{self._schema(step)}.{each.table}") for step, each in found.items()}

    def set_apart(self, index: int) -> dict[StepId, str]:
        """Return the tables with a partition's sealed changes, named for the partition's writer."""
        return {step: f"{self._schema(step)}.{deltas[index].set_apart()}" for step, deltas in self.items()}

    def clear_apart(self, index: int) -> None:
        """Delete what a partition's deltas set apart: the partition's file has these rows now."""
        for deltas in self.values():
            deltas[index].clear()

    def counts(self, batch: BatchId) -> dict[StepId, BatchCount]:
        """Return what was applied for a micro-batch so far, by step."""
        return {step: added_up(delta.count(batch) for delta in deltas) for step, deltas in self.items()}

    def next_due_ms(self, steps: Collection[StepId] | None) -> int | None:
        """Return the earliest timeout of some steps, or of all; None if none is set."""
        found = [delta.next_due_ms() for step in (self if steps is None else steps) for delta in self[step]]
        return min((due for due in found if due is not None), default=None)

    def close(self, writers: Sequence[apsw.Connection]) -> None:
        """Close the deltas, and detach them from the writers of their partitions."""
        for step, deltas in self.items():
            for delta, writer in zip(deltas, writers, strict=False):
                delta.close()
                with contextlib.suppress(apsw.Error):
                    writer.execute(f"DETACH {self._schema(step)}")
        self.clear()

    def _schema(self, step: StepId) -> str:
        """Return the name under which a step's delta is attached to the writers."""
        return f"delta_{list(self).index(step)}"
