"""When an epoch is closed, as of which micro-batch, and in which order."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from recovery.base import faults
from recovery.base.clock import Clock
from recovery.base.ids import NO_BATCH, BatchId, Epoch, Lease
from recovery.base.reserved import CHECKPOINT_STEP, DECLARATIONS_STEP
from recovery.checkpoint.capture import Capture, Captured
from recovery.checkpoint.rows import Content
from recovery.epochs.snapshot import SharedEpochs, SnapshotTime
from recovery.errors import RecoveryError
from recovery.planning.folding import LONG_ROWS, FoldLimits, held_rows, left_log
from recovery.planning.health import Finding
from recovery.planning.measures import ClosedPartition, StepSize
from recovery.planning.resume import ResumePlan
from recovery.planning.steps import StepPlan
from recovery.planning.values import StepEdit
from recovery.storage.seam import DriverRows, PartitionStore

SHORT_S = 10.0
"""Epochs are logged if the snapshot interval is shorter than this."""
LIMITS = FoldLimits()
IDLE_S = 0.2
"""Longer than the gap between two micro-batches when there is input."""


@dataclass(frozen=True, slots=True)
class EpochClosed:
    """The event that an epoch is durable in every partition. `health` lists the targets that are not met."""

    epoch: Epoch
    batch: BatchId
    states: int
    duration_s: float
    partitions: tuple[ClosedPartition, ...] = ()
    health: tuple[Finding, ...] = ()


class Contributor(Protocol):
    """What takes part in closing epochs beside the partitions: the flow's sink, and the loads inside it.

    The thread that writes epochs calls these methods in the order below, for one epoch after the other. `batch` is the
    epoch's last micro-batch; up to epoch `floor`, superseded snapshots may be collected. The numbers are the steps of
    `EpochCloser`.
    """

    def prepare(self, epoch: Epoch, batch: BatchId, floor: Epoch) -> DriverRows:
        """Part of 1: make durable what must exist before the epoch is closed, and return the rows to store with it."""
        ...

    def closed(self, batch: BatchId) -> None:
        """After 3: the epoch that ends with `batch` is durable in every partition, and its rows with it."""
        ...

    def publish(self, epoch: Epoch, batch: BatchId, floor: Epoch) -> None:
        """Part of 4: make visible what `prepare` made durable."""
        ...


@dataclass(frozen=True, slots=True)
class ClosingSettings:
    """How often epochs end, and whether they may be logged.

    backup_interval_s: how long what a later epoch supersedes is kept. may_log: whether epochs may be logged if the
    interval allows it. kept_log: whether the start has kept what earlier runs have logged. limits: when that is folded.
    """

    snapshot_interval_s: float
    backup_interval_s: float
    may_log: bool
    kept_log: bool = False
    limits: FoldLimits = field(default_factory=lambda: LIMITS)

    def logs(self, *, notes_made: bool, changed: float = 0.0) -> bool:
        """Whether most epochs are logged instead of moved into the snapshots. notes_made: somebody reads the changes of
        the epochs that are kept, which are only in the snapshots. changed: the share of the state that an epoch
        changes."""
        moves = self.backup_interval_s > 0 and (notes_made or changed > self.limits.kept_share)
        return self.may_log and self.snapshot_interval_s < SHORT_S and not moves

    def keeps_log(self, plan: ResumePlan, edits: Sequence[StepEdit], *, notes_made: bool) -> bool:
        """Whether a start with this plan keeps what is logged: the next epochs are logged, too, and it is not much."""
        left, folded = left_log(plan)
        epochs = plan.resume_epoch - 1 - folded
        much = self.limits.reached(left, held_rows(plan), 0.0, pauses=True, epochs=epochs) or left > LONG_ROWS
        return left > 0 and not much and not edits and self.logs(notes_made=notes_made)


@dataclass(frozen=True, slots=True)
class ClosingHooks:
    """What the run does around the writing of each epoch, on the thread that writes.

    may_close: called first; raises if the epoch must not be written. may_publish: called when the epoch is durable in
    every partition, before the contributors publish; raises if they must not. on_closed: called last, if the epoch was
    closed. around: the context in which the thread writes and calls the others. notes_made: whether an epoch notes the
    keys that it makes.
    """

    may_close: Callable[[], None]
    on_closed: Callable[[EpochClosed], None]
    around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    notes_made: Callable[[], bool] = lambda: False
    may_publish: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class _Ended:
    """An epoch that has ended and is to be written. rows: the driver rows known by now; folds: whether everything
    logged is folded after the epoch."""

    epoch: Epoch
    batch: BatchId
    captured: Captured | None
    rows: DriverRows
    edits: Sequence[StepEdit]
    logged: bool
    folds: bool


class EpochCloser:
    """Closes the epochs of one execution. Whoever runs a micro-batch or ends an epoch holds its lock.

    The closing protocol, for an epoch that ends with micro-batch b:

    1. Wait until the previous epoch is closed and Spark has logged b as done. Capture the files of the scratch
       checkpoint that Spark needs to continue after b (its position, and the state of its own operators), and seal the
       deltas as of b. Then micro-batches may continue: a separate thread does the rest. The contributors prepare:
       the sink makes the epoch's output durable.
    2. In all partitions in parallel, in one transaction each, move the sealed changes into the snapshots
       (`recovery.storage.sqlite.close.close_epoch` has its own numbers).
    3. All partitions have committed: the epoch is closed.
    4. Clear the sealed changes. The contributors publish: the sink shows the epoch's output.
    5. Move the partitions' write-ahead logs into their files.

    With an interval shorter than `SHORT_S` most epochs are logged instead: 2 only appends their changes to the
    partition (`recovery.storage.sqlite.close.log_epoch`), and the deltas keep them. Step 4 folds them all into the
    snapshots (`recovery.storage.sqlite.fold.fold`) when `recovery.planning.folding` says so.

    A crash before 3 leaves the epoch in some partitions only; the next run starts that epoch again in all of them. The
    names close.1 to close.5 are the crash points.

    One epoch is written at a time: if the next one is due before that ends, the stream waits.
    """

    def __init__(
        self,
        store: PartitionStore,
        lease: Lease,
        plan: ResumePlan,
        capture: Capture,
        contributors: Sequence[Contributor],
        settings: ClosingSettings,
        hooks: ClosingHooks,
        clock: Clock,
    ) -> None:
        """capture: captures files of the run's scratch checkpoint. contributors: called in this order; of two that
        return rows of the same step, the later one counts."""
        self.lock = threading.RLock()
        self._clock = clock
        self.finished = plan.snapshot.batch_id if plan.snapshot else NO_BATCH
        self.sealed_batch = self.closed_batch = self.finished
        self.epoch = plan.resume_epoch
        self.limits = settings.limits.where_kept() if settings.backup_interval_s else settings.limits
        self._store = store
        self._lease = lease
        self._capture = capture
        self._contributors = contributors
        self._interval_s = settings.snapshot_interval_s
        self._settings = settings
        self._hooks = hooks
        self._epochs = SharedEpochs(store, plan, clock, backup_interval_s=settings.backup_interval_s)
        self._declarations: Mapping[str, Content | None] = {}
        self._with_position: DriverRows = {}
        self._logged_rows, self._folded = left_log(plan) if settings.kept_log else (0, Epoch(plan.resume_epoch - 1))
        self._held_rows = held_rows(plan)
        self._changed = 0.0
        """The share of the state that the newest epoch has changed."""
        self._folded_s = -math.inf
        self._opened_s = clock.elapsed_s()
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
        """Return whether to end the epoch without another micro-batch. Where epochs are logged, ending the epoch with
        the next micro-batch is cheaper, if one is likely to come soon."""
        return not self._settings.logs(notes_made=False) or self._clock.elapsed_s() - self._finished_s >= IDLE_S

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
        # 1
        self.wait()
        if not self._capture.wait_for_commit(batch, alive):
            batch = BatchId(batch - 1)
            if batch <= self.sealed_batch:
                return False
        captured = self._capture.take(batch, position)
        waited_s = self._clock.elapsed_s() - self._folded_s
        logs = self._settings.logs(notes_made=self._hooks.notes_made(), changed=self._changed)
        folds = not logs or self._pays(waited_s, pauses=last)
        logged = self._is_pending() or (logs and not folds)
        self._store.seal(self._lease, batch, apart=folds or not logged)
        faults.reach("close.1")
        self._begin(batch, captured, (), logged=logged, folds=logged and folds)
        self._capture.saved(captured)
        return True

    def close(self, alive: Callable[[], bool]) -> bool:
        """End the epoch, and wait until it and the previous one are closed. Fold what is logged, unless that is little
        of much state."""
        ended = self.end_epoch(alive, last=True)
        self.wait()
        if self._is_pending() and self._pays(0.0, pauses=True):
            self._store.seal(self._lease, self.sealed_batch, apart=True)
            self._fold(Epoch(self.epoch - 1))
        return ended

    def _is_pending(self) -> bool:
        """Return whether epochs are logged and not folded."""
        return self._folded < self.epoch - 1

    def _pays(self, waited_s: float, *, pauses: bool) -> bool:
        """Return whether folding pays now; see `FoldLimits.reached`."""
        epochs = self.epoch - 1 - self._folded
        return self.limits.reached(self._logged_rows, self._held_rows, waited_s, pauses=pauses, epochs=epochs)

    def begin(self, steps: StepPlan, with_position: DriverRows | None = None, *, laid_out: bool = False) -> None:
        """Close a first epoch before any micro-batch, if `steps` has edits or the position was laid out for other
        sources (`laid_out`). The next run, which may come before any input, reads from that epoch how this run assigned
        the sources.

        The first closed epoch records the declarations of the steps; the first one with a new position records
        `with_position`.
        """
        self._declarations = steps.declarations
        self._with_position = with_position or {}
        captured = self._capture.take(self.finished) if laid_out else None
        if captured is not None or steps.edits:
            # The start has folded what was logged if there are edits.
            self._begin(self.finished, captured, steps.edits, logged=self._is_pending())
            self.wait()
        if captured is not None:
            self._capture.saved(captured)

    def wait(self) -> None:
        """Wait until the epoch that is being written is closed. Raises the error of writing the epoch, on every
        call."""
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
        rows: DriverRows = {DECLARATIONS_STEP: self._declarations}
        self._declarations = {}
        if captured is not None:
            rows = {**rows, CHECKPOINT_STEP: captured, **self._with_position}
            self._with_position = {}
        ended = _Ended(self.epoch, batch, captured, rows, edits, logged, folds)
        self._writing = self._background.submit(self._write, ended)
        self._background.submit(self._checkpoint_logs)
        self.sealed_batch = batch
        self.epoch = Epoch(self.epoch + 1)
        self._opened_s = self._clock.elapsed_s()
        if folds or not logged:
            self._folded_s = self._opened_s

    def _write(self, ended: _Ended) -> None:
        with self._hooks.around():
            self._hooks.may_close()
            started_s = self._clock.elapsed_s()
            time = self._epochs.time(collects=not ended.logged)
            # 1, as far as the contributors do it.
            requests = self._epochs.requests(
                ended.epoch, ended.batch, time, self._prepare(ended, time), edits=ended.edits, logged=ended.logged,
                notes_made=self._hooks.notes_made(),
            )  # fmt: skip
            # 2 to 4, in the partitions.
            closed = self._store.close(self._lease, requests)
            self._note_closed(ended, time, closed)
            try:
                # 4, as far as the contributors do it.
                self._hooks.may_publish()
                for each in self._contributors:
                    each.publish(ended.epoch, ended.batch, time.floor)
                if ended.folds:
                    sizes = self._fold(ended.epoch)
                    closed = [each._replace(sizes=now) for each, now in zip(closed, sizes, strict=True)]
            finally:
                states, duration_s = sum(each.states for each in closed), self._clock.elapsed_s() - started_s
                self._hooks.on_closed(EpochClosed(ended.epoch, ended.batch, states, duration_s, tuple(closed)))

    def _prepare(self, ended: _Ended, time: SnapshotTime) -> DriverRows:
        rows = dict(ended.rows)
        for each in self._contributors:
            rows.update(each.prepare(ended.epoch, ended.batch, time.floor))
        return rows

    def _note_closed(self, ended: _Ended, time: SnapshotTime, closed: Sequence[ClosedPartition]) -> None:
        if ended.captured is not None:
            ended.captured.release()
        self._epochs.add(ended.epoch, time, collected=not ended.logged)
        self.closed_batch = ended.batch
        written = sum(each.written for each in closed)
        self._changed = written / self._held_rows if self._held_rows else 0.0
        if ended.logged:
            self._logged_rows += written
        else:
            self._folded = ended.epoch
            self._held(each.sizes for each in closed)
        for each in self._contributors:
            each.closed(ended.batch)

    def _fold(self, epoch: Epoch) -> list[Mapping[str, StepSize]]:
        floor = self._epochs.time().floor
        sizes = self._store.fold(self._lease, epoch, floor)
        self._folded = epoch
        self._epochs.collected(floor)
        self._logged_rows = 0
        self._held(sizes)
        return sizes

    def _held(self, sizes: Iterable[Mapping[str, StepSize]]) -> None:
        self._held_rows = sum(size.rows for steps in sizes for size in steps.values())

    def _checkpoint_logs(self) -> None:
        # 5
        # A failed checkpoint is tried again after the next epoch; the logs hold everything until then.
        with contextlib.suppress(RecoveryError):
            self._store.checkpoint()
        faults.reach("close.5")
