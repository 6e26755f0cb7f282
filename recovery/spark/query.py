"""A running flow: Spark's query, the micro-batch callback, the idle timer, and how all of it ends."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from recovery import faults
from recovery.backup.note import last_backup
from recovery.checkpoint.capture import Capture
from recovery.checkpoint.restore import Restored, restore
from recovery.checkpoint.rows import CHECKPOINT_STEP
from recovery.checkpoint.sources import (
    PLACES_KEY,
    SOURCES_STEP,
    check_logs,
    fit_sources,
    recorded_places,
)
from recovery.clock import Clock, SystemClock
from recovery.config import Interval, RecoveryConfig, parse_interval
from recovery.errors import (
    ConfigurationError,
    FlowFailedError,
    FlowMismatchError,
    RecoveryError,
)
from recovery.flow import Flow, check_output_mode
from recovery.ids import NO_BATCH, BatchId, Epoch
from recovery.metrics.exposition import About, Family, exposition, families
from recovery.metrics.meter import BatchMeasure, Meter
from recovery.planning.health import parse_targets, unsaved_s
from recovery.planning.measures import Measure
from recovery.planning.resume import ResumePlan
from recovery.planning.steps import StepChoices, StepPlan, plan_steps
from recovery.planning.timeline import timeline
from recovery.planning.values import Execution
from recovery.sinks import DiscardSink, Resume
from recovery.sinks.delivery import NOTE_KEY, SINK_STEP, Delivery
from recovery.spark.closing import DECLARATIONS_STEP, EpochClosed, EpochCloser
from recovery.spark.failures import JVM_GONE, as_recovery_error, may_still_close
from recovery.spark.incremental import FlowLoads
from recovery.spark.listener import announce
from recovery.spark.operator_rows import OperatorRows
from recovery.spark.plan import BoundPlan, bind
from recovery.spark.preparing import Prepared
from recovery.spark.session import DEFAULTS, FILE_MANAGER, check_master
from recovery.spark.ticks import write_mailbox
from recovery.spark.worker import ADDRESS_PROPERTY
from recovery.storage.files import FilePartitions
from recovery.storage.seam import RESERVED_PREFIX

if TYPE_CHECKING:
    from recovery.flow import SinkLike

AVAILABLE_NOW = "available-now"
NEVER = float("inf")
PROGRESS_LOOKS = 100
PROGRESS_PERIOD_S = 0.01
_SETTINGS = {
    # With it, stages of a micro-batch run before foreachBatch is called, and empty partitions lose their tasks.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    # In a session of somebody else's, too; but file sources, which are made after the start, take what it has then.
    FILE_MANAGER: DEFAULTS[FILE_MANAGER],
}
_UNCHECKED = {
    # recovery.spark.plan ran Spark's check already, on the plan without the sort of our steps.
    "spark.sql.streaming.unsupportedOperationCheck": "false",
}
_starting = threading.Lock()
_TICKING: set[Path] = set()
"""The mailboxes of the queries that run in this process."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run has its place: the execution began, and starts with this epoch."""

    execution: int
    resume_epoch: Epoch
    plan: ResumePlan
    metrics_url: str | None = None


@dataclass(frozen=True, slots=True)
class BatchDone:
    """A micro-batch was processed: rows of input, states written, seconds it took."""

    batch: BatchId
    epoch: Epoch
    rows: int
    keys: int
    duration_s: float


Event = Resumed | BatchDone | EpochClosed
Observer = Callable[[Event], None]


@dataclass(slots=True)
class RunSummary:
    """What a run did. Counts are of this execution alone; rows are those that the sources read."""

    flow: str
    directory: str | None
    execution: int = 0
    resume_epoch: int = 1
    last_epoch: int = 0
    epochs: int = 0
    batches: int = 0
    rows: int = 0
    states: int = 0
    snapshot_s: float = 0.0
    elapsed_s: float = 0.0
    exceeded: list[dict[str, Any]] = field(default_factory=list)


