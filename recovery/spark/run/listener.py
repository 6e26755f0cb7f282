"""Our numbers beside Spark's: for whoever listens to the progress of streaming queries."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from recovery.metrics.meter import Meter

KEPT = 100

_lock = threading.Lock()
_meters: dict[str, Meter] = {}


def announce(run_id: str, meter: Meter) -> None:
    """The meter of Spark's query of this run id. The newest are known, also after their end: events come late."""
    with _lock:
        _meters[run_id] = meter
        for old in list(_meters)[:-KEPT]:
            del _meters[old]


def query_metrics(progress: Any) -> dict[str, Any] | None:
    """What `recovery` has measured of the query that Spark reports progress of, as plain values; None: not one of ours.

    progress: a StreamingQueryProgress, as an event has it, or the dictionary of `lastProgress`, in the process that
    runs the query. The keys are described in docs/metrics.md. For use in the onQueryProgress of a listener of your own.
    """
    run_id = progress["runId"] if isinstance(progress, dict) else progress.runId
    batch = progress["batchId"] if isinstance(progress, dict) else progress.batchId
    with _lock:
        meter = _meters.get(str(run_id))
    return None if meter is None else meter.as_json(int(batch))


class MetricsListener(StreamingQueryListener):
    """A StreamingQueryListener that gives each progress of a recovery run to `observe`, with our numbers.

    observe: called as observe(progress, metrics), with Spark's StreamingQueryProgress and what `query_metrics` gives.
    Queries that are not ours are left out. Register it with spark.streams.addListener(...); it is called on Spark's
    own thread, after the micro-batch, and holds up nothing but other listeners.
    """

    def __init__(self, observe: Callable[[Any, dict[str, Any]], Any]) -> None:
        self._observe = observe

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Hand it on."""
        metrics = query_metrics(event.progress)
        if metrics is not None:
            self._observe(event.progress, metrics)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Nothing."""
