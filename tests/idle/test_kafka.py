"""Topics of Kafka are looked at without Spark: a table of what a real broker shows, and of what only Spark may ask."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq
import pytest

from recovery.errors import RecoveryError
from recovery.idle import kafka as looks
from recovery.idle.note import NotedSource
from recovery.idle.sources import Positions, new_input, noted_source
from recovery.sinks.kafka.client import Client
from tests.kafka import CONNECTOR, Kafka, broker, needs_jars
from tests.stores import ROOT
from tests.test_without_spark import BLOCKED, run_without

clients = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed (the test extra)")
SERVERS = "kafka.bootstrap.servers"
PLAIN = {SERVERS: "127.0.0.1:9092", "subscribe": "orders"}


# ---- what a note keeps


def test_what_a_note_keeps():
    """Whom to ask, and what: nothing else, although other options do not matter."""
    ignored = ("startingoffsets", "maxoffsetspertrigger", "minoffsetspertrigger", "includeheaders", "minpartitions",
               "groupidprefix", "failondataloss", "kafka.max.poll.records", "kafka.group.id")  # fmt: skip
    others = {**dict.fromkeys(ignored, "5"), "kafka.security.protocol": "PLAINTEXT"}
    kept = {**PLAIN, "kafka.isolation.level": "read_committed"}
    assert noted_source("kafka", {**kept, **others}, plain_is_local=False) == NotedSource("kafka", kept)


@pytest.mark.parametrize(
    "option",
    [
        {"kafka.security.protocol": "SASL_SSL"},
        {"kafka.security.protocol": "SSL"},
        {"kafka.sasl.jaas.config": "secret"},
        {"kafka.sasl.mechanism": "PLAIN"},
        {"kafka.ssl.keystore.location": "/keys"},
        {"kafka.ssl.truststore.location": "/keys"},
        {"kafka.isolation.level": "other"},
        {"kafka.interceptor.classes": "a.B"},
        {"kafka.bootstrap.servers": ""},
        {"an.option.of.later.versions": "1"},
        {"subscribepattern": "(?i)orders"},
    ],
)
def test_what_only_spark_asks(option):
    """Whatever may be a secret, or is not known here. The reason names the option, and never the option's value."""
    found = noted_source("kafka", {**PLAIN, **option}, plain_is_local=True)
    assert isinstance(found, str)
    assert next(iter(option)) in found or "which topics match" in found
    assert "secret" not in found


# ---- what brokers show