class RecoveryQuery:
    """A flow that is running with recovery partitions.

    Made by `start`. Ends by itself when the input ends (trigger available-now), by `stop`, or by an error,
    which `await_termination` raises.
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
        self._prepared = prepared
        self._store = prepared.store
        self._bound = bound
        self._observer = observer
        self._clock = clock
        self._parked = threading.Event()
        self._released = threading.Event()
        self._over = threading.Event()
        self._finished = False
        self._own_threads: set[int] = set()
        self._finish_lock = threading.Lock()
        self._telling = threading.Lock()
        self._counting = threading.Lock()
        self._operator_rows = OperatorRows()
        self._reports = True
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
        execution = _new_execution(plan, config, prepared.flow_id, clock)
        self.lease = execution.lease
        self._executions = (*plan.partitions[0].executions, execution)
        self.summary = RunSummary(
            flow=prepared.flow_id,
            directory=None if prepared.temporary else str(config.path),
            execution=execution.number,
            resume_epoch=execution.resume_epoch,
            last_epoch=execution.resume_epoch - 1,
        )
        self.meter = Meter(execution.number, clock, parse_targets(config.thresholds), closes=prepared.temporary is None)
        steps = self._plan_steps(plan, config)
        self._delivery = Delivery(
            sink, _resume_of_sink(plan, execution, self._store), recoverable=prepared.temporary is None
        )
        self._loads = FlowLoads(None if prepared.temporary else config.path, clock)
        with contextlib.ExitStack() as failed:
            failed.callback(self._delivery.release)
            # Whether Spark can go on from there is known before anything is given up.
            checkpoint = self._store.prepare(execution) / "checkpoint"
            restored = restore(self._store.driver_rows(CHECKPOINT_STEP, plan.resume_epoch), checkpoint)
            recorded = self._store.driver_values(SOURCES_STEP, plan.resume_epoch).get(PLACES_KEY)
            before = recorded_places(recorded) if isinstance(recorded, str) else None
            restored = fit_sources(restored, checkpoint, bound.sources, before)
            check_logs(restored, checkpoint, bound.sources)
            _check_position(restored, plan, config.path)
            self._store.start(execution, [s.definition.step_id for s in bound.steps], plan.partitions)
            prepared.record_run(execution, clock)
            self._delivery.rollback()
            faults.reach("start.3")
            self._native_state = checkpoint / "state"
            self._closer = EpochCloser(
                self._store,
                self.lease,
                plan,
                checkpoint,
                self._delivery,
                self._loads,
                Capture(checkpoint, restored.held, restored.stale, sources=bound.sources.ids),
                clock=clock,
                snapshot_interval_s=NEVER if prepared.temporary else config.snapshot_interval_s,
                backup_interval_s=config.backup_interval_s,
                may_close=self._may_close,
                on_closed=self._on_closed,
                around=self._own_thread,
            )
            failed.callback(self._closer.finish)
            self._counted_batch = self._closer.finished
            places = bound.sources.to_text()
            self._closer.begin(steps, {SOURCES_STEP: {PLACES_KEY: places}} if places != recorded else {})
            faults.reach("start.4")
            # Before the stream: afterwards the partitions belong to the thread that closes epochs.
            self._keep(self.meter.started(prepared.planned_s + clock.elapsed_s() - self._started_s))
            self._serve_metrics(execution)
            self._notify(Resumed(execution.number, plan.resume_epoch, plan, self.metrics_url))
            failed.callback(self._remove_mailboxes)
            _TICKING.update(self._mailboxes)
            self._update_mailboxes()
            failed.callback(self._abort)
            self._launch(checkpoint, trigger)
            failed.pop_all()

    def _plan_steps(self, plan: ResumePlan, config: RecoveryConfig) -> StepPlan:
        """What happens to the state that the partitions hold at the epoch that the run goes on from."""
        at = plan.resume_epoch
        held = {step for step in self._store.known_steps(at) if not step.startswith(RESERVED_PREFIX)}
        declared = {step: str(text) for step, text in self._store.driver_values(DECLARATIONS_STEP, at).items()}
        steps = {s.definition.step_id: s.planned for s in self._bound.steps}
        choices = StepChoices(config.drop_steps, config.rename_steps, config.keep_steps)
        return plan_steps(held, declared, steps, choices, config.path)

    # ---- what users call

    @property
    def is_active(self) -> bool:
        """Whether the flow still runs."""
        return not self._finished and bool(self._query.isActive)

    @property
    def metrics_url(self) -> str | None:
        """Where Prometheus finds the metrics of this run; None when they are not served."""
        return self._prepared.endpoint.url if self._prepared.endpoint is not None else None

    @property
    def streaming_query(self) -> Any:
        """Spark's own handle, for its progress and listeners; stop the flow by `stop`, not through it."""
        return self._query

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the flow ends, at most `timeout` seconds; then close the last epoch. Returns whether it ended.

        Raises what ended it: the RecoveryError it met, or FlowFailedError for errors of the flow's own code.
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
        """Finish the running micro-batch, close the epoch, and end. Raises what went wrong while doing so.

        Called by the flow's own sink or observer it returns at once, and the run ends when they have returned; what
        goes wrong then is raised by `await_termination`.
        """
        if threading.get_ident() in self._own_threads:
            threading.Thread(target=self._finish, name="stop", daemon=True).start()
            return
        self._finish()
        if self._error is not None:
            raise self._error

    # ---- the micro-batch

    def _launch(self, checkpoint: Path, trigger: str | Interval | None) -> None:
        frame = self._bound.frame
        spark = frame.sparkSession
        settings = {**_SETTINGS, **(_UNCHECKED if self._bound.steps else {})}
        spark.sparkContext.setLocalProperty(ADDRESS_PROPERTY, self._store.address(self.lease))
        try:
            with _session_settings(spark, settings):
                writer = frame.writeStream.foreachBatch(self._process).outputMode(self._bound.output_mode)
                # Hadoop takes the path as it stands: escaped, it would work in a directory of another name.
                writer = writer.option("checkpointLocation", f"file:{checkpoint.absolute()}")
                self._query = _triggered(writer, trigger).queryName(_free_name(spark, self._prepared.flow_id)).start()
            announce(str(self._query.runId), self.meter)
        finally:
            spark.sparkContext.setLocalProperty(ADDRESS_PROPERTY, None)
        self._timer = threading.Thread(target=self._watch, name="epoch-timer", daemon=True)
        self._timer.start()

    def _process(self, batch: DataFrame, batch_id: int) -> None:
        """The foreachBatch callback."""
        if self._parked.is_set():
            # The run is ending: the epoch closes as of the batch before, and this one is left to the next run.
            self._released.wait()
            return
        with self._closer.lock, self._own_thread():
            if self._parked.is_set():
                return
            try:
                self._process_locked(batch, BatchId(batch_id))
            except BaseException as error:
                self._note(error)
                raise

    @contextlib.contextmanager
    def _own_thread(self) -> Iterator[None]:
        """While it lasts, this thread is one that the end of the run waits for."""
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
        if self._closer.due():
            self._end_epoch(lambda: True)
        started_s = self._clock.elapsed_s()
        self._store.open(self.lease, batch_id)
        materialised = contextlib.nullcontext(batch) if self._delivery.single_action else _materialised(batch)
        with materialised as frame, self._loads.during(batch.sparkSession, batch_id):
            self._delivery.write(frame, batch_id, self._closer.epoch)
        self._closer.finished = batch_id
        if self._bound.combiner is not None and self._query is not None:
            self._bound.combiner.learn(self._query._jsq)
        counts = self._store.counts(self.lease, batch_id)
        self.summary.batches += 1
        self.summary.states += counts.keys
        self._update_mailboxes()
        seconds = self._clock.elapsed_s() - started_s
        if self._bound.gathering is not None:
            self._bound.gathering.learn(max(counts.rows, counts.keys), seconds)
        self.meter.batch(batch_id, BatchMeasure(*counts, seconds))
        self._notify(BatchDone(batch_id, self._closer.epoch, counts.rows, counts.keys, seconds))

    def _count_input(self) -> None:
        """Add the input rows of the finished micro-batches whose progress Spark has reported since the last look. A
        stream that waits for input reports that, too, under the number of the micro-batch to come."""
        if self._query is None:
            return
        with self._counting:
            reported, newest = self._query._jsq.recentProgress(), self._counted_batch
            for place in reversed(range(len(reported))):
                batch = reported[place].batchId()
                if batch <= self._counted_batch:
                    break
                progress = json.loads(reported[place].json())
                rows = progress["numInputRows"]
                if "addBatch" in progress["durationMs"]:
                    newest = max(newest, batch)
                    self.summary.rows += rows
                    self.meter.progress(batch, rows, self._operator_rows.of(self._query._jsq, progress))
            self._counted_batch = newest

    def _await_progress(self, batch: BatchId) -> None:
        """Spark reports a micro-batch some milliseconds after it has logged it as done, and before the next one begins:
        wait for that, on the thread that writes epochs, where the rows in Spark's own operators are told by it."""
        if not (self._reports and self._native_state.is_dir()):
            return
        with contextlib.suppress(Exception):
            for _ in range(PROGRESS_LOOKS):
                if self._counted_batch >= batch:
                    return
                self._count_input()
                if self._counted_batch < batch and (not self._is_alive() or self._over.wait(PROGRESS_PERIOD_S)):
                    return
            # Reports may be switched off.
            self._reports = False

    # ---- epochs

    def _may_close(self) -> None:
        assert self._prepared.check is not None
        self._prepared.check.wait()

    def _on_closed(self, closed: EpochClosed) -> None:
        self.summary.epochs += 1
        self.summary.last_epoch = closed.epoch
        self.summary.snapshot_s += closed.duration_s
        if self._prepared.record is not None:
            self._prepared.record.note(self.summary.last_epoch, self.summary.batches, self.summary.rows)
        self._await_progress(closed.batch)
        lag_s = self._backup_lag_s()
        if lag_s is None:
            lag_s = unsaved_s(self._executions, self._clock.wall_ms())
        measure, missed = self.meter.closed(closed.epoch, closed.batch, closed.duration_s, closed.partitions, lag_s)
        self._keep(measure)
        self.summary.exceeded = [each.as_json() for each in self.meter.exceeded]
        self._notify(replace(closed, health=missed))

    def _end_epoch(self, alive: Callable[[], bool]) -> None:
        """End the epoch; the stream stands still for as long as that takes."""
        batch, began_s = self._closer.finished, self._clock.elapsed_s()
        self._closer.end_epoch(alive)
        self.meter.paused(batch, self._clock.elapsed_s() - began_s)

    def _keep(self, measure: Measure) -> None:
        """A measure that cannot be kept stops nothing."""
        if self._prepared.temporary is None:
            with contextlib.suppress(RecoveryError):
                self._store.record(measure)

    def _serve_metrics(self, execution: Execution) -> None:
        if self._prepared.endpoint is None:
            return
        targets = parse_targets(self._prepared.config.thresholds)
        about = About(execution.flow_id, execution.number, execution.resume_epoch, execution.version, targets)
        self._prepared.endpoint.serve(lambda: exposition(self._families(about)))

    def _families(self, about: About) -> Iterator[Family]:
        """The metrics now."""
        totals = self.meter.totals
        closed_s = totals.last_closed_s
        return families(
            about,
            totals,
            resume_s=self.meter.resume_s,
            epoch_age_s=None if closed_s is None else self._clock.elapsed_s() - closed_s,
            backup_age_s=self._backup_lag_s(),
        )

    def _backup_lag_s(self) -> float | None:
        """How long ago `recovery backup` finished last; None when it never did."""
        backup = last_backup(self._prepared.config.path)
        return None if backup is None else max(0, self._clock.wall_ms() - backup.finished_ms) / 1000

    def _watch(self) -> None:
        """The idle timer: counts and ends a due epoch when no micro-batch comes that would, and ends the run when one
        could not be written."""
        interval_s = self._prepared.config.snapshot_interval_s
        period_s = min(0.5, max(0.05, interval_s / 8))
        while not self._over.wait(period_s):
            try:
                self._closer.check()
                waiting = self._closer.due() or self._closer.finished > self._counted_batch
                if waiting and self._closer.lock.acquire(blocking=False):
                    try:
                        if not self._parked.is_set():
                            with contextlib.suppress(*JVM_GONE):
                                self._count_input()
                            if self._closer.due():
                                self._closer.end_epoch(self._is_alive)
                    finally:
                        self._closer.lock.release()
            except BaseException as error:
                self._note(error)
                self._over.set()

    def _update_mailboxes(self) -> None:
        if self._mailboxes:
            # A step that has lost its timeouts may hold some still, for which nobody comes.
            due_ms = self._store.next_due_ms(self.lease, self._waiting_steps)
            for mailbox in self._mailboxes:
                write_mailbox(mailbox, due_ms, self._store.partition_count)

    def _remove_mailboxes(self) -> None:
        for mailbox in self._mailboxes:
            mailbox.unlink(missing_ok=True)
            _TICKING.discard(mailbox)

    # ---- the end

    def _finish(self) -> None:
        """Once: park new micro-batches, wait for the running one, close the epoch as of the last finished, stop."""
        with self._finish_lock:
            if self._finished:
                return
            self._parked.set()
            try:
                with self._closer.lock:
                    if not self._prepared.temporary and may_still_close(self._error):
                        with contextlib.suppress(Exception):
                            self._count_input()
                        self._closer.close(self._is_alive)
                        self._check_all_closed()
            except BaseException as error:
                self._note(error)
            self._finished = True
            self._over.set()
            with contextlib.suppress(Exception):
                self._count_input()
            self._stop_query()
            with contextlib.suppress(Exception):
                self._count_input()
            if self._timer is not None and self._timer is not threading.current_thread():
                self._timer.join()
            self._closer.finish()
            self._delivery.release()
            if self._prepared.record is not None:
                self._prepared.record.note(self.summary.last_epoch, self.summary.batches, self.summary.rows)
            self._prepared.release(self._error)
            self._remove_mailboxes()
            self.summary.elapsed_s = self._clock.elapsed_s() - self._started_s

    def _abort(self) -> None:
        """After a start that failed: no query goes on without us."""
        self._over.set()
        if self._query is not None:
            self._parked.set()
            self._stop_query()

    def _stop_query(self) -> None:
        """Stop Spark's query. A parked micro-batch returns only when Spark has interrupted the thread that waits for
        it: otherwise it would be taken as done, and the state that it did not write be missed."""

        def stop() -> None:
            with contextlib.suppress(Exception):
                self._query.stop()

        stopping = threading.Thread(target=stop, name="stop-query", daemon=True)
        stopping.start()
        while stopping.is_alive() and not self._is_interrupted():
            stopping.join(0.005)
        self._released.set()
        stopping.join()

    def _is_interrupted(self) -> bool:
        """Whether Spark has told the query's thread to end; without its JVM it has."""
        try:
            thread = self._query._jsq.streamingQuery().queryExecutionThread()
            return bool(thread.isInterrupted() or not thread.isAlive())
        except (Py4JError, *JVM_GONE):
            return True

    def _is_alive(self) -> bool:
        """Whether Spark still runs the query; without its JVM it does not."""
        with contextlib.suppress(*JVM_GONE):
            return bool(self._query.isActive)
        return False

    def _check_all_closed(self) -> None:
        """A run that ends well has closed an epoch over every micro-batch it finished."""
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
            self._error = as_recovery_error(error)

    def _notify(self, event: Event) -> None:
        if self._observer is not None:
            with self._telling:
                self._observer(event)


