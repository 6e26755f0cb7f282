"""When an epoch is closed, as of which micro-batch, and in which order."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from recovery.base import faults
from recovery.base.clock import Clock, RecoveryClock
from recovery.base.ids import NO_BATCH, NO_EPOCH, BatchId, Epoch, Lease, StepId
from recovery.base.reserved import CHECKPOINT_STEP, CLOCK_STEP, DECLARATIONS_STEP
from recovery.checkpoint.capture import Capture, Captured
from recovery.checkpoint.position import wait_for_commit
from recovery.checkpoint.rows import Content
from recovery.errors import RecoveryError
from recovery.planning.health import Finding
from recovery.planning.measures import ClosedPartition, StepSize
from recovery.planning.resume import ResumePlan
from recovery.planning.retention import collection_floor, shared_history
from recovery.planning.steps import StepPlan
from recovery.planning.values import StepEdit
from recovery.sinks.delivery import Delivery
from recovery.storage.seam import CloseRequest, PartitionStore
from recovery.values.keys import home_of, shares

SHORT_S = 10.0
"""Epochs are logged if the snapshot interval is shorter than this."""
FOLD_S = 30.0
FOLD_ROWS = 8_000_000
"""Limits of time and of logged changes after which a busy stream folds. They bound the work of the next run after a
crash, which folds the log at some microseconds a change, and of each closing, which scans all that was touched since
the last fold."""
IDLE_S = 0.2
"""Longer than the gap between two micro-batches when there is input."""
DriverRows = Mapping[StepId, Mapping[str, Content | None]]
"""Rows of reserved steps, by step and key; None discards a row."""


@dataclass(frozen=True, slots=True)
class EpochClosed:
    """The event that an epoch is durable in every partition. `health` lists the targets that are not met."""

    epoch: Epoch
    batch: BatchId
    states: int
    duration_s: float
    partitions: tuple[ClosedPartition, ...] = ()
    health: tuple[Finding, ...] = ()


class Loads(Protocol):
    """The high-water marks that incremental loads inside the flow's sink move with the epoch."""

    def rows(self, batch: BatchId) -> Mapping[StepId, Mapping[str, str | bytes | None]]:
        """Return the marks, per step and key, that become durable with the epoch whose last micro-batch is `batch`."""
        ...

    def closed(self, batch: BatchId) -> None:
        """Called when the epoch is closed: its marks are durable."""
        ...


