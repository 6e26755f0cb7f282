"""KafkaSink on a real broker, without Spark: what a reader of committed records sees, whatever happens to the runs."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recovery.base.ids import Epoch, ExecutionNumber, Lease
from recovery.errors import (
    ConfigurationError,
    FlowFailedError,
    LeaseLostError,
    OutputMismatchError,
    RecoveryError,
    SinkFailedError,
    SinkRefusedError,
    StaleDirectoryError,
)
from recovery.planning.timeline import TimelinePart
from recovery.sinks.kafka.marker import (
    KafkaNote,
    KafkaTarget,
    Marker,
    Producing,
    ShownEpochs,
    encode_marker,
    plan_producing,
)
from recovery.sinks.kafka.reasons import AWAY, BROKER_REFUSALS
from recovery.sinks.kafka.sink import KafkaSink
from recovery.sinks.protocol import Resume
from tests.faults.minirun import CLOSE_POINTS, START_POINTS
from tests.kafka import Kafka, broker, needs_jars
from tests.shares import some
from tests.sinks.support import Store
from tests.sinks.topics import Run, TopicTarget, World, record, write_records
from tests.stores import content
from tests.waiting import wait_until

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed (the test extra)")
pytestmark = needs_jars
KILLS = int(os.environ.get("RECOVERY_TEST_KAFKA_KILLS", "50"))
POINTS = [
    "kafka.1", "kafka.2.rows", "kafka.2", "kafka.3.sent", "kafka.3.part", "kafka.3", "kafka.4.list", "kafka.4",
    "kafka.5.claimed", "kafka.5",
]  # fmt: skip


# ---- kills


@pytest.mark.parametrize("point", some(POINTS, "kafka.3.part"))
def test_killed_at_each_step(target, tmp_path, point):
    """And again while the next run begins: each record comes once, in the order of its key."""
    target.options["records_per_transaction"] = 2
    world = World(tmp_path, target)
    world.grow(3)
    assert world.run() == 0
    world.grow(7)
    assert world.run(point) == -signal.SIGKILL
    if point.startswith("kafka.3"):
        assert world.run("kafka.5.claimed") == -signal.SIGKILL
    assert world.run() == 0
    world.check()
    assert [each.name for each in target.path.glob("*/epoch-*")] == []


@pytest.mark.long
def test_killed_at_any_moment(kafka, topic, tmp_path):
    """KILLS kills at points by lot, with an epoch of several transactions; the broker is killed now and then."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    lot = random.Random(seed)
    target = TopicTarget(kafka, tmp_path / "staged", topic(), records_per_transaction=lot.choice([1, 3, 1000]))
    world = World(tmp_path, target)
    hit = tried = 0
    while hit < KILLS:
        tried += 1
        assert tried <= 20 + 10 * KILLS
        for _ in range(lot.randrange(1, 3)):
            world.grow(lot.randrange(1, 9))
        if lot.random() < 0.05:
            kafka.restart()
        point = lot.choice([*POINTS, *CLOSE_POINTS, *START_POINTS])
        result = world.run(point, 1 if point.startswith(("start", "kafka.5")) else lot.randrange(1, 4))
        assert result in (0, -signal.SIGKILL), result
        hit += result != 0
    assert world.run() == 0
    world.check()
    print(f"{hit} kills of {tried} runs, {len(world.wanted)} records")


# ---- the broker


@pytest.mark.long
def test_a_broker_that_is_killed_goes_unnoticed(kafka, target):
    """Between epochs, and while records are on their way."""
    store = Store()
    run = Run(store, target.sink())
    run.epoch(("a", 1))
    kafka.restart()
    run.epoch(("a", 2))
    send = run.sink._production._transactions.send
    run.sink._production._transactions.send = lambda *given: (send(*given), kafka.restart())
    run.epoch(("a", 3), ("b", 4))
    assert target.order() == {"a": [1, 2, 3], "b": [4]}