def start(
    flow: Flow | DataFrame,
    config: RecoveryConfig | None,
    *,
    spark: SparkSession | None = None,
    sink: SinkLike | None = None,
    name: str | None = None,
    output_mode: str | None = None,
    trigger: str | Interval | None = None,
    observer: Observer | None = None,
    clock: Clock | None = None,
) -> RecoveryQuery:
    """Start a flow, or any streaming DataFrame, on a recovery directory; returns at once.

    A flow brings its own name and sink; for a frame give `name` and `sink`. `config` None runs without recovery.
    spark: the session to build the flow on; None: the active one, or a new local one.
    output_mode: "append", "update" or "complete", as Spark's own stateful operators allow it; None: that of the flow,
    "append" for a frame.
    trigger: "available-now", an interval between micro-batches, or None for as fast as they come.
    Raises the RecoveryErrors of planning; nothing was written then.
    """
    clock = clock or SystemClock()
    if isinstance(flow, Flow):
        flow_id, sink, output_mode = flow.name, sink or flow.sink, output_mode or flow.output_mode
    elif name is None:
        raise ConfigurationError(
            "a streaming frame was given without a name",
            remedy="start(frame, config, sink=..., name='wordcount'): the name binds the recovery directory.",
        )
    else:
        flow_id = name
    output_mode = "append" if output_mode is None else output_mode
    check_output_mode(output_mode)
    return start_prepared(Prepared(config, flow_id, clock), flow, spark, sink, output_mode, trigger, observer, clock)