@dataclass
class Topics:
    """Topics of a broker, and a position in them."""

    kafka: Kafka
    name: str
    more: dict[str, str] = field(default_factory=dict)
    at: dict[str, dict[str, int]] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def read(self, *names: str) -> None:
        """Move the position to the end of these topics."""
        for name in names or (self.name,):
            self.at[name] = {str(number): end for number, (_, end) in self.kafka.bounds(name).items()}
            client = Client("a test", self.kafka.servers, name, {}, 30)
            self.ids[name] = client.id_of(client.described([name])[name])

    def look(self, **options: str) -> str | None:
        """What a look finds. options: names in lower case."""
        given = {
            SERVERS: self.kafka.servers,
            **({"subscribe": self.name} if not options else {}),
            **self.more,
            **options,
        }
        source = noted_source("kafka", given, plain_is_local=True)
        assert isinstance(source, NotedSource), source
        position = Positions(f"v1\n{{}}\n{json.dumps(self.at)}", {}, self.ids)
        return new_input([source], '[{"source":0}]', position)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine answers late."""
    monkeypatch.setattr(looks, "ANSWER_S", 60.0)


def records(count: int = 3) -> list[tuple[bytes, bytes]]:
    return [(b"k", b"%d" % number) for number in range(count)]


@contextlib.contextmanager
def transaction(topics: Topics) -> Iterator[Any]:
    """A producer with a record in a transaction that has not ended."""
    producer = clients.Producer({"bootstrap.servers": topics.kafka.servers, "transactional.id": topics.name})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topics.name, b"v", b"k", partition=0)
    producer.flush(60)
    yield producer


def opened(topics: Topics) -> None:
    with transaction(topics):
        pass


def committed(topics: Topics) -> None:
    with transaction(topics) as producer:
        producer.commit_transaction(60)


def aborted(topics: Topics) -> None:
    with transaction(topics) as producer:
        producer.abort_transaction(60)


def only_committed(change: Callable[[Topics], object]) -> Callable[[Topics], None]:
    """The change, seen by a flow that reads committed records."""

    def changed(topics: Topics) -> None:
        topics.more["kafka.isolation.level"] = "read_committed"
        change(topics)

    return changed


def made_again(topics: Topics) -> None:
    """A topic of the same name, with as many records in each partition as the first one had."""
    topics.kafka.delete(topics.name)
    topics.kafka.create(topics.name, 1)
    topics.kafka.send(topics.name, records())


def trimmed(topics: Topics) -> None:
    """Records that were read are gone."""
    topics.kafka.remove_before(topics.name, 0, 3)


def not_read(topics: Topics) -> None:
    """The position is before records that are gone."""
    topics.at[topics.name]["0"] = 1
    topics.kafka.remove_before(topics.name, 0, 3)


def beyond(topics: Topics) -> None:
    topics.at[topics.name]["0"] += 1


def of_two_clusters(topics: Topics) -> None:
    topics.ids[topics.name] = f"another {topics.ids[topics.name]}"


NEW = "new records in topic"
CHANGES: dict[str, tuple[Callable[[Topics], object], str | None]] = {
    "nothing": (lambda t: None, None),
    "nothing, committed records": (only_committed(lambda t: None), None),
    "a record": (lambda t: t.kafka.send(t.name, records(1)), NEW),
    "an open transaction": (opened, NEW),
    "an open transaction, committed records": (only_committed(opened), None),
    "a transaction": (only_committed(committed), NEW),
    "an aborted transaction": (only_committed(aborted), NEW),
    "a partition more": (lambda t: t.kafka.grow(t.name, 2), "partition 1 of topic .* is new"),
    "a topic that is gone": (lambda t: t.kafka.delete(t.name), "there is no topic"),
    "a topic that was made again": (made_again, "is not as it was read: replaced"),
    "a topic that no run has known by its id": (lambda t: t.ids.clear(), None),
    "a topic of two clusters": (of_two_clusters, None),
    "records that were read are gone": (trimmed, None),
    "records that were not read are gone": (not_read, "is not as it was read: trimmed"),
    "an end before the position": (beyond, "is not as it was read: replaced"),
    "a position of another source": (lambda t: t.at.update(logOffset=0), "only Spark can read the position"),
    "a partition that is gone": (
        lambda t: t.at[t.name].update({"7": 0}),
        "partition 7 .* is gone",
    ),
    "a topic that the flow does not name": (
        lambda t: t.at.update(other={"0": 0}),
        "topic other is gone",
    ),
}


@needs_jars
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_look_finds(kafka, change):
    """Nothing new is certain only where topics, ids, partitions and ends are those of the position."""
    changes, expected = CHANGES[change]
    topics = Topics(kafka, kafka.create(f"look-{change}".replace(" ", "-").replace(",", ""), 1))
    kafka.send(topics.name, records())
    topics.read()
    assert topics.look() is None
    changes(topics)
    until = time.monotonic() + 60
    # The broker tells its own parts of a change one after the other.
    while (found := topics.look()) is None and expected is not None and time.monotonic() < until:
        time.sleep(0.1)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(expected, found), found


@needs_jars
def test_several_topics_patterns_and_partitions(kafka):
    """By a pattern, topics that are made later count; of assigned partitions, no others do."""
    first, second = kafka.create("several-a", 2), kafka.create("several-b", 1)
    kafka.send(first, records())
    topics = Topics(kafka, first)
    topics.read(first, second)
    assert topics.look(subscribe=f"{second}, {first}") is None
    assert topics.look(subscribepattern="several-.*") is None
    assert "partition 0 of topic several-b is gone, or not" in (topics.look(subscribe=first) or "")
    assert "there is no topic third" in (topics.look(subscribe=f"{first},{second},third") or "")
    kafka.create("several-c", 1)
    assert topics.look(subscribepattern="several-.*") == "partition 0 of topic several-c is new"
    del topics.at[second], topics.at[first]["1"]
    assert topics.look(assign=json.dumps({first: [0]})) is None
    assert "is new" in (topics.look(assign=json.dumps({first: [0, 1]})) or "")
    # Kafka's own topic of groups is internal: a pattern does not cover it.
    commit(kafka, "any", {(first, 0): 0}, "")
    topics.at = {first: {str(number): end for number, (_, end) in kafka.bounds(first).items()}}
    assert topics.look(subscribepattern="several-a|__") is None


NOT_YET = ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS")


def commit(kafka: Kafka, group: str, offsets: dict[tuple[str, int], int], text: str) -> None:
    """Let a consumer group have offsets, as if a run or another program had committed them."""
    consumer = clients.Consumer({"bootstrap.servers": kafka.servers, "group.id": group})
    wanted = [clients.TopicPartition(topic, number, offset, text) for (topic, number), offset in offsets.items()]
    until = time.monotonic() + 60
    while True:
        try:
            consumer.commit(offsets=wanted, asynchronous=False)
            break
        except clients.KafkaException as error:
            # A broker that has just made its topic of groups, or still reads it.
            if (not error.args[0].retriable() and error.args[0].name() not in NOT_YET) or time.monotonic() > until:
                raise
            time.sleep(0.1)
    consumer.close()


@needs_jars
def test_ids_of_topics(kafka):
    """A topic's id is written as Kafka writes it: ids of many topics have all characters of the alphabet."""
    names = kafka.create_all([f"ids-{number}" for number in range(30)], 1)
    client = Client("a test", kafka.servers, "ids", {}, 60)
    found = {name: client.id_of(each) for name, each in client.described(names).items()}
    theirs = {each["name"]: each["topic_id"] for each in kafka.admin.describe_topics(names)}
    assert {name: id_text(each) for name, each in theirs.items()} == found


