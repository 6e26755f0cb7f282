"""Several queries in one process, on one session."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql.streaming.listener import StreamingQueryListener

from recovery import DiscardSink, RecoveryConfig, init_partitions, start
from recovery.spark.run.launch import SETTINGS, UNCHECKED
from recovery.spark.run.reporting.events import BatchDone
from tests.shares import some
from tests.spark.support import Feed, states, totals_step

MEET_S = 2


class Meeting(StreamingQueryListener):
    """Spark calls it within a query's start: the first waits for the second to be there, which waits for the first to
    be over, unless something keeps them apart."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._second_there = threading.Event()
        self.first_over = threading.Event()

    def onQueryStarted(self, event):  # noqa: N802 - Spark calls it so
        self.names.append(event.name)
        if len(self.names) == 1:
            self._second_there.wait(MEET_S)
        else:
            self._second_there.set()
            self.first_over.wait(MEET_S)

    def onQueryProgress(self, event):  # noqa: N802
        pass

    def onQueryIdle(self, event):  # noqa: N802
        pass

    def onQueryTerminated(self, event):  # noqa: N802
        pass


@pytest.mark.long
def test_started_together(spark, tmp_path):
    """Two threads start a query each: both are exact, and the session has the settings that it had."""
    settings = [*SETTINGS, *UNCHECKED]
    before = [spark.conf.get(key, None) for key in settings]
    feeds = {name: Feed(tmp_path / name / "input") for name in ("one", "two")}
    for seed, (name, feed) in enumerate(feeds.items()):
        feed.add_random(seed)
        feed.add_random(seed + 10)
        init_partitions(tmp_path / name / "db", 2)
    meeting = Meeting()

    def run(name: str) -> None:
        frame = feeds[name].frame(spark).transform(totals_step())
        config = RecoveryConfig(tmp_path / name / "db", snapshot_interval=0)
        query = start(frame, config, sink=DiscardSink(), name=name, trigger="available-now")
        meeting.first_over.set()
        query.await_termination()

    spark.streams.addListener(meeting)
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, feeds))
    finally:
        spark.streams.removeListener(meeting)
    assert sorted(meeting.names) == ["one", "two"]
    assert [spark.conf.get(key, None) for key in settings] == before
    for name, feed in feeds.items():
        assert states(tmp_path / name / "db", "totals") == feed.totals()


@pytest.mark.parametrize("place", some(["sink", "observer"], "sink"))
def test_started_by_another_one(spark, tmp_path, place):
    """A flow that a sink or an observer starts leaves its starter's own tasks their partitions: both are exact."""
    feeds = {name: Feed(tmp_path / name / "input") for name in ("outer", "inner")}
    for seed, (name, feed) in enumerate(feeds.items()):
        for number in range(3):
            feed.add_random(10 * seed + number)
        init_partitions(tmp_path / name / "db", 2)

    def run(name: str, **options):
        frame = feeds[name].frame(spark).transform(totals_step())
        config = RecoveryConfig(tmp_path / name / "db", snapshot_interval=0)
        return start(frame, config, name=name, trigger="available-now", **options)

    inner = []

    def start_inner() -> None:
        if not inner:
            inner.append(run("inner", sink=DiscardSink()))

    def sink(batch, batch_id):
        if place == "sink":
            start_inner()

    def observe(event):
        if place == "observer" and isinstance(event, BatchDone):
            start_inner()

    run("outer", sink=sink, observer=observe).await_termination()
    inner[0].await_termination()
    for name, feed in feeds.items():
        assert states(tmp_path / name / "db", "totals") == feed.totals()
