"""Signals that end a run: what the handlers do, and what they leave to others. Nothing here starts Spark."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter

import pytest

from recovery.spark.run.blocking import _ending_immediately, _signals
from tests.stores import run_python

pytestmark = pytest.mark.any_spark

NUMBERS = [signal.SIGTERM, signal.SIGINT]


class Query:
    """Notes that it was stopped, and by which thread."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.by: list[threading.Thread] = []

    def stop(self) -> None:
        self.by.append(threading.current_thread())
        self.stopped.set()
        raise RuntimeError("what goes wrong is told by whoever waits for the run")


@pytest.fixture
def others():
    """Handlers of somebody else's, and the signals that came to them."""
    came: Counter[int] = Counter()
    before = {number: signal.signal(number, lambda each, _: came.update([each])) for number in NUMBERS}
    yield came
    assert gone(), "a thread still waits for a signal"
    for number, handler in before.items():
        signal.signal(number, handler)


def waiting() -> list[threading.Thread]:
    """The threads that wait for a signal."""
    return [thread for thread in threading.enumerate() if thread.name == "stop"]


def gone(timeout_s: float = 30) -> bool:
    """Whether no thread waits for a signal any more; they end a moment after the run."""
    deadline = time.monotonic() + timeout_s
    while waiting() and time.monotonic() < deadline:
        time.sleep(0.001)
    return not waiting()


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_stops_the_query(others, number, monkeypatch):
    """By a thread that was there before: starting one takes locks, and the handler may have interrupted who has
    them."""
    query = Query()
    with _signals(query):
        [there] = waiting()
        monkeypatch.setattr(threading.Thread, "start", None)
        monkeypatch.setattr(threading, "Lock", None)
        signal.raise_signal(number)
        assert query.stopped.wait(30)
    assert query.by == [there]
    assert not others


def test_afterwards_signals_are_somebody_elses_again(others, monkeypatch):
    """Whether one came or not, the handlers are those of before, and nothing stays open or waits."""
    pipe, ends = os.pipe, []
    monkeypatch.setattr(os, "pipe", lambda: ends.append(pipe()) or ends[-1])
    for came in (True, False):
        query = Query()
        with _signals(query):
            if came:
                signal.raise_signal(signal.SIGTERM)
                assert query.stopped.wait(30)
        assert gone()
        for end in ends.pop():
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(end)
        assert query.stopped.is_set() == came
    for number in NUMBERS:
        signal.raise_signal(number)
    assert others == Counter(NUMBERS)


def test_the_handlers_go_with_a_run_that_fails(others):
    """And its error is the one that is raised."""
    with pytest.raises(ZeroDivisionError), _signals(Query()):
        raise ZeroDivisionError
    signal.raise_signal(signal.SIGTERM)
    assert others == Counter([signal.SIGTERM])


def test_signals_of_a_run_in_another_thread_are_not_ours(others):
    """Only the main thread may set handlers, and whoever has it decides."""
    query = Query()

    def run() -> None:
        with _signals(query):
            signal.raise_signal(signal.SIGTERM)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert others == Counter([signal.SIGTERM])
    assert not query.stopped.is_set()
    assert waiting() == []


TWICE = """
import signal, threading, time
from recovery.spark.run.blocking import _ending_immediately, _signals

class Query:
    stopping = threading.Event()
    def stop(self):
        self.stopping.set()
        time.sleep(600)

with _signals(Query()):
    signal.raise_signal(signal.SIGTERM)
    assert Query.stopping.wait(30)
    print("stopping", flush=True)
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        print("this is not said", flush=True)
"""


def test_the_second_signal_ends_the_process_immediately():
    """Whatever the first one's end of the run waits for, and with the number of the second."""
    done = run_python(TWICE)
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert done.stdout == "stopping\n"


AT_ONCE = """
import signal, sys
from pathlib import Path
from recovery.spark.run.blocking import _ending_immediately

with _ending_immediately(Path(sys.argv[1])):
    signal.raise_signal(int(sys.argv[2]))
    print("this is not said", flush=True)
"""


@pytest.mark.parametrize("number", NUMBERS)
def test_before_the_stream_the_first_signal_ends_the_process(number, tmp_path):
    """And what nobody would find again is gone with it."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = run_python(AT_ONCE, temporary, int(number))
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")
    assert not temporary.exists()


def test_a_query_that_runs_has_the_signals(others):
    """One does not end the process any more, and when all is over they are somebody else's again."""
    query = Query()
    with _ending_immediately(None), _signals(query):
        signal.raise_signal(signal.SIGTERM)
        assert query.stopped.wait(30)
    signal.raise_signal(signal.SIGINT)
    assert others == Counter([signal.SIGINT])