def start_prepared(
    prepared: Prepared,
    flow: Flow | DataFrame,
    spark: SparkSession | None,
    sink: SinkLike | None,
    output_mode: str,
    trigger: str | Interval | None,
    observer: Observer | None,
    clock: Clock,
) -> RecoveryQuery:
    """The part of `start` that needs Spark. Releases `prepared` when it fails."""
    flow_id = prepared.flow_id
    try:
        frame = build_flow(flow, spark or _active_session(flow_id)) if isinstance(flow, Flow) else flow
        check_master(frame.sparkSession.sparkContext.master)
        if trigger not in (None, AVAILABLE_NOW):
            parse_interval(trigger)
        bound = bind(frame, prepared.plan.partitions[0].count, output_mode)
        prepared.open_store()
        return RecoveryQuery(prepared, bound, sink or DiscardSink(), trigger, observer, clock)
    except BaseException as error:
        prepared.release(error)
        if isinstance(error, RecoveryError) or not isinstance(error, Exception):
            raise
        raise as_recovery_error(error) from error


def build_flow(flow: Flow, spark: SparkSession) -> DataFrame:
    """The flow's streaming frame. Raises FlowFailedError when its code fails."""
    try:
        frame = flow.build(spark)
    except RecoveryError:
        raise
    except Exception as error:
        told = None if isinstance(error, OSError) else as_recovery_error(error)
        if isinstance(told, RecoveryError) and not isinstance(told, FlowFailedError):
            raise told from error
        raise FlowFailedError(
            f"building flow {flow.name!r} failed: {type(error).__name__}: {error}", cause="", remedy="Mend the flow."
        ) from error
    if not isinstance(frame, DataFrame):
        raise FlowFailedError(
            f"flow {flow.name!r}: build returned {type(frame).__name__}, not a DataFrame", cause="", remedy=""
        )
    return frame


