"""Run a flow to its end in this process; signals end it cleanly."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from recovery.base.clock import Clock, SystemClock
from recovery.base.intervals import AVAILABLE_NOW, Interval
from recovery.config import DEFAULT_MASTER, RecoveryConfig
from recovery.errors import OwnerUnreachableError
from recovery.flow import Flow
from recovery.host.signals import EndingAfter, acting, handled
from recovery.runnable import check_config, check_flow
from recovery.spark.clusters import check_master
from recovery.spark.jvm.launch import abandon_launch
from recovery.spark.jvm.session import create_session
from recovery.spark.jvm.session_end import stop_session
from recovery.spark.jvm.yarn_queue import waiting_for_yarn
from recovery.spark.run.between import Between, added_up, after_loss, settings_of_next
from recovery.spark.run.execution import FlowRun
from recovery.spark.run.parts.replicating import replicated
from recovery.spark.run.prepare import Prepared
from recovery.spark.run.query import RecoveryQuery
from recovery.spark.run.reporting.events import GoingOn, Observer, RunSummary, WaitingForSpark
from recovery.spark.run.start import start_prepared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    flow: Flow,
    config: RecoveryConfig | None = None,
    *,
    spark: SparkSession | None = None,
    trigger: str | Interval | None = AVAILABLE_NOW,
    master: str = DEFAULT_MASTER,
    conf: Mapping[str, str] | None = None,
    observer: Observer | None = None,
    clock: Clock | None = None,
    replicate: str | os.PathLike[str] | None = None,
) -> RunSummary:
    """Run a flow until its input ends, or forever with an interval as `trigger`; return what was done.

    SIGTERM, SIGINT or SIGHUP finish the running micro-batch, close the epoch and return; a second one ends the process
    immediately. So does one before the stream has started, unless the session is the caller's. `config` None runs
    without recovery. `spark`: the caller's session, which stays open; None: make a session with `master` and `conf`,
    and stop it at the end. `replicate`: in place of that setting of `config`. Raises RecoveryErrors.
    """
    ended = run_query(
        flow, config, spark=spark, trigger=trigger, master=master, conf=conf, observer=observer, clock=clock,
        replicate=replicate,
    )  # fmt: skip
    return ended.summary


def run_query(
    flow: Flow,
    config: RecoveryConfig | None = None,
    *,
    spark: SparkSession | None = None,
    trigger: str | Interval | None = AVAILABLE_NOW,
    master: str = DEFAULT_MASTER,
    conf: Mapping[str, str] | None = None,
    observer: Observer | None = None,
    clock: Clock | None = None,
    replicate: str | os.PathLike[str] | None = None,
) -> Ended:
    """Do what `run` does; return the last execution, which has ended, besides the summary."""
    clock = clock or SystemClock()
    check_flow(flow, "run")
    check_config(config, "run")
    config = replicated(config, replicate)
    check_master(master, conf)
    # Report errors of the directory without waiting for Spark, and check the files while it starts.
    prepared = Prepared(config, flow.name, clock)
    own = spark is None
    with _ending_immediately(prepared.temporary) if own else contextlib.nullcontext():
        waited = _reported(master, config, observer) if own else contextlib.nullcontext()
        with prepared.parts.ended_on_error(), waited:
            session: Any = create_session(flow.name, master=master, conf=conf) if own else spark

        def started(prepared: Prepared) -> RecoveryQuery:
            return start_prepared(
                prepared, flow, session, flow.sink, flow.output_mode, trigger, observer, goes_on=config is not None
            )

        try:
            query = started(prepared)
        except BaseException:
            if own:
                stop_session(session)
            raise
        stopping = _Stopping(query)
        with _signals(stopping, stopping.tell):
            try:
                return _to_the_end(query, stopping, started, observer)
            finally:
                if own:
                    stop_session(session)


class Ended(NamedTuple):
    """A run that has ended. summary: of all its executions. last: the last execution."""

    summary: RunSummary
    last: FlowRun


class _Stopping:
    """Whether a signal has come to a run; a signal stops the query that runs then, and keeps another from starting."""

    def __init__(self, query: RecoveryQuery) -> None:
        self.came = threading.Event()
        self._query: RecoveryQuery | None = query
        self._lock = threading.Lock()
        self._number = 0

    def tell(self, number: int) -> None:
        """Tell the observer that the signal with this number ends the run."""
        with self._lock:
            self._number, query = number, self._query
        self.came.set()
        if query is not None:
            query._tell_stopping(number)

    def stop(self) -> None:
        """Stop the query that runs. Raises what went wrong."""
        with self._lock:
            query = self._query
        if query is not None:
            query.stop()

    def watch(self, query: RecoveryQuery) -> None:
        """From now on this query runs. A signal that came while it started stops it."""
        with self._lock:
            self._query = query
        if self.came.is_set():
            query._tell_stopping(self._number)
            query.stop()


def _to_the_end(
    query: RecoveryQuery,
    stopping: _Stopping,
    started: Callable[[Prepared], RecoveryQuery],
    observer: Observer | None,
) -> Ended:
    """Wait for the query. As long as each execution ended to do something between executions, do that, and start the
    next one. Return the summary of all, and the last one."""
    summary: RunSummary | None = None
    before: Between | None = None
    while True:
        prepared = query._run.prepared
        try:
            query.await_termination()
            between = query._between
        except OwnerUnreachableError as error:
            if stopping.came.is_set():
                raise
            between = after_loss(error, prepared.config, query.summary, before)
        summary = added_up(summary, query.summary)
        if between is None or stopping.came.is_set():
            if between is not None:
                between.drop(None)
            return Ended(summary, query._run)
        if observer is not None:
            observer(GoingOn(str(between)))
        config = between(settings_of_next(prepared.config, query.summary), stopping.came)
        if stopping.came.is_set():
            return Ended(summary, query._run)
        query = started(Prepared(config, prepared.flow_id, prepared.clock, stopping.came))
        stopping.watch(query)
        before = between


def _reported(
    master: str, config: RecoveryConfig | None, observer: Observer | None
) -> contextlib.AbstractContextManager[None]:
    """Within this context, in which a session is made, report a long wait for the cluster, and end it at its limit."""
    if master != "yarn":
        # No other master lets a start wait without a limit.
        return contextlib.nullcontext()

    def report(what: str, seconds: float) -> None:
        if observer is not None:
            observer(WaitingForSpark(what, seconds))

    return waiting_for_yarn(None if config is None else config.wait_limit_s, report)


@contextlib.contextmanager
def _ending_immediately(temporary: Path | None) -> Iterator[None]:
    """Until the stream has started, end the process on a signal. The next run repairs what is half done, as after a
    kill. `temporary`: a directory to remove, because no next run would find that directory."""

    def clean() -> None:
        abandon_launch()
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)

    with handled(EndingAfter(clean)):
        yield


class _Stops(Protocol):
    def stop(self) -> None: ...


def _signals(
    query: _Stops, on_signal: Callable[[int], None] = lambda _: None
) -> contextlib.AbstractContextManager[None]:
    """Within this context, pass a signal to `on_signal` and stop the query; a second signal ends the process."""

    def stop(number: int) -> None:
        with contextlib.suppress(Exception):
            on_signal(number)
        # The query keeps the error, and raises it where the run waits for it.
        with contextlib.suppress(Exception):
            query.stop()

    return acting(stop)
