"""Start a flow: check and bind what users give, and run it as a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from recovery.base.clock import Clock, SystemClock
from recovery.base.intervals import Interval, parse_trigger
from recovery.base.tracebacks import headline
from recovery.config import RecoveryConfig
from recovery.errors import ConfigurationError, FlowFailedError, RecoveryError
from recovery.flow import Flow, check_output_mode
from recovery.sinks import DiscardSink
from recovery.spark.jvm.errors import as_recovery_error
from recovery.spark.jvm.session import check_master
from recovery.spark.planner.bind import bind
from recovery.spark.run.events import Observer
from recovery.spark.run.prepare import Prepared
from recovery.spark.run.query import RecoveryQuery

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
) -> RecoveryQuery:
    """Start a flow, or any streaming DataFrame, on a recovery directory; return immediately.

    A flow brings its own name and sink; for a frame give `name` and `sink`. `config` None runs without recovery.
    spark: the session to build the flow on; None: the active one, or a new local one.
    output_mode: "append", "update" or "complete", as Spark's own stateful operators allow; None: the flow's mode, or
    "append" for a frame.
    trigger: "available-now" (also "availableNow" and "once"), an interval between micro-batches, or None to run them
    as fast as they come.
    Raises the RecoveryErrors of planning; in that case nothing was written.
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
    """Do the part of `start` that needs Spark. Releases `prepared` if it fails."""
    flow_id = prepared.flow_id
    try:
        frame = build_flow(flow, spark or _active_session(flow_id)) if isinstance(flow, Flow) else flow
        check_master(frame.sparkSession.sparkContext.master)
        parse_trigger(trigger)
        bound = bind(frame, prepared.plan.partitions[0].count, output_mode, keeps_position=not prepared.temporary)
        prepared.open_store()
        return RecoveryQuery(prepared, bound, sink or DiscardSink(), trigger, observer, clock)
    except BaseException as error:
        prepared.release(error)
        if isinstance(error, RecoveryError) or not isinstance(error, Exception):
            raise
        raise as_recovery_error(error) from error


def build_flow(flow: Flow, spark: SparkSession) -> DataFrame:
    """Build the flow's streaming frame. Raises FlowFailedError if the flow's code fails."""
    try:
        frame = flow.build(spark)
    except RecoveryError:
        raise
    except (Exception, SystemExit) as error:
        told = None if isinstance(error, OSError) else as_recovery_error(error)
        if isinstance(told, RecoveryError) and not isinstance(told, FlowFailedError):
            raise told from error
        raise FlowFailedError(
            f"building flow {flow.name!r} failed: {headline(error)}",
            cause="",
            remedy="Mend the flow.",
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
