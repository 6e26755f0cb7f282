"""KafkaSink with compensate=True on a real broker: after going back, each key has the value that it had then."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from recovery.errors import (
    ConfigurationError,
    FlowFailedError,
    LeaseLostError,
    OutputMismatchError,
    SinkRefusedError,
    StaleDirectoryError,
)
from recovery.sinks.kafka.sink import KafkaSink
from tests.faults.minirun import CLOSE_POINTS, START_POINTS
from tests.kafka import needs_jars
from tests.shares import some
from tests.sinks.support import Store
from tests.sinks.topics import Run, TopicTarget, World, record
from tests.stores import content

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed (the test extra)")
pytestmark = needs_jars
KILLS = int(os.environ.get("RECOVERY_TEST_KAFKA_KILLS", "50"))
BACK = ["kafka.5.claimed", "kafka.5.back.sent", "kafka.5.back.part", "kafka.5.back", "kafka.5.kept", "kafka.5"]
POINTS = [
    "kafka.1", "kafka.2", "kafka.3.kept", "kafka.3.sent", "kafka.3.part", "kafka.3", "kafka.4.list", "kafka.4", *BACK,
]  # fmt: skip


@pytest.fixture
def target(kafka, topic, tmp_path) -> TopicTarget:
    """A compacted topic, with a sink that compensates."""
    return TopicTarget(kafka, tmp_path / "staged", topic(cleanup_policy="compact"), compensate=True)


def kept_file(target: TopicTarget) -> Path:
    """The file with the kept records."""
    [path] = target.path.glob("kafka-*.sqlite3")
    return path


class Flow(World):
    """A World whose topic gives away what it should hold: a prefix of the input, as long as the marker says."""

    def check_latest(self) -> None:
        """Each key has its last value in that prefix, unless a compensation is not complete."""
        marker = self.target.marker()
        if marker["compensating"] is None:
            assert self.target.latest() == dict(self.wanted[: marker["records"]]), marker


# ---- going back


def test_each_key_gets_the_value_that_it_had(target):
    """Keys that did not exist then get a tombstone; others are left alone; every record comes once."""
    store = Store(past=[])
    run = Run(store, target.sink())
    run.epoch(("a", 1), ("b", 1), ("z", 1))
    run.epoch(("a", 2), ("c", 2), ("a", 3))
    run.epoch(("b", 4), ("c", 4), ("d", 4), ("a", 5))
    run = Run(store, target.sink(), resume_epoch=3)
    assert target.latest() == {"a": 3, "b": 1, "c": 2, "z": 1}
    assert target.order() == {"a": [1, 2, 3, 5, 3], "b": [1, 4, 1], "c": [2, 4, 2], "d": [4, None], "z": [1]}
    assert run.said == [
        f"topic {target.topic}: 4 keys, which the epochs after 2 have touched, get the values of epoch 2"
    ]
    run.epoch(("a", 6), ("e", 6))
    Run(store, target.sink(), resume_epoch=2)
    assert target.latest() == {"a": 1, "b": 1, "z": 1}
    Run(store, target.sink(), resume_epoch=1).epoch(("a", 7))
    assert target.latest() == {"a": 7}
    assert target.order()["a"] == [1, 2, 3, 5, 3, 6, 1, None, 7]


def test_tombstones_headers_and_times_of_the_flow(kafka, target):
    """A record that comes back is the one that was there; a key that the flow had removed is removed again."""
    store = Store()
    run = Run(store, target.sink())
    headers = [{"key": "h", "value": b"1"}, {"key": "i", "value": None}]
    run.epoch(record(b"k", b"old", headers=headers, timestamp=1_700_000_000_123), record(b"gone", b"x"))
    run.epoch(record(b"gone", None))
    run.epoch(record(b"k", b"new"), record(b"gone", b"y"))
    Run(store, target.sink(), resume_epoch=3)
    last = {each.key: each for each in kafka.committed(target.topic)}
    assert (last[b"k"].value, last[b"k"].timestamp) == (b"old", 1_700_000_000_123)
    assert list(last[b"k"].headers) == [("h", b"1"), ("i", None)]
    assert last[b"gone"].value is None


def test_a_closed_epoch_that_is_not_produced(target):
    """Going back behind it needs no compensation. Going to it from another copy's epochs takes these back, and produces
    it."""
    target.options["compensate"] = target.path.with_name("records")
    store = Store(past=[])
    run = Run(store, target.sink())
    run.epoch(("a", 1))
    run.write(("a", 2), ("b", 2))
    run.close(publish=False)
    kept = shutil.copytree(target.path, target.path.with_name("kept"))
    other = store.copied()
    run = Run(other, target.sink(), resume_epoch=2)
    assert target.order() == {"a": [1]}
    run.epoch(("a", 3), ("c", 3))
    shutil.rmtree(target.path)
    kept.rename(target.path)
    store.loses = True
    Run(store, target.sink()).epoch(("a", 4))
    assert target.order() == {"a": [1, 3, 1, 2, 4], "b": [2], "c": [3, None]}


@pytest.mark.parametrize("again", some(["", "earlier", "newer copy"], "earlier"))
@pytest.mark.parametrize("point", some(BACK, "kafka.5.back.part"))
def test_killed_while_going_back(target, tmp_path, point, again):
    """And started again, for the same epoch, an earlier one, or with a copy of the newest partitions: no key is left
    behind, and all that is done is not done twice."""
    target.options["records_per_transaction"] = 2
    world = Flow(tmp_path, target)
    for count in (3, 4, 2, 3):
        world.grow(count)
        assert world.run() == 0
    epochs = world.target.marker()["epoch"]
    assert epochs == 4
    shutil.copytree(world.directory, tmp_path / "newest")
    assert world.run(point, resume_after=2) == -signal.SIGKILL
    if point in BACK[3:]:
        assert target.latest() == dict(world.wanted[:7])
    if again == "newer copy":
        # As the newest partitions do not know the killed run, the user has to say that this is meant.
        shutil.rmtree(world.directory)
        (tmp_path / "newest").rename(world.directory)
        assert isinstance(world.run(), StaleDirectoryError)
        found = world.run("kafka.5", lose_epochs=True)
        if point in BACK[3:]:
            assert isinstance(found, OutputMismatchError)
            assert "--resume-after 2" in found.remedy
            return
        assert found == -signal.SIGKILL
        assert target.latest() == dict(world.wanted)
    else:
        options = {"resume_after": 1} if again else {}
        assert world.run("kafka.5", **options) == -signal.SIGKILL
        assert target.latest() == dict(world.wanted[: 3 if again else 7])
        if not again:
            touched = 3 + len(world.wanted)
            assert len(target.kafka.committed(target.topic)) == touched
    assert world.run() == 0
    assert target.latest() == dict(world.wanted)


@pytest.mark.long
def test_killed_at_any_moment_with_rewinds(kafka, target, tmp_path):
    """At points by lot; every third run goes back first. After each kill the keys have the values that the newest
    marker says; the broker is killed now and then."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    lot = random.Random(seed)
    target.options["records_per_transaction"] = lot.choice([1, 3, 1000])
    world = Flow(tmp_path, target)
    world.grow(3)
    assert world.run() == 0
    hit = tried = rewinds = 0
    while hit < KILLS:
        tried += 1
        assert tried <= 20 + 10 * KILLS
        for _ in range(lot.randrange(1, 3)):
            world.grow(lot.randrange(1, 9))
        if lot.random() < 0.05:
            kafka.restart()
        newest, back = target.marker()["epoch"], {}
        point = lot.choice([*POINTS, *CLOSE_POINTS, *START_POINTS])
        if tried % 3 == 0 and newest > 1:
            back = {"resume_after": lot.randrange(newest)}
            rewinds += 1
            point = lot.choice([*BACK, point])
        result = world.run(point, 1 if point.startswith(("start", "kafka.5")) else lot.randrange(1, 4), **back)
        assert result in (0, -signal.SIGKILL), result
        world.check_latest()
        hit += result != 0
    assert world.run() == 0
    assert target.latest() == dict(world.wanted)
    assert target.marker()["records"] == len(world.wanted)
    print(f"{hit} kills of {tried} runs, {rewinds} rewinds, {len(world.wanted)} records")


