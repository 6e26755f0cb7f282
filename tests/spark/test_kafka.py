"""Kafka as users have it: a real broker, and Spark's own connector. The truth is what a client without Spark reads."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from recovery import DiscardSink, FileSink, RecoveryConfig, init_partitions, start, stateful
from recovery.errors import ConfigurationError, FlowFailedError, InputLostError, InputUnavailableError
from recovery.spark.jvm.versions import VERSION
from tests.flows.kafka_records import counted, records
from tests.kafka import CONNECTOR_VERSION, broker, needs_jars
from tests.spark.support import run_to_end, states
from tests.waiting import wait_until

pytestmark = needs_jars
_tests = itertools.count(1)
on_its_spark = pytest.mark.skipif(
    not CONNECTOR_VERSION.startswith("{}.{}.".format(*VERSION)),
    reason=f"the connector {CONNECTOR_VERSION} is of another Spark: .ci/run has a step on that one",
)


@pytest.fixture
def topic(kafka, request):
    """A function that makes topics of names that no other test has."""
    test, numbers = next(_tests), itertools.count()

    def make(partitions=2, name="", **settings):
        own = f"{request.node.originalname}-{test}-{name or next(numbers)}"
        return kafka.create(own.replace("_", "-"), partitions, **settings)

    return make


def some(seed: int, count: int = 40, keys: int = 7) -> list[tuple[bytes, bytes]]:
    """Random records."""
    generator = random.Random(seed)
    return [(b"k%d" % generator.randrange(keys), b"%d" % number) for number in range(count)]


def put_out(output: Path) -> list[tuple]:
    """The place of every record that the FileSink has published."""
    tables = [pq.read_table(path) for path in output.glob("*.parquet")]
    return sorted((row["topic"], row["partition"], row["offset"]) for table in tables for row in table.to_pylist())


def check(kafka, root: Path, *topics: str) -> None:
    """State and output are those of all records of the topics, each once."""
    found = kafka.records(*topics)
    assert states(root / "db", "counts") == dict(Counter(record.key.decode() for record in found))
    assert put_out(root / "out") == sorted((each.topic, each.partition, each.offset) for each in found)


def run(frame, root: Path, **config):
    config.setdefault("backup_interval", "1h")
    return run_to_end(counted(frame), root / "db", FileSink(root / "out"), **config)


def test_topics_that_grow(spark, kafka, topic, tmp_path):
    """More records, more partitions, one topic more, in micro-batches of a few records; and back again."""
    first, second = topic(), topic()

    def read(topics):
        run(records(spark, kafka.servers, subscribe=topics, maxOffsetsPerTrigger=25), tmp_path)
        check(kafka, tmp_path, *topics.split(","))

    kafka.send(first, some(1))
    read(first)
    kafka.grow(first, 4)
    kafka.send(first, some(2))
    kafka.send(second, some(3))
    read(f"{first},{second}")
    run(records(spark, kafka.servers, subscribe=f"{second},{first}"), tmp_path, resume_after=1)
    check(kafka, tmp_path, first, second)


@on_its_spark
def test_where_the_first_run_begins(spark, kafka, topic, tmp_path):
    """By startingOffsets; in later runs and for topics that are added, it has no effect."""
    first, second = topic(1), topic(1)
    kafka.send(first, some(1, 10))
    kafka.send(second, some(2, 10))
    begins = {"startingOffsets": "latest"}
    run(records(spark, kafka.servers, subscribe=first, **begins), tmp_path)
    assert put_out(tmp_path / "out") == []
    kafka.send(first, some(3, 10))
    run(records(spark, kafka.servers, subscribe=f"{first},{second}", **begins), tmp_path)
    expected = [(first, 0, n) for n in range(10, 20)] + [(second, 0, n) for n in range(10)]
    assert put_out(tmp_path / "out") == sorted(expected)
    run(records(spark, kafka.servers, subscribe=f"{first},{second}", startingOffsets="earliest"), tmp_path)
    assert put_out(tmp_path / "out") == sorted(expected)
    other = tmp_path / "other"
    begins = {"startingOffsets": json.dumps({first: {"0": 17}})}
    run(records(spark, kafka.servers, subscribe=first, **begins), other)
    assert put_out(other / "out") == [(first, 0, n) for n in (17, 18, 19)]


@on_its_spark
def test_a_pattern_of_topics(spark, kafka, topic, tmp_path):
    """A topic that is made later is read from its beginning."""
    first = topic(name="pattern-a")
    topic(name="other")
    kafka.send(first, some(1))
    pattern = {"subscribePattern": f"{first[:-1]}.*", "maxOffsetsPerTrigger": 30}
    run(records(spark, kafka.servers, **pattern), tmp_path)
    check(kafka, tmp_path, first)
    second = topic(name="pattern-b")
    kafka.send(second, some(2))
    kafka.send(first, some(3))
    run(records(spark, kafka.servers, **pattern), tmp_path)
    check(kafka, tmp_path, first, second)


@on_its_spark
@pytest.mark.parametrize("pattern", [" {} ", "[o-q&&[^q]]{}"], ids=["plain", "of Java"])
def test_a_part_of_a_name_as_pattern(spark, kafka, topic, tmp_path, pattern):
    """Spark searches for the pattern in names, and so does the look at the input: the topics are still those that the
    flow reads, also by a pattern that means something else in Python."""
    first = topic(name=f"part-{pattern.count('&')}-of-a-name")
    pattern = {"subscribePattern": pattern.format(first[first.index("art") : -2])}
    for seed in range(3):
        kafka.send(first, some(seed))
        run(records(spark, kafka.servers, **pattern), tmp_path)
        check(kafka, tmp_path, first)


@on_its_spark
def test_records_that_retention_removed(spark, kafka, topic, tmp_path):
    """The error names topic, partition and offsets; without failOnDataLoss the run reads what is left, and no more."""
    name = topic(1)
    kafka.send(name, some(1, 20))
    run(records(spark, kafka.servers, subscribe=name), tmp_path)
    kafka.send(name, some(2, 30))
    kafka.remove_before(name, 0, 35)
    for _ in range(2):
        with pytest.raises(InputLostError) as caught:
            run(records(spark, kafka.servers, subscribe=name), tmp_path)
        assert f"topic {name}, partition 0, offsets 20 to" in caught.value.found, caught.value.found
        assert f"--lose-input {name} " in caught.value.remedy
    assert put_out(tmp_path / "out") == [(name, 0, n) for n in range(20)]
    run(records(spark, kafka.servers, subscribe=name, failOnDataLoss="false"), tmp_path)
    assert put_out(tmp_path / "out") == [(name, 0, n) for n in [*range(20), *range(35, 50)]]
    assert sum(states(tmp_path / "db", "counts").values()) == 35
    kafka.send(name, some(3, 5))
    run(records(spark, kafka.servers, subscribe=name), tmp_path)
    assert put_out(tmp_path / "out") == [(name, 0, n) for n in [*range(20), *range(35, 55)]]


@on_its_spark
def test_a_topic_that_is_gone(spark, kafka, topic, tmp_path):
    """Left out of the flow, deleted, or made again with fewer records: typed errors that name the partitions."""
    first, second = topic(1), topic(1)
    for name in (first, second):
        kafka.send(name, some(1, 20))
    run(records(spark, kafka.servers, subscribe=f"{first},{second}"), tmp_path)
    with pytest.raises(InputLostError, match=f"topic {second}, partition 0"):
        run(records(spark, kafka.servers, subscribe=first), tmp_path)
    kafka.delete(second)
    with pytest.raises(InputLostError, match=rf"Kafka has no topic {second}\n"):
        run(records(spark, kafka.servers, subscribe=f"{first},{second}"), tmp_path)
    with pytest.raises(FlowFailedError, match=rf"Kafka has no topic {first}-typo\n"):
        run(records(spark, kafka.servers, subscribe=f"{first},{first}-typo", failOnDataLoss="false"), tmp_path)
    kafka.create(second, 1)
    kafka.send(second, some(2, 5))
    with pytest.raises(InputLostError, match=f"topic {second}, partition 0 is another one than the one read before"):
        run(records(spark, kafka.servers, subscribe=f"{first},{second}"), tmp_path)
    run(records(spark, kafka.servers, subscribe=first, failOnDataLoss="false"), tmp_path)
    assert put_out(tmp_path / "out") == sorted((name, 0, n) for name in (first, second) for n in range(20))


@on_its_spark
def test_other_options_and_another_order(spark, kafka, topic, tmp_path):
    """A password, an address of the broker, a prefix of consumer groups: the topics say which source is which."""
    topics = [topic(2), topic(2), topic(1)]
    orders = [[0, 1], [1, 0], [2, 0, 1], [1, 2, 0]]
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    for number, order in enumerate(orders):
        options = {
            "kafka.sasl.jaas.config": f'{login} required password="{number}";',
            "groupIdPrefix": f"group-{number}",
            "kafka.client.id": f"client-{number}",
            "maxOffsetsPerTrigger": 20 + number,
        }  # fmt: skip
        servers = kafka.servers if number % 2 else kafka.servers.replace("127.0.0.1", "localhost")
        for each in range(3):
            kafka.send(topics[each], some(10 * number + each, 15))
        frames = [records(spark, servers, subscribe=topics[each], **options) for each in order]
        frame = frames[0]
        for more in frames[1:]:
            frame = frame.union(more)
        run(frame, tmp_path)
        check(kafka, tmp_path, *(topics[each] for each in order))


@on_its_spark
def test_a_trigger(spark, kafka, topic, tmp_path):
    """Records that come while the flow runs, and a partition that is added meanwhile."""
    name = topic()
    kafka.send(name, some(0))
    init_partitions(tmp_path / "db", 2)

    def begin():
        frame = counted(records(spark, kafka.servers, subscribe=name, **{"kafka.metadata.max.age.ms": "500"}))
        config = RecoveryConfig(tmp_path / "db", snapshot_interval=0)
        return start(frame, config, sink=FileSink(tmp_path / "out"), name="test", trigger=0.2)

    for seed in range(1, 3):
        query = begin()
        kafka.send(name, some(seed))
        kafka.grow(name, 2 + seed)
        kafka.send(name, some(10 + seed))
        wanted, deadline = len(kafka.records(name)), time.monotonic() + 60
        while sum(states(tmp_path / "db", "counts").values()) < wanted:
            assert query.is_active
            assert time.monotonic() < deadline
            time.sleep(0.1)
        query.stop()
        check(kafka, tmp_path, name)


def remember(key, rows, state):
    """The number of records of a key, and what type the key has."""
    state.update([type(key).__name__, (state.get[1] if state.exists else 0) + len(rows)])
    yield key, state.get[1]


@on_its_spark
def test_binary_keys_and_headers(spark, kafka, topic, tmp_path):
    """Bytes that are not text are keys as they are; so is the value of a header, and no key at all."""
    name = topic()
    keys = [b"\xff\x00", b"\xfe", b"\xff", b"", None, "é".encode()]
    for run_number in range(2):
        kafka.send(name, [(key, b"x") for key in keys], headers=[("tenant", b"\x00\xff"), ("n", b"%d" % run_number)])
        source = records(spark, kafka.servers, subscribe=name, includeHeaders="true")
        by_key = source.transform(stateful("bytes", key="key", update=remember, output="key binary, n long"))
        tenants = source.selectExpr("filter(headers, each -> each.key = 'tenant')[0].value AS tenant", "offset")
        by_header = tenants.transform(
            stateful("tenants", key="tenant", update=remember, output="tenant binary, n long")
        )
        run_to_end(by_key.union(by_header), tmp_path / "db", FileSink(tmp_path / "out"))
    assert states(tmp_path / "db", "bytes") == {
        "FF00": ["bytes", 2], "FE": ["bytes", 2], "FF": ["bytes", 2], "": ["bytes", 2], "␀": ["NoneType", 2],
        "C3A9": ["bytes", 2],
    }  # fmt: skip
    assert states(tmp_path / "db", "tenants") == {"00FF": ["bytes", 12]}
    seen = Counter()
    for path in (tmp_path / "out").glob("*.parquet"):
        seen.update(row["key"] for row in pq.read_table(path).to_pylist())
    assert seen == {**dict.fromkeys(keys, 2), b"\x00\xff": 2}


@on_its_spark
def test_output_to_kafka(spark, kafka, topic, tmp_path):
    """At least once: a micro-batch that is repeated is written again. The last value of each key is that of the
    state, so that a compacted topic, or a reader that takes the last value, is right."""
    source, target = topic(), topic(1)
    kafka.send(source, some(1))

    def total(key, rows, state):
        state.update((state.getOption or 0) + len(rows))
        yield key, str(state.get)

    def write(fails):
        def to_kafka(batch, batch_id):
            rows = batch.selectExpr("key", "value")
            writer = rows.write.format("kafka").option("kafka.bootstrap.servers", kafka.servers)
            writer.option("topic", target).save()
            if fails:
                raise RuntimeError("after the records were sent")

        return to_kafka

    def go(fails=False):
        frame = records(spark, kafka.servers, subscribe=source).selectExpr("cast(key AS string) AS key")
        step = stateful("totals", key="key", update=total, output="key string, value string")
        run_to_end(frame.transform(step), tmp_path / "db", write(fails))

    with pytest.raises(FlowFailedError, match="after the records were sent"):
        go(fails=True)
    go()
    kafka.send(source, some(2))
    go()
    sent = [(each.key.decode(), each.value.decode()) for each in kafka.records(target)]
    assert {key: int(value) for key, value in sent} == states(tmp_path / "db", "totals") == kafka.counted(source)
    assert len(sent) > len(set(sent)), "the first micro-batch was sent twice"


@on_its_spark
def test_a_broker_that_is_gone(spark, kafka, tmp_path):
    """The run ends with 55 and the reason: an address where nothing listens, and a name that is none."""
    impatient = {"kafka.default.api.timeout.ms": "2000", "kafka.request.timeout.ms": "1000"}
    frame = records(spark, "127.0.0.1:1", subscribe="none", **impatient)
    with pytest.raises(InputUnavailableError, match=r"Kafka at 127\.0\.0\.1:1 .*TimeoutException: Timed out waiting"):
        run_to_end(counted(frame), tmp_path / "db", DiscardSink())
    frame = records(spark, "no.such.host.invalid:9092", subscribe="none")
    with pytest.raises(InputUnavailableError, match="No resolvable bootstrap urls"):
        run_to_end(counted(frame), tmp_path / "db", DiscardSink())


@on_its_spark
def test_an_option_that_kafka_does_not_take(spark, kafka, tmp_path):
    """It is a setting, which no restart corrects: the broker answers."""
    frame = records(spark, kafka.servers, subscribe="none", **{"kafka.default.api.timeout.ms": "2000"})
    with pytest.raises(ConfigurationError, match=r"default\.api\.timeout\.ms must be no smaller"):
        run_to_end(counted(frame), tmp_path / "db", DiscardSink())


@on_its_spark
def test_a_broker_that_goes_away_during_a_run(spark, tmp_path):
    """It may be killed at any time: the run ends with 55, and the next one, when the broker is back, goes on."""
    directory = tmp_path / "kafka"
    directory.mkdir()
    impatient = {
        "kafka.default.api.timeout.ms": "2000",
        "kafka.request.timeout.ms": "1000",
        "fetchOffset.numRetries": "1",
    }
    with broker(directory) as kafka:
        name = kafka.create("away", 1)
        kafka.send(name, some(1))
        frame = counted(records(spark, kafka.servers, subscribe=name, **impatient))
        init_partitions(tmp_path / "db", 1)
        query = start(frame, RecoveryConfig(tmp_path / "db", snapshot_interval=0), name="test", trigger=0.2)
        wait_until(lambda: sum(states(tmp_path / "db", "counts").values()) == len(kafka.records(name)), 120)
    with pytest.raises(
        InputUnavailableError, match=r"a source that the flow reads does not answer: .*TimeoutException"
    ):
        query.await_termination(300)
