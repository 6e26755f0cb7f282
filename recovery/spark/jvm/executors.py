"""The memory of executors on other hosts, as they report it to Spark with their heartbeats."""

from __future__ import annotations

import contextlib
from typing import Any

REPORTED = {"spark.executor.processTreeMetrics.enabled": "true"}
"""The setting by which executors report the resident memory of their JVM and of its Python processes."""
_MEASURES = ("ProcessTreeJVMRSSMemory", "ProcessTreePythonRSSMemory")


def executors_bytes(context: Any) -> int | None:
    """Return the resident bytes of all live executors together: the most that each has had so far. None: executors
    report none, or not yet. Never raises."""
    total = 0
    with contextlib.suppress(Exception):
        # Spark may end meanwhile.
        executors = context._jsc.sc().statusStore().executorList(True)
        for place in range(executors.size()):
            peaks = executors.apply(place).peakMemoryMetrics()
            if executors.apply(place).id() != "driver" and peaks.isDefined():
                total += sum(peaks.get().getMetricValue(name) for name in _MEASURES)
    return total or None
