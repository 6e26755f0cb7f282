"""`spark.read.format("recovery")`, and flows that go on after their state was edited."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException

from recovery import fork, register
from recovery.base.clock import SystemClock
from recovery.operational.targets import REMOVED, StepTarget
from recovery.spark.jvm.versions import REPLACES_FORMATS
from recovery.storage.store import Store
from tests.backup.support import back_up
from tests.shares import first
from tests.spark.support import run_to_end, states, totals_step


def test_any_held_epoch_and_what_changed(spark, feed, tmp_path):
    """The states at each epoch are those of the input up to it; the changes are the differences; found by its name."""
    directory = tmp_path / "db"
    truth = [{}]
    for seed in range(3):
        feed.add_random(seed, count=50, keys=20)
        truth.append(feed.totals())
        run_to_end(feed.frame(spark).transform(totals_step()), directory, backup_interval="1h")
    reader = spark.read.format("recovery").option("step", "totals")
    for epoch in range(4):
        found = {row.key: json.loads(row.state) for row in reader.option("epoch", epoch).load(str(directory)).collect()}
        assert found == truth[epoch]
    newest = spark.read.format("recovery").option("path", str(directory)).option("step", "totals").load()
    assert newest.count() == len(truth[3])
    assert newest.schema.simpleString() == "struct<key:string,state:string,epoch:bigint,timeout:timestamp>"
    changed = reader.option("epoch", 3).option("sinceEpoch", 1).load(str(directory)).collect()
    expected = {k: (truth[1].get(k), value) for k, value in truth[3].items() if truth[1].get(k) != value}
    assert {r.key: (json.loads(r.before or "null"), json.loads(r.after)) for r in changed} == expected
    assert {r.change for r in changed} == {"added", "changed"}


@pytest.mark.long
def test_what_differs_in_another_directory(spark, feed, tmp_path):
    """Between a store and its fork, and between directories with other numbers of partitions."""
    directory, forked, other = tmp_path / "db", tmp_path / "fork", tmp_path / "other"
    feed.add([("a", 1), ("b", 2)])
    frame = feed.frame(spark).transform(totals_step())
    run_to_end(frame, directory, backup_interval="1h")
    fork(directory, forked)
    feed.add([("b", 1), ("c", 2)])
    run_to_end(frame, directory)
    run_to_end(frame, other, partitions=2)

    def found(**options):
        reader = spark.read.format("recovery").options(step="totals", **{k: str(v) for k, v in options.items()})
        rows = reader.load(str(directory)).collect()
        return {row.key: (row.change, json.loads(row.before), row.after and json.loads(row.after)) for row in rows}

    assert found(other=forked) == {"b": ("changed", [2, 3], [1, 2]), "c": ("removed", [1, 2], None)}
    assert found(other=forked, epoch=1) == {}
    assert found(other=other) == {}
    assert found(other=other, otherEpoch=1) == found(other=forked)
    with pytest.raises(PySparkException, match="needs path and step, and no sinceEpoch"):
        found(other=forked, sinceEpoch=1)


@pytest.mark.long
@pytest.mark.skipif(not REPLACES_FORMATS, reason="no session of this Spark can register the format")
def test_a_place_of_backups(spark, feed, tmp_path):
    """Like the directory that was backed up: each epoch of its chain, what changed, and what differs from it; a later
    backup is seen."""
    directory, place = tmp_path / "db", tmp_path / "backups"
    frame = feed.frame(spark).transform(totals_step())
    truth = [{}]
    for seed in range(3):
        feed.add_random(seed, count=50, keys=20)
        truth.append(feed.totals())
        run_to_end(frame, directory, backup_interval="1h")
        if seed != 1:
            back_up(directory, place, incremental=True)
    register(spark)
    reader = spark.read.format("recovery").option("step", "totals")

    def found(frame):
        return {row.key: json.loads(row.state) for row in frame.collect()}

    newest = reader.load(str(place))
    assert found(newest) == truth[3]
    for epoch in range(4):
        assert found(reader.option("epoch", epoch).load(str(place))) == truth[epoch]
    assert reader.option("epoch", 3).option("sinceEpoch", 1).load(str(place)).count() > 0
    reader = spark.read.format("recovery").option("step", "totals")
    assert reader.option("other", str(place)).load(str(directory)).count() == 0
    feed.add([("new", 1)])
    run_to_end(frame, directory, backup_interval="1h")
    back_up(directory, place, incremental=True)
    assert found(spark.read.format("recovery").option("step", "totals").load(str(place))) == feed.totals()
    assert found(newest) == truth[3]
    (tmp_path / "empty" / "manifests").mkdir(parents=True)
    with pytest.raises(PySparkException, match="it holds no finished backup"):
        spark.read.format("recovery").option("step", "totals").load(str(tmp_path / "empty")).collect()


@first(
    ("options", "error"),
    [({}, "needs the options"), ({"operator": "0"}, "No operator of Spark's own has state there"),
     ({"step": "totals", "epoch": "9"}, "epoch 9 is not held"),
     ({"step": "totals", "epoch": "x"}, "is no epoch")],
)  # fmt: skip
def test_what_cannot_be_read(spark, feed, tmp_path, options, error):
    """It says what is missing."""
    if REPLACES_FORMATS:
        register(spark)
    elif "operator" in options:
        error = "does not know the session"
    feed.add([("a", 1)])
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db")
    with pytest.raises(PySparkException, match=error):
        spark.read.format("recovery").options(**options).load(str(tmp_path / "db")).collect()


def test_a_flow_continues_from_edited_state(spark, feed, tmp_path):
    """An edit is an epoch: the next run has it, reads its input on, and going back before it undoes it."""
    directory = tmp_path / "db"
    frame = feed.frame(spark).transform(totals_step())
    feed.add([("a", 1), ("b", 2), ("c", 3)])
    run_to_end(frame, directory, backup_interval="1h")
    StepTarget(Store(directory), "totals", SystemClock()).write(
        "set", {("totals", "a"): [10, 100], ("totals", "c"): REMOVED}, {}
    )
    feed.add([("a", 1), ("c", 1)])
    summary = run_to_end(frame, directory, backup_interval="1h")
    assert (summary.resume_epoch, summary.rows) == (3, 2)
    assert states(directory, "totals") == {"a": [11, 101], "b": [1, 2], "c": [1, 1]}
    run_to_end(frame, directory, resume_epoch=2, backup_interval="1h")
    assert states(directory, "totals") == feed.totals()