@pytest.mark.long
def test_a_transaction_that_takes_too_long(target):
    """The broker ends it, the run ends and says so, and the next one produces the epoch once."""
    store = Store()
    run = Run(store, target.sink(options={"transaction.timeout.ms": 1000}))
    run.epoch(("a", 1))
    run.write(("a", 2))
    send = run.sink._production._transactions.send

    def slow(*given: Any) -> None:
        send(*given)
        run.sink._production._transactions._producer.flush(10)
        # The broker looks for old transactions every 10 s.
        time.sleep(15)

    run.sink._production._transactions.send = slow
    with pytest.raises(SinkFailedError, match="the broker has ended the transaction"):
        run.close()
    assert target.order() == {"a": [1]}
    Run(store, target.sink()).epoch(("a", 3))
    assert target.order() == {"a": [1, 2, 3]}


@pytest.mark.parametrize("same_staging", some([True, False], False))
def test_a_run_that_wakes_up_late_is_fenced(target, tmp_path, same_staging):
    """A copy of its directory has run: none of its records is committed, and the error names the owner."""
    store = Store(past=[])
    late = Run(store, target.sink())
    late.epoch(("a", 1))
    late.write(("a", 2))
    after = Run(store.copied(), target.sink(staging=target.path if same_staging else tmp_path / "other"))
    after.epoch(("a", 3))
    with pytest.raises(LeaseLostError, match=f"belongs to execution 2 .{after.resume.execution.id}. on ") as caught:
        late.close()
    assert caught.value.exit_code == 41
    assert target.order() == {"a": [1, 3]}
    after.epoch(("b", 4))
    assert target.order() == {"a": [1, 3], "b": [4]}


# ---- parts


def test_an_epoch_of_several_transactions(kafka, target):
    """Each of them has as many records as it may, and its own marker; the rest comes when the run goes on."""
    store = Store()
    sink = target.sink(records_per_transaction=3)
    run = Run(store, sink)
    run.write(*[("a", number) for number in range(5)])
    run.write(*[("a", number) for number in range(5, 8)])
    commit = sink._production._transactions.commit
    commits: list[Any] = []

    def some_commits(*given: Any) -> None:
        if len(commits) == 2:
            raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TRANSPORT))
        commit(*given)
        commits.append(given)

    sink._production._transactions.commit = some_commits
    with pytest.raises(SinkFailedError, match="producing the records 5 to 8 of epoch 1"):
        run.close()
    assert target.order() == {"a": [0, 1, 2, 3, 4]}
    Run(store, target.sink(records_per_transaction=100)).epoch(("a", 8))
    assert target.order() == {"a": list(range(9))}


def test_records_keep_their_parts(kafka, target):
    """Key, value, headers, partition and time; no key, and no value."""
    run = Run(Store(), target.sink())
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    run.epoch(
        record(b"k", b"v", headers=headers, partition=1, timestamp=1_700_000_000_123), record(None, b"\xff\x00"),
        record(b"gone", None), record(b"", b""),
    )  # fmt: skip
    found = {each.key: each for each in kafka.committed(target.topic)}
    assert (found[b"k"].value, found[b"k"].partition, found[b"k"].timestamp) == (b"v", 1, 1_700_000_000_123)
    assert list(found[b"k"].headers) == [("h", b"1"), ("h", None)]
    assert found[None].value == b"\xff\x00"
    assert found[b"gone"].value is None
    assert found[b""].value == b""
    assert len(found) == 4


@pytest.mark.long
def test_an_epoch_without_records(target):
    """It has a marker as well, so the next one follows it."""
    store = Store()
    run = Run(store, target.sink())
    run.write()
    run.close()
    run.close()
    run.epoch(("a", 1))
    Run(store, target.sink()).epoch(("a", 2))
    assert target.order() == {"a": [1, 2]}


# ---- other sinks on the control topic


def other_sink(kafka: Kafka, target: TopicTarget) -> Any:
    """A producer in the middle of a transaction that has written the marker of another sink."""
    settings = {"bootstrap.servers": kafka.servers, "transactional.id": f"other-{target.topic}", "log_level": 0}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    marker = Marker("7", "t", "77", "its-flow", "e9", 9, "its-host")
    producer.produce(f"{target.topic}-markers", encode_marker(marker), b"other")
    assert producer.flush(30) == 0
    return producer