def id_text(found: Any) -> str:
    """An id in the form of Kafka's tools."""
    content = uuid.UUID(str(found)).bytes
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


@needs_jars
def test_the_consumer_group(kafka):
    """Spark starts where the group does not show the position: a run shows it again."""
    topics = Topics(kafka, kafka.create("grouped", 2))
    kafka.send(topics.name, records())
    topics.read()
    source = noted_source("kafka", {SERVERS: kafka.servers, "subscribe": topics.name}, plain_is_local=True)
    assert isinstance(source, NotedSource)

    def look() -> str | None:
        position = Positions(f"v1\n{{}}\n{json.dumps(topics.at)}", {}, topics.ids)
        return new_input([source], '[{"source":0}]', position, "recovery-grouped")

    def show(by: int, text: str) -> None:
        offsets = {(topics.name, int(number)): at + by for number, at in topics.at[topics.name].items()}
        commit(kafka, "recovery-grouped", offsets, text)

    lacks = "consumer group recovery-grouped does not show the newest epoch"
    assert look() == lacks
    show(0, "recovery 5e1f")
    assert look() is None
    show(1, "recovery 5e1f")
    assert look() == lacks
    show(0, "")
    assert look() == lacks


# ---- brokers that do not answer


@pytest.mark.parametrize("kind", ["silent", "closed", "unknown"])
def test_brokers_that_do_not_answer(monkeypatch, kind):
    """The look ends with the reason after its limit."""
    monkeypatch.setattr(looks, "ANSWER_S", 0.5)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        if kind == "silent":
            listener.listen(64)
        address = "no.such.host.invalid:9092" if kind == "unknown" else f"127.0.0.1:{port}"
        began = time.monotonic()
        with pytest.raises(RecoveryError, match="looking at topic orders: the broker says: "):
            looks.new_records({**PLAIN, SERVERS: address}, '{"orders":{"0":1}}', {})
        took_s = time.monotonic() - began
    assert took_s < 30, "far beyond the limit, also on a busy machine"
    print(f"{kind}: {took_s:.1f} s")


