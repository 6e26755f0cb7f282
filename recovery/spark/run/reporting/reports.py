"""What one run reports: its summary, its metrics, the run history, and events for the observer."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace

from recovery.base.ids import NO_BATCH, BatchId
from recovery.base.tracebacks import essence_of, is_from_gateway
from recovery.epochs.closer import EpochClosed
from recovery.errors import FlowFailedError
from recovery.metrics.meter import BatchMeasure
from recovery.planning.lag import InputLag
from recovery.planning.replica import ReplicaState
from recovery.planning.values import Execution
from recovery.spark.planner.bind import BoundPlan
from recovery.spark.run.parts.part import Part
from recovery.spark.run.prepare import Prepared
from recovery.spark.run.reporting.events import (
    BatchDone,
    Event,
    InputCounted,
    LagSeen,
    Observer,
    ReplicaChanged,
    Stopping,
)
from recovery.spark.run.reporting.measuring import InputCount, RunMeasures, first_summary
from recovery.spark.run.reporting.shown import NotebookLine, notebook_line
from recovery.spark.run.status import RunStatus
from recovery.storage.seam import PartitionStore


class Reports(Part):
    """The reports of one run. Several threads call this object; the observer hears one event at a time."""

    name = "reports"

    def __init__(
        self,
        prepared: Prepared,
        bound: BoundPlan,
        store: PartitionStore,
        execution: Execution,
        status: RunStatus,
        observer: Observer | None,
    ) -> None:
        self.summary = first_summary(prepared, execution)
        self.measures = RunMeasures(prepared, bound, store, execution)
        self.meter = self.measures.meter
        self._prepared = prepared
        self.began_s = prepared.clock.elapsed_s()
        self._status = status
        self._observer = observer
        self._line: NotebookLine | None = None
        snapshot = prepared.plan.snapshot
        batch = NO_BATCH if snapshot is None else snapshot.batch_id
        self._input = InputCount(self.meter, self.summary, bound, batch, self._on_counted)
        self._notifying = threading.Lock()

    def show(self) -> None:
        """Show the run below the running cell of a notebook."""
        self._line = notebook_line(self._prepared.flow_id)

    def notify(self, event: Event) -> None:
        """Pass the event to the observer."""
        if self._observer is not None or self._line is not None:
            with self._notifying:
                if self._line is not None:
                    self._line.observe(event)
                if self._observer is not None:
                    self._tell(event)

    def replica_changed(self, replica: ReplicaState) -> None:
        """Tell the observer that the replication has a problem, or has none any more."""
        # The observer may stop the run, whose end waits for the thread that ships.
        with self._status.own_thread():
            self.notify(ReplicaChanged(replica))

    def lag_seen(self, lag: InputLag) -> None:
        """Tell the observer what the newest epoch lacks of the input."""
        self.summary.lag = lag.as_json()
        # The observer may stop the run, whose end waits for the thread that looks.
        with self._status.own_thread():
            self.notify(LagSeen(lag))

    def stopping(self, number: int, batch: BatchId | None) -> None:
        """Tell the observer that the signal with this number ends the run, and which micro-batch the run waits for."""
        if self._observer is not None:
            # Without the lock for events: the run may be waiting for an observer.
            self._tell(Stopping(number, batch))

    def _tell(self, event: Event) -> None:
        """Call the observer. A connection of its own that breaks, or a reader of its output that is gone, says nothing
        about Spark's JVM."""
        assert self._observer is not None
        try:
            self._observer(event)
        except ConnectionError as error:
            if is_from_gateway(error):
                raise
            raise FlowFailedError(essence_of(error)) from error

    @property
    def counted_batch(self) -> BatchId:
        """The newest micro-batch whose input is counted."""
        return self._input.batch

    def count_input(self) -> None:
        """Count the input of the micro-batches that Spark has reported since the last call."""
        if self._status.query is not None:
            self._input.look(self._status.query)

    def _on_counted(self, batch: BatchId, rows: int) -> None:
        """Tell the observer, on the thread that looked at Spark's reports. Errors of the observer end the run."""
        try:
            with self._status.own_thread():
                self.notify(InputCounted(batch, rows))
        except BaseException as error:
            self._status.note(error)
            self._status.over.set()
            raise

    def batch_processed(self, done: BatchDone, measure: BatchMeasure) -> None:
        """Report a micro-batch that was processed."""
        self.meter.batch(done.batch, measure)
        self.notify(done)

    def epoch_closed(self, closed: EpochClosed) -> None:
        """Report a closed epoch. Called on the thread that writes epochs."""
        status = self._status
        self.summary.epochs += 1
        self.summary.last_epoch = closed.epoch
        self.summary.snapshot_s += closed.duration_s
        self._record_progress()
        if status.query is not None:
            self._input.wait(status.query, closed.batch, lambda s: not status.is_alive() or status.over.wait(s))
        missed = self.measures.closed(closed)
        self.summary.exceeded = [each.as_json() for each in self.meter.exceeded]
        self.notify(replace(closed, health=missed))

    def _record_progress(self) -> None:
        """Write the progress into the run history."""
        if self._prepared.record is not None:
            self._prepared.record.note(self.summary.last_epoch, self.summary.batches, self.summary.rows)

    def end(self, error: BaseException | None) -> None:
        """Count what Spark has reported at last, and write the progress into the run history."""
        with contextlib.suppress(Exception):
            self.count_input()
        self._record_progress()

    def ended(self) -> None:
        """Complete the summary when everything has ended, and show in a notebook how the run ended."""
        if self._prepared.replicated is not None:
            self.summary.replica = self._prepared.replicated.state.as_json()
        self.summary.elapsed_s = self._prepared.clock.elapsed_s() - self.began_s
        if self._line is not None:
            self._line.ended(self.summary, self._status.error)
