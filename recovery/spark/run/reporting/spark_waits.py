"""What a run waits for in Spark: executors that take a micro-batch's tasks, or a source that says what it has."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from recovery.backup.note import Waiting, note_waiting
from recovery.base.clock import Clock
from recovery.base.ids import BatchId
from recovery.base.intervals import format_interval
from recovery.config import RecoveryConfig
from recovery.errors import SparkUnavailableError
from recovery.spark.jvm.errors import JVM_GONE
from recovery.spark.jvm.stream_thread import Wait, wait_for_executors, wait_for_source

REPORTED_S = 30.0
"""A wait as long as this is reported, and again each time that it has doubled."""
IDLE_S = 5.0
"""How long no task of a micro-batch may run before a stop gives the micro-batch up. Longer than the gap between two
stages, and than Spark's scheduler takes to place tasks."""


class Waits:
    """What one run waits for. `look` is for one thread; every thread may call the other methods."""

    def __init__(
        self, spark: SparkSession, config: RecoveryConfig, execution: int, clock: Clock,
        report: Callable[[str, float], None], *, noted: bool,
    ) -> None:  # fmt: skip
        """report: called as report(what, seconds). noted: whether to say it to `recovery status`, by a note in the
        directory."""
        self._spark = spark
        self._limit_s = config.wait_limit_s
        self._directory = config.path if noted else None
        self._execution = execution
        self._clock = clock
        self._report = report
        self._lock = threading.Lock()
        self._now: tuple[Wait | None, BatchId | None] = (None, None)
        self._since_s = 0.0
        self._next_s = REPORTED_S

    @property
    def seconds(self) -> float:
        """How long the run has waited, as of now; 0 if it does not wait."""
        with self._lock:
            return 0.0 if self._now[0] is None else self._clock.elapsed_s() - self._since_s

    def lacks_executors(self) -> bool:
        """Whether no executor works for the micro-batch under way, and none has for a while."""
        with self._lock:
            return None not in self._now and self._clock.elapsed_s() - self._since_s >= IDLE_S

    def look(self, query: Any, batch: BatchId | None) -> None:
        """Ask Spark what it waits for, and report it. query: Spark's handle. batch: the micro-batch under way. Raises
        SparkUnavailableError at the limit for a wait."""
        try:
            found = wait_for_source(query) if batch is None else wait_for_executors(self._spark, str(query.runId))
        except (Py4JError, *JVM_GONE):
            return
        with self._lock:
            if (found, batch) != self._now:
                if self._next_s > REPORTED_S:
                    self._note(None)
                self._now = found, batch
                self._since_s, self._next_s = self._clock.elapsed_s(), REPORTED_S
        if found is not None:
            self._report_at_times(self._shown(found.what, batch))

    def _shown(self, what: str, batch: BatchId | None) -> str:
        if batch is None:
            return f"Spark has not begun the next micro-batch: {what}"
        return f"no task of micro-batch {batch} runs: {what} (master {self._spark.sparkContext.master})"

    def _report_at_times(self, what: str) -> None:
        waited_s = self.seconds
        if waited_s >= self._next_s:
            if self._next_s == REPORTED_S:
                self._note(Waiting(self._execution, self._clock.wall_ms() - round(waited_s * 1000), what))
            self._next_s *= 2
            self._report(what, waited_s)
        if self._limit_s is not None and waited_s >= self._limit_s:
            raise SparkUnavailableError(
                f"the run has waited for {format_interval(round(waited_s))}: {what}",
                cause="No executor is there, or the cluster has no free cores or memory for one; or a source does not "
                "answer.",
                remedy="Look at the cluster, or at the source; then run the same command again: it continues from the "
                "last closed epoch. --wait-limit sets how long a run waits.",
            )

    def end(self) -> None:
        """Remove the note."""
        with self._lock:
            if self._next_s > REPORTED_S:
                self._note(None)
            self._now, self._next_s = (None, None), REPORTED_S

    def _note(self, waiting: Waiting | None) -> None:
        if self._directory is not None:
            note_waiting(self._directory, waiting)