@pytest.mark.long
def test_values_that_the_broker_has_compacted_away(kafka, topic, tmp_path):
    """The topic itself no longer holds the earlier value of a key: that is why the sink keeps it."""
    compacted = topic(
        1, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.001", max_compaction_lag_ms="500"
    )
    target = TopicTarget(kafka, tmp_path / "staged", compacted, compensate=True)
    store = Store()
    run = Run(store, target.sink())
    for number in range(5):
        run.epoch(("a", number), ("b", number))
    deadline = time.monotonic() + 120
    while 1 in target.order().get("a", []):
        assert time.monotonic() < deadline
        time.sleep(1)
        kafka.send(compacted, [(b"other", b"0")])
    Run(store, target.sink(), resume_epoch=3)
    assert {key: number for key, number in target.latest().items() if key != "other"} == {"a": 1, "b": 1}


# ---- other directories


@pytest.mark.long
def test_a_whole_directory_from_an_earlier_backup(target, tmp_path):
    """Refused and untouched; with --lose-epochs exact."""
    world = Flow(tmp_path, target)
    world.grow(3)
    assert world.run() == 0
    shutil.copytree(world.directory, tmp_path / "backup")
    world.grow(3)
    assert world.run() == 0
    shutil.rmtree(world.directory)
    (tmp_path / "backup").rename(world.directory)
    before = content(world.directory), target.shown(), kept_file(target).read_bytes(), target.marker()
    assert isinstance(world.run(), StaleDirectoryError)
    assert (content(world.directory), target.shown(), kept_file(target).read_bytes(), target.marker()) == before
    assert world.run("kafka.5", lose_epochs=True) == -signal.SIGKILL
    assert target.latest() == dict(world.wanted[:3])
    assert world.run() == 0
    assert target.latest() == dict(world.wanted)


