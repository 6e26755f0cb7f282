"""Start the Spark query of a run with the settings it needs; stop it so that no parked micro-batch seems done."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from recovery.base.intervals import AVAILABLE_NOW, Interval, parse_trigger
from recovery.spark.jvm.errors import JVM_GONE
from recovery.spark.jvm.session import DEFAULTS, FILE_MANAGER
from recovery.spark.planner.bind import BoundPlan
from recovery.spark.steps.definition import ADDRESS_PROPERTY, QUARANTINE_PROPERTY, TASKS_PROPERTY
from recovery.spark.tasks.retries import retry_properties

SETTINGS = {
    # If true, stages of a micro-batch run before foreachBatch is called, and empty partitions lose their tasks.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    # Rows do not leave the host, and Arrow cannot read what Spark compresses with lz4.
    "spark.sql.execution.arrow.compression.codec": "none",
    # Set in a caller's session too. But file sources are made after the start, and use the session's value then.
    FILE_MANAGER: DEFAULTS[FILE_MANAGER],
}
UNCHECKED = {
    # recovery.spark.planner.bind already ran Spark's check, on the plan without the sort that steps add.
    "spark.sql.streaming.unsupportedOperationCheck": "false",
}
_starting = threading.Lock()
STOP_S = 60.0
"""How long a stop waits for the thread of Spark's query: a source that plans may not react to an interrupt."""


def launch(
    bound: BoundPlan,
    process: Callable[[DataFrame, int], None],
    *,
    name: str,
    checkpoint: str,
    address: str,
    most_waiting: int,
    trigger: str | Interval | None,
    started: Callable[[Any], None],
) -> None:
    """Start Spark's query: it passes its micro-batches to `process`, and its tasks find the partitions at `address`.

    most_waiting: the number of rows that a task may put into quarantine, if a step has one. checkpoint: the URI of
    Spark's checkpoint. started: called with the query immediately, so that it can be stopped whatever happens next.
    """
    spark = bound.frame.sparkSession
    quarantines = any(step.definition.hold is not None for step in bound.steps)
    properties = {
        ADDRESS_PROPERTY: address,
        TASKS_PROPERTY: str(bound.tasks),
        QUARANTINE_PROPERTY: str(most_waiting) if quarantines else None,
        **retry_properties(spark.sparkContext),
    }
    # In a sink or an observer, this is the thread of another query, whose tasks find its partitions by these.
    before = {key: spark.sparkContext.getLocalProperty(key) for key in properties}
    for key, value in properties.items():
        spark.sparkContext.setLocalProperty(key, value)
    try:
        with _session_settings(spark, {**SETTINGS, **(UNCHECKED if bound.steps else {})}):
            writer = bound.frame.writeStream.foreachBatch(process).outputMode(bound.output_mode)
            writer = writer.option("checkpointLocation", checkpoint)
            started(_triggered(writer, trigger).queryName(_free_name(spark, name)).start())
    finally:
        for key, value in before.items():
            spark.sparkContext.setLocalProperty(key, value)


def stop_query(query: Any, released: threading.Event) -> None:
    """Stop Spark's query, and set `released`, for which a parked micro-batch waits. The micro-batch must return only
    after Spark has interrupted the thread that waits for it: otherwise Spark would take the micro-batch as done, and
    the state that it did not write would be missing.

    A thread that does not end within `STOP_S` is left alone: the session's end ends it."""

    def ask() -> None:
        with contextlib.suppress(Exception):
            query.stop()

    asking = threading.Thread(target=ask, name="stop-query", daemon=True)
    asking.start()
    while asking.is_alive() and not _is_interrupted(query):
        asking.join(0.005)
    released.set()
    asking.join(STOP_S)


def expect_no_state(execution: Any) -> None:
    """Tell Spark that the micro-batch under way, which a stopping run does not process, writes no state of Spark's own
    operators. Spark 4.3 asks its coordinator about state before it notices that it was stopped, and a missing answer
    would make a failure of the stop. execution: what `running` returns."""
    with contextlib.suppress(Py4JError, AttributeError, *JVM_GONE):
        execution.streamingQuery().progressReporter().shouldValidateStateStoreCommit().set(False)


def running(spark: SparkSession, query: Any) -> Any:
    """The JVM's handle of the query whose micro-batch this thread processes; None if the query was stopped. query:
    Spark's handle; None if Spark's `start` has not returned yet."""
    if query is not None:
        return query._jsq
    return spark._jsparkSession.streams().get(spark.sparkContext.getLocalProperty("sql.streaming.queryId"))


def sources_read(spark: SparkSession, query: Any) -> str:
    """What Spark says about the sources of the micro-batch under way, and where it ends in them; empty if it says
    nothing. Arguments as for `running`."""
    with contextlib.suppress(Py4JError, AttributeError, *JVM_GONE):
        return str(running(spark, query).streamingQuery().availableOffsets().toString())
    return ""


def is_stopped(spark: SparkSession) -> bool:
    """Whether the session's Spark was stopped."""
    return spark.sparkContext._jsc is None


def setting_of(spark: SparkSession, key: str) -> str | None:
    """The value of a Spark setting in a session; None if it has none."""
    with contextlib.suppress(PySparkException):
        return str(spark.conf.get(key))
    return None


def is_alive(query: Any) -> bool:
    """Whether Spark still runs the query; False if the JVM is gone."""
    with contextlib.suppress(*JVM_GONE):
        return bool(query.isActive)
    return False


def _is_interrupted(query: Any) -> bool:
    """Whether Spark has asked the query's thread to end; True if the JVM is gone."""
    try:
        thread = query._jsq.streamingQuery().queryExecutionThread()
        return bool(thread.isInterrupted() or not thread.isAlive())
    except (Py4JError, *JVM_GONE):
        return True


@contextlib.contextmanager
def _session_settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Apply settings while a query starts, which copies them; then restore the session's own. One start at a time:
    otherwise one would remove the other's settings, or save the other's settings as the session's own."""
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
    pause = parse_trigger(trigger)
    if pause is None:
        return writer
    if pause == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{round(float(pause) * 1000)} milliseconds")


def _free_name(spark: SparkSession, name: str) -> str:
    taken = {query.name for query in spark.streams.active}
    return name if name not in taken else f"{name}-{secrets.token_hex(4)}"
