"""Start a flow: check and bind what users give, begin its execution, and run it as a query."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from recovery.base.clock import Clock, SystemClock
from recovery.base.intervals import Interval, parse_trigger
from recovery.base.tracebacks import headline
from recovery.config import RecoveryConfig, checkpoint_address
from recovery.errors import ConfigurationError, FlowFailedError, RecoveryError
from recovery.flow import Flow, check_output_mode, check_sink
from recovery.runnable import check_config, check_flow_or_frame
from recovery.sinks import DiscardSink
from recovery.spark.clusters import Planned, TaskServing, check_master, check_plan, is_cluster
from recovery.spark.jvm.connect_sessions import check_classic
from recovery.spark.jvm.errors import as_recovery_error, failure_behind
from recovery.spark.jvm.given_sessions import log_slower_settings
from recovery.spark.jvm.session import is_made_here, settings_in
from recovery.spark.planner.bind import bind
from recovery.spark.run.execution import FlowRun
from recovery.spark.run.parts.replicating import replicated
from recovery.spark.run.prepare import Prepared
from recovery.spark.run.query import RecoveryQuery
from recovery.spark.run.reporting.events import Observer
from recovery.spark.sources.formats import register_serving
from recovery.spark.steps.definition import replaying
from recovery.spark.tuning import appended_lines
from recovery.values.functions import check_runs

if TYPE_CHECKING:
    from recovery.flow import SinkLike


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
    return start_prepared(Prepared(config, flow_id, clock), flow, spark, sink, output_mode, trigger, observer)


def start_prepared(
    prepared: Prepared,
    flow: Flow | DataFrame,
    spark: SparkSession | None,
    sink: SinkLike | None,
    output_mode: str,
    trigger: str | Interval | None,
    observer: Observer | None,
    *,
    goes_on: bool = False,
) -> RecoveryQuery:
    """Do the part of `start` that needs Spark. Ends the parts of `prepared` if the start fails. goes_on: the caller
    starts another execution when this one has ended for something to do between the two (`Between`)."""
    try:
        with prepared.parts.ended_on_error():
            check_runs("the observer", observer)
            session = (spark or _active_session(prepared.flow_id)) if isinstance(flow, Flow) else flow.sparkSession
            _check_session(session, prepared.config)
            frame = _built(flow, session, prepared) if isinstance(flow, Flow) else flow
            prepared.flow_quarantine = flow.quarantine if isinstance(flow, Flow) else None
            parse_trigger(trigger)
            bound = bind(frame, prepared.plan.partitions[0].count, output_mode, keeps_position=not prepared.temporary)
            checkpoint = checkpoint_address(prepared.config) or str(prepared.scratch)
            if prepared.config.no_output:
                sink = None
            if prepared.until is not None:
                prepared.until.check_plan(bound.keeps_native_state)
            check_plan(session.sparkContext.master, Planned(sink, bound.inputs, bound.keeps_native_state, checkpoint))
            run = FlowRun(prepared, bound, DiscardSink() if sink is None else sink, observer)
            run.goes_on = goes_on
            run.begin()
            return RecoveryQuery(run, trigger)
    except RecoveryError:
        raise
    except Exception as error:
        raise as_recovery_error(error) from error


def _check_session(session: SparkSession, config: RecoveryConfig) -> None:
    """Check that the session can run flows, and let it read this package's formats."""
    check_classic(session)
    log_slower_settings(session)
    settings = settings_in(session.sparkContext)
    check_master(session.sparkContext.master, settings)
    if is_cluster(session.sparkContext.master):
        serving = TaskServing.of(config)
        serving.check(settings)
        # So that the flow can read format("recovery").
        register_serving(session, serving.at_a_free_port())
    if is_made_here(session):
        appended_lines.install(session)


def _built(flow: Flow, session: SparkSession, prepared: Prepared) -> DataFrame:
    """Build the flow's frame, with what wakes the steps whose rows in quarantine are to be replayed."""
    token = replaying.set(prepared.replayed)
    try:
        return build_flow(flow, session)
    finally:
        replaying.reset(token)


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
