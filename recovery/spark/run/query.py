"""A running flow: the micro-batch callback, the idle timer, and its end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from recovery.base.clock import Clock
from recovery.base.ids import BatchId, Lease
from recovery.base.intervals import Interval
from recovery.base.notebooks import html_table
from recovery.base.tracebacks import essence_of
from recovery.base.wording import counted
from recovery.epochs.closer import EpochCloser
from recovery.errors import (
    FlowFailedError,
    LeaseLostError,
    OwnerRefusedError,
    OwnerUnreachableError,
    RecoveryError,
    SparkUnavailableError,
)
from recovery.metrics.meter import BatchMeasure
from recovery.sinks.delivery import Delivery
from recovery.spark.jvm.errors import JVM_GONE, is_cancelled, jvm_failed, may_still_close
from recovery.spark.jvm.stream_thread import has_died
from recovery.spark.pipelines.incremental import FlowLoads
from recovery.spark.planner.bind import BoundPlan
from recovery.spark.planner.iceberg_tables import IcebergInput
from recovery.spark.run.launch import expect_no_state, is_alive, launch, running, sources_read, stop_query
from recovery.spark.run.mailboxes import Mailboxes
from recovery.spark.run.prepare import BackgroundCheck, Prepared
from recovery.spark.run.reporting.events import BatchDone, WaitingForSpark, rows_of
from recovery.spark.run.reporting.listener import announce
from recovery.spark.run.reporting.reports import Reports
from recovery.spark.run.reporting.shown import end_line
from recovery.spark.run.reporting.spark_waits import Waits
from recovery.spark.run.serving import TaskAccess
from recovery.spark.run.source_starts import SourceStarts
from recovery.spark.run.status import RunStatus
from recovery.spark.run.under_way import UnderWay
from recovery.spark.tuning.outcome import Outcome
from recovery.storage.seam import PartitionStore

CANCEL_S = 0.5
"""How often a micro-batch that has to end is cancelled again: between two of its jobs, a call has no effect."""
TIMER_S = 30.0
"""How long the end waits for the idle timer, which may be in a call into the JVM."""
LOOK_S = 1.0
"""How often the run looks whether Spark's stream still lives."""
ENDS_BATCH = (LeaseLostError, OwnerRefusedError, OwnerUnreachableError, SparkUnavailableError)
"""Errors after which the tasks of the running micro-batch would try for long, or would never begin."""
ABANDON_S = 15.0
"""How long a sink may need to return when its calls into the JVM have been cut."""


@dataclass(frozen=True)
class Begun:
    """What steps start.3 and start.4 have made for a run. `recovery.spark.run.start.ExecutionStart` performs them."""

    prepared: Prepared
    store: PartitionStore
    access: TaskAccess
    check: BackgroundCheck
    bound: BoundPlan
    lease: Lease
    status: RunStatus
    reports: Reports
    mailboxes: Mailboxes
    delivery: Delivery
    loads: FlowLoads
    closer: EpochCloser
    starts: SourceStarts
    tables: IcebergInput
    began_s: float
    last: BatchId | None = None
    """The micro-batch after which the run ends; None: it ends with the input."""