def _check_position(restored: Restored, plan: ResumePlan, directory: Path) -> None:
    """The position must be that of the snapshot: else its micro-batches would be taken for closed ones."""
    counted = plan.snapshot.batch_id if plan.snapshot is not None else NO_BATCH
    held = NO_BATCH if restored.batch is None else restored.batch
    if held != counted:
        raise FlowMismatchError(
            f"its newest snapshot counts {counted + 1} micro-batches, and it holds the position after {held + 1}",
            path=directory,
            cause="A pipeline of the same name ran on it, which has no position in a stream.",
            remedy="Give the flow a directory of its own, or go back before the pipeline by --resume-epoch.",
        )


def _new_execution(plan: ResumePlan, config: RecoveryConfig, flow_id: str, clock: Clock) -> Execution:
    return Execution(
        number=plan.execution_number,
        id=secrets.token_hex(8),
        flow_id=flow_id,
        resume_epoch=plan.resume_epoch,
        started_ms=clock.wall_ms(),
        snapshot_interval_s=config.snapshot_interval_s,
        backup_interval_s=config.backup_interval_s,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=version("recovery"),
    )


def _resume_of_sink(plan: ResumePlan, execution: Execution, store: FilePartitions) -> Resume:
    note = store.driver_values(SINK_STEP, plan.resume_epoch).get(NOTE_KEY)
    return Resume(
        epoch=plan.resume_epoch,
        note=note if isinstance(note, str) else None,
        execution=execution.lease,
        store_id=plan.store_id,
        flow_id=execution.flow_id,
        floor=plan.window[0],
        timeline=timeline(plan.partitions[0].executions, plan.snapshot),
    )


