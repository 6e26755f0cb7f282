"""The JVM's thread that runs a query: whether it lives, and the connection by which it waits for a callback."""

from __future__ import annotations

import contextlib
import re
import socket
from typing import Any

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


class CallbackConnection:
    """The connection on which the JVM's thread has called this Python thread, and on which this thread calls the JVM.

    When the JVM's thread has died, nobody answers on it: `cut` ends the wait for an answer.
    """

    def __init__(self, spark: SparkSession) -> None:
        """Call it on the thread of the callback."""
        # Without a thread for each Python thread (PYSPARK_PIN_THREAD=false), other threads answer.
        find = getattr(spark.sparkContext._gateway._gateway_client, "get_thread_connection", None)
        self._connection = None if find is None else find()

    def cut(self) -> None:
        """Let the callback's call into the JVM, and the next one, raise Py4JNetworkError. For any thread."""
        sock = getattr(self._connection, "socket", None)
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