@pytest.mark.long
def test_a_transaction_that_hides_no_marker_is_not_waited_for(kafka, target):
    """It began after the newest marker of the sink."""
    store = Store(past=[])
    Run(store, target.sink()).epoch(("a", 1))
    open_one = other_sink(kafka, target)
    began = time.monotonic()
    run = Run(store, target.sink())
    assert run.said == []
    assert time.monotonic() - began < 30
    run.epoch(("a", 2))
    open_one.abort_transaction(30)
    Run(store, target.sink()).epoch(("a", 3))
    assert target.order() == {"a": [1, 2, 3]}


def test_a_transaction_that_hides_the_newest_marker(kafka, target, monkeypatch):
    """The start says whose it is, and waits; within a limit, which ends with 37."""
    store = Store(past=[])
    run = Run(store, target.sink())
    open_one = other_sink(kafka, target)
    run.epoch(("a", 1))
    monkeypatch.setattr("recovery.sinks.kafka.reading.OTHERS_S", 3)
    with pytest.raises(SinkFailedError, match=r"sink 'other' .flow 'its-flow', execution 9 .e9. on its-host") as caught:
        Run(store.copied(), target.sink())
    assert caught.value.exit_code == 37
    monkeypatch.undo()
    monkeypatch.setattr("recovery.sinks.kafka.sink.write_records", write_records)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        open_one.abort_transaction(30)

    sink = target.sink()
    resume = replace(store.begin(), say=say)
    sink.check(resume)
    sink.rollback(resume)
    assert said == [
        f"control topic {target.topic}-markers: waits up to 90 s for the transaction of sink 'other' (flow 'its-flow', "
        "execution 9 (e9) on its-host), which hides the newest marker of this sink"
    ]
    Run(store, target.sink()).epoch(("a", 2))
    assert target.order() == {"a": [1, 2]}


def test_what_a_sink_counts(target):
    """Staged, produced and waiting records, and transactions; what a start produces, too."""
    store = Store()
    sink = target.sink(records_per_transaction=2)
    run = Run(store, sink)
    run.write(*[("a", number) for number in range(5)])
    work = sink.work
    assert (work.staged, work.produced, work.waiting, work.transactions) == (5, 0, 5, 0)
    run.close()
    work = sink.work
    assert (work.staged, work.produced, work.waiting, work.transactions) == (5, 5, 0, 3)
    assert work.transaction_s >= work.last_transaction_s > 0
    run.write(("a", 5))
    run.close(publish=False)
    sink.release()
    assert sink.work.waiting == 1
    again = target.sink()
    Run(store, again)
    assert (again.work.produced, again.work.waiting) == (1, 0)


@pytest.mark.long
def test_a_sink_of_two_runs_counts_the_work_of_each(target):
    """A second run with the same object begins at 0; a micro-batch that is written again counts once."""
    store, sink = Store(), target.sink()
    Run(store, sink).epoch(("a", 0), ("a", 1))
    sink.release()
    run = Run(store, sink)
    assert (sink.work.staged, sink.work.produced) == (0, 0)
    run.write(("a", 2))
    assert (sink.work.staged, sink.work.waiting) == (1, 1)
    run.close()
    assert (sink.work.staged, sink.work.produced, sink.work.waiting) == (1, 1, 0)


# ---- going back, and other directories


def test_a_run_that_goes_back_is_refused_and_untouched(kafka, target, tmp_path):
    """It names epochs, topic and records; with --lose-epochs these records stay, and come again."""
    store = Store(past=[])
    run = Run(store, target.sink())
    for number in range(4):
        run.epoch(("a", number), ("b", number))
    before = len(kafka.records(target.topic)), len(kafka.records(f"{target.topic}-markers"))
    with pytest.raises(OutputMismatchError) as caught:
        Run(store, target.sink(), resume_epoch=3)
    assert caught.value.path == f"topic {target.topic}"
    assert "4 records of epochs 3 to 4 are in the topic" in caught.value.found
    assert "--lose-epochs" in caught.value.remedy
    assert (len(kafka.records(target.topic)), len(kafka.records(f"{target.topic}-markers"))) == before
    store.accepts = store.loses = True
    Run(store, target.sink()).epoch(("a", 9))
    assert target.order() == {"a": [0, 1, 2, 3, 9], "b": [0, 1, 2, 3]}
    store.accepts = store.loses = False
    Run(store, target.sink()).epoch(("a", 10))
    assert target.order()["a"] == [0, 1, 2, 3, 9, 10]


