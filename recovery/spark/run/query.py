"""A running flow: its start, the micro-batch callback, the idle timer, and its end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from recovery.base import faults
from recovery.base.clock import Clock
from recovery.base.ids import BatchId
from recovery.base.intervals import Interval
from recovery.base.tracebacks import essence_of
from recovery.checkpoint.capture import Capture
from recovery.epochs.closer import ClosingHooks, ClosingSettings, EpochClosed, EpochCloser
from recovery.epochs.execution import new_execution
from recovery.errors import ConfigurationError, FileReplacedError, FlowFailedError, RecoveryError
from recovery.metrics.meter import BatchMeasure
from recovery.sinks.delivery import Delivery
from recovery.spark.jvm.errors import JVM_GONE, as_recovery_error, may_still_close
from recovery.spark.pipelines.incremental import FlowLoads
from recovery.spark.planner.bind import BoundPlan
from recovery.spark.run.events import BatchDone, Event, InputCounted, Observer, Resumed, Stopping
from recovery.spark.run.launch import is_alive, launch, running, setting_of, stop_query
from recovery.spark.run.listener import announce
from recovery.spark.run.measuring import InputCount, RunMeasures, first_summary
from recovery.spark.run.position import restore_position, resume_of_sink, step_plan
from recovery.spark.run.prepare import Prepared
from recovery.spark.run.source_starts import SourceStarts
from recovery.spark.steps.ticks import write_mailbox

if TYPE_CHECKING:
    from recovery.flow import SinkLike

NEVER = float("inf")
_TICKING: set[Path] = set()
"""Mailboxes of the queries that run in this process."""


class RecoveryQuery:
    """A running flow with recovery partitions, made by `start`.

    It ends when the input ends (trigger available-now), by `stop`, or by an error, which `await_termination` raises.
    """

    def __init__(
        self,
        prepared: Prepared,
        bound: BoundPlan,
        sink: SinkLike,
        trigger: str | Interval | None,
        observer: Observer | None,
        clock: Clock,
    ) -> None:
        assert prepared.store is not None
        assert prepared.check is not None
        self._prepared = prepared
        self._store = prepared.store
        self._check = prepared.check
        self._bound = bound
        self._observer = observer
        self._clock = clock
        self._parked = threading.Event()
        self._released = threading.Event()
        self._over = threading.Event()
        self._finished = False
        self._under_way: BatchId | None = None
        self._own_threads: set[int] = set()
        self._finish_lock = threading.Lock()
        self._telling = threading.Lock()
        self._error: BaseException | None = None
        self._timer: threading.Thread | None = None
        self._query: Any = None
        self._started_s = clock.elapsed_s()
        plan, config = prepared.plan, prepared.config
        waiting = [s.definition for s in bound.steps if s.definition.timeouts]
        self._waiting_steps = [definition.step_id for definition in waiting]
        self._mailboxes = [definition.mailbox for definition in waiting]
        taken = _TICKING.intersection(self._mailboxes)
        if taken:
            raise ConfigurationError(
                "the frame runs already",
                cause="A frame with timeouts was started twice, and has one source of ticks.",
                remedy="Build the frame anew for each query.",
            )
        execution = new_execution(
            plan,
            prepared.flow_id,
            clock,
            snapshot_interval_s=config.snapshot_interval_s,
            backup_interval_s=prepared.backup_interval_s,
        )
        self.lease = execution.lease
        self.summary = first_summary(prepared, execution)
        self._measures = RunMeasures(prepared, self._store, execution, plan.partitions[0].executions, clock)
        self.meter = self._measures.meter
        steps = step_plan(self._store, plan, bound, config)
        self._delivery = Delivery(
            sink, resume_of_sink(plan, execution, self._store), recoverable=prepared.temporary is None
        )
        self._loads = FlowLoads(None if prepared.temporary else config.path, clock)
        with contextlib.ExitStack() as failed:
            failed.callback(self._delivery.release)
            # Find out whether Spark can continue from there before anything is discarded.
            checkpoint = self._store.prepare(execution) / "checkpoint"
            position = restore_position(
                self._store, plan, bound.sources, checkpoint, config.path, config.rename_steps, steps.edits,
                partial(setting_of, bound.frame.sparkSession),
            )  # fmt: skip
            self._store.start(execution, [s.definition.step_id for s in bound.steps], plan.partitions)
            prepared.record_run(execution, clock)
            self._delivery.rollback()
            faults.reach("start.3")
            self._closer = EpochCloser(
                self._store,
                self.lease,
                plan,
                Capture(checkpoint, position.restored.held, position.restored.stale, sources=bound.sources.numbers),
                # The loads come last: a mark that somebody sets while the sink prepares does not replace the epoch's.
                (self._delivery, self._loads),
                ClosingSettings(
                    snapshot_interval_s=NEVER if prepared.temporary else config.snapshot_interval_s,
                    backup_interval_s=prepared.backup_interval_s,
                    may_log=not bound.keeps_native_state,
                ),
                ClosingHooks(may_close=self._check.wait, on_closed=self._on_closed, around=self._own_thread),
                clock,
            )
            failed.callback(self._closer.finish)
            self._starts = SourceStarts(self._store, self.lease, checkpoint, bound.sources, self._closer, position)
            self._input = InputCount(
                self.meter, self.summary, checkpoint / "state", self._closer.finished, self._on_counted
            )
            self._closer.begin(steps, position.new_rows, laid_out=position.laid_out)
            faults.reach("start.4")
            # Before the stream starts: after that, the partitions belong to the thread that closes epochs.
            self._measures.started(prepared.planned_s + clock.elapsed_s() - self._started_s)
            self._notify(Resumed(execution.number, plan.resume_epoch, plan, self.metrics_url, prepared.discarded))
            failed.callback(self._remove_mailboxes)
            _TICKING.update(self._mailboxes)
            self._update_mailboxes()
            failed.callback(self._abort)
            self._launch(checkpoint, trigger)
            failed.pop_all()

    # ---- what users call

    @property
    def is_active(self) -> bool:
        """Whether the flow still runs."""
        return not self._finished and bool(self._query.isActive)

    @property
    def metrics_url(self) -> str | None:
        """The address where Prometheus finds the metrics of this run; None if they are not served."""
        return self._measures.url

    @property
    def streaming_query(self) -> Any:
        """Spark's own handle, for its progress and listeners. Stop the flow with `stop`, not through this handle."""
        return self._query

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the flow ends, at most `timeout` seconds, then close the last epoch; return whether it ended.

        Raises the error that ended the flow: a RecoveryError, or FlowFailedError for errors of the flow's own code.
        """
        deadline = None if timeout is None else self._clock.elapsed_s() + timeout
        while not self._over.is_set():
            left = 0.2 if deadline is None else min(0.2, max(0.0, deadline - self._clock.elapsed_s()))
            try:
                if self._query.awaitTermination(max(left, 0.001)):
                    break
            except (StreamingQueryException, *JVM_GONE) as error:
                self._note(error)
                break
            if deadline is not None and self._clock.elapsed_s() >= deadline:
                return False
        self._finish()
        if self._error is not None:
            raise self._error
        return True

    def stop(self) -> None:
        """Finish the running micro-batch, close the epoch, and end the flow. Raises what went wrong while doing so.

        Called by the flow's own sink or observer, it returns immediately. The run ends when they have returned, and
        `await_termination` raises what goes wrong then.
        """
        if threading.get_ident() in self._own_threads:
            threading.Thread(target=self._finish, name="stop", daemon=True).start()
            return
        self._finish()
        if self._error is not None:
            raise self._error

    def _tell_stopping(self, number: int) -> None:
        """Tell the observer that a signal ends the run, and which micro-batch it waits for."""
        if self._observer is not None:
            # Without the lock for events: the run may be waiting for an observer.
            self._observer(Stopping(number, self._under_way))

    # ---- the micro-batch

    def _launch(self, checkpoint: Path, trigger: str | Interval | None) -> None:
        launch(
            self._bound,
            self._process,
            name=self._prepared.flow_id,
            checkpoint=checkpoint,
            address=self._store.address(self.lease),
            trigger=trigger,
            started=self._launched,
        )
        announce(str(self._query.runId), self.meter)
        self._timer = threading.Thread(target=self._watch, name="epoch-timer", daemon=True)
        self._timer.start()

    def _launched(self, query: Any) -> None:
        self._query = query

    def _process(self, batch: DataFrame, batch_id: int) -> None:
        """The foreachBatch callback."""
        if not self._parked.is_set():
            with self._closer.lock, self._own_thread():
                # The run may have begun to end while this thread waited for the lock.
                if not self._parked.is_set():
                    self._under_way = BatchId(batch_id)
                    try:
                        self._process_locked(batch, self._under_way)
                    except BaseException as error:
                        self._note(error)
                        if not isinstance(error, Exception):
                            # It would end this thread, and the JVM would wait for py4j's answer forever.
                            raise FlowFailedError(essence_of(error)) from error
                        raise
                    finally:
                        self._under_way = None
                    return
        # The run is ending: the epoch closes as of the previous micro-batch, and the next run processes this one.
        self._released.wait()

    @contextlib.contextmanager
    def _own_thread(self) -> Iterator[None]:
        """Within this context, mark this thread as one that the end of the run waits for."""
        thread = threading.get_ident()
        if thread in self._own_threads:
            yield
            return
        self._own_threads.add(thread)
        try:
            yield
        finally:
            self._own_threads.discard(thread)

    def _process_locked(self, batch: DataFrame, batch_id: BatchId) -> None:
        self._closer.check()
        self._count_input()
        if self._prepared.temporary is None:
            self._starts.keep(self._running(), batch_id)
        if self._closer.due():
            self._end_epoch(lambda: True)
        started_s = self._clock.elapsed_s()
        self._store.open(self.lease, batch_id)
        with self._frame(batch, batch_id) as frame, self._loads.during(batch.sparkSession, batch_id):
            if frame is not None:
                self._delivery.write(frame, batch_id, self._closer.epoch)
        self._closer.finished = batch_id
        self._check.begin()
        if self._bound.combiner is not None and self._query is not None:
            self._bound.combiner.learn(self._query._jsq)
        counts = self._store.counts(self.lease, batch_id)
        self.summary.batches += 1
        self.summary.states += counts.keys
        self._update_mailboxes()
        seconds = self._clock.elapsed_s() - started_s
        if self._bound.gathering is not None:
            self._bound.gathering.learn(max(counts.rows, counts.keys), seconds)
        if self._bound.merging is not None:
            self._bound.merging.learn(counts.rows, counts.keys)
        self._bound.row_width.learn(counts.rows, counts.row_bytes)
        measure = BatchMeasure(counts.rows, counts.keys, counts.looked_up, counts.seam_s, seconds)
        self.meter.batch(batch_id, measure)
        self._notify(BatchDone(batch_id, self._closer.epoch, counts.rows, counts.keys, seconds))

    @contextlib.contextmanager
    def _frame(self, batch: DataFrame, batch_id: BatchId) -> Iterator[DataFrame | None]:
        """What the sink gets: the micro-batch's plan, or its rows, computed once and completely, so that no step runs
        again whatever the sink does with them. None if nothing is left to compute and the sink discards the rows."""
        query = self._running()
        if self._bound.merging is not None:
            merged = self._bound.merging.run(query, batch.sparkSession, self._store.address(self.lease), batch_id)
            if merged is not None and merged.is_all:
                yield None if self._delivery.discards else merged.frame(batch)
                return
            batch = batch if merged is None else merged.frame(batch)
        as_expected = self._bound.row_width.expected(query)
        if self._delivery.single_action:
            with as_expected if self._delivery.as_it_is else contextlib.nullcontext():
                yield batch
            return
        with as_expected:
            copy = batch.localCheckpoint(eager=True)
        try:
            yield copy
        finally:
            copy._jdf.queryExecution().analyzed().rdd().unpersist(False)

    def _running(self) -> Any:
        """The JVM's handle of the query, also before Spark's `start` has returned one."""
        return running(self._bound.frame.sparkSession) if self._query is None else self._query._jsq

    def _count_input(self) -> None:
        if self._query is not None:
            self._input.look(self._query)

    def _on_counted(self, batch: BatchId, rows: int) -> None:
        """Tell the observer, on the thread that looked at Spark's reports. Errors of the observer end the run."""
        try:
            with self._own_thread():
                self._notify(InputCounted(batch, rows))
        except BaseException as error:
            self._note(error)
            self._over.set()
            raise

    # ---- epochs

    def _on_closed(self, closed: EpochClosed) -> None:
        self.summary.epochs += 1
        self.summary.last_epoch = closed.epoch
        self.summary.snapshot_s += closed.duration_s
        self._record_progress()
        if self._query is not None:
            self._input.wait(self._query, closed.batch, lambda s: not self._is_alive() or self._over.wait(s))
        missed = self._measures.closed(closed)
        self.summary.exceeded = [each.as_json() for each in self.meter.exceeded]
        self._notify(replace(closed, health=missed))

    def _end_epoch(self, alive: Callable[[], bool]) -> None:
        """End the epoch; the stream waits until that is done."""
        batch, began_s = self._closer.finished, self._clock.elapsed_s()
        self._closer.end_epoch(alive)
        self.meter.paused(batch, self._clock.elapsed_s() - began_s)

    def _record_progress(self) -> None:
        if self._prepared.record is not None:
            self._prepared.record.note(self.summary.last_epoch, self.summary.batches, self.summary.rows)

    def _watch(self) -> None:
        """The idle timer: count input and end a due epoch if no micro-batch comes to do it. End the run if an epoch
        could not be written or a partition is damaged."""
        interval_s = self._prepared.config.snapshot_interval_s
        period_s = min(0.5, max(0.05, interval_s / 8))
        while not self._over.wait(period_s):
            try:
                self._closer.check()
                self._check.look()
                self._store.check(self.lease)
                due = self._closer.due() and self._closer.idle()
                waiting = due or self._closer.finished > self._input.batch
                if waiting and self._closer.lock.acquire(blocking=False):
                    try:
                        if not self._parked.is_set():
                            with contextlib.suppress(*JVM_GONE):
                                self._count_input()
                            if self._closer.due() and self._closer.idle():
                                self._closer.end_epoch(self._is_alive, last=True)
                    finally:
                        self._closer.lock.release()
            except BaseException as error:
                self._note(error)
                self._over.set()

    def _update_mailboxes(self) -> None:
        if self._mailboxes:
            # A step that no longer declares timeouts may still hold some, which nothing handles.
            due_ms = self._store.next_due_ms(self.lease, self._waiting_steps)
            for mailbox in self._mailboxes:
                write_mailbox(mailbox, due_ms, self._store.partition_count)

    def _remove_mailboxes(self) -> None:
        for mailbox in self._mailboxes:
            mailbox.unlink(missing_ok=True)
            _TICKING.discard(mailbox)

    # ---- the end

    def _finish(self) -> None:
        """End the run, once: park new micro-batches, wait for the running one, close the epoch as of the last finished
        one, and stop."""
        with self._finish_lock:
            if self._finished:
                return
            self._parked.set()
            self._note_failure()
            try:
                with self._closer.lock:
                    if not self._prepared.temporary and may_still_close(self._error):
                        with contextlib.suppress(Exception):
                            self._count_input()
                        self._closer.close(self._is_alive)
                        self._check_all_closed()
                        self._store.check(self.lease)
            except BaseException as error:
                self._note(error)
            self._finished = True
            self._over.set()
            with contextlib.suppress(Exception):
                self._count_input()
            stop_query(self._query, self._released)
            with contextlib.suppress(Exception):
                self._count_input()
            if self._timer is not None and self._timer is not threading.current_thread():
                self._timer.join()
            self._closer.finish()
            self._delivery.release()
            self._record_progress()
            self._prepared.release(self._error)
            self._remove_mailboxes()
            self.summary.elapsed_s = self._clock.elapsed_s() - self._started_s

    def _abort(self) -> None:
        """Stop the query after a failed start: it must not go on alone."""
        self._over.set()
        self._parked.set()
        if self._query is not None:
            stop_query(self._query, self._released)

    def _is_alive(self) -> bool:
        return is_alive(self._query)

    def _note_failure(self) -> None:
        """Note the error that ended Spark's query, in case nobody waited for it."""
        with contextlib.suppress(Py4JError, *JVM_GONE):
            failure = self._query.exception()
            # After Spark was stopped, a healthy query fails at whatever it does next.
            if failure is not None and self._bound.frame.sparkSession.sparkContext._jsc is not None:
                self._note(failure)

    def _check_all_closed(self) -> None:
        """Check that a run without errors has closed an epoch over every micro-batch it finished. Raises
        FlowFailedError."""
        left = self._closer.finished
        if self._error is None and left > self._closer.closed_batch:
            raise FlowFailedError(
                f"Spark ended without logging micro-batch {left} as done, so its epoch could not be closed",
                cause="The query was stopped from outside, or its scratch checkpoint was removed.",
                remedy="Run the same command again: it continues from the last closed epoch.",
            )

    def _note(self, error: BaseException) -> None:
        """Keep the first error, in the form in which it is raised to the user."""
        if self._error is None:
            is_main = threading.current_thread() is threading.main_thread()
            if isinstance(error, Exception):
                self._error = self._file_replaced() or as_recovery_error(error)
            elif is_main and not isinstance(error, SystemExit):
                self._error = as_recovery_error(error)
            else:
                # The flow's own code called sys.exit(), in a sink, an observer, or whatever closes an epoch.
                self._error = FlowFailedError(essence_of(error))
            if self._error is not error:
                self._error.__cause__ = error

    def _file_replaced(self) -> FileReplacedError | None:
        """The error for a replaced file that the run has open, or None. Such a file is the cause of whatever else went
        wrong."""
        try:
            self._store.check(self.lease)
        except FileReplacedError as error:
            return error
        except RecoveryError:
            pass
        return None

    def _notify(self, event: Event) -> None:
        if self._observer is not None:
            with self._telling:
                self._observer(event)
