"""Sessions that users have made: which settings they lack that make micro-batches faster."""

from __future__ import annotations

import logging
import weakref
from typing import Any

from pyspark.sql import SparkSession

from recovery.spark.clusters import is_cluster
from recovery.spark.jvm.session import DEFAULTS_OF_ONE_HOST, SOCKETS, daemon, is_made_here, settings_in

DAEMON = "spark.python.daemon.module"
COSTS = {
    SOCKETS: "over TCP each task waits some 40 ms for its Python worker",
    DAEMON: "Python workers start more slowly, and a signal to every process of a service ends "
    "them before the micro-batch is done",
    "spark.python.worker.reuse": "each task starts a Python worker of its own",
    "spark.speculation": "small micro-batches are not gathered in one task",
}
"""What another value of a setting costs. None of these settings changes a result."""

_logged: weakref.WeakSet[Any] = weakref.WeakSet()
_log = logging.getLogger("recovery")


def log_slower_settings(spark: SparkSession) -> None:
    """Log, once for each SparkContext, which settings the user's session lacks, and what that costs."""
    context = spark.sparkContext
    if context in _logged or is_made_here(spark):
        return
    _logged.add(context)
    lacking = slower_settings(settings_in(context), context.master)
    if lacking:
        listed = "; ".join(f"{name}={value} ({COSTS[name]})" for name, value in lacking.items())
        _log.warning(
            "This SparkSession was made elsewhere. Results are the same, but micro-batches would be faster with %s. "
            "Set this before the session is made, or let recovery make it.",
            listed,
        )


def slower_settings(given: dict[str, str], master: str) -> dict[str, str]:
    """Return the settings, with their values, that would make micro-batches faster. given: the session's settings."""
    sparks = {SOCKETS: "false", "spark.python.worker.reuse": "true", "spark.speculation": "false"}
    wanted = {"spark.python.worker.reuse": "true", "spark.speculation": "false"}
    if not is_cluster(master):
        wanted |= {SOCKETS: DEFAULTS_OF_ONE_HOST[SOCKETS], **daemon()}
    return {
        name: value
        for name, value in wanted.items()
        if given.get(name, sparks.get(name, "")).strip().lower() != value.lower()
    }