@pytest.mark.long
def test_a_whole_directory_from_an_earlier_backup(target, tmp_path):
    """The run is refused, and neither partitions nor topic nor staged rows have changed."""
    world = World(tmp_path, target)
    world.grow(3)
    assert world.run() == 0
    shutil.copytree(world.directory, tmp_path / "backup")
    world.grow(3)
    assert world.run() == 0
    shutil.rmtree(world.directory)
    (tmp_path / "backup").rename(world.directory)
    before = content(world.directory), target.shown(), len(target.kafka.records(f"{target.topic}-markers"))
    refused = world.run()
    assert isinstance(refused, StaleDirectoryError)
    assert (content(world.directory), target.shown(), len(target.kafka.records(f"{target.topic}-markers"))) == before
    assert world.run(lose_epochs=True).exit_code == OutputMismatchError.exit_code


@pytest.mark.long
def test_the_other_copy_goes_on_with_an_epoch_that_it_has_not_produced(target):
    """Two copies ran, and the first had closed an epoch in vain: with --lose-epochs that epoch is produced, too."""
    store = Store(past=[])
    run = Run(store, target.sink())
    run.epoch(("a", 1))
    other = store.copied()
    run.write(("a", 2))
    run.close(publish=False)
    kept = shutil.copytree(target.path, target.path.with_name("kept"))
    Run(other, target.sink()).epoch(("a", 3))
    shutil.rmtree(target.path)
    kept.rename(target.path)
    with pytest.raises(StaleDirectoryError):
        Run(store, target.sink())
    store.accepts = store.loses = True
    Run(store, target.sink()).epoch(("a", 4))
    assert target.order() == {"a": [1, 3, 2, 4]}


@pytest.mark.long
def test_a_fork_a_new_directory_and_a_repartitioned_one(target):
    """Only the store that takes the place of the former one goes on."""
    store = Store(past=[])
    Run(store, target.sink()).epoch(("a", 1))
    with pytest.raises(OutputMismatchError, match="forked"):
        Run(store.forked(), target.sink())
    with pytest.raises(OutputMismatchError, match=r"produced by flow 'flow' on recovery directory 5e1f") as caught:
        Run(Store(store_id="77"), target.sink())
    assert "name='…'" in caught.value.remedy
    following = store.repartitioned()
    Run(following, target.sink()).epoch(("a", 2))
    with pytest.raises(StaleDirectoryError):
        Run(store, target.sink())
    assert target.order() == {"a": [1, 2]}


@pytest.mark.long
def test_two_flows_may_share_a_topic_under_two_names(target):
    """Their markers and staged rows have nothing to do with each other."""
    one, two = Store(), Store(store_id="77")
    first, second = Run(one, target.sink()), Run(two, target.sink(name="other"))
    first.epoch(("a", 1))
    second.epoch(("b", 2))
    first.write(("a", 3))
    first.close(publish=False)
    Run(two, target.sink(name="other")).epoch(("b", 4))
    Run(one, target.sink()).epoch(("a", 5))
    assert target.order() == {"a": [1, 3, 5], "b": [2, 4]}


@pytest.mark.long
def test_another_topic_is_a_new_output_only_on_request(target, topic):
    """And not while the former one lacks records."""
    store, other = Store(), topic()
    run = Run(store, target.sink())
    run.epoch(("a", 1))
    moved = {"servers": target.kafka.servers, "staging": target.path, "control": f"{target.topic}-markers"}
    with pytest.raises(OutputMismatchError, match=f"produced into topic {target.topic}, under the name"):
        Run(store, KafkaSink(other, **moved))
    run.write(("a", 2))
    run.close(publish=False)
    with pytest.raises(OutputMismatchError, match=r"closed epoch 2 .1 records. may not be produced"):
        Run(store, KafkaSink(other, **moved, fresh=True))
    Run(store, target.sink())
    Run(store, KafkaSink(other, **moved, fresh=True)).epoch(("b", 3))
    assert target.order() == {"a": [1, 2]}
    assert [each.value for each in target.kafka.committed(other)] == [b"3"]


# ---- the plan of a start

