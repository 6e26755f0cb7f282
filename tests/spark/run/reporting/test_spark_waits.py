"""What a run waits for in Spark, as it is reported: a table of looks, and streams that do not wait."""

from __future__ import annotations

import time

import pytest

from recovery import RecoveryConfig, SparkUnavailableError, init_partitions, start
from recovery.backup.note import last_waiting
from recovery.base.ids import BatchId
from recovery.spark.jvm.stream_thread import Wait, wait_for_source
from recovery.spark.run.reporting import spark_waits
from recovery.spark.run.reporting.spark_waits import IDLE_S, REPORTED_S, Waits
from tests.shares import some
from tests.spark.support import totals_step
from tests.waiting import wait_until


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def elapsed_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 1_000_000 + round(self.now_s * 1000)


class Query:
    runId = "r"  # noqa: N815 (its name in Spark)


@pytest.fixture
def looks(monkeypatch, tmp_path):
    """A function that moves the clock and looks, with what Spark says then."""
    clock, reported = Clock(), []
    said = {"source": None, "executors": None}
    monkeypatch.setattr(spark_waits, "wait_for_source", lambda query: said["source"])
    monkeypatch.setattr(spark_waits, "wait_for_executors", lambda spark, group: said["executors"])

    class Session:
        class sparkContext:  # noqa: N801 (its name in Spark)
            master = "spark://m"

    config = RecoveryConfig(tmp_path, wait_limit=180)
    waits = Waits(Session, config, 3, clock, lambda what, seconds: reported.append(seconds), noted=True)

    def look(at_s, *, batch=None, source=None, executors=None):
        clock.now_s, said["source"], said["executors"] = at_s, source, executors
        waits.look(Query, None if batch is None else BatchId(batch))

    return waits, look, reported, tmp_path


def test_a_wait_is_reported_noted_and_limited(looks):
    """After half a minute, then each time that it has doubled; with its beginning in the note, until it ends."""
    waits, look, reported, directory = looks
    same = Wait("none", "set 1")
    for second in range(100, 231, 1):
        look(second, batch=4, executors=same)
        assert waits.lacks_executors() == (second >= 100 + IDLE_S)
        assert (last_waiting(directory) is not None) == (second >= 100 + REPORTED_S)
    assert reported == [30, 60, 120]
    noted = last_waiting(directory)
    assert (noted.execution, noted.since_ms) == (3, 1_100_000)
    assert waits.seconds == 130
    look(231, batch=4)
    assert waits.seconds == 0
    assert last_waiting(directory) is None
    look(232, batch=4, executors=same)
    with pytest.raises(SparkUnavailableError, match="the run has waited for 3 min: no task of micro-batch 4 runs"):
        look(412, batch=4, executors=same)
    waits.end()
    assert last_waiting(directory) is None


def test_progress_is_no_wait(looks):
    """Another micro-batch, another set of tasks, another question to the source: each begins from zero."""
    waits, look, reported, _ = looks
    for number in range(100):
        look(10.0 * number, batch=number, executors=Wait("none", "set"))
        look(10.0 * number + 3, batch=number, executors=Wait("none", f"set {number}"))
        look(10.0 * number + 6, source=Wait("Getting offsets", number))
        assert not waits.lacks_executors()
    assert reported == []


@pytest.mark.parametrize("trigger", some([None, "1s"], None))
def test_an_idle_stream_does_not_wait(spark, feed, tmp_path, trigger, monkeypatch):
    """However often it asks its source, and in whatever moment the run looks."""
    feed.add_random(1)
    init_partitions(tmp_path / "db", 1)
    monkeypatch.setattr(spark_waits, "REPORTED_S", 1.0)
    reported = []
    query = start(
        feed.frame(spark).transform(totals_step()), RecoveryConfig(tmp_path / "db", snapshot_interval=0), name="idle",
        trigger=trigger, observer=lambda event: reported.append(event) if "Waiting" in type(event).__name__ else None,
    )  # fmt: skip
    try:
        wait_until(lambda: query.summary.batches == 1, 120)
        reported.clear()
        found = set()
        until_s = time.monotonic() + 3
        while time.monotonic() < until_s:
            found.add(wait_for_source(query.streaming_query))
        print(f"moments in which Spark was asking: {len(found)}")
        # On a busy machine one question may take long, but the stream does not stay at one.
        assert reported == [] or len(found) > 3
    finally:
        query.stop()
