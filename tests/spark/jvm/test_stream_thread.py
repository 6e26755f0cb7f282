"""Errors of the JVM that end a stream while a callback is in Python: the run ends with the reason, and what has not
finished does not count."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from py4j.protocol import Py4JJavaError

from recovery import SparkFailedError
from recovery.spark.run import stream as stream_module
from tests.shares import first
from tests.spark.support import run_to_end, states, totals_step
from tests.stores import problems
from tests.waiting import wait_until

ENDS_WITHIN_S = 30.0


def stop_stream(spark) -> None:
    """End the thread of the running stream as an error of the JVM does, without a word to the callback."""
    threads = spark._jvm.java.lang.Thread.getAllStackTraces().keySet()
    [stream] = [each for each in threads if each.getName().startswith("stream execution thread")]

    # Not on the thread of the callback: it waits for this thread's answers.
    with ThreadPoolExecutor(1) as other:
        try:
            other.submit(stream.stop).result()
        except Py4JJavaError:
            pytest.skip("this JVM ends no threads")


def cut_off(spark, feed, directory, then) -> float:
    """A run whose stream ends in its second micro-batch, whose sink does `then`; returns how long it took to end."""
    for seed in range(3):
        feed.add_random(seed)
    ended_s = []

    def sink(batch, batch_id):
        batch.count()
        if batch_id == 1:
            stop_stream(spark)
            ended_s.append(time.monotonic())
            then(batch)

    with pytest.raises(SparkFailedError, match=r"java\.lang\.ThreadDeath"):
        run_to_end(feed.frame(spark).transform(totals_step()), directory, sink)
    return time.monotonic() - ended_s[0]


def expect_one_batch_then_all(spark, feed, directory) -> None:
    first = {}
    for key, value in feed.rows[: len(feed.rows) // 3]:
        count, total = first.get(key, [0, 0])
        first[key] = [count + 1, total + value]
    assert states(directory, "totals") == first
    assert problems(directory) == []
    run_to_end(feed.frame(spark).transform(totals_step()), directory)
    assert states(directory, "totals") == feed.totals()


@pytest.mark.long
def test_a_call_that_nobody_answers(spark, feed, tmp_path):
    """The call is cut. The first micro-batch counts, the second does not, and the next run is exact."""
    took_s = cut_off(spark, feed, tmp_path / "db", lambda batch: batch.count())
    assert took_s < ENDS_WITHIN_S
    expect_one_batch_then_all(spark, feed, tmp_path / "db")


def test_a_sink_that_swallows_the_error_of_its_call(spark, feed, tmp_path):
    """It seems to have written; the micro-batch does not count all the same."""

    def swallow(batch):
        with pytest.raises(Exception):  # noqa: B017 (whatever Py4J raises)
            batch.count()

    cut_off(spark, feed, tmp_path / "db", swallow)
    expect_one_batch_then_all(spark, feed, tmp_path / "db")


def test_a_sink_that_does_not_return(spark, feed, tmp_path, monkeypatch):
    """The run ends without it; when it returns, after the next run has begun, nothing counts twice."""
    monkeypatch.setattr(stream_module, "ABANDON_S", 1.0)
    may_return, returned = threading.Event(), threading.Event()

    def hang(batch):
        # The call that makes the JVM's thread notice that it was stopped.
        with pytest.raises(Exception):  # noqa: B017 (whatever Py4J raises)
            batch.count()
        may_return.wait(60)
        returned.set()

    try:
        assert cut_off(spark, feed, tmp_path / "db", hang) < ENDS_WITHIN_S
        assert not returned.is_set()
        expect_one_batch_then_all(spark, feed, tmp_path / "db")
    finally:
        may_return.set()
    wait_until(returned.is_set)
    assert states(tmp_path / "db", "totals") == feed.totals()
    assert problems(tmp_path / "db") == []


def test_a_connection_that_breaks(spark, feed, tmp_path):
    """The JVM lives, the sink's call does not come through: the run ends, and the micro-batch does not count."""
    feed.add_random(1)
    feed.add_random(2)

    def sink(batch, batch_id):
        if batch_id == 1:
            connection = spark.sparkContext._gateway._gateway_client.get_thread_connection()
            connection.socket.shutdown(socket.SHUT_RDWR)
            batch.count()

    with pytest.raises(SparkFailedError, match="Spark's JVM has not answered"):
        run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", sink)
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == feed.totals()


@pytest.mark.long
@first(
    ("what", "reason"),
    [("planning", "java.lang.OutOfMemoryError"), ("nested", "java.lang.StackOverflowError")],
)
def test_limits_of_the_jvm(spark, feed, tmp_path, what, reason):
    """Where it plans the stream, and in a call of the sink: the error names the reason, and what raises the limit."""
    feed.add_random(1)

    def overflow(batch, batch_id):
        batch.sparkSession._jvm.java.util.regex.Pattern.compile("(a|b)*").matcher("ab" * 500_000).matches()

    frame = feed.frame(spark).transform(totals_step())
    if what == "planning":
        # Spark computes it while it plans, and no heap of these tests has 16 GB.
        frame = frame.selectExpr("*", "size(sequence(1L, 2000000000L)) AS big")
    with pytest.raises(SparkFailedError) as raised:
        run_to_end(frame, tmp_path / "db", overflow if what == "nested" else lambda batch, _: batch.count())
    assert reason in raised.value.found
    assert "--conf spark.driver." in raised.value.remedy
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == feed.totals()
