"""Runs of a fork: without output, and to the same input that the origin had read."""

from __future__ import annotations

import json
import threading

import pytest

from recovery import (
    ConfigurationError,
    EpochNotHeldError,
    Node,
    Pipeline,
    RecoveryConfig,
    UnsupportedPlanError,
    fork,
    repartition,
    run_pipeline,
)
from recovery.base.clock import SystemClock
from recovery.spark.run import stream
from recovery.spark.run.parts.part import RunParts
from recovery.spark.run.prepare import Prepared
from recovery.spark.run.reporting.events import BatchDone
from recovery.storage.snapshot import snapshot_at
from tests.backup.support import work
from tests.spark.support import run_to_end, states, totals_step

pytestmark = pytest.mark.any_spark

CLOCK = SystemClock()


def at(directory, epoch=None):
    """The states of the step at an epoch."""
    return {state.key: json.loads(state.value) for state in snapshot_at(directory, epoch).states("totals")}


def never(*_):
    """A sink that must not be called."""
    raise AssertionError("the run has output")


def test_until_stops_at_the_origins_position(spark, feed, tmp_path):
    """A file source and an appended file: a micro-batch to the end of an epoch, another one to the end of the next."""
    lines = tmp_path / "lines.csv"
    lines.write_text("".join(f"a{n % 7},{n}\n" for n in range(60)))
    for seed in range(4):
        feed.add_random(seed, count=30)
    appended = spark.readStream.format("appended").schema("value string").option("maxBytesPerTrigger", 80)
    fields = "split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value"
    frame = feed.frame(spark).union(appended.load(str(lines)).selectExpr(*fields)).transform(totals_step())
    db, new = tmp_path / "db", tmp_path / "new"
    run_to_end(frame, db, backup_interval="1h")
    feed.add_random(9)
    with lines.open("a") as file:
        file.write("late,1\n" * 20)
    made = fork(db, new, 1)
    assert made.origin.epoch == 1
    for until, batches, epoch in ((3, 1, 3), ("batch:2", 0, 3), (4, 1, 4), (4, 0, 4)):
        summary = run_to_end(frame, new, sink=never, no_output=True, until=until)
        assert (summary.batches, states(new, "totals")) == (batches, at(db, epoch)), until
    with pytest.raises(ConfigurationError, match="has read other input than the origin had read at epoch 3"):
        run_to_end(frame, new, until=3)
    with pytest.raises(EpochNotHeldError, match="not batch:77"):
        run_to_end(frame, new, until="batch:77")
    run_to_end(frame, new, no_output=True)
    run_to_end(frame, db, backup_interval="1h")
    assert states(new, "totals") == states(db, "totals")
    beginning = tmp_path / "beginning"
    fork(db, beginning, 0)
    repartition(db, None, 5)
    run_to_end(frame, beginning, until=2)
    assert states(beginning, "totals") == at(db, 2)


@pytest.mark.long
def test_a_run_that_reaches_it_while_it_starts_ends_whole(spark, feed, tmp_path, monkeypatch):
    """The only micro-batch is done before the start returns: the end waits for the start, and ships the last epoch."""
    for seed in range(2):
        feed.add_random(seed, count=30)
    frame = feed.frame(spark).transform(totals_step())
    db, new = tmp_path / "db", tmp_path / "new"
    run_to_end(frame, db, backup_interval="1h")
    fork(db, new, 1)
    done, ended, announce, end = threading.Event(), threading.Event(), stream.announce, RunParts.end

    def slowly(*arguments):
        announce(*arguments)
        assert done.wait(60)
        # Without waiting for the start, the run would end now.
        ended.wait(3)

    def noted(*arguments, **named):
        result = end(*arguments, **named)
        ended.set()
        return result

    monkeypatch.setattr(stream, "announce", slowly)
    monkeypatch.setattr(RunParts, "end", noted)
    place = str(tmp_path / "place")
    summary = run_to_end(
        frame, new, no_output=True, until=2, replicate=place, observer=lambda e: isinstance(e, BatchDone) and done.set()
    )
    assert (summary.replica["epoch"], summary.replica["lag_epochs"]) == (2, 0)
    assert states(new, "totals") == at(db, 2)


def test_native_state_depends_on_micro_batches(spark, feed, tmp_path):
    """So it is refused, before anything is written."""
    feed.add([("a", 1)])
    frame = feed.frame(spark).groupBy("key").count()
    run_to_end(frame, tmp_path / "db", output_mode="update")
    fork(tmp_path / "db", tmp_path / "new", 0)
    with pytest.raises(UnsupportedPlanError, match="Spark's own stateful operators"):
        run_to_end(frame, tmp_path / "new", output_mode="update", until=1)


def prepared(directory, **config):
    """What a start finds out before Spark starts."""
    Prepared(RecoveryConfig(directory, **config), "flow", CLOCK).parts.end()


def test_only_a_fork_runs_without_output(make_store, tmp_path):
    """Elsewhere output would be missing for good."""
    store = make_store(2)
    work(store, 3)
    with pytest.raises(ConfigurationError, match="is not a fork"):
        prepared(store, no_output=True)
    with pytest.raises(ConfigurationError, match="no origin"):
        prepared(store, until=2)
    fork(store, tmp_path / "new", 1)
    prepared(tmp_path / "new", no_output=True, until=3)
    fork(tmp_path / "new", tmp_path / "newer")
    prepared(tmp_path / "newer", no_output=True, until=1)


@pytest.mark.parametrize("config", [{"no_output": True}, {"until": 2}])
def test_pipelines_have_neither(store_dir, config):
    """Their nodes write by themselves, so nothing would be dropped."""
    with pytest.raises(ConfigurationError, match="are for flows"):
        run_pipeline(Pipeline("p", [Node("n", never, never)]), RecoveryConfig(store_dir, **config))


def test_a_missing_origin(make_store, tmp_path):
    """Moved, or made again."""
    store = make_store(2)
    work(store, 3, floor=2)
    fork(store, tmp_path / "a")
    fork(tmp_path / "a", tmp_path / "new")
    for until in (9, "batch:7"):
        with pytest.raises(EpochNotHeldError, match="the origin holds epochs 2 to 3"):
            prepared(tmp_path / "new", until=until)
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(Exception, match="there is no such directory"):
        prepared(tmp_path / "new", until=3)
    fork(store, tmp_path / "a")
    with pytest.raises(ConfigurationError, match="holds store"):
        prepared(tmp_path / "new", until=3)


def test_repartitioned_stores(make_store, tmp_path):
    """In place, the origin or the fork: both are what they were, and so are their epochs."""
    store, new = make_store(2), tmp_path / "new"
    work(store, 3)
    fork(store, new, 1)
    for place, count in ((store, 3), (new, 4), (store, 1)):
        repartition(place, None, count)
        prepared(new, no_output=True, until=3)
        with pytest.raises(EpochNotHeldError, match="and not 9"):
            prepared(new, until=9)


@pytest.mark.parametrize("until", ["", "x", "epoch:3", "batch:", "batch:x", True, -1, "3:batch", 1.5])
def test_what_names_no_place(until):
    """Refused where it is given."""
    with pytest.raises(ConfigurationError, match="neither an epoch nor a micro-batch"):
        RecoveryConfig("db", until=until)
