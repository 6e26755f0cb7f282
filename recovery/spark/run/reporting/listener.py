"""Recovery's metrics beside Spark's, for listeners to the progress of streaming queries."""

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
    """Register the meter of the Spark query with this run id. The newest `KEPT` stay known after their end, because
    events come late."""
    with _lock:
        _meters[run_id] = meter
        for old in list(_meters)[:-KEPT]:
            del _meters[old]


def query_metrics(progress: Any) -> dict[str, Any] | None:
    """Return what `recovery` measured of the query whose progress Spark reports, as plain values; None for a query that
    is not a recovery run.

    progress: a StreamingQueryProgress from an event, or the dictionary of `lastProgress`, in the process that runs the
    query. docs/metrics.md describes the keys. Call this in the onQueryProgress of your own listener.
    """
    run_id = progress["runId"] if isinstance(progress, dict) else progress.runId
    batch = progress["batchId"] if isinstance(progress, dict) else progress.batchId
    with _lock:
        meter = _meters.get(str(run_id))
    return None if meter is None else meter.as_json(int(batch))


class MetricsListener(StreamingQueryListener):
    """A StreamingQueryListener that passes each progress of a recovery run to `observe`, with recovery's metrics.

    observe: called as observe(progress, metrics), with Spark's StreamingQueryProgress and the result of
    `query_metrics`. Other queries are skipped. Register the listener with spark.streams.addListener(...). Spark calls
    it on its own thread, after the micro-batch; it delays only other listeners.
    """

    def __init__(self, observe: Callable[[Any, dict[str, Any]], Any]) -> None:
        self._observe = observe

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Pass the progress and its metrics to `observe`."""
        metrics = query_metrics(event.progress)
        if metrics is not None:
            self._observe(event.progress, metrics)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing."""
