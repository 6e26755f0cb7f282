"""When an epoch may be closed, and as of which micro-batch."""

from __future__ import annotations

import threading

import pytest

from recovery import (
    CorruptPartitionError,
    DiscardSink,
    Node,
    Pipeline,
    RecoveryConfig,
    StateManager,
    run_pipeline,
    start,
)
from recovery.base.clock import SystemClock
from recovery.operational.backends.owned import documents_of
from recovery.operational.backends.retry import RetryPolicy
from recovery.sinks.delivery import Delivery
from recovery.spark.pipelines.incremental import FlowLoads
from recovery.spark.run.parts import checking
from recovery.storage.scan import scan
from recovery.storage.store import Store
from tests.faults.minirun import STEP, MiniRun, run, totals
from tests.faults.minirun import states as numbers
from tests.spark.support import run_to_end, states, totals_step
from tests.stores import alter, paths_of, query

pytestmark = pytest.mark.any_spark

INPUT = 7


def newest(directory) -> list[int]:
    """The newest epoch of each partition."""
    return [file.description.newest.epoch for file in scan(directory)]


def damage(directory, text: str = "666") -> str:
    """Change one state of the last partition behind the package's back, and nothing that is read at the start; returns
    its key."""
    path = paths_of(directory)[-1]
    [(key,)] = query(path, "SELECT min(state_key) FROM snaps WHERE step_id = ?", (STEP,))
    alter(path, "UPDATE snaps SET ser_change = ? WHERE step_id = ? AND state_key = ?", (text, STEP, key))
    return key


def test_a_mark_that_is_set_while_the_output_is_prepared(store_dir, monkeypatch):
    """The load moved it further: what counts afterwards is the mark of its epoch."""
    prepare, state = Delivery.prepare, StateManager(store_dir)

    def meddle(self, *arguments):
        state.set_hwm("orders", 7)
        return prepare(self, *arguments)

    monkeypatch.setattr(Delivery, "prepare", meddle)
    loads = FlowLoads(documents_of(Store(store_dir), SystemClock(), RetryPolicy()), SystemClock())
    execution = MiniRun(store_dir, INPUT, snapshot_interval="1h", contributors=[loads])
    try:
        execution.batch()
        loads._moved[0] = {"orders": 10}
        with execution.closer.lock:
            assert execution.closer.close(lambda: True)
    finally:
        execution.release()
    assert state.get_hwm("orders") == 10


def test_no_epoch_is_closed_on_a_damaged_partition(store_dir):
    """Damage that planning cannot see ends the run with the first epoch, which is closed nowhere."""
    run(store_dir, INPUT, 5)
    before = newest(store_dir)
    key = damage(store_dir)
    with pytest.raises(CorruptPartitionError, match=key) as raised:
        run(store_dir, INPUT, 8)
    assert raised.value.path == str(paths_of(store_dir)[-1])
    assert newest(store_dir) == before == [5, 5]


def test_the_first_epoch_waits_for_the_check(store_dir, monkeypatch):
    """Micro-batches go on beside the check; nothing is written to the partitions before it has passed."""
    run(store_dir, INPUT, 2)
    before = newest(store_dir)
    go_on = threading.Event()
    check = checking.PartitionCheck.run
    monkeypatch.setattr(checking.PartitionCheck, "run", lambda self: go_on.wait(60) and check(self))
    execution = MiniRun(store_dir, INPUT, snapshot_interval="1h")
    try:
        execution.batch()
        execution.batch()
        with execution.closer.lock:
            assert execution.closer.end_epoch(lambda: True)
        execution.batch()
        with pytest.raises(TimeoutError):
            execution.closer._writing.result(0.3)
        assert execution.closed == []
        assert newest(store_dir) == before
    finally:
        go_on.set()
        execution.finish()
    assert execution.closed == [3, 4]
    assert numbers(store_dir) == totals(INPUT, 5)


def test_a_run_on_spark_waits_for_the_check(spark, feed, tmp_path):
    """The same of a query: its error is that of the check, and the epochs are those of the run before."""
    directory = tmp_path / "db"
    feed.add_random(1)
    run_to_end(feed.frame(spark).transform(totals_step()), directory)
    before, held = newest(directory), states(directory, STEP)
    key = damage(directory, "[666,666]")
    feed.add([("another key", 1)])
    with pytest.raises(CorruptPartitionError, match=key):
        run_to_end(feed.frame(spark).transform(totals_step()), directory)
    assert newest(directory) == before
    assert states(directory, STEP) == {**held, key: [666, 666]}


def test_damage_ends_a_run_as_soon_as_it_is_found(spark, feed, tmp_path):
    """Not when the next epoch is due, and no micro-batch has to come for it."""
    directory = tmp_path / "db"
    feed.add_random(1)
    run_to_end(feed.frame(spark).transform(totals_step()), directory)
    before, key = newest(directory), damage(directory, "[666,666]")
    config = RecoveryConfig(directory, snapshot_interval="1h")
    query = start(feed.frame(spark).transform(totals_step()), config, sink=DiscardSink(), name="test")
    with pytest.raises(CorruptPartitionError, match=key):
        assert query.await_termination(60)
    assert newest(directory) == before