def test_a_process_that_waits_for_no_broker_ends():
    """A client that has asked in vain does not keep the process."""
    code = f"""
from recovery.idle import kafka
kafka.ANSWER_S = 0.5
try:
    kafka.new_records({{**{PLAIN!r}, {SERVERS!r}: "127.0.0.1:1"}}, '{{"orders":{{"0":1}}}}', {{}})
except Exception as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "SinkFailedError"), done.stderr


def test_without_the_client():
    """The reason names the package and the extra."""
    code = """
import sys
sys.modules["confluent_kafka"] = None
from recovery.idle import kafka
try:
    kafka.new_records({"kafka.bootstrap.servers": "a:1", "subscribe": "b"}, "{}", {})
except Exception as error:
    print(error.found)
"""
    done = run_without(code)
    assert "needs the package confluent-kafka (the extra kafka)" in done.stdout, done.stderr


# ---- as a user


FLOW = """
import os, recovery
from recovery.aggregates import count

def build(spark):
    records = spark.readStream.format("kafka").option("kafka.bootstrap.servers", os.environ["BROKERS"])
    records = records.option("subscribe", "orders").option("startingOffsets", "earliest").load()
    return records.selectExpr("cast(key AS string) AS key").transform(recovery.aggregate("n", key="key", n=count()))

flow = recovery.Flow("orders", build, recovery.FileSink("out"))
"""


@pytest.mark.long
@needs_jars
def test_a_user_runs_a_flow(tmp_path):
    """The second run ends without Spark; a new record starts it, and counts once; so does a broker that is away."""
    (tmp_path / "broker").mkdir()
    (tmp_path / "flow.py").write_text(FLOW)
    with broker(tmp_path / "broker") as kafka:
        kafka.create("orders", 2)
        kafka.send("orders", records())

        def command(*given: str, start: str = "-m recovery") -> subprocess.CompletedProcess[str]:
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "BROKERS": kafka.servers}
            return subprocess.run(
                [sys.executable, *start.split(" ", 1), *given], cwd=tmp_path, env=environment, text=True,
                capture_output=True, timeout=300,
            )  # fmt: skip

        options = ("run", "flow.py", "-r", "db", "-s", "0", "--master", "local[1]", "--if-new-input")
        jars = ("--jars", ",".join(map(str, CONNECTOR)))

        def started() -> bool:
            """Run as a user does; whether Spark was started."""
            done = command(*options, *jars)
            assert done.returncode == 0, done.stderr
            print(done.stderr)
            return "no new input since epoch" not in done.stderr

        def skipped() -> None:
            """On a busy machine the end of a run may not await the consumer group: the next run shows it."""
            runs = iter(range(3))
            while started():
                assert next(runs) < 2

        assert command("init", "db", "1").returncode == 0
        assert started()
        skipped()
        blocked = f"-c {BLOCKED}from recovery.__main__ import main\nmain()"
        began, before = time.monotonic(), os.times()
        done = command(*options, *jars, start=blocked)
        after = os.times()
        took_s = after.children_user + after.children_system - before.children_user - before.children_system
        assert "no new input since epoch" in done.stderr, done.stderr
        print(f"{time.monotonic() - began:.2f} s, of these {took_s:.2f} s of a processor")
        kafka.send("orders", records(1))
        assert started()
        skipped()
        rows = [row for path in (tmp_path / "out").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
        assert sorted((row["key"], row["n"]) for row in rows) == [("k", 3), ("k", 4)]
        kafka.kill(1)
        done = command(*options, *jars, start=blocked)
        assert done.returncode != 0
        assert re.match("--if-new-input: looking at topic orders: the broker says", done.stderr), done.stderr
