"""The JVM's thread that runs a query: whether it lives, what it waits for, and the connection by which it waits for a
callback."""

from __future__ import annotations

import contextlib
import re
import socket
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from recovery.spark.jvm.errors import JVM_GONE

_FATAL = re.compile(r"java\.lang\.(?:OutOfMemoryError|StackOverflowError|InternalError|UnknownError|ThreadDeath)\b")
_DEEPEST = 20
"""Causes of causes to look at: they may form a circle."""


def has_died(query: Any) -> bool:
    """Whether the thread has ended, for whatever reason; True if the JVM is gone. query: Spark's handle.

    A thread that an error of the JVM ends, such as OutOfMemoryError, neither closes the connection to a callback nor
    always says that the query has ended.
    """
    try:
        return not query._jsq.streamingQuery().queryExecutionThread().isAlive()
    except JVM_GONE:
        return True
    except Py4JError:
        return False


def fatal_error(query: Any) -> str:
    """The error of the JVM itself that ended the query, such as `java.lang.OutOfMemoryError: Java heap space`; empty if
    something else ended it, or nothing yet. Spark's own text leaves its name out. query: Spark's handle."""
    with contextlib.suppress(Py4JError, *JVM_GONE):
        failure = query._jsq.exception()
        cause = failure.get().getCause() if failure.isDefined() else None
        for _ in range(_DEEPEST):
            if cause is None:
                break
            text = str(cause.toString())
            if _FATAL.match(text):
                return text
            cause = cause.getCause()
    return ""


class Wait(NamedTuple):
    """Something that a query waits for. since: what stays equal as long as it is the same wait."""

    what: str
    since: object


def wait_for_executors(spark: SparkSession, group: str) -> Wait | None:
    """Return the wait of a group's jobs for executors: they have tasks to run, and no task of this Spark runs."""
    # Not the status tracker: it may show a running task seconds late.
    context = spark.sparkContext._jsc.sc()
    pool = context.taskScheduler().rootPool()
    queue = pool.getSortedTaskSetQueue()
    sets = [queue.apply(place) for place in range(queue.length())]
    own = [each for each in sets if each.taskSet().properties().getProperty("spark.jobGroup.id") == group]
    if not own or pool.runningTasks():
        return None
    executors = max(0, len(context.statusTracker().getExecutorInfos()) - 1)
    there = f"none of Spark's {executors} executors takes one" if executors else "Spark has no executor"
    return Wait(there, (own[0].name(), own[0].tasksSuccessful()))


def wait_for_source(query: Any) -> Wait | None:
    """Return what Spark does before it can begin a micro-batch; None if it waits for input or for its time. query:
    Spark's handle."""
    status = query.status
    context = query._jsq.streamingQuery().getLatestExecutionContext()
    if not status["isTriggerActive"] or context is None:
        return None
    # An idle stream asks its sources again and again, and each time is another one.
    return Wait(status["message"], context.currentTriggerStartTimestamp())


class CallbackConnection:
    """The connection on which the JVM's thread has called this Python thread, and on which this thread calls the JVM.

    When the JVM's thread has died, nobody answers on the connection: `cut` ends the wait for an answer.
    """

    def __init__(self, spark: SparkSession) -> None:
        """Make the object on the thread of the callback."""
        # Without a thread for each Python thread (PYSPARK_PIN_THREAD=false), other threads answer.
        find = getattr(spark.sparkContext._gateway._gateway_client, "get_thread_connection", None)
        self._connection = None if find is None else find()

    def cut(self) -> None:
        """Let the callback's call into the JVM, and the next one, raise Py4JNetworkError. For any thread."""
        sock = getattr(self._connection, "socket", None)
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
