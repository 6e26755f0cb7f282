"""Start a flow: check and bind what users give, begin its execution, and run it as a query."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from recovery.backup.note import reads_made_keys
from recovery.base import faults
from recovery.base.clock import Clock, SystemClock
from recovery.base.ids import NO_BATCH, BatchId
from recovery.base.intervals import Interval, parse_trigger
from recovery.base.tracebacks import headline
from recovery.checkpoint.capture import Capture
from recovery.checkpoint.home import CheckpointHome
from recovery.config import RecoveryConfig, checkpoint_address
from recovery.epochs.closer import ClosingHooks, ClosingSettings, EpochClosed, EpochCloser
from recovery.epochs.execution import new_execution
from recovery.errors import ConfigurationError, FlowFailedError, RecoveryError, StaleDirectoryError
from recovery.flow import Flow, check_output_mode, check_sink
from recovery.hadoop.home import HadoopHome
from recovery.host.storage_errors import storage_errors
from recovery.planning.replica import ReplicaState
from recovery.runnable import check_config, check_flow_or_frame
from recovery.sinks import DiscardSink
from recovery.sinks.delivery import Delivery
from recovery.spark.clusters import Planned, TaskServing, check_master, check_plan, is_cluster
from recovery.spark.jvm.connect_sessions import check_classic
from recovery.spark.jvm.errors import as_recovery_error, failure_behind
from recovery.spark.jvm.given_sessions import log_slower_settings
from recovery.spark.jvm.lost_topics import topics_lacking
from recovery.spark.jvm.session import is_made_here
from recovery.spark.pipelines.incremental import FlowLoads
from recovery.spark.planner.bind import BoundPlan, bind
from recovery.spark.planner.iceberg_tables import IcebergInput
from recovery.spark.run.checkpoint_home import checkpoint_home, discard_earlier
from recovery.spark.run.launch import setting_of
from recovery.spark.run.mailboxes import Mailboxes
from recovery.spark.run.position import RecoveredPosition, readable, restore_position, resume_of_sink, step_plan
from recovery.spark.run.prepare import BackgroundCheck, Prepared
from recovery.spark.run.query import Begun, RecoveryQuery
from recovery.spark.run.replicating import ReplicatedClosing, replicated
from recovery.spark.run.reporting.events import Observer, ReplicaChanged, Resumed
from recovery.spark.run.reporting.measuring import RunMeasures, first_summary, run_memory
from recovery.spark.run.reporting.reports import Reports
from recovery.spark.run.reporting.shown import notebook_line
from recovery.spark.run.serving import TaskAccess
from recovery.spark.run.source_starts import SourceStarts
from recovery.spark.run.status import RunStatus
from recovery.spark.sources.formats import register_serving
from recovery.spark.tuning import appended_lines
from recovery.storage.connect import left_executions
from recovery.storage.restored import end_restored, read_restored
from recovery.values.functions import check_runs

if TYPE_CHECKING:
    from recovery.flow import SinkLike

NEVER = float("inf")


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
    replicate: str | os.PathLike[str] | None = None,
) -> RecoveryQuery:
    """Start a flow, or any streaming DataFrame, on a recovery directory; return immediately.

    A flow brings its own name and sink; for a frame give `name` and `sink`. `config` None runs without recovery.
    spark: the session to build the flow on; None: the active one, or a new local one.
    output_mode: "append", "update" or "complete", as Spark's own stateful operators allow; None: the flow's mode, or
    "append" for a frame.
    trigger: "available-now" (also "availableNow" and "once"), an interval between micro-batches, or None to run them
    as fast as they come.
    replicate: that setting of `config`.
    Raises the RecoveryErrors of planning; in that case nothing was written.
    """
    clock = clock or SystemClock()
    check_flow_or_frame(flow, "start")
    check_config(config, "start")
    config = replicated(config, replicate)
    check_sink(sink)
    if isinstance(flow, Flow):
        flow_id = flow.name
        # A sink may have a length, and be empty.
        sink = flow.sink if sink is None else sink
        output_mode = flow.output_mode if output_mode is None else output_mode
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
    """Do the part of `start` that needs Spark. Releases `prepared` if the start fails."""
    flow_id = prepared.flow_id
    try:
        check_runs("the observer", observer)
        session = (spark or _active_session(flow_id)) if isinstance(flow, Flow) else flow.sparkSession
        check_classic(session)
        log_slower_settings(session)
        context = session.sparkContext
        settings = dict(context.getConf().getAll())
        check_master(context.master, settings)
        if is_cluster(context.master):
            serving = TaskServing.of(prepared.config)
            serving.check(settings)
            # So that the flow can read format("recovery").
            register_serving(session, serving.at_a_free_port())
        if is_made_here(session):
            appended_lines.install(session)
        frame = build_flow(flow, session) if isinstance(flow, Flow) else flow
        parse_trigger(trigger)
        bound = bind(frame, prepared.plan.partitions[0].count, output_mode, keeps_position=not prepared.temporary)
        checkpoint = checkpoint_address(prepared.config) or str(prepared.scratch)
        if prepared.config.no_output:
            sink = None
        if prepared.until is not None:
            prepared.until.check_plan(bound.keeps_native_state)
        check_plan(context.master, Planned(sink, bound.inputs, bound.keeps_native_state, checkpoint))
        prepared.open_store()
        return ExecutionStart(prepared, bound, DiscardSink() if sink is None else sink, observer, clock).launch(trigger)
    except BaseException as error:
        prepared.release(error)
        if isinstance(error, RecoveryError) or not isinstance(error, Exception):
            raise
        raise as_recovery_error(error) from error


class ExecutionStart:
    """Steps start.3 and start.4 of one start; `Prepared` lists all steps of starting.

    start.3  Restore the position: this shows whether Spark can continue from it, before anything is discarded. Look
             at the input: is what has to be read still there (start.3.looked)? Begin the execution in every partition,
             then let the sink go back.
    start.4  Close an epoch of step edits, or of a position laid out for other sources, if there is any.
    """

    def __init__(
        self, prepared: Prepared, bound: BoundPlan, sink: SinkLike, observer: Observer | None, clock: Clock
    ) -> None:
        assert prepared.store is not None
        self._began_s = clock.elapsed_s()
        self._prepared = prepared
        self._bound = bound
        self._observer = observer
        self._clock = clock
        self._store = store = prepared.store
        self._plan = plan = prepared.plan
        self._execution = execution = new_execution(
            plan,
            prepared.flow_id,
            clock,
            snapshot_interval_s=prepared.config.snapshot_interval_s,
            backup_interval_s=prepared.backup_interval_s,
        )
        self._mailboxes = Mailboxes(bound.steps, store, execution.lease)
        self._summary = first_summary(prepared, execution)
        memory = run_memory(bound.frame.sparkSession.sparkContext)
        self._measures = RunMeasures(
            prepared, store, execution, plan.partitions[0].executions, clock, memory, native=bound.keeps_native_state
        )
        self._steps = step_plan(store, plan, bound, prepared.config)
        self._taken_back: list[str] = []
        self._delivery = self._begin_delivery(sink)
        self._loads = FlowLoads(None if prepared.temporary else prepared.documents(), clock)
        lacking = partial(topics_lacking, bound.frame.sparkSession, bound.inputs)
        self._status = RunStatus(store, execution.lease, lacking, bound.lookups)
        self._replicated = ReplicatedClosing(prepared.replication, self._status.parked.is_set)
        self._access: TaskAccess | None = None
        self._last: BatchId | None = None

    def _begin_delivery(self, sink: SinkLike) -> Delivery:
        prepared = self._prepared
        restored = read_restored(prepared.config.path, self._clock.wall_ms())
        resume = resume_of_sink(
            self._plan, self._execution, self._store, prepared.origins, prepared.places,
            loses=prepared.config.lose_epochs or restored.counts, accepts_loss=prepared.config.lose_epochs,
            say=self._taken_back.append,
        )  # fmt: skip
        try:
            return Delivery(sink, resume, recoverable=prepared.temporary is None)
        except StaleDirectoryError as error:
            if restored.why_not:
                error.cause = f"The mark of its restore does not count: {restored.why_not}."
            raise

    def launch(self, trigger: str | Interval | None) -> RecoveryQuery:
        """Perform the steps, and launch Spark's query."""
        prepared, plan, clock = self._prepared, self._plan, self._clock
        with contextlib.ExitStack() as failed:
            failed.callback(self._delivery.release)
            failed.callback(self._end_access)
            home, position = self._begin_execution()
            faults.reach("start.3")
            reports = self._reports()
            self._report_replica(reports)
            closer = self._closer(home, position, reports)
            failed.callback(closer.finish)
            starts = SourceStarts(self._store, self._execution.lease, home, self._bound.sources, closer, position)
            closer.begin(self._steps, position.new_rows, laid_out=position.laid_out)
            faults.reach("start.4")
            # Before the stream starts: after that, the partitions belong to the thread that closes epochs.
            self._measures.started(prepared.planned_s + clock.elapsed_s() - self._began_s)
            reports.notify(
                Resumed(self._execution.number, plan.resume_epoch, plan, self._measures.url, prepared.discarded)
            )
            failed.callback(self._mailboxes.remove)
            self._mailboxes.open()
            query = RecoveryQuery(self._begun(reports, closer, starts), clock)
            failed.callback(query._abort)
            query._launch(home.location, trigger)
            failed.pop_all()
            return query

    def _begin_execution(self) -> tuple[CheckpointHome, RecoveredPosition]:
        """Begin the execution; return the scratch checkpoint, and the position that Spark continues from."""
        prepared, bound, plan, store = self._prepared, self._bound, self._plan, self._store
        config = prepared.config
        # Without such state only this host writes the checkpoint.
        address = checkpoint_address(config) if bound.keeps_native_state else None
        left = left_executions(prepared.scratch, config.path)
        scratch = store.prepare(self._execution)
        prepared.home = home = checkpoint_home(address, scratch, plan.store_id, self._execution.lease)
        position = restore_position(
            store, plan, bound.sources, home.directory, config.path, config.rename_steps, self._steps.edits,
            partial(setting_of, bound.frame.sparkSession), home.location,
        )  # fmt: skip
        self._tables = IcebergInput(bound.tables, bound.sources, home)
        position, self._summary.lost_input, said = readable(
            store, plan, bound, position, home, self._tables, config.lose_input,
            [path / "checkpoint" for path in left.values()],
        )  # fmt: skip
        self._taken_back += said
        self._replicated.ready()
        faults.reach("start.3.looked")
        if prepared.until is not None:
            self._last = prepared.until.lay_out(home.directory, position.restored.batch, bound.sources, config)
        with storage_errors(prepared.scratch):
            # Those that were killed before the partitions knew them: this directory's lock is ours.
            discard_earlier(address, plan.store_id, left)
        if isinstance(home, HadoopHome):
            home.put()
        store.start(self._execution, [s.definition.step_id for s in bound.steps], plan.partitions)
        self._access = TaskAccess(bound.frame.sparkSession.sparkContext, store, self._execution, scratch, config)
        prepared.record_run(self._execution, self._clock)
        with storage_errors(scratch):
            discard_earlier(address, plan.store_id, (each.lease for each in plan.partitions[0].executions))
        self._replicated.begun()
        self._delivery.rollback()
        end_restored(config.path)
        # The check before it and the rollback have both said it.
        for text in dict.fromkeys(self._taken_back):
            with contextlib.suppress(OSError, ValueError):
                print(f"recovery: {text}", file=sys.stderr, flush=True)
        return home, position

    def _end_access(self) -> None:
        if self._access is not None:
            self._access.stop()

    def _reports(self) -> Reports:
        return Reports(
            self._prepared,
            self._summary,
            self._measures,
            self._status,
            self._observer,
            notebook_line(self._prepared.flow_id),
            native_state=self._bound.keeps_native_state,
            batch=self._plan.snapshot.batch_id if self._plan.snapshot else NO_BATCH,
            ticks=self._bound.sources.ticking,
        )

    def _report_replica(self, reports: Reports) -> None:
        replication = self._prepared.replication
        if replication is None:
            return

        def report(state: ReplicaState) -> None:
            # The observer may stop the run, whose end waits for the thread that ships.
            with self._status.own_thread():
                reports.notify(ReplicaChanged(state))

        replication.on_change = report
        if replication.state.problem is not None:
            report(replication.state)

    def _closer(self, home: CheckpointHome, position: RecoveredPosition, reports: Reports) -> EpochCloser:
        prepared, bound = self._prepared, self._bound
        assert prepared.check is not None
        return EpochCloser(
            self._store,
            self._execution.lease,
            self._plan,
            Capture(home, position.restored.held, position.restored.stale, sources=bound.sources.numbers),
            # The loads come last: a mark that somebody sets while the sink prepares does not replace the epoch's.
            (self._delivery, self._loads),
            ClosingSettings(
                snapshot_interval_s=NEVER if prepared.temporary else prepared.config.snapshot_interval_s,
                backup_interval_s=prepared.backup_interval_s,
                may_log=not bound.keeps_native_state,
            ),
            self._hooks(prepared.check, reports),
            self._clock,
        )

    def _hooks(self, check: BackgroundCheck, reports: Reports) -> ClosingHooks:
        prepared, replicated = self._prepared, self._replicated

        def may_close() -> None:
            check.wait()
            replicated.may_close()

        def on_closed(closed: EpochClosed) -> None:
            try:
                reports.closed(closed)
            finally:
                replicated.closed()

        def notes_made() -> bool:
            return prepared.replication is not None or reads_made_keys(
                prepared.config.path, prepared.backup_interval_s, self._clock.wall_ms()
            )

        return ClosingHooks(
            may_close=may_close, on_closed=on_closed, around=self._status.own_thread, notes_made=notes_made,
            may_publish=replicated.may_publish,
        )  # fmt: skip

    def _begun(self, reports: Reports, closer: EpochCloser, starts: SourceStarts) -> Begun:
        prepared = self._prepared
        assert prepared.check is not None
        assert self._access is not None
        return Begun(
            prepared=prepared,
            store=self._store,
            access=self._access,
            check=prepared.check,
            bound=self._bound,
            lease=self._execution.lease,
            status=self._status,
            reports=reports,
            mailboxes=self._mailboxes,
            delivery=self._delivery,
            loads=self._loads,
            closer=closer,
            starts=starts,
            tables=self._tables,
            began_s=self._began_s,
            last=self._last,
        )


def build_flow(flow: Flow, spark: SparkSession) -> DataFrame:
    """Build the flow's streaming frame. Raises FlowFailedError if the flow's code fails."""
    try:
        frame = flow.build(spark)
    except RecoveryError:
        raise
    except (Exception, SystemExit) as error:
        failure = failure_behind(error)
        if failure is not None:
            raise failure from error
        raise FlowFailedError(
            f"building flow {flow.name!r} failed: {headline(error)}",
            cause="",
            remedy="Fix the flow.",
        ) from error
    if not isinstance(frame, DataFrame):
        raise FlowFailedError(
            f"flow {flow.name!r}: build returned {type(frame).__name__}, not a DataFrame", cause="", remedy=""
        )
    return frame


def _active_session(name: str) -> SparkSession:
    from recovery.spark.jvm.session import create_session

    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:
        # Each thread has its own active session.
        active = SparkSession.builder.getOrCreate()
    return active if active is not None else create_session(name)
