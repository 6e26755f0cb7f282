"""The wait of a start for YARN, which runs an application when its queue has room. Spark itself waits without a limit,
and says nothing."""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from recovery.base.intervals import format_interval
from recovery.errors import SparkUnavailableError

TAGS = "spark.yarn.tags"
LOOK_S = 1.0
REPORTED_S = 30.0
"""A wait as long as this is reported, and again each time that it has doubled."""
_TIME = re.compile(r"^\[[^\]]*\]\s*")
_LONGEST_REASON = 300
_TAG = f"recovery-{secrets.token_hex(8)}"
"""Of the applications of this process: those of other processes may have the same name and user."""


class _Queued(NamedTuple):
    """An application for whose master YARN has no container yet. reason: what YARN says of it; may be empty."""

    number: Any
    reason: str

    @property
    def what(self) -> str:
        return f"YARN has no container for {self.number.toString()} yet{self.reason and ': '}{self.reason}"


def tagged(given: str) -> str:
    """Return the value of `spark.yarn.tags` by which `waiting_for_yarn` knows the applications of this process. given:
    the user's tags."""
    return ",".join(filter(None, [given, _TAG]))


@contextlib.contextmanager
def waiting_for_yarn(limit_s: float | None, report: Callable[[str, float], None]) -> Iterator[None]:
    """Within this block, in which a session is made on YARN, report how long its application waits in its queue. At the
    limit, withdraw the application, and raise SparkUnavailableError.

    limit_s: None: no limit. report: called as report(what, seconds), in another thread.
    """
    watch = _Watch(limit_s, report)
    threading.Thread(target=watch.run, name="yarn-queue", daemon=True).start()
    try:
        yield
    except Exception as error:
        if watch.too_long is not None:
            raise watch.too_long from error
        raise
    finally:
        watch.over.set()


class _Watch:
    """Looks at YARN until `over` is set. too_long: the error, once the limit is reached."""

    def __init__(self, limit_s: float | None, report: Callable[[str, float], None]) -> None:
        self.over = threading.Event()
        self.too_long: SparkUnavailableError | None = None
        self._limit_s = limit_s
        self._report = report

    def run(self) -> None:
        """The thread. YARN or the JVM may end meanwhile: then the start says why."""
        from pyspark import SparkContext

        while SparkContext._gateway is None:
            if self.over.wait(LOOK_S):
                return
        with contextlib.suppress(Exception):
            jvm = SparkContext._gateway.jvm
            client = jvm.org.apache.hadoop.yarn.client.api.YarnClient.createYarnClient()
            client.init(jvm.org.apache.hadoop.yarn.conf.YarnConfiguration())
            client.start()
            try:
                self._look(jvm, client)
            finally:
                client.stop()

    def _look(self, jvm: Any, client: Any) -> None:
        since_s, next_s = None, REPORTED_S
        while not self.over.wait(LOOK_S):
            # A ResourceManager that does not answer now may do so later.
            with contextlib.suppress(Exception):
                found = _waiting(jvm, client)
                if found is None:
                    since_s, next_s = None, REPORTED_S
                    continue
                since_s = time.monotonic() if since_s is None else since_s
                waited_s = time.monotonic() - since_s
                if waited_s >= next_s:
                    next_s *= 2
                    self._report(found.what, waited_s)
                if self._limit_s is not None and waited_s >= self._limit_s:
                    self.too_long = _too_long(found.what, waited_s)
                    # Spark's start ends with its application.
                    client.killApplication(found.number)
                    return


def _waiting(jvm: Any, client: Any) -> _Queued | None:
    """Return the newest application of this process that waits in a queue; None if none does. Once the master of an
    application has a container, YARN itself limits how long the master may take to start."""
    state = jvm.org.apache.hadoop.yarn.api.records.YarnApplicationState
    kinds = jvm.java.util.HashSet()
    kinds.add("SPARK")
    waiting = client.getApplications(kinds, jvm.java.util.EnumSet.of(state.SUBMITTED, state.ACCEPTED))
    own = [
        each
        for each in waiting
        if each.getApplicationTags().contains(_TAG)
        and each.getApplicationResourceUsageReport().getNumUsedContainers() < 1
    ]
    if not own:
        return None
    newest = max(own, key=lambda each: (each.getStartTime(), each.getApplicationId().getId()))
    reason = _TIME.sub("", " ".join(str(newest.getDiagnostics() or "").split())).partition(" Details :")[0]
    return _Queued(newest.getApplicationId(), reason.rstrip(" .;")[:_LONGEST_REASON])


def _too_long(what: str, waited_s: float) -> SparkUnavailableError:
    return SparkUnavailableError(
        f"the start has waited for {format_interval(round(waited_s))}: {what}",
        cause="The queue has no room for the application master, or this user's share of the queue is used up.",
        remedy="Look at the queue; name another one (--conf spark.yarn.queue=QUEUE), or ask for less "
        "(spark.yarn.am.memory). The application is withdrawn, and nothing was written. --wait-limit sets how long a "
        "start waits.",
    )