@pytest.mark.long
def test_a_run_that_wakes_up_late_leaves_the_kept_records_alone(target):
    """It shares the directory with its successor; neither its records nor what they would replace are kept."""
    store = Store(past=[])
    late = Run(store, target.sink())
    late.epoch(("a", 1))
    late.write(("a", 2))
    other = store.copied()
    after = Run(other, target.sink(), resume_epoch=1)
    after.epoch(("b", 3))
    with pytest.raises(LeaseLostError):
        late.close()
    after.epoch(("b", 4))
    Run(other, target.sink(), resume_epoch=2)
    assert target.latest() == {"b": 3}


# ---- what is kept is not there


def _removed(path: Path) -> None:
    path.unlink()


def _damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 5000)


def _row_lost(path: Path) -> None:
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.execute("DELETE FROM replaced WHERE epoch = 3")


def _row_changed(path: Path) -> None:
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.execute("UPDATE replaced SET record = substr(record, 1, length(record) - 1) || x'ff'")


@pytest.mark.parametrize("damage", some([_removed, _damaged, _row_lost, _row_changed], _damaged))
def test_kept_records_that_are_gone(target, damage):
    """Going back is refused, and the topic is untouched. The next run goes on, keeps what the topic holds, and from
    then on going back works again, up to that moment."""
    store = Store(past=[])
    run = Run(store, target.sink())
    for number in range(4):
        run.epoch(("a", number), ("b", number))
    run.sink.release()
    damage(kept_file(target))
    before = target.order()
    with pytest.raises(OutputMismatchError) as caught:
        Run(store.copied(), target.sink(), resume_epoch=3)
    if damage is not _removed:
        assert str(kept_file(target)) in caught.value.remedy
        kept_file(target).unlink()
    else:
        assert "which values the keys had then is not kept" in caught.value.found
    assert target.order() == before
    run = Run(store, target.sink())
    assert "reads the last value of each key" in run.said[0]
    run.epoch(("a", 9), ("c", 9))
    with pytest.raises(OutputMismatchError, match="not kept") as caught:
        Run(store.copied(), target.sink(), resume_epoch=3)
    assert "--resume-after 4" in caught.value.remedy
    Run(store, target.sink(), resume_epoch=5)
    assert target.latest() == {"a": 3, "b": 3}


@pytest.mark.long
def test_lost_epochs_without_kept_records(target):
    """With --lose-epochs the records stay, as without compensate; what is kept begins again."""
    store = Store(past=[])
    run = Run(store, target.sink())
    for number in range(3):
        run.epoch(("a", number))
    kept_file(target).unlink()
    store.accepts = store.loses = True
    run = Run(store, target.sink(), resume_epoch=2)
    assert target.order() == {"a": [0, 1, 2]}
    run.epoch(("a", 7))
    store.accepts = store.loses = False
    Run(store, target.sink(), resume_epoch=2)
    # The topic's value when keeping began again.
    assert target.order() == {"a": [0, 1, 2, 7, 2]}


