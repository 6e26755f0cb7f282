"""Closing epochs: when, as of which micro-batch, and in which order."""

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
"""Epochs are logged where the snapshot interval is shorter."""
FOLD_S = 30.0
FOLD_ROWS = 8_000_000
"""How long, and how many changes, epochs are only logged, while one follows the other. The next run after a crash has
to fold what is logged, at some microseconds a change; and closing looks at all that was touched since."""
IDLE_S = 0.2
"""Longer than it takes from one micro-batch to the next, if there is input."""
DriverRows = Mapping[StepId, Mapping[str, Content | None]]
"""Rows of steps of our own, by step and key; None discards a row."""


@dataclass(frozen=True, slots=True)
class EpochClosed:
    """An epoch is durable in every partition. `health` are the targets that are not met."""

    epoch: Epoch
    batch: BatchId
    states: int
    duration_s: float
    partitions: tuple[ClosedPartition, ...] = ()
    health: tuple[Finding, ...] = ()


class Loads(Protocol):
    """The high-water marks that incremental loads inside the flow's sink move with the epoch."""

    def rows(self, batch: BatchId) -> Mapping[StepId, Mapping[str, str | bytes | None]]:
        """The marks that the epoch with `batch` as its last micro-batch makes durable, per step and key."""
        ...

    def closed(self, batch: BatchId) -> None:
        """The epoch is closed: its marks hold."""
        ...


class EpochCloser:
    """Closes the epochs of one execution. Its lock is held by whoever runs a micro-batch or ends an epoch.

    The closing protocol, for an epoch that ends with micro-batch b:

    1. Wait until the epoch before it is closed and Spark has logged b as done; take hold of the files of the scratch
       checkpoint that Spark needs to go on after b (its position, and the state of its own operators), and seal the
       deltas as of b. From here on micro-batches may go on: the rest is done on a thread of its own. The sink makes the
       epoch's output durable.
    2. In every partition at once, in one transaction each, move what was sealed into the snapshots
       (`recovery.storage.sqlite.partition.close_epoch` has its own numbers).
    3. All partitions have committed: the epoch is closed.
    4. Forget what was sealed. The sink shows the epoch's output.
    5. Move the partitions' logs into their files.

    With an interval shorter than `SHORT_S`, and no backup interval, most epochs are logged instead: 2 only appends
    their changes to the partition (`recovery.storage.sqlite.partition.log_epoch`), and the deltas keep them. When the
    snapshots were written `FOLD_S` ago, `FOLD_ROWS` are logged, or nothing comes after the epoch for now, all is folded
    into them in 4 (`recovery.storage.sqlite.partition.fold`).

    A crash before 3 leaves the epoch in some partitions only; the next run starts it anew everywhere. The
    names close.1 to close.5 are the crash points.

    One epoch is written at a time: when the next one is due before, the stream waits.
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
        """`capture` is of `checkpoint`. logs: whether epochs may be logged, if there is no backup interval. `may_close`
        is asked before an epoch is written, and raises when it must not be. Like `on_closed`, it is called on the
        thread that writes, and within `around`."""
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
        """Whether no micro-batch seems to come soon, to which it is left to end the epoch where that is cheaper."""
        return not self._logs or self._clock.elapsed_s() - self._finished_s >= IDLE_S

    def due(self) -> bool:
        """Whether there is something to close, and the interval has passed."""
        waited_s = self._clock.elapsed_s() - self._opened_s
        return self.finished > self.sealed_batch and waited_s >= self._interval_s

    def end_epoch(
        self, alive: Callable[[], bool], *, last: bool = False, position: Mapping[str, bytes] | None = None
    ) -> bool:
        """End the epoch with the last finished micro-batch, or, when the query died before logging that one as
        done, with the one before, and begin to write it. The caller holds the lock, and may run the next micro-batch
        as soon as this returns. last: no other one is expected soon. position: files of the checkpoint that are to be
        held with another content, also if no micro-batch was finished since. Returns whether there was anything to
        close. Raises what writing the epoch before met."""
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
        """End the epoch and wait until it is closed, and so is the one before, and nothing is logged any more."""
        ended = self.end_epoch(alive, last=True)
        self.wait()
        if self._is_pending():
            self._store.seal(self._lease, self.sealed_batch, apart=True)
            self._fold(Epoch(self.epoch - 1))
        return ended

    def _is_pending(self) -> bool:
        """Whether epochs are logged and not folded."""
        return self._folded < self.epoch - 1

    def begin(self, steps: StepPlan, with_position: DriverRows | None = None, *, laid_out: bool = False) -> None:
        """Before any micro-batch ran: close an epoch that edits steps, when some are to be edited, or that holds the
        position as it was laid out for other sources. The next run, which may come before any input, finds by it what
        this one took for what.

        What the steps declare is recorded in the first epoch that is closed; `with_position` in the first one that has
        a new position.
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
        """Wait until the epoch that is being written is closed. Raises what writing it met, every time."""
        if self._writing is not None:
            self._writing.result()

    def check(self) -> None:
        """Raise what writing an epoch has met, without waiting for it."""
        if self._writing is not None and self._writing.done():
            self._writing.result()

    def finish(self) -> None:
        """Wait for what goes on in the background."""
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
            # Last: a mark that is set after this counts more than the epoch's.
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
        # All partitions have the epoch since now, not since its writing began.
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
        # What fails here is tried again after the next epoch; the logs hold everything until then.
        with contextlib.suppress(RecoveryError):
            self._store.checkpoint()
        faults.reach("close.5")