class RecoveryQuery:
    """A running flow with recovery partitions, made by `start`.

    The query ends when the input ends (trigger available-now), by `stop`, or by an error, which `await_termination`
    raises.
    """

    def __init__(self, begun: Begun, clock: Clock) -> None:
        self._prepared = begun.prepared
        self._store = begun.store
        self._access = begun.access
        self._check = begun.check
        self._bound = begun.bound
        self._status = begun.status
        self._reports = begun.reports
        self._mailboxes = begun.mailboxes
        self._delivery = begun.delivery
        self._loads = begun.loads
        self._closer = begun.closer
        self._starts = begun.starts
        self._tables = begun.tables
        self._status.tables = self._tables.described
        self._began_s = begun.began_s
        self._last = begun.last
        self._clock = clock
        self._finished = False
        self._finish_lock = threading.Lock()
        self._under_way = UnderWay(begun.bound.frame.sparkSession)
        self._waits = Waits(
            begun.bound.frame.sparkSession, begun.prepared.config, begun.lease.number, clock,
            lambda what, seconds: begun.reports.notify(WaitingForSpark(what, seconds)),
            noted=begun.prepared.temporary is None,
        )  # fmt: skip
        begun.reports.measures.wait_s = lambda: self._waits.seconds
        self._given_up = False
        self._timer: threading.Thread | None = None
        self.lease = begun.lease
        self.summary = begun.reports.summary
        self.meter = begun.reports.meter

    # ---- what users call

    @property
    def is_active(self) -> bool:
        """Whether the flow still runs."""
        return not self._finished and bool(self._status.query.isActive)

    @property
    def metrics_url(self) -> str | None:
        """The address where Prometheus finds the metrics of this run; None if they are not served."""
        return self._reports.measures.url

    @property
    def streaming_query(self) -> Any:
        """Spark's own handle, for its progress and listeners. Stop the flow with `stop`, not through this handle."""
        return self._status.query

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the flow ends, at most `timeout` seconds, then close the last epoch; return whether it ended.

        Raises the error that ended the flow: FlowFailedError for errors of the flow's own code, else another
        RecoveryError.
        """
        deadline = None if timeout is None else self._clock.elapsed_s() + timeout
        while not self._status.over.is_set():
            left = 0.2 if deadline is None else min(0.2, max(0.0, deadline - self._clock.elapsed_s()))
            try:
                if self._status.query.awaitTermination(max(left, 0.001)):
                    break
            except (StreamingQueryException, *JVM_GONE) as error:
                self._status.note_fatal()
                self._status.note(error)
                break
            if deadline is not None and self._clock.elapsed_s() >= deadline:
                return False
        self._finish()
        if self._status.error is not None:
            raise self._status.error
        return True

    def stop(self) -> None:
        """Finish the running micro-batch, close the epoch, and end the flow. Raises what went wrong while stopping.

        Called by the flow's own sink or observer, `stop` returns immediately. The run ends when the calls have
        returned, and `await_termination` raises what goes wrong then.
        """
        if self._status.is_own_thread():
            threading.Thread(target=self._finish, name="stop", daemon=True).start()
            return
        self._finish()
        if self._status.error is not None:
            raise self._status.error

    def _tell_stopping(self, number: int) -> None:
        """Tell the observer that a signal ends the run, and which micro-batch it waits for."""
        self._reports.stopping(number, self._under_way.batch)

    def __repr__(self) -> str:
        where = self.summary.directory or "no recovery directory"
        return f"<RecoveryQuery {self._prepared.flow_id!r} on {where}: {self._status_text()}>"

    def _repr_html_(self) -> str:
        rows = [("", self._status_text()), *rows_of(self.summary)]
        return html_table(f"flow {self._prepared.flow_id}", rows)

    def _status_text(self) -> str:
        if self._finished:
            return end_line(self.summary, self._status.error)
        return f"running, {counted(self.summary.batches, 'micro-batch', 'micro-batches')} so far"

    # ---- the micro-batch

    def _launch(self, checkpoint: str, trigger: str | Interval | None) -> None:
        if self._is_at_last():
            self._status.parked.set()
        launch(
            self._bound,
            self._process,
            name=self._prepared.flow_id,
            checkpoint=checkpoint,
            address=self._access.address,
            trigger=trigger,
            started=self._launched,
        )
        announce(str(self._status.query.runId), self.meter)
        if self._is_at_last():
            self.stop()
        self._timer = threading.Thread(target=self._watch, name="epoch-timer", daemon=True)
        self._timer.start()

    def _launched(self, query: Any) -> None:
        self._status.query = query

    def _process(self, batch: DataFrame, batch_id: int) -> None:
        """The foreachBatch callback."""
        with self._under_way.entered():
            if not self._status.parked.is_set():
                with self._closer.lock, self._status.own_thread():
                    # The run may have begun to end while this thread waited for the lock.
                    if not self._status.parked.is_set() and self._processed(batch, BatchId(batch_id)):
                        return
            # The run is ending: the epoch closes as of the previous micro-batch, and the next run processes this one.
            self._status.released.wait()
            expect_no_state(self._running())

    def _processed(self, batch: DataFrame, batch_id: BatchId) -> bool:
        """Process a micro-batch; return False if the end of the run has given it up."""
        try:
            with self._under_way.callback(batch_id):
                self._process_locked(batch, batch_id)
            return True
        except BaseException as error:
            if self._given_up and (not isinstance(error, RecoveryError) or is_cancelled(error)):
                return False
            self._status.note(error, partial(sources_read, self._bound.frame.sparkSession, self._status.query))
            if not isinstance(error, Exception):
                # It would end this thread, and the JVM would wait for py4j's answer forever.
                raise FlowFailedError(essence_of(error)) from error
            raise

    def _process_locked(self, batch: DataFrame, batch_id: BatchId) -> None:
        self._closer.check()
        self._reports.count_input()
        if self._prepared.temporary is None:
            self._tables.check(batch_id)
            self._starts.keep(self._running(), batch_id)
        if self._closer.due():
            self._end_epoch(lambda: True)
        started_s = self._clock.elapsed_s()
        self._store.open(self.lease, batch_id)
        address = self._store.address(self.lease)
        with (
            self._bound.tuning.run_batch(self._running(), batch, batch_id, address, self._delivery) as frame,
            self._loads.during(batch.sparkSession, batch_id),
        ):
            if frame is not None:
                with self._under_way.in_sink():
                    self._delivery.write(frame, batch_id, self._closer.epoch)
        self._closer.finished = batch_id
        self._check.begin()
        counts = self._store.counts(self.lease, batch_id)
        self.summary.batches += 1
        self.summary.states += counts.keys
        self._mailboxes.update()
        seconds = self._clock.elapsed_s() - started_s
        query = None if self._status.query is None else self._running()
        self._bound.tuning.learn(Outcome(counts.rows, counts.keys, counts.row_bytes, seconds, query))
        measure = BatchMeasure(counts.rows, counts.keys, counts.looked_up, counts.seam_s, seconds)
        done = BatchDone(batch_id, self._closer.epoch, counts.rows, counts.keys, seconds)
        self._reports.batch_done(done, measure)
        if self._is_at_last():
            self._status.parked.set()
            self.stop()

    def _is_at_last(self) -> bool:
        return self._last is not None and self._closer.finished >= self._last

    def _running(self) -> Any:
        """The JVM's handle of the query, also before Spark's `start` has returned one."""
        return running(self._bound.frame.sparkSession, self._status.query)

    # ---- epochs

    def _end_epoch(self, alive: Callable[[], bool]) -> None:
        """End the epoch; the stream waits until the epoch is closed."""
        batch, began_s = self._closer.finished, self._clock.elapsed_s()
        self._closer.end_epoch(alive)
        self.meter.paused(batch, self._clock.elapsed_s() - began_s)

    def _watch(self) -> None:
        """The idle timer: count input and end a due epoch if no micro-batch comes to do it. End the run if an epoch
        could not be written or a partition is damaged."""
        interval_s = self._prepared.config.snapshot_interval_s
        period_s = min(0.5, max(0.05, interval_s / 8))
        looked_s = self._clock.elapsed_s()
        while not self._status.over.wait(period_s):
            try:
                if self._clock.elapsed_s() - looked_s >= LOOK_S:
                    self._look_at_stream()
                    looked_s = self._clock.elapsed_s()
                self._closer.check()
                self._check.look()
                self._store.check(self.lease)
                due = self._closer.due() and self._closer.idle()
                waiting = due or self._closer.finished > self._reports.counted_batch
                if waiting and self._closer.lock.acquire(blocking=False):
                    try:
                        if not self._status.parked.is_set():
                            with contextlib.suppress(*JVM_GONE):
                                self._reports.count_input()
                            if self._closer.due() and self._closer.idle():
                                self._closer.end_epoch(self._status.is_alive, last=True)
                    finally:
                        self._closer.lock.release()
            except BaseException as error:
                self._status.note(error)
                self._status.over.set()
                if isinstance(error, ENDS_BATCH):
                    self._cancel_batch()

    def _look_at_stream(self) -> None:
        """End the run if an error of the JVM has ended Spark's thread. The callback, which may wait for an answer, does
        not learn of it, nor does everybody who waits for the query. Otherwise see what Spark waits for."""
        query = self._status.query
        if has_died(query) and (self._under_way.batch is not None or is_alive(query)):
            self._status.note_failure(self._bound.frame.sparkSession)
            self._status.note(jvm_failed(""))
            self._under_way.cut()
            self._status.over.set()
        elif self._under_way.batch is not None or not (self._under_way.is_entered or self._status.parked.is_set()):
            self._waits.look(query, self._under_way.batch)

    def _cancel_batch(self) -> None:
        """End the running micro-batch. Otherwise the micro-batch's tasks would try for long to reach an owner that no
        longer knows the run, or would never begin."""
        while not self._finished:
            if self._closer.lock.acquire(timeout=CANCEL_S):
                self._closer.lock.release()
                return
            self._cancel_jobs()

    def _cancel_jobs(self) -> None:
        with contextlib.suppress(Exception):
            self._bound.frame.sparkSession.sparkContext.cancelJobGroup(str(self._status.query.runId))

    # ---- the end

    def _finish(self) -> None:
        """End the run, once: park new micro-batches, wait for the running one, close the epoch as of the last finished
        one, and stop."""
        with self._finish_lock:
            if self._finished:
                return
            self._status.parked.set()
            self._status.note_failure(self._bound.frame.sparkSession)
            try:
                with self._after_batch():
                    if not self._prepared.temporary and may_still_close(self._status.error):
                        with contextlib.suppress(Exception):
                            self._reports.count_input()
                        self._closer.close(self._status.is_alive)
                        self._check_all_closed()
                        self._store.check(self.lease)
            except BaseException as error:
                self._status.note(error)
            self._finished = True
            self._status.over.set()
            with contextlib.suppress(Exception):
                self._reports.count_input()
            stop_query(self._status.query, self._status.released)
            with contextlib.suppress(Exception):
                self._reports.count_input()
            if self._timer is not None and self._timer is not threading.current_thread():
                self._timer.join(TIMER_S)
            self._waits.end()
            self._closer.finish()
            self._delivery.release()
            self._access.stop()
            self._end_replication()
            self._reports.record_progress()
            self._prepared.release(self._status.error)
            self._mailboxes.remove()
            self.summary.elapsed_s = self._clock.elapsed_s() - self._began_s
            self._reports.ended()

    @contextlib.contextmanager
    def _after_batch(self) -> Iterator[None]:
        """Wait for the running micro-batch, and let no other micro-batch begin within this context. A micro-batch for
        which no executor works is given up. One whose stream has died cannot count: its calls into the JVM are cut, and
        a sink that does not return is left alone."""
        died_s: float | None = None
        while not self._closer.lock.acquire(timeout=LOOK_S):
            if has_died(self._status.query):
                self._under_way.cut()
                died_s = self._clock.elapsed_s() if died_s is None else died_s
                if self._clock.elapsed_s() - died_s >= ABANDON_S and self._under_way.abandon():
                    yield
                    return
            elif self._waits.lacks_executors():
                self._given_up = True
                self._cancel_jobs()
        try:
            yield
        finally:
            self._closer.lock.release()

    def _end_replication(self) -> None:
        replication = self._prepared.replication
        if replication is not None:
            replication.end()
            self.summary.replica = replication.state.as_json()

    def _abort(self) -> None:
        """Stop the query after a failed start: it must not continue alone."""
        self._status.over.set()
        self._status.parked.set()
        if self._status.query is not None:
            stop_query(self._status.query, self._status.released)

    def _check_all_closed(self) -> None:
        """Check that a run without errors has closed an epoch over every micro-batch it finished. Raises
        FlowFailedError."""
        left = self._closer.finished
        if self._status.error is None and left > self._closer.closed_batch:
            raise FlowFailedError(
                f"Spark ended without logging micro-batch {left} as done, so its epoch could not be closed",
                cause="The query was stopped from outside, or its scratch checkpoint was removed.",
                remedy="Run the same command again: it continues from the last closed epoch.",
            )