TARGET = KafkaTarget("t", "t", "c", "h:1", fresh=False)
MARKER = Marker("5", "t", "5e1f", "flow", "e2", 2, "h", (), 3, "e2", 4, 4, 1, 20, (ShownEpochs("e2", 1, 3),), "id")
NOTE = KafkaNote("5", "t", "t", 3, "e2", "d", 4, 20, 2, "e2")
NEXT = KafkaNote("5", "t", "t", 4, "e2", "d", 6, 26, 3, "e2")


@pytest.mark.parametrize(
    ("marker", "note", "accepts", "expected"),
    [
        (None, None, False, Producing(None)),
        (MARKER, NOTE, False, Producing(MARKER)),
        (replace(MARKER, produced=1), NOTE, False, Producing(replace(MARKER, produced=1), NOTE)),
        (MARKER, NEXT, False, Producing(MARKER, NEXT)),
        (replace(MARKER, epoch=0, records=0), None, False, Producing(replace(MARKER, epoch=0, records=0))),
        # The epoch before lacks records, and no list has them any more.
        (replace(MARKER, produced=1, records=17), NEXT, False, "knows epoch 3 as the newest one, with 1 of 4 records"),
        # The topics are older than the partitions.
        (replace(MARKER, epoch=1, records=9), NOTE, False, "knows epoch 1 as the newest one"),
        (replace(MARKER, epoch=0, records=0, produced=0, total=0), NOTE, False, "knows epoch 0 as the newest one"),
        # Going back, to the beginning too; and an epoch of the same number that another execution closed.
        (MARKER, replace(NOTE, epoch=2, records=16), False, "back to epoch 5, and 4 records of epoch 3 are in"),
        (MARKER, None, False, "back to epoch 5, and 20 records of epochs 1 to 3 are in"),
        (MARKER, replace(NOTE, execution="e1"), False, "back to epoch 5"),
        (replace(MARKER, sink="6"), NOTE, False, "knows another output under the name 't'"),
        (replace(MARKER, topic="u"), NOTE, False, "the name 't' belongs to topic u"),
        (replace(MARKER, topic_id="old"), NOTE, False, "the topic was deleted and made again"),
        # Accepted: an epoch that was produced is not again, and one that was not is.
        (
            MARKER, replace(NOTE, epoch=2, rows=3, records=16), True,
            replace(MARKER, epoch=2, produced=3, total=3, records=16),
        ),
        (
            MARKER, replace(NOTE, execution="e1", after_by="e0"), True,
            (replace(MARKER, epoch=2, closed_by="e0", produced=0, total=0, records=16), "produces"),
        ),
    ],
)  # fmt: skip
def test_what_a_start_does(marker, note, accepts, expected):
    """A function of the marker and the note."""
    text = None if note is None else encode_marker(note).decode()
    lease = Lease(ExecutionNumber(3), "e3")
    timeline = (TimelinePart(Lease(ExecutionNumber(2), "e2"), Epoch(1), Epoch(4)),)
    resume = Resume(Epoch(5), text, lease, "5e1f", "flow", Epoch(0), timeline, accepts_loss=accepts)
    if isinstance(expected, str):
        with pytest.raises(OutputMismatchError, match=re.escape(expected)) as caught:
            plan_producing(TARGET, marker, resume, "id")
        assert caught.value.path == "topic t"
        return
    found = plan_producing(TARGET, marker, resume, "id")
    if isinstance(expected, Producing):
        assert found == expected
        return
    begun, produces = expected if isinstance(expected, tuple) else (expected, "")
    assert (found.marker, found.note) == (begun, note if produces else None)
    assert "stay there" in found.stays


# ---- what is missing or damaged


def _file(target: TopicTarget) -> Path:
    """The staged file of an epoch with one record."""
    [listed] = target.path.glob("*/epoch-*.json")
    return listed.parent / "rows" / json.loads(listed.read_text())["files"][0]["name"]


def _removed(target: TopicTarget) -> None:
    _file(target).unlink()


def _changed(target: TopicTarget) -> None:
    path = _file(target)
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def _without_list(target: TopicTarget) -> None:
    next(target.path.glob("*/epoch-*.json")).unlink()