@pytest.fixture
def checked(monkeypatch) -> list[str]:
    """What happened, in order: "check" for each partition that is read. Every store counts as large."""
    happened: list[str] = []
    check = checking.PartitionCheck.run
    monkeypatch.setattr(checking.PartitionCheck, "run", lambda self: (happened.append("check"), check(self))[1])
    monkeypatch.setattr(checking, "AT_ONCE_BYTES", -1)
    monkeypatch.setattr(checking, "PATIENCE_S", 600)
    return happened


def until_done(check: checking.BackgroundCheck, checked: list[str]) -> None:
    """Wait until both partitions were checked, without asking for it."""
    for future in check._futures:
        future.result(60)
    assert checked == ["check"] * 2
    check.end()


class TestWhenTheCheckBegins:
    """It reads everything, and the first output does not wait for that."""

    def test_after_the_first_micro_batch(self, spark, feed, tmp_path, checked):
        """Not before its output, however long that takes."""
        feed.add_random(2)

        def sink(batch, _):
            batch.collect()
            checked.append("output")

        run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", sink, partitions=2)
        assert checked == ["output", "check", "check"]

    def test_a_deferred_check_begins_in_time(self, store_dir, checked, monkeypatch):
        """Also when no micro-batch comes."""
        monkeypatch.setattr(checking, "PATIENCE_S", 0.05)
        check = checking.BackgroundCheck([checking.PartitionCheck(path) for path in paths_of(store_dir)])
        until_done(check, checked)

    def test_immediately_in_a_small_store(self, store_dir, checked, monkeypatch):
        """Nobody would notice it."""
        monkeypatch.setattr(checking, "AT_ONCE_BYTES", 16 << 20)
        check = checking.BackgroundCheck([checking.PartitionCheck(path) for path in paths_of(store_dir)])
        until_done(check, checked)

    def test_when_somebody_waits_for_it(self, store_dir, checked):
        """A pipeline has no micro-batches."""
        check = checking.BackgroundCheck([checking.PartitionCheck(path) for path in paths_of(store_dir)])
        check.may_close()
        assert checked == ["check"] * 2
        check.end()

    def test_not_when_the_run_has_ended_before(self, store_dir, monkeypatch, checked):
        """The end does not wait for it, nor for the time that it is put off."""
        opened = []
        monkeypatch.setattr("recovery.storage.verify.snapshot", opened.append)
        check = checking.BackgroundCheck([checking.PartitionCheck(path) for path in paths_of(store_dir)])
        check.end()
        assert opened == []


def test_a_pipeline_checks_before_any_node_runs(spark, store_dir):
    """Its nodes write elsewhere, so the check is not one that goes on beside them."""
    run(store_dir, INPUT, 3)
    before = newest(store_dir)
    key = damage(store_dir)
    asked = []
    node = Node("load", read=asked.append, write=asked.append)
    with pytest.raises(CorruptPartitionError, match=key):
        run_pipeline(Pipeline("flow", [node]), RecoveryConfig(store_dir), spark=spark)
    assert asked == []
    assert newest(store_dir) == before


def test_a_micro_batch_that_spark_did_not_log_is_left_to_the_next_run(store_dir):
    """The query died after our part of it and before Spark's: the epoch is that of the micro-batch before."""
    execution = MiniRun(store_dir, INPUT, snapshot_interval="1h")
    try:
        for _ in range(3):
            execution.batch()
        (execution.checkpoint / "commits" / "2").unlink()
        with execution.closer.lock:
            assert execution.closer.close(lambda: False)
            assert not execution.closer.close(lambda: False), "there is nothing more to close"
        assert (execution.closer.finished, execution.closer.closed_batch) == (2, 1)
    finally:
        execution.release()
    assert {file.description.newest.batch_id for file in scan(store_dir)} == {1}
    assert numbers(store_dir) == totals(INPUT, 2)
    run(store_dir, INPUT, 6)
    assert numbers(store_dir) == totals(INPUT, 6)


def test_nothing_is_closed_when_spark_logged_nothing(store_dir):
    """The only micro-batch was not logged as done: there is no epoch of none."""
    execution = MiniRun(store_dir, INPUT, snapshot_interval="1h")
    try:
        execution.batch()
        (execution.checkpoint / "commits" / "0").unlink()
        with execution.closer.lock:
            assert not execution.closer.close(lambda: False)
    finally:
        execution.release()
    assert [file.description.newest for file in scan(store_dir)] == [None, None]
    run(store_dir, INPUT, 2)
    assert numbers(store_dir) == totals(INPUT, 2)