@pytest.mark.long
@pytest.mark.parametrize("half", [False, True])
def test_compensate_that_is_switched_on_and_off(target, half):
    """What a sink without it produces, or leaves in the topic, is not taken for what was kept."""
    store = Store(past=[])
    plain = {"compensate": False}
    Run(store, target.sink(**plain)).epoch(("a", 1), ("b", 1))
    run = Run(store, target.sink())
    run.epoch(("a", 2))
    run.epoch(("a", 3), ("b", 3))
    if half:
        sink = target.sink(records_per_transaction=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("recovery.sinks.kafka.production.faults.reach", _die_at("kafka.5.back.part"))
            with pytest.raises(KeyboardInterrupt):
                Run(store, sink, resume_epoch=2)
        with pytest.raises(OutputMismatchError, match=r"a run with compensate=True has begun"):
            Run(store, target.sink(**plain))
        store.accepts = store.loses = True
    Run(store, target.sink(**plain)).epoch(("a", 4))
    store.accepts = store.loses = False
    closed = list(store.closed)
    with pytest.raises(OutputMismatchError, match="which values the keys had then is not kept"):
        Run(store, target.sink(), resume_epoch=len(store.closed))
    store.closed[:] = closed
    run = Run(store, target.sink())
    run.epoch(("a", 5))
    Run(store, target.sink(), resume_epoch=len(store.closed))
    assert target.latest()["a"] == 4


def _die_at(point: str) -> Any:
    def reach(reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    return reach


def test_only_what_a_run_can_go_back_to_is_kept(target):
    """Below the floor no run resumes: the refusal names the nearest epoch."""
    store = Store(past=[])
    run = Run(store, target.sink())
    for number in range(5):
        store.floor = max(number - 1, 0)
        run.epoch(("a", number))
    with pytest.raises(OutputMismatchError) as caught:
        Run(store.copied(), target.sink(), resume_epoch=2)
    assert "older than what a run can go back to" in caught.value.cause
    Run(store, target.sink(), resume_epoch=4)
    assert target.latest() == {"a": 2}


def test_epochs_without_records_below_the_floor(target):
    """After edits of states, the epoch before them is the one whose values a run goes back to."""
    store = Store(past=[])
    Run(store, target.sink()).epoch(("a", 1))
    store.edit()
    store.edit()
    run = Run(store, target.sink())
    store.floor = 3
    run.epoch(("a", 2))
    run.epoch(("a", 3))
    Run(store, target.sink(), resume_epoch=4)
    assert target.latest() == {"a": 1}


# ---- bad input


def test_what_cannot_be_compensated_is_refused(kafka, topic, tmp_path, target):
    """Before anything is produced, each with what to do."""
    with pytest.raises(SinkRefusedError, match=r"has cleanup.policy=delete") as refused:
        Run(Store(), TopicTarget(kafka, tmp_path / "staged", topic(), compensate=True).sink())
    assert "cleanup.policy=compact" in refused.value.remedy
    run = Run(Store(), target.sink())
    for row, words in (
        (record(b"k", b"v", partition=0), "compensate=True needs all records of a key in one partition"),
        (record(None, b"v"), "without a key, and the topic is compacted"),
    ):
        with pytest.raises(FlowFailedError, match=words):
            run.write(row)
    assert target.order() == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "p"}, "partition=… with compensate"),
        ({"staging": "file:///tmp/x"}, "is no path of this machine"),
        ({"staging": "file:///tmp/x", "compensate": "file:///tmp/y"}, "is no path of this machine"),
        ({"compensate": ""}, "KafkaSink"),
        ({"compensate": 3}, "compensate=3"),
    ],
)
def test_arguments(tmp_path, options, words):
    """What cannot be right is refused where the sink is made."""
    with pytest.raises(ConfigurationError) as caught:
        KafkaSink("t", **{"servers": "127.0.0.1:9", "staging": tmp_path, "compensate": True, **options})
    assert words in caught.value.found
    assert caught.value.remedy


@pytest.mark.long
def test_a_directory_of_its_own(target, tmp_path):
    """Where tasks stage at an address, the kept records are in a directory of the driver's host."""
    sink = target.sink(staging=f"file://{target.path}", compensate=tmp_path / "a" / "kept")
    store = Store()
    Run(store, sink).epoch(("a", 1))
    assert len(list((tmp_path / "a" / "kept").iterdir())) == 1
    assert list(target.path.glob("*.sqlite3")) == []
    Run(store, sink, resume_epoch=1)
    assert target.latest() == {}