@pytest.mark.parametrize("damage", some([_removed, _changed, _without_list], _removed))
def test_staged_rows_of_a_closed_epoch_that_are_gone(target, damage):
    """Refused before anything of the epoch is produced; with the files back, the epoch is produced."""
    store = Store()
    run = Run(store, target.sink())
    run.epoch(("a", 1))
    run.write(("a", 2))
    run.close(publish=False)
    shutil.copytree(target.path, target.path.with_name("kept"))
    damage(target)
    with pytest.raises(OutputMismatchError, match=r"closed epoch 2 is not produced yet") as caught:
        Run(store, target.sink())
    assert "--resume-after 1" in caught.value.remedy
    assert target.order() == {"a": [1]}
    shutil.rmtree(target.path)
    target.path.with_name("kept").rename(target.path)
    Run(store, target.sink()).epoch(("a", 3))
    assert target.order() == {"a": [1, 2, 3]}


@pytest.mark.long
def test_a_control_topic_that_was_made_again(kafka, target):
    """Whether the newest epoch was produced is unknown: refused."""
    store = Store()
    Run(store, target.sink()).epoch(("a", 1))
    kafka.delete(f"{target.topic}-markers")
    with pytest.raises(OutputMismatchError, match="has no record of it under the name"):
        Run(store, target.sink())
    kafka.create(f"{target.topic}-markers", 1, cleanup_policy="compact")
    with pytest.raises(OutputMismatchError, match="has no record of it under the name"):
        Run(store, target.sink())


@pytest.mark.long
def test_a_topic_that_was_made_again(kafka, target):
    """Its records are gone: refused, until the user says that the new topic is to go on without them."""
    store = Store()
    Run(store, target.sink()).epoch(("a", 1))
    kafka.delete(target.topic)
    kafka.create(target.topic, 2)
    with pytest.raises(OutputMismatchError, match="deleted and made again since: the 1 records of the epochs up to 1"):
        Run(store, target.sink())
    store.accepts = True
    Run(store, target.sink()).epoch(("a", 2))
    store.accepts = False
    Run(store, target.sink()).epoch(("a", 3))
    assert target.order() == {"a": [2, 3]}


@pytest.mark.long
def test_a_control_topic_with_records_of_others(kafka, target):
    """Refused, with the name of the topic."""
    control = kafka.create(f"{target.topic}-markers", 1, cleanup_policy="compact")
    kafka.send(control, [(target.topic.encode(), b"[" * 100_000)])
    with pytest.raises(OutputMismatchError, match=f"control topic {control}: the newest record"):
        Run(Store(), target.sink())


# ---- bad input


def test_what_a_broker_lacks_is_refused_before_the_start(kafka, topic, tmp_path):
    """Each with its exit code, and what to do; nothing was produced, and no topic was made."""

    def refused(name: str, **options: Any) -> RecoveryError:
        target = TopicTarget(kafka, tmp_path / "staged", name)
        with pytest.raises(RecoveryError) as caught:
            Run(Store(), target.sink(**options))
        assert caught.value.remedy
        return caught.value

    missing = refused("no-such-topic")
    assert (missing.exit_code, missing.path) == (56, "topic no-such-topic")
    assert "there is no such topic" in missing.found
    assert "no-such-topic-markers" not in kafka.admin.list_topics()
    own = kafka.create("own-markers", 1, cleanup_policy="delete")
    uncompacted = refused(topic(), control=own)
    assert uncompacted.exit_code == 56
    assert f"control topic {own} has cleanup.policy=delete" in uncompacted.found
    long = refused(topic(), options={"transaction.timeout.ms": 100_000_000})
    assert long.exit_code == 11 or "INVALID_TRANSACTION_TIMEOUT" in long.found
    at_broker = refused(topic(), options={"transaction.timeout.ms": 1_000_000})
    assert at_broker.exit_code == 56
    assert "INVALID_TRANSACTION_TIMEOUT" in at_broker.found
    unknown = refused(topic(), options={"no.such.option": "1"})
    assert unknown.exit_code == 11
    assert "no.such.option" in unknown.found


