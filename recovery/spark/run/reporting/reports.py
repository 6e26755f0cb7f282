"""What one run reports: its summary, its metrics, the run history, and events for the observer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from recovery.base.ids import BatchId
from recovery.base.tracebacks import essence_of, is_from_gateway
from recovery.epochs.closer import EpochClosed
from recovery.errors import FlowFailedError
from recovery.metrics.meter import BatchMeasure
from recovery.spark.run.prepare import Prepared
from recovery.spark.run.reporting.events import BatchDone, Event, InputCounted, Observer, RunSummary, Stopping
from recovery.spark.run.reporting.measuring import InputCount, RunMeasures
from recovery.spark.run.reporting.shown import NotebookLine
from recovery.spark.run.status import RunStatus


class Reports:
    """The reports of one run. Several threads call this object; the observer hears one event at a time."""

    def __init__(
        self,
        prepared: Prepared,
        summary: RunSummary,
        measures: RunMeasures,
        status: RunStatus,
        observer: Observer | None,
        line: NotebookLine | None,
        *,
        native_state: bool,
        batch: BatchId,
        ticks: Sequence[bool],
    ) -> None:
        """native_state: whether Spark's own operators keep state. batch: the last micro-batch of the snapshot that the
        run resumes from. ticks: which of Spark's sources wakes steps for their timeouts."""
        self.summary = summary
        self.measures = measures
        self.meter = measures.meter
        self._record = prepared.record
        self._status = status
        self._observer = observer
        self._line = line
        self._input = InputCount(self.meter, summary, native_state, batch, ticks, self._on_counted)
        self._notifying = threading.Lock()

    def notify(self, event: Event) -> None:
        """Pass the event to the observer."""
        if self._observer is not None or self._line is not None:
            with self._notifying:
                if self._line is not None:
                    self._line.observe(event)
                if self._observer is not None:
                    self._tell(event)

    def ended(self) -> None:
        """Show in a notebook how the run ended."""
        if self._line is not None:
            self._line.ended(self.summary, self._status.error)

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

    def batch_done(self, done: BatchDone, measure: BatchMeasure) -> None:
        """Report a micro-batch that was processed."""
        self.meter.batch(done.batch, measure)
        self.notify(done)

    def closed(self, closed: EpochClosed) -> None:
        """Report a closed epoch. Called on the thread that writes epochs."""
        status = self._status
        self.summary.epochs += 1
        self.summary.last_epoch = closed.epoch
        self.summary.snapshot_s += closed.duration_s
        self.record_progress()
        if status.query is not None:
            self._input.wait(status.query, closed.batch, lambda s: not status.is_alive() or status.over.wait(s))
        missed = self.measures.closed(closed)
        self.summary.exceeded = [each.as_json() for each in self.meter.exceeded]
        self.notify(replace(closed, health=missed))

    def record_progress(self) -> None:
        """Write the progress into the run history."""
        if self._record is not None:
            self._record.note(self.summary.last_epoch, self.summary.batches, self.summary.rows)
