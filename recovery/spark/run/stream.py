"""Spark's query of a run: the callback of its micro-batches, and the idle timer beside them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from recovery.base.ids import BatchId
from recovery.base.intervals import Interval
from recovery.base.tracebacks import essence_of
from recovery.errors import (
    FlowFailedError,
    LeaseLostError,
    OwnerRefusedError,
    OwnerUnreachableError,
    RecoveryError,
    SparkUnavailableError,
)
from recovery.metrics.meter import BatchMeasure
from recovery.spark.jvm.errors import JVM_GONE, is_cancelled, jvm_failed
from recovery.spark.jvm.stream_thread import has_died
from recovery.spark.run.execution import FlowRun
from recovery.spark.run.launch import expect_no_state, is_alive, launch, running, sources_read, stop_query
from recovery.spark.run.parts.part import Part
from recovery.spark.run.reporting.events import BatchDone, WaitingForSpark
from recovery.spark.run.reporting.listener import announce
from recovery.spark.run.reporting.spark_waits import Waits
from recovery.spark.run.source_starts import SourceStarts
from recovery.spark.run.under_way import UnderWay
from recovery.spark.tuning.outcome import Outcome
from recovery.storage.seam import of_all_steps

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


class Stream(Part):
    """Spark's query of one run. Spark calls for its micro-batches on a thread of its own; the idle timer has another
    one."""

    name = "stream"

    def __init__(self, run: FlowRun, stop: Callable[[], None]) -> None:
        """stop: called on a thread of this object when the run has processed its last micro-batch."""
        self.under_way = UnderWay(run.spark)
        self._run = run
        self._status = run.status
        self._stop = stop
        self._starts = SourceStarts(run)
        self._given_up = False
        self._has_started = False
        """Whether all parts know that the query runs. A last micro-batch that is done before leaves the stop to
        `launch`."""
        self._timer: threading.Thread | None = None
        self._waits = Waits(
            run.spark, run.prepared.config, run.lease.number, run.clock,
            lambda what, seconds: run.reports.notify(WaitingForSpark(what, seconds)),
            noted=run.prepared.temporary is None,
        )  # fmt: skip
        run.parts.add_end("waits", self._waits.end)
        run.reports.measures.wait_s = lambda: self._waits.seconds

    def launch(self, trigger: str | Interval | None) -> None:
        """Start the query, and the idle timer."""
        run = self._run
        if self._is_at_last():
            self._status.parked.set()
        launch(
            run.bound,
            self._process,
            name=run.prepared.flow_id,
            checkpoint=run.home.location,
            address=run.access.address,
            most_waiting=run.quarantine.most_of_task,
            trigger=trigger,
            started=self._launched,
        )
        announce(str(self._status.query.runId), run.reports.meter)
        for part in run.parts:
            part.started()
        self._has_started = True
        if self._is_at_last():
            self._stop()
        self._timer = threading.Thread(target=self._watch, name="epoch-timer", daemon=True)
        self._timer.start()

    def _launched(self, query: Any) -> None:
        self._status.query = query

    # ---- the micro-batch

    def _process(self, batch: DataFrame, batch_id: int) -> None:
        """The foreachBatch callback."""
        with self.under_way.entered():
            if not self._status.parked.is_set():
                with self._run.closer.lock, self._status.own_thread():
                    # The run may have begun to end while this thread waited for the lock.
                    if not self._status.parked.is_set() and self._processed(batch, BatchId(batch_id)):
                        return
            # The run is ending: the epoch closes as of the previous micro-batch, and the next run processes this one.
            self._status.released.wait()
            expect_no_state(self._running())

    def _processed(self, batch: DataFrame, batch_id: BatchId) -> bool:
        """Process a micro-batch; return False if the end of the run has given it up."""
        try:
            with self.under_way.callback(batch_id):
                self._process_locked(batch, batch_id)
            return True
        except BaseException as error:
            if self._given_up and (not isinstance(error, RecoveryError) or is_cancelled(error)):
                return False
            self._status.note(error, partial(sources_read, self._run.spark, self._status.query))
            if not isinstance(error, Exception):
                # It would end this thread, and the JVM would wait for py4j's answer forever.
                raise FlowFailedError(essence_of(error)) from error
            raise

    def _process_locked(self, batch: DataFrame, batch_id: BatchId) -> None:
        run, closer, reports, clock = self._run, self._run.closer, self._run.reports, self._run.clock
        closer.check()
        reports.count_input()
        if run.prepared.temporary is None:
            run.tables.check(batch_id)
            self._starts.keep(self._running(), batch_id)
        if closer.due():
            # The stream waits until the epoch before is closed.
            ended, began_s = closer.finished, clock.elapsed_s()
            closer.end_epoch(lambda: True)
            reports.meter.paused(ended, clock.elapsed_s() - began_s)
        started_s = clock.elapsed_s()
        run.store.open(run.lease, batch_id)
        address = run.store.address(run.lease)
        with (
            run.bound.tuning.run_batch(self._running(), batch, batch_id, address, run.delivery) as frame,
            run.loads.during(batch.sparkSession, batch_id),
        ):
            if frame is not None:
                with self.under_way.in_sink():
                    run.delivery.write(frame, batch_id, closer.epoch)
        of_steps = run.store.counts_of_steps(batch_id)
        counts = of_all_steps(of_steps)
        run.quarantine.processed(run.lease, batch_id, of_steps)
        closer.finished = batch_id
        reports.summary.batches += 1
        reports.summary.states += counts.keys
        for part in run.parts:
            part.batch_done()
        seconds = clock.elapsed_s() - started_s
        query = None if self._status.query is None else self._running()
        run.bound.tuning.learn(Outcome(counts.rows, counts.keys, counts.row_bytes, seconds, query))
        measure = BatchMeasure(counts.rows, counts.keys, counts.looked_up, counts.seam_s, seconds)
        reports.summary.quarantined = run.quarantine.rows
        done = BatchDone(
            batch_id, closer.epoch, counts.rows, counts.keys, seconds, run.delivery.work, run.quarantine.rows
        )
        reports.batch_processed(done, measure)
        if self._is_at_last():
            self._status.parked.set()
            if self._has_started:
                self._stop()

    def _is_at_last(self) -> bool:
        return self._run.last is not None and self._run.closer.finished >= self._run.last

    def _running(self) -> Any:
        """The JVM's handle of the query, also before Spark's `start` has returned one."""
        return running(self._run.spark, self._status.query)

    # ---- the idle timer

    def _watch(self) -> None:
        """The idle timer: count input and end a due epoch if no micro-batch comes to do it. End the run if an epoch
        could not be written or a partition is damaged."""
        run = self._run
        period_s = min(0.5, max(0.05, run.prepared.config.snapshot_interval_s / 8))
        looked_s = run.clock.elapsed_s()
        while not self._status.over.wait(period_s):
            try:
                if run.clock.elapsed_s() - looked_s >= LOOK_S:
                    self._look_at_stream()
                    looked_s = run.clock.elapsed_s()
                run.closer.check()
                for part in run.parts:
                    part.look()
                run.store.check(run.lease)
                self._end_idle_epoch()
            except BaseException as error:
                self._status.note(error)
                self._status.over.set()
                if isinstance(error, ENDS_BATCH):
                    self._cancel_batch()

    def _end_idle_epoch(self) -> None:
        closer, reports = self._run.closer, self._run.reports
        is_due = closer.due() and closer.idle()
        if (is_due or closer.finished > reports.counted_batch) and closer.lock.acquire(blocking=False):
            try:
                if not self._status.parked.is_set():
                    with contextlib.suppress(*JVM_GONE):
                        reports.count_input()
                    if closer.due() and closer.idle():
                        closer.end_epoch(self._status.is_alive, last=True)
            finally:
                closer.lock.release()

    def _look_at_stream(self) -> None:
        """End the run if an error of the JVM has ended Spark's thread. The callback, which may wait for an answer, does
        not learn of it, nor does everybody who waits for the query. Otherwise see what Spark waits for."""
        query = self._status.query
        if has_died(query) and (self.under_way.batch is not None or is_alive(query)):
            self._status.note_failure()
            self._status.note(jvm_failed(""))
            self.under_way.cut()
            self._status.over.set()
        elif self.under_way.batch is not None or not (self.under_way.is_entered or self._status.parked.is_set()):
            self._waits.look(query, self.under_way.batch)

    def _cancel_batch(self) -> None:
        """End the running micro-batch. Otherwise the micro-batch's tasks would try for long to reach an owner that no
        longer knows the run, or would never begin."""
        while not self._status.finished:
            if self._run.closer.lock.acquire(timeout=CANCEL_S):
                self._run.closer.lock.release()
                return
            self._cancel_jobs()

    def _cancel_jobs(self) -> None:
        with contextlib.suppress(Exception):
            self._run.spark.sparkContext.cancelJobGroup(str(self._status.query.runId))

    # ---- the end

    @contextlib.contextmanager
    def after_batch(self) -> Iterator[None]:
        """Wait for the running micro-batch, and let no other micro-batch begin within this context. A micro-batch for
        which no executor works is given up. One whose stream has died cannot count: its calls into the JVM are cut, and
        a sink that does not return is left alone."""
        died_s: float | None = None
        lock, clock = self._run.closer.lock, self._run.clock
        while not lock.acquire(timeout=LOOK_S):
            if has_died(self._status.query):
                self.under_way.cut()
                died_s = clock.elapsed_s() if died_s is None else died_s
                if clock.elapsed_s() - died_s >= ABANDON_S and self.under_way.abandon():
                    yield
                    return
            elif self._waits.lacks_executors():
                self._given_up = True
                self._cancel_jobs()
        try:
            yield
        finally:
            lock.release()

    def end(self, error: BaseException | None) -> None:
        """Stop the query, which must not continue after a failed start either; then end the idle timer."""
        self._status.over.set()
        self._status.parked.set()
        if self._status.query is not None:
            stop_query(self._status.query, self._status.released)
        if self._timer is not None and self._timer is not threading.current_thread():
            self._timer.join(TIMER_S)
