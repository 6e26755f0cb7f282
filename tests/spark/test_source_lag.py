"""What a run knows of its lag at sources besides Kafka, and how little it may cost: input that comes while it runs."""

from __future__ import annotations

import threading
import time

import pytest

from recovery import ConfigurationError, DiscardSink, RecoveryConfig, init_partitions, start
from recovery.backup.note import last_input_lag
from recovery.spark.run.parts.lagging import LagLooks, group_of
from tests.lake import needs_delta, needs_iceberg
from tests.spark import test_iceberg_source as iceberg
from tests.spark import test_kafka_lag as kafka_lag
from tests.spark.support import totals_step
from tests.spark.test_delta_source import DeltaTable
from tests.waiting import wait_until

iceberg_table, patient = iceberg.table, kafka_lag.patient
BY_LINE = "cast(length(value) AS long) AS value"


def go(frame, root, more=lambda: None, **config):
    """A run to the end of the input, which gets `more` in its first micro-batch; what the newest epoch then lacks."""
    if not (root / "db").exists():
        init_partitions(root / "db", 2)
    config = RecoveryConfig(root / "db", **{"snapshot_interval": 0, "backup_interval": "1h", **config})
    came = [more]
    query = start(
        frame, config, sink=lambda *_: came and came.pop()(), name="test", trigger="available-now"
    )  # fmt: skip
    query.await_termination()
    note = last_input_lag(root / "db")
    assert note.as_json() == query.summary.lag
    return [(each.unit, each.behind) for each in note.sources], note


def test_growing_files(spark, tmp_path):
    """The bytes of whole lines, of files that are there and of new ones; an unfinished line is not behind."""
    log = tmp_path / "a.log"
    log.write_text("one\ntwo\n")
    frame = spark.readStream.format("appended").load(str(tmp_path / "*.log")).selectExpr("file AS key", BY_LINE)

    def more():
        log.write_text("one\ntwo\nthree\n")
        (tmp_path / "b.log").write_text("four\nunfini")

    frame = frame.transform(totals_step())
    behind, note = go(frame, tmp_path, more)
    assert behind == [("byte", len("three\n") + len("four\n"))]
    assert (note.execution, note.epoch, note.group, note.sources[0].name) == (1, 1, None, str(tmp_path / "*.log"))
    assert go(frame, tmp_path)[0] == [("byte", 0)]
    assert go(frame, tmp_path, resume_after=1, rewind_again=2)[0] == [("byte", 0)]


def test_which_group_shows_the_offsets(tmp_path):
    """The flow's, the one that is given, or none: a fork without output leaves the group to its origin."""
    assert group_of(RecoveryConfig(tmp_path), "a b") == "recovery-a b"
    assert group_of(RecoveryConfig(tmp_path, kafka_group="mine"), "f") == "mine"
    assert group_of(RecoveryConfig(tmp_path, kafka_group="off"), "f") is None
    assert group_of(RecoveryConfig(tmp_path, no_output=True), "f") is None
    with pytest.raises(ConfigurationError, match="the consumer group has no name"):
        RecoveryConfig(tmp_path, kafka_group=" ")


@needs_delta
def test_versions_of_a_delta_table(spark, tmp_path, monkeypatch):
    """Those that add rows: Delta's position does not move over others."""
    table = DeltaTable(spark, tmp_path / "in")
    table.add(2)

    def more():
        table.add(1)
        table.sql("OPTIMIZE {}")

    assert go(table.frame(), tmp_path, more)[0] == [("version", 1)]
    assert go(table.frame(), tmp_path, lambda: table.sql("OPTIMIZE {}"))[0] == [("version", 0)]
    monkeypatch.setattr("recovery.spark.inputs.delta.MOST_ENTRIES", 2)
    table.add(1)
    assert go(table.frame(), tmp_path, lambda: table.add(4))[0] == [("version", 4)]


@needs_iceberg
def test_snapshots_of_an_iceberg_table(spark, iceberg_table, tmp_path):
    """As many as lead from the position to the newest one."""
    iceberg_table.add(2)
    assert go(iceberg_table.frame(), tmp_path, lambda: iceberg_table.add(2))[0] == [("snapshot", 2)]
    assert go(iceberg_table.frame(), tmp_path)[0] == [("snapshot", 0)]


def test_sources_that_do_not_say(spark, feed, tmp_path):
    """Files that are read whole, and generated rows: no look, and no note."""
    feed.add([("a", 1)])
    init_partitions(tmp_path / "db", 1)
    query = start(feed.frame(spark).transform(totals_step()), RecoveryConfig(tmp_path / "db"), sink=DiscardSink(),
                  name="test", trigger="available-now")  # fmt: skip
    query.await_termination()
    assert query.summary.lag is None
    assert last_input_lag(tmp_path / "db") is None


def test_a_source_that_does_not_answer_delays_no_end(spark, tmp_path, monkeypatch):
    """The run ends although a look is under way, which the thread ends by itself."""
    looking, let_go = threading.Event(), threading.Event()
    look = LagLooks._look

    def stuck(self):
        looking.set()
        let_go.wait(120)
        return look(self)

    monkeypatch.setattr(LagLooks, "_look", stuck)
    monkeypatch.setattr("recovery.spark.run.parts.lagging.END_S", 0.2)
    (tmp_path / "a.log").write_text("one\n")
    frame = spark.readStream.format("appended").load(str(tmp_path / "a.log")).selectExpr("file AS key", BY_LINE)
    try:
        init_partitions(tmp_path / "db", 1)
        query = start(frame.transform(totals_step()), RecoveryConfig(tmp_path / "db"), sink=DiscardSink(), name="test",
                      trigger="available-now")  # fmt: skip
        began_s = time.monotonic()
        query.await_termination()
        assert looking.is_set()
        assert query.summary.epochs == 1
        assert time.monotonic() - began_s < 100
    finally:
        let_go.set()
    wait_until(lambda: "input-lag" not in {each.name for each in threading.enumerate()}, 60)