@pytest.mark.long
@pytest.mark.parametrize(
    ("right", "of_control", "compensate", "words"),
    [
        ("WRITE", False, False, "this user may not WRITE topic"),
        ("WRITE", True, False, "this user may not WRITE topic"),
        ("READ", True, False, "this user may not READ topic"),
        ("READ", False, True, "this user may not READ topic"),
        ("DESCRIBE_CONFIGS", False, True, "this user may not see the cleanup.policy of topic"),
    ],
)
def test_a_right_that_is_missing(kafka, topic, tmp_path, right, of_control, compensate, words):
    """Refused with the name of the topic, before anything is produced; with a grant the same start works."""
    from confluent_kafka import admin

    target = TopicTarget(kafka, tmp_path / "staged", topic(cleanup_policy="compact"), compensate=compensate)
    control = kafka.create(f"{target.topic}-markers", 1, cleanup_policy="compact")
    name = control if of_control else target.topic
    asked = admin.AdminClient({"bootstrap.servers": kafka.servers})
    kind, pattern = admin.ResourceType.TOPIC, admin.ResourcePatternType.LITERAL
    operation = getattr(admin.AclOperation, right)
    rule = (kind, name, pattern, "User:ANONYMOUS", "*", operation, admin.AclPermissionType.DENY)
    allow = (kind, name, pattern, "User:ANONYMOUS", "*", admin.AclOperation.ALL, admin.AclPermissionType.ALLOW)
    for each in asked.create_acls([admin.AclBinding(*rule), admin.AclBinding(*allow)]).values():
        each.result(30)
    wait_until(lambda: right not in rights_on(asked, name))
    with pytest.raises(SinkRefusedError, match=f"{words} {name}"):
        Run(Store(), target.sink())
    for each in asked.delete_acls([admin.AclBindingFilter(*rule)]).values():
        each.result(30)
    wait_until(lambda: right in rights_on(asked, name))
    Run(Store(), target.sink()).epoch(("a", 1))
    assert target.order() == {"a": [1]}


def rights_on(asked: Any, topic: str) -> set[str]:
    """What this user may do with a topic."""
    topics = confluent_kafka.TopicCollection([topic])
    [described] = asked.describe_topics(topics, include_authorized_operations=True, request_timeout=30).values()
    return {each.name for each in described.result(30).authorized_operations}


@pytest.mark.long
def test_a_broker_that_cannot_keep_transactions(tmp_path):
    """Its replication factor is larger than the number of brokers: the start says which setting."""
    (tmp_path / "broker").mkdir()
    with broker(tmp_path / "broker", transaction_state_log_replication_factor=3) as kafka:
        target = TopicTarget(kafka, tmp_path / "staged", kafka.create("topic", 1))
        with pytest.raises((SinkFailedError, SinkRefusedError)) as caught:
            Run(Store(), target.sink())
        assert "transaction.state.log.replication.factor" in caught.value.remedy
        assert target.shown() == []


@pytest.mark.long
def test_no_broker_at_all(tmp_path):
    """The start ends with 37 within the time that it gives a broker, and says where nobody answers."""
    sink = KafkaSink(
        "topic", servers="127.0.0.1:9", staging=tmp_path, options={"socket.connection.setup.timeout.ms": 1000}
    )
    sink._broker.patience_s = 3
    with pytest.raises(SinkFailedError, match="looking at topic topic") as caught:
        Run(Store(), sink)
    assert caught.value.exit_code == 37


LARGE = {"max_message_bytes": "2000"}, record(b"big", b"x" * 3000), "larger than the topic takes"


@pytest.mark.parametrize(
    "case",
    some(
        [
            LARGE,
            ({"cleanup_policy": "compact"}, record(None, b"x"), "without a key, and the topic is compacted"),
            ({}, record(b"k", b"x", partition=2), "for a partition that is not one of the topic's 2"),
            (
                {"message_timestamp_after_max_ms": "1000"},
                record(b"k", b"x", timestamp=int(time.time() * 1000) + 10_000_000),
                "with a time further ahead",
            ),
            (
                {"message_timestamp_before_max_ms": "1000"},
                record(b"k", b"x", timestamp=int(time.time() * 1000) - 10_000_000),
                "with a time further back",
            ),
            ({}, record(b"k", b"x", timestamp=0), "with a time that is not after 1970"),
            ({}, record(b"k", b"x") | {"size": -1}, "with a header without a name"),
        ],
        LARGE,
    ),
)
def test_a_row_that_the_topic_does_not_take(kafka, topic, tmp_path, case):
    """It is found when it is staged: the epoch is not closed, and the error names the row."""
    settings, bad, words = case
    target = TopicTarget(kafka, tmp_path / "staged", topic(**settings))
    store = Store()
    run = Run(store, target.sink())
    run.epoch(("a", 1))
    with pytest.raises(FlowFailedError, match=words) as caught:
        run.write(("a", 2), bad)
    assert repr(bad["key"]) in caught.value.found
    Run(store, target.sink()).epoch(("a", 3))
    assert target.order() == {"a": [1, 3]}