@contextlib.contextmanager
def _materialised(batch: DataFrame) -> Iterator[DataFrame]:
    """The batch computed once, completely: whatever a sink does with it runs no step again."""
    copy = batch.localCheckpoint(eager=True)
    try:
        yield copy
    finally:
        copy._jdf.queryExecution().analyzed().rdd().unpersist(False)


@contextlib.contextmanager
def _session_settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Settings that a query copies when it starts; the session has its own back afterwards. One start at a time: two
    would take each other's settings away, or for those of the session."""
    with _starting:
        before = {key: spark.conf.get(key, None) for key in settings}
        try:
            for key, value in settings.items():
                spark.conf.set(key, value)
            yield
        finally:
            for key, value in before.items():
                if value is None:
                    spark.conf.unset(key)
                else:
                    spark.conf.set(key, value)


def _triggered(writer: Any, trigger: str | Interval | None) -> Any:
    if trigger is None:
        return writer
    if trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{round(parse_interval(trigger) * 1000)} milliseconds")


def _free_name(spark: SparkSession, name: str) -> str:
    taken = {query.name for query in spark.streams.active}
    return name if name not in taken else f"{name}-{secrets.token_hex(4)}"


def _active_session(name: str) -> SparkSession:
    from recovery.spark.session import create_session

    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:
        # Which session is active is a matter of each thread.
        active = SparkSession.builder.getOrCreate()
    return active if active is not None else create_session(name)
