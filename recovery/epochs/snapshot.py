"""What an epoch stores in each partition and what it may collect; shared by everything that closes epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from recovery.base.clock import Clock, RecoveryClock
from recovery.base.ids import NO_EPOCH, BatchId, Epoch, StepId
from recovery.base.reserved import CLOCK_STEP
from recovery.planning.resume import ResumePlan
from recovery.planning.retention import collection_floor, shared_history
from recovery.planning.values import StepEdit
from recovery.storage.seam import CloseRequest, DriverRows, Edited, PartitionStore
from recovery.values.keys import RowsView, home_of, shares

T = TypeVar("T")


class SnapshotTime(NamedTuple):
    """When a snapshot is taken, on the recovery clock, and the epoch up to which it may collect."""

    clock_ms: int
    floor: Epoch


class SharedEpochs:
    """The epochs that all partitions have closed, with the time of each on the recovery clock.

    From these times follow the collection floor of the next epoch, and one request per partition to close it.
    """

    def __init__(self, store: PartitionStore, plan: ResumePlan, clock: Clock, *, backup_interval_s: float) -> None:
        """plan: an execution that follows it, or may begin from it, closes the next epochs. backup_interval_s: how long
        what a later epoch supersedes is kept."""
        self._count = store.partition_count
        self._clock = clock
        self._recovery_clock = RecoveryClock(clock, *plan.last_clock, store.driver_values(CLOCK_STEP))
        self._backup_ms = backup_interval_s * 1000
        self._history = shared_history(plan.partitions, [e for e in plan.window if e < plan.resume_epoch])
        self._collected = max((each.collected for each in plan.partitions), default=NO_EPOCH)

    def time(self, *, collects: bool = True) -> SnapshotTime:
        """Return the time of a snapshot that begins now. collects: whether superseded rows are collected with it; if
        not, the floor stays where the last collection left it."""
        now_ms = self._recovery_clock.now_ms()
        floor = collection_floor(self._history, now_ms, self._backup_ms) if collects else self._collected
        return SnapshotTime(now_ms, floor)

    def requests(
        self,
        epoch: Epoch,
        batch: BatchId,
        time: SnapshotTime,
        driver_rows: DriverRows,
        *,
        edits: Sequence[StepEdit] = (),
        state_rows: Mapping[StepId, Mapping[str, Edited]] | None = None,
        logged: bool = False,
        notes_made: bool = False,
    ) -> list[CloseRequest]:
        """Return one request per partition, each with the rows whose keys that partition holds. See `CloseRequest`."""
        driver = self._divided({**driver_rows, CLOCK_STEP: self._recovery_clock.row(time.clock_ms)})
        states = self._divided(state_rows or {})
        return [
            CloseRequest(
                epoch=epoch,
                batch=batch,
                closed_ms=self._clock.wall_ms(),
                clock_ms=time.clock_ms,
                floor=time.floor,
                driver_rows=driver[index],
                edits=edits,
                state_rows=states[index],
                logged=logged,
                notes_made=notes_made,
            )
            for index in range(self._count)
        ]

    def add(self, epoch: Epoch, time: SnapshotTime, *, collected: bool = True) -> None:
        """Note that all partitions have closed `epoch`, and whether they collected up to its floor."""
        # The epoch counts as closed everywhere from now, not from when its writing began.
        self._history = [(e, at_ms) for e, at_ms in self._history if e >= time.floor]
        self._history.append((epoch, self._recovery_clock.now_ms()))
        if collected:
            self._collected = time.floor

    def collected(self, floor: Epoch) -> None:
        """Note that all partitions have collected up to `floor`."""
        self._collected = max(self._collected, floor)

    def _divided(self, rows: Mapping[StepId, Mapping[str, T]]) -> list[dict[StepId, RowsView[T]]]:
        """Divide rows, by step and key, among the partitions."""
        divided = {
            step: shares(values, partial(home_of, step, self._count), self._count) for step, values in rows.items()
        }
        return [{step: share[index] for step, share in divided.items() if share[index]} for index in range(self._count)]