@pytest.mark.long
def test_a_topic_with_small_batches(kafka, topic, tmp_path):
    """librdkafka's batches are larger than the topic takes unless they are bounded."""
    target = TopicTarget(kafka, tmp_path / "staged", topic(max_message_bytes="2000"))
    Run(Store(), target.sink()).epoch(*[record(b"k", b"%d" % number + b" " * 900) for number in range(50)])
    assert len(target.shown()) == 50


@pytest.mark.long
def test_a_topic_whose_limit_was_lowered_after_the_row_was_staged(kafka, topic, tmp_path):
    """The run ends with 56 and the setting's name; with the setting back, the epoch is produced once."""
    from confluent_kafka import admin

    target = TopicTarget(kafka, tmp_path / "staged", topic())
    asked = admin.AdminClient({"bootstrap.servers": kafka.servers})

    def limit(size: str) -> None:
        change = admin.ConfigEntry("max.message.bytes", size, incremental_operation=admin.AlterConfigOpType.SET)
        resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, target.topic, incremental_configs=[change])
        for each in asked.incremental_alter_configs([resource]).values():
            each.result(30)

    store = Store()
    run = Run(store, target.sink())
    run.write(record(b"k", b"7" + b" " * 5000))
    limit("1000")
    wait_until(lambda: refuses(kafka, target.topic, 5000))
    with pytest.raises(SinkRefusedError, match="MSG_SIZE_TOO_LARGE") as caught:
        run.close()
    assert "max.message.bytes" in caught.value.remedy
    limit("100000")
    wait_until(lambda: not refuses(kafka, target.topic, 5000))
    Run(store, target.sink())
    assert target.shown() == [("k", 7)]


def refuses(kafka: Kafka, topic: str, size: int) -> bool:
    """Whether the broker refuses a record of this size, by a transaction that is aborted."""
    settings = {"bootstrap.servers": kafka.servers, "transactional.id": "probe", "log_level": 0}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    found: list[bool] = []
    producer.produce(topic, b"x" * size, on_delivery=lambda error, _: found.append(error is not None))
    producer.flush(30)
    producer.abort_transaction(30)
    return found == [True]


@pytest.mark.parametrize(
    ("topic_name", "options", "words"),
    [
        ("a b", {}, "no name of a topic"),
        ("t", {"control": "t"}, "the control topic is the topic"),
        ("t", {"servers": []}, "no servers"),
        ("t", {"records_per_transaction": 0}, "records_per_transaction=0"),
        ("t", {"options": {"transactional.id": "x"}}, "transactional.id"),
        ("t", {"options": {"acks": 1}}, "acks"),
        ("t", {"key": 3}, "key=int"),
        ("t", {"name": ""}, "name=''"),
        ("t", {"staging": ""}, "KafkaSink"),
    ],
)
def test_arguments(tmp_path, topic_name, options, words):
    """What cannot be right is refused where the sink is made."""
    with pytest.raises(ConfigurationError) as caught:
        KafkaSink(topic_name, **{"servers": "127.0.0.1:9", "staging": tmp_path, **options})
    assert words in caught.value.found
    assert caught.value.remedy


def test_each_reason_names_errors_of_its_own():
    """librdkafka knows the names, and no name stands in two rows."""
    codes = {name for name in dir(confluent_kafka.KafkaError) if name.isupper()}
    named = [name for each in BROKER_REFUSALS for name in each.names]
    assert len(named) == len(set(named))
    assert set(named) <= codes
    assert AWAY is BROKER_REFUSALS[-1]
