"""Kafka's records that are gone when a run has to read them again: a real broker, and records that others remove."""

from __future__ import annotations

import hashlib
import itertools
import json

import pytest

from recovery.errors import FlowFailedError, InputLostError
from tests.flows.kafka_records import counted, records
from tests.kafka import broker, needs_jars
from tests.spark import test_kafka as shared
from tests.spark.support import run_to_end
from tests.spark.test_kafka import on_its_spark, put_out, run, some

topic = shared.topic
pytestmark = [needs_jars, on_its_spark]


def digests(root):
    """The content of every partition, and of every file of the output."""
    files = [*(root / "db").glob("*.sqlite3"), *(root / "out").rglob("*")]
    return {str(each): hashlib.sha256(each.read_bytes()).hexdigest() for each in files if each.is_file()}


def three_epochs(spark, kafka, name, root):
    """Three runs, each over ten more records of the topic's one partition."""
    for seed in range(3):
        kafka.send(name, some(seed, 10))
        run(records(spark, kafka.servers, subscribe=name), root)


def make_again(kafka, name, count):
    """Delete the topic, and make it again with so many records."""
    kafka.delete(name)
    kafka.create(name, 1)
    if count:
        kafka.send(name, some(9, count))


CHANGES = {
    # What the error says of offsets, and the offsets that the output shows once the loss is accepted.
    "trimmed": (
        lambda k, t: k.remove_before(t, 0, 15),
        "offsets 10 to 14 are gone: it begins with offset 15",
        (15, 30),
    ),
    "all gone": (lambda k, t: k.remove_before(t, 0, 30), "offsets 10 to 29 are gone: it begins with offset 30", ()),
    "again, fewer": (lambda k, t: make_again(k, t, 5), "is another one than the one read before", (0, 5)),
    "again, more": (lambda k, t: make_again(k, t, 40), "is another one than the one read before", (0, 40)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_going_back(spark, kafka, topic, tmp_path, capsys, change):
    """Refused and untouched; with the topic's loss accepted, the run reads what is there."""
    changes, says, left = CHANGES[change]
    name = topic(1, name=change.replace(" ", "-").replace(",", ""))
    three_epochs(spark, kafka, name, tmp_path)
    changes(kafka, name)
    before = digests(tmp_path)
    for accepted in ((), ("another",)):
        with pytest.raises(InputLostError, match=f"topic {name}, partition 0.* {says}") as refused:
            run(records(spark, kafka.servers, subscribe=name), tmp_path, resume_after=1, lose_input=accepted)
        assert "the run would discard epochs 2 to 3 of executions 2 to 3" in refused.value.found
        assert f"--lose-input {name} (" in refused.value.remedy
        assert digests(tmp_path) == before
    run(records(spark, kafka.servers, subscribe=name), tmp_path, resume_after=1, lose_input=[name])
    expected = sorted([*range(10), *range(*left)] if left else range(10))
    assert [offset for _, _, offset in put_out(tmp_path / "out")] == expected
    assert f"--lose-input {name}: " in capsys.readouterr().err
    kafka.send(name, some(4, 2))
    run(records(spark, kafka.servers, subscribe=name), tmp_path)
    assert len(put_out(tmp_path / "out")) == len(expected) + 2


SUBSCRIPTIONS = {
    "by name": lambda name: {"subscribe": name},
    "by a pattern": lambda name: {"subscribePattern": f"{name[:-1]}."},
    "by a pattern of Java": lambda name: {"subscribePattern": f"[a-z&&[^q]]{name[1:]}"},
}


@pytest.mark.parametrize("how", SUBSCRIPTIONS)
def test_a_topic_that_is_made_again_after_the_first_run(spark, kafka, topic, tmp_path, how):
    """The first run keeps the topic's id: a longer topic of the same name is another one."""
    name = topic(1)
    kafka.send(name, some(0, 10))
    run(records(spark, kafka.servers, **SUBSCRIPTIONS[how](name)), tmp_path)
    make_again(kafka, name, 40)
    before = digests(tmp_path)
    with pytest.raises(InputLostError, match="is another one than the one read before"):
        run(records(spark, kafka.servers, **SUBSCRIPTIONS[how](name)), tmp_path)
    assert digests(tmp_path) == before


@pytest.mark.parametrize("how", SUBSCRIPTIONS)
def test_a_topic_that_is_made_again_before_the_first_epoch(spark, kafka, topic, tmp_path, how):
    """The place where the input begins is one of the topic that was there: what of a longer one lies before that place
    would never be read."""
    name = topic(1)
    options = {**SUBSCRIPTIONS[how](name), "startingOffsets": json.dumps({name: {"0": 7}})}
    kafka.send(name, some(0, 10))

    def fails(batch, batch_id):
        raise ValueError("before the first epoch")

    with pytest.raises(FlowFailedError, match="before the first epoch"):
        run_to_end(counted(records(spark, kafka.servers, **options)), tmp_path / "db", fails)
    make_again(kafka, name, 40)
    before = digests(tmp_path)
    with pytest.raises(InputLostError, match=f"topic {name}, partition 0 is another one than the one read before"):
        run(records(spark, kafka.servers, **options), tmp_path)
    assert digests(tmp_path) == before
    run(records(spark, kafka.servers, **options), tmp_path, lose_input=[name])
    assert [offset for _, _, offset in put_out(tmp_path / "out")] == list(range(40))


def test_going_back_to_the_beginning(spark, kafka, topic, tmp_path):
    """To where the first run began, which is a position like any other."""
    name = topic(1)
    three_epochs(spark, kafka, name, tmp_path)
    kafka.remove_before(name, 0, 25)
    before = digests(tmp_path)
    with pytest.raises(InputLostError, match=f"topic {name}, partition 0, offsets 0 to 24 are gone"):
        run(records(spark, kafka.servers, subscribe=name), tmp_path, resume_after=0)
    assert digests(tmp_path) == before
    run(records(spark, kafka.servers, subscribe=name), tmp_path, resume_after=0, lose_input=[name])
    assert [offset for _, _, offset in put_out(tmp_path / "out")] == [25, 26, 27, 28, 29]
    run(records(spark, kafka.servers, subscribe=name), tmp_path)
    assert len(put_out(tmp_path / "out")) == 5


def test_what_a_resume_needs(spark, kafka, topic, tmp_path):
    """What epochs have read may go; a topic that is made again is noticed by its id; a partition that was added too."""
    name = topic(1)
    three_epochs(spark, kafka, name, tmp_path)
    kafka.remove_before(name, 0, 30)
    kafka.grow(name, 2)
    run(records(spark, kafka.servers, subscribe=name), tmp_path)
    assert len(put_out(tmp_path / "out")) == 30
    make_again(kafka, name, 40)
    before = digests(tmp_path)
    for pattern in ({"subscribe": name}, {"subscribePattern": f"{name}.*"}, {"assign": f'{{"{name}": [0]}}'}):
        with pytest.raises(InputLostError, match=f"topic {name}, partition 0 is another one"):
            run(records(spark, kafka.servers, **pattern), tmp_path)
        assert digests(tmp_path) == before


def test_two_topics(spark, kafka, topic, tmp_path):
    """A loss of one topic that is accepted does not accept that of the other. A topic that is left out of the flow is
    lost, and accepted by its name."""
    first, second = topic(1), topic(1)
    both = f"{first},{second}"
    for seed in range(2):
        for each in (first, second):
            kafka.send(each, some(seed, 10))
        run(records(spark, kafka.servers, subscribe=both), tmp_path)
    for each in (first, second):
        kafka.remove_before(each, 0, 15)
    with pytest.raises(InputLostError, match=f"topic {second}, partition 0") as refused:
        run(records(spark, kafka.servers, subscribe=both), tmp_path, resume_after=1, lose_input=[first])
    assert first not in refused.value.found
    run(records(spark, kafka.servers, subscribe=both), tmp_path, resume_after=1, lose_input=[first, second])
    expected = [(each, 0, n) for each, n in itertools.product((first, second), [*range(10), *range(15, 20)])]
    assert put_out(tmp_path / "out") == sorted(expected)
    with pytest.raises(InputLostError, match=f"topic {second}, partition 0 is gone"):
        run(records(spark, kafka.servers, subscribe=first), tmp_path)
    run(records(spark, kafka.servers, subscribe=first), tmp_path, lose_input=[second])
    assert put_out(tmp_path / "out") == sorted(expected)


@pytest.mark.parametrize("how", ["failOnDataLoss", "lose_input", "again", "trimmed"])
def test_a_topic_that_is_back(spark, kafka, topic, tmp_path, capsys, how):
    """Left out of the flow for a run, and named again: refused and untouched, whether losses are accepted or not. With
    the topic's name accepted, the flow goes on where it has left the topic, and each record counts once."""
    first, second = topic(1, name=f"{how}-first"), topic(1, name=f"{how}-second")
    both = {"subscribe": f"{first},{second}"}
    for each in (first, second):
        kafka.send(each, some(0, 10))
    run(records(spark, kafka.servers, **both), tmp_path)
    for each in (first, second):
        kafka.send(each, some(1, 5))
    if how == "lose_input":
        run(records(spark, kafka.servers, subscribe=first), tmp_path, lose_input=[second])
    else:
        run(records(spark, kafka.servers, subscribe=first, failOnDataLoss="false"), tmp_path)
    left = {"again": range(3), "trimmed": range(12, 15)}.get(how, range(10, 15))
    if how == "again":
        make_again(kafka, second, 3)
    if how == "trimmed":
        kafka.remove_before(second, 0, 12)
    before = digests(tmp_path)
    pattern = {"subscribePattern": f"{first[:-5]}.*"}
    for options in (both, {**both, "failOnDataLoss": "false"}, pattern):
        with pytest.raises(
            InputLostError, match=f"read topic {second} before .partition 0 up to offset 9.,"
        ) as refused:
            run(records(spark, kafka.servers, **options), tmp_path, lose_input=[first])
        assert f"--lose-input {second}: " in refused.value.remedy
        assert digests(tmp_path) == before
    run(records(spark, kafka.servers, **both), tmp_path, lose_input=[second])
    expected = [(first, 0, n) for n in range(15)] + [(second, 0, n) for n in (*range(10), *left)]
    assert put_out(tmp_path / "out") == sorted(expected)
    said = capsys.readouterr().err
    assert f"--lose-input {second}: {'another topic' if how == 'again' else 'read on where'}" in said
    assert ("partition 0, offsets 10 to 11" in said) == (how == "trimmed")
    kafka.send(second, some(3, 1))
    run(records(spark, kafka.servers, **both), tmp_path)
    assert len(put_out(tmp_path / "out")) == len(expected) + 1
    run(records(spark, kafka.servers, **both), tmp_path, resume_after=1, lose_input=[second])


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_moves_to_another_source(spark, kafka, topic, tmp_path, capsys, fails):
    """Refused and untouched; with its name accepted, the other source goes on where the first one was."""
    names = [topic(1, name=f"{fails}-{each}") for each in "abc"]
    first, moved, last = names

    def read(sources, **config):
        frames = [records(spark, kafka.servers, subscribe=",".join(each), failOnDataLoss=fails) for each in sources]
        run(frames[0].union(frames[1]), tmp_path, **config)

    for count in (3, 2):
        for each in names:
            kafka.send(each, some(count, count))
        if count == 3:
            read([(first, moved), (last,)])
    before = digests(tmp_path)
    with pytest.raises(InputLostError, match=f"read topic {moved} before .partition 0 up to offset 2., and names it"):
        read([(first,), (moved, last)], lose_input=[first])
    assert digests(tmp_path) == before
    read([(first,), (moved, last)], lose_input=[moved])
    assert f"--lose-input {moved}: read on where the flow has left it" in capsys.readouterr().err
    read([(first,), (moved, last)])
    assert put_out(tmp_path / "out") == sorted((each, 0, n) for each in names for n in range(5))


def test_topics_of_one_name_in_two_clusters(spark, kafka, topic, tmp_path, tmp_path_factory):
    """Each keeps its position; one that is made again is noticed, whichever cluster has it."""
    name = topic(1)
    with broker(tmp_path_factory.mktemp("other")) as other:
        other.create(name, 1)

        def read(servers=(kafka.servers, other.servers), **config):
            frames = [records(spark, each, subscribe=name) for each in servers]
            run(frames[0].union(frames[1]), tmp_path, **config)

        for seed in range(2):
            for each, count in ((kafka, 3), (other, 2)):
                each.send(name, some(seed, count))
            read()
        read((other.servers, kafka.servers))
        assert put_out(tmp_path / "out") == sorted([(name, 0, n) for n in (*range(6), *range(4))])
        make_again(other, name, 9)
        before = digests(tmp_path)
        with pytest.raises(InputLostError, match=f"topic {name}, partition 0 is another one"):
            read()
        assert digests(tmp_path) == before