class EpochCloser:
    """Closes the epochs of one execution. Whoever runs a micro-batch or ends an epoch holds its lock.

    The closing protocol, for an epoch that ends with micro-batch b:

    1. Wait until the previous epoch is closed and Spark has logged b as done. Capture the files of the scratch
       checkpoint that Spark needs to continue after b (its position, and the state of its own operators), and seal the
       deltas as of b. From here on micro-batches may go on: a separate thread does the rest. The sink makes the
       epoch's output durable.
    2. In all partitions in parallel, in one transaction each, move the sealed changes into the snapshots
       (`recovery.storage.sqlite.close.close_epoch` has its own numbers).
    3. All partitions have committed: the epoch is closed.
    4. Clear the sealed changes. The sink publishes the epoch's output.
    5. Move the partitions' write-ahead logs into their files.

    With an interval shorter than `SHORT_S`, and no backup interval, most epochs are logged instead: 2 only appends
    their changes to the partition (`recovery.storage.sqlite.close.log_epoch`), and the deltas keep them. Step 4
    folds them all into the snapshots (`recovery.storage.sqlite.fold.fold`) once the snapshots were last written
    `FOLD_S` ago, `FOLD_ROWS` are logged, or no further epoch is expected for now.

    A crash before 3 leaves the epoch in some partitions only; the next run starts that epoch again in all of them. The
    names close.1 to close.5 are the crash points.

    One epoch is written at a time: if the next one is due before that ends, the stream waits.
    """

    def __init__(
        self,
        store: PartitionStore,
        lease: Lease,
        plan: ResumePlan,
        checkpoint: Path,
        delivery: Delivery,
        loads: Loads,
        capture: Capture,
        *,
        clock: Clock,
        snapshot_interval_s: float,
        backup_interval_s: float,
        logs: bool,
        may_close: Callable[[], None],
        on_closed: Callable[[EpochClosed], None],
        around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """capture: captures files of `checkpoint`. logs: whether epochs may be logged if there is no backup interval.
        may_close: called before an epoch is written; raises if it must not be. on_closed: called afterwards. Both are
        called on the thread that writes, within `around`."""
        self.lock = threading.RLock()
        self._clock = clock
        self.finished = plan.snapshot.batch_id if plan.snapshot else NO_BATCH
        self.sealed_batch = self.closed_batch = self.finished
        self.epoch = plan.resume_epoch
        self.fold_s = FOLD_S
        self.fold_rows = FOLD_ROWS
        self._store = store
        self._lease = lease
        self._checkpoint = checkpoint
        self._delivery = delivery
        self._loads = loads
        self._capture = capture
        self._declarations: Mapping[str, Content | None] = {}
        self._with_position: DriverRows = {}
        self._recovery_clock = RecoveryClock(clock, *plan.last_clock, store.driver_values(CLOCK_STEP))
        self._interval_s = snapshot_interval_s
        self._backup_ms = backup_interval_s * 1000
        self._logs = logs and not backup_interval_s and snapshot_interval_s < SHORT_S
        self._logged_rows = 0
        self._folded = Epoch(plan.resume_epoch - 1)
        self._folded_s = -math.inf
        self._floor = max((each.collected for each in plan.partitions), default=NO_EPOCH)
        self._history = shared_history(plan.partitions, [e for e in plan.window if e < plan.resume_epoch])
        self._opened_s = clock.elapsed_s()
        self._may_close = may_close
        self._on_closed = on_closed
        self._around = around
        self._background = ThreadPoolExecutor(1, thread_name_prefix="closing")
        self._writing: Future[Any] | None = None

    @property
    def finished(self) -> BatchId:
        """The last micro-batch whose callback has returned."""
        return self._finished

    @finished.setter
    def finished(self, batch: BatchId) -> None:
        self._finished = batch
        self._finished_s = self._clock.elapsed_s()

    def idle(self) -> bool:
        """Return whether to end the epoch without another micro-batch. Where epochs are logged, it is cheaper to leave
        this to the next micro-batch, if one is likely to come soon."""
        return not self._logs or self._clock.elapsed_s() - self._finished_s >= IDLE_S

    def due(self) -> bool:
        """Return whether there is something to close and the interval has passed."""
        waited_s = self._clock.elapsed_s() - self._opened_s
        return self.finished > self.sealed_batch and waited_s >= self._interval_s

    def end_epoch(
        self, alive: Callable[[], bool], *, last: bool = False, position: Mapping[str, bytes] | None = None
    ) -> bool:
        """End the epoch with the last finished micro-batch and begin to write it. If the query died before logging
        that micro-batch as done, the epoch ends with the one before it.

        The caller holds the lock, and may run the next micro-batch as soon as this returns.
        last: no other micro-batch is expected soon. position: checkpoint files to store with other content, even if no
        micro-batch has finished since.
        Returns whether there was anything to close. Raises the error of writing the previous epoch.
        """
        batch = self.finished
        if batch <= self.sealed_batch and position is None:
            return False
        self.wait()
        if not wait_for_commit(self._checkpoint, batch, alive):
            batch = BatchId(batch - 1)
            if batch <= self.sealed_batch:
                return False
        captured = self._capture.take(batch, position)
        waited_s = self._clock.elapsed_s() - self._folded_s
        folds = last or waited_s >= self.fold_s or self._logged_rows >= self.fold_rows
        logged = self._logs and (self._is_pending() or not folds)
        self._store.seal(self._lease, batch, apart=folds or not logged)
        faults.reach("close.1")
        self._begin(batch, captured, (), logged=logged, folds=logged and folds)
        self._capture.saved(captured)
        return True

    def close(self, alive: Callable[[], bool]) -> bool:
        """End the epoch, and wait until it and the previous one are closed and everything logged is folded."""
        ended = self.end_epoch(alive, last=True)
        self.wait()
        if self._is_pending():
            self._store.seal(self._lease, self.sealed_batch, apart=True)
            self._fold(Epoch(self.epoch - 1))
        return ended

    def _is_pending(self) -> bool:
        """Return whether epochs are logged and not folded."""
        return self._folded < self.epoch - 1

    def begin(self, steps: StepPlan, with_position: DriverRows | None = None, *, laid_out: bool = False) -> None:
        """Close a first epoch before any micro-batch, if `steps` has edits or the position was laid out for other
        sources (`laid_out`). The next run, which may come before any input, reads from it how this run assigned them.

        The first closed epoch records the declarations of the steps; the first one with a new position records
        `with_position`.
        """
        self._declarations = steps.declarations
        self._with_position = with_position or {}
        captured = self._capture.take(self.finished) if laid_out else None
        if captured is not None or steps.edits:
            self._begin(self.finished, captured, steps.edits)
            self.wait()
        if captured is not None:
            self._capture.saved(captured)

    def wait(self) -> None:
        """Wait until the epoch that is being written is closed. Raises the error of writing it, on every call."""
        if self._writing is not None:
            self._writing.result()

    def check(self) -> None:
        """Raise the error of writing an epoch, if there is one by now. Does not wait."""
        if self._writing is not None and self._writing.done():
            self._writing.result()

    def finish(self) -> None:
        """Wait for the background work."""
        self._background.shutdown()

    def _begin(
        self,
        batch: BatchId,
        captured: Captured | None,
        edits: Sequence[StepEdit],
        *,
        logged: bool = False,
        folds: bool = False,
    ) -> None:
        recorded: DriverRows = {DECLARATIONS_STEP: self._declarations}
        self._declarations = {}
        if captured is not None:
            recorded = {**recorded, CHECKPOINT_STEP: captured, **self._with_position}
            self._with_position = {}
        self._writing = self._background.submit(
            self._write_around, self.epoch, batch, captured, recorded, edits, logged, folds
        )
        self._background.submit(self._checkpoint_logs)
        self.sealed_batch = batch
        self.epoch = Epoch(self.epoch + 1)
        self._opened_s = self._clock.elapsed_s()
        if folds or not logged:
            self._folded_s = self._opened_s

    def _write_around(self, *arguments: Any) -> None:
        with self._around():
            self._write(*arguments)

    def _write(
        self,
        epoch: Epoch,
        batch: BatchId,
        captured: Captured | None,
        recorded: DriverRows,
        edits: Sequence[StepEdit],
        logged: bool,
        folds: bool,
    ) -> None:
        self._may_close()
        started_s = self._clock.elapsed_s()
        now_ms = self._recovery_clock.now_ms()
        floor = collection_floor(self._history, now_ms, self._backup_ms)
        if logged:
            # Nothing is collected.
            floor = self._floor
        count = self._store.partition_count
        values: DriverRows = {
            **recorded,
            **self._delivery.prepare(epoch, batch, floor),
            # Last: a mark that is set after this takes precedence over the epoch's.
            **self._loads.rows(batch),
            CLOCK_STEP: self._recovery_clock.row(now_ms),
        }
        divided = {step: shares(rows, partial(home_of, step, count), count) for step, rows in values.items() if rows}
        requests = [
            CloseRequest(
                epoch=epoch,
                batch=batch,
                closed_ms=self._clock.wall_ms(),
                clock_ms=now_ms,
                floor=floor,
                driver_rows={step: share[index] for step, share in divided.items()},
                edits=edits,
                logged=logged,
            )
            for index in range(count)
        ]
        # Steps 2 to 4.
        closed = self._store.close(self._lease, requests)
        if captured is not None:
            captured.release()
        states = sum(each.states for each in closed)
        # The epoch counts as closed everywhere from now, not from when its writing began.
        self._history = [(e, at) for e, at in self._history if e >= floor]
        self._history.append((epoch, self._recovery_clock.now_ms()))
        self.closed_batch = batch
        if logged:
            self._logged_rows += sum(each.written for each in closed)
        else:
            self._folded, self._floor = epoch, floor
        self._loads.closed(batch)
        try:
            self._delivery.publish(epoch, batch, floor)
            if folds:
                sizes = self._fold(epoch)
                closed = [each._replace(sizes=now) for each, now in zip(closed, sizes, strict=True)]
        finally:
            self._on_closed(EpochClosed(epoch, batch, states, self._clock.elapsed_s() - started_s, tuple(closed)))

    def _fold(self, epoch: Epoch) -> list[Mapping[str, StepSize]]:
        sizes = self._store.fold(self._lease, epoch)
        self._folded = self._floor = epoch
        self._logged_rows = 0
        return sizes

    def _checkpoint_logs(self) -> None:
        # A failed checkpoint is tried again after the next epoch; the logs hold everything until then.
        with contextlib.suppress(RecoveryError):
            self._store.checkpoint()
        faults.reach("close.5")
