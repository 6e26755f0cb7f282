"""The micro-batch whose callback runs, as other threads see it; how they end its calls into a silent JVM."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from pyspark.sql import SparkSession

from recovery.base.ids import BatchId
from recovery.errors import SparkFailedError
from recovery.spark.jvm.stream_thread import CallbackConnection


class UnderWay:
    """The micro-batch under way, if there is one. Any thread may call this, if not stated otherwise."""

    def __init__(self, spark: SparkSession) -> None:
        self.batch: BatchId | None = None
        self.is_entered = False
        """Whether Spark has called for a micro-batch, also while that call waits for its turn."""
        self._spark = spark
        self._connection: CallbackConnection | None = None
        self._lock = threading.Lock()
        self._is_in_sink = False
        self._is_abandoned = False

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Within this context, Spark waits for a call."""
        self.is_entered = True
        try:
            yield
        finally:
            self.is_entered = False

    @contextlib.contextmanager
    def callback(self, batch: BatchId) -> Iterator[None]:
        """Within this context, this thread is that of the micro-batch's callback."""
        self._connection = CallbackConnection(self._spark)
        self.batch = batch
        try:
            yield
        finally:
            self.batch = None
            self._connection = None

    @contextlib.contextmanager
    def in_sink(self) -> Iterator[None]:
        """Within this context, the flow's sink writes; the micro-batch may be abandoned. Raises SparkFailedError at the
        end if the micro-batch was abandoned: it must not count then."""
        self._set_in_sink(True)
        try:
            yield
        finally:
            self._set_in_sink(False)

    def _set_in_sink(self, value: bool) -> None:
        with self._lock:
            self._is_in_sink = value
            if self._is_abandoned:
                raise SparkFailedError(f"micro-batch {self.batch} was abandoned, because Spark's stream had ended")

    def cut(self) -> None:
        """Let the callback's call into the JVM raise an error. Used when the JVM will not answer."""
        connection = self._connection
        if connection is not None:
            connection.cut()

    def abandon(self) -> bool:
        """Return whether the run may end without the callback, because the callback is in the sink. The micro-batch
        never counts then."""
        with self._lock:
            self._is_abandoned = self._is_abandoned or self._is_in_sink
            return self._is_abandoned
