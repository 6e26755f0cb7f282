"""Running a flow to its end, in this process, with signals that end it well."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from recovery.clock import Clock, SystemClock
from recovery.config import DEFAULT_MASTER, Interval, RecoveryConfig
from recovery.flow import Flow
from recovery.spark.events import Observer, RunSummary
from recovery.spark.jvm import abandon_launch
from recovery.spark.launching import AVAILABLE_NOW
from recovery.spark.preparing import Prepared
from recovery.spark.query import RecoveryQuery
from recovery.spark.session import check_master, create_session
from recovery.spark.starting import start_prepared

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
) -> RunSummary:
    """Run a flow until its input ends, or for ever with an interval as `trigger`; returns what was done.

    SIGTERM or SIGINT finish the running micro-batch, close the epoch and return; a second one ends the process at
    once, and so does one before the stream has started, unless the session is the caller's. `config` None runs without
    recovery. `spark`: the caller's session, which stays open; None: one of our own, made with `master` and `conf`, and
    stopped at the end. Raises RecoveryErrors.
    """
    clock = clock or SystemClock()
    check_master(master)
    # What is wrong with the directory is told before Spark starts, and the files are checked while it does.
    prepared = Prepared(config, flow.name, clock)
    own = spark is None
    with _ending_at_once(prepared.temporary) if own else contextlib.nullcontext():
        try:
            session: Any = create_session(flow.name, master=master, conf=conf) if own else spark
        except BaseException:
            prepared.release()
            raise
        ours = session if own else None
        try:
            query = start_prepared(prepared, flow, session, flow.sink, flow.output_mode, trigger, observer, clock)
        except BaseException:
            _stop_session(ours)
            raise
        with _signals(query):
            try:
                query.await_termination()
            finally:
                _stop_session(ours)
    return query.summary


def _stop_session(session: Any | None) -> None:
    if session is None:
        return
    # A JVM that is gone needs no stopping, and what it died of has been told.
    with contextlib.suppress(OSError, Py4JError):
        session.stop()


@contextlib.contextmanager
def _ending_at_once(temporary: Path | None) -> Iterator[None]:
    """Until the stream has started, a signal ends the process: whatever is half done then is made good by the next run,
    as after a kill. `temporary` is a directory that no next run would find."""

    def end(number: int, _: Any) -> None:
        abandon_launch()
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        _exit(number)

    with _handled(end):
        yield


@contextlib.contextmanager
def _signals(query: RecoveryQuery) -> Iterator[None]:
    """Handlers that only note it, in a pipe; a thread that waits there acts on it. In other threads signals are not
    ours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Neither a threading.Event nor a new thread: both take locks, and a handler may have interrupted who holds them.
    reading, writing = os.pipe()
    threading.Thread(target=_stop_when_told, args=(query, reading), name="stop", daemon=True).start()
    asked: list[int] = []

    def handle(number: int, _: Any) -> None:
        if asked:
            # The second signal: at once.
            _exit(number)
        asked.append(number)
        os.write(writing, b"!")

    try:
        with _handled(handle):
            yield
    finally:
        os.close(writing)


@contextlib.contextmanager
def _handled(handle: Callable[[int, Any], None]) -> Iterator[None]:
    """A handler for both signals, while it lasts; in other threads than the main one there is none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int) -> None:
    """End the process by a signal's number. The JVM ends with its standard input."""
    os._exit(128 + number)


def _stop_when_told(query: RecoveryQuery, reading: int) -> None:
    """Stop the query when something comes out of the pipe; do nothing when it is closed."""
    told = os.read(reading, 1)
    os.close(reading)
    if told:
        # What goes wrong is kept by the query, and raised where the run waits for it.
        with contextlib.suppress(Exception):
            query.stop()
