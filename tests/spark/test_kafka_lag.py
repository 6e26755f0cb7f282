"""What tools of Kafka and operators see of a flow's lag: a real broker, and Kafka's own command for consumer groups."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import urllib.request

import pytest
from click.testing import CliRunner

from recovery import DiscardSink, FlowFailedError, RecoveryConfig, init_partitions, start
from recovery.cli import main
from recovery.spark.inputs.kafka_group import AGAIN_S, ConsumerGroup
from recovery.spark.jvm.java import java_home
from recovery.spark.jvm.kafka_groups import KafkaWatch
from tests.kafka import JARS, needs_jars
from tests.spark import test_kafka as shared
from tests.spark.test_kafka import counted, records, some
from tests.waiting import wait_until

topic = shared.topic
needs_tools = pytest.mark.skipif(not list(JARS.glob("kafka-tools-3*")), reason="no jar of Kafka's tools: see .ci/run")
pytestmark = needs_jars


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """The last look of a run is awaited, on a busy machine, too."""
    monkeypatch.setattr("recovery.spark.run.parts.lagging.END_S", 120)
    monkeypatch.setattr("recovery.spark.jvm.kafka_groups.PATIENCE_S", 60)


def described(kafka, group, name):
    """What `kafka-consumer-groups.sh --describe` says of a topic: offset, end and lag of each partition."""
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    java = [str(java_home() / "bin" / "java"), "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*", tool]
    done = subprocess.run(
        [*java, "--bootstrap-server", kafka.servers, "--describe", "--group", group],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = re.findall(rf"^{group}\s+{name}\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    return {int(number): (int(at), int(end), int(lag)) for number, at, end, lag in found}


def shown(kafka, group, name):
    """What the tool would say, from what it asks the broker: the tool is a JVM."""
    at = {place: offset for (topic, place), offset in offsets(kafka, group).items() if topic == name}
    ends = {place: end for place, (_, end) in kafka.bounds(name).items()}
    return {place: (at[place], ends[place], ends[place] - at[place]) for place in at}


def offsets(kafka, group):
    """The offsets of a consumer group, by topic and partition."""
    found = kafka.admin.list_group_offsets({group: None})[group]
    return {(place.topic, place.partition): at.offset for place, at in found.items()}


def status_of(directory):
    """What `recovery status --json` prints."""
    return json.loads(CliRunner().invoke(main, ["status", str(directory), "--json"]).stdout)


def go(frame, root, sink, **config):
    """Run to the end of the input, with epochs of a micro-batch each; the query, whatever its end."""
    if not (root / "db").exists():
        init_partitions(root / "db", 2)
    config = RecoveryConfig(root / "db", **{"snapshot_interval": 0, "backup_interval": "1h", **config})
    sink = sink or DiscardSink()
    query = start(counted(frame), config, sink=sink, name="test", trigger="available-now")
    query.await_termination()
    return query


@needs_tools
def test_the_tool_shows_the_lag_of_the_run(spark, kafka, topic, tmp_path):
    """After each run, by partition; so do `status`, the summary and the metrics. The group goes back with the flow."""
    name = topic(2)
    kafka.send(name, some(1, 30))
    seen = []

    def sink(batch, batch_id):
        """The end of the input is fixed by then."""
        if batch_id == 0:
            kafka.send(name, some(2, 12))

    query = go(records(spark, kafka.servers, subscribe=name), tmp_path, sink)
    found = described(kafka, "recovery-test", name)
    assert found == shown(kafka, "recovery-test", name)
    assert sum(lag for _, _, lag in found.values()) == 12
    [lag] = query.summary.lag["sources"]
    most = max(found.items(), key=lambda each: each[1][2])
    assert (lag["topic"], lag["unit"], lag["behind"], lag["parts"]) == (name, "record", 12, 2)
    assert lag["most_behind"] == most[1][2]
    status = status_of(tmp_path / "db")
    assert (status["lag"]["epoch"], status["lag"]["sources"]) == (1, [lag])
    assert status["lag"]["group"] == "recovery-test"
    assert [each["value"] for each in status["health"] if each["target"] == "source-lag"] == [lag["seconds"]]

    def scraping(batch, batch_id):
        """The metrics of the position that the run resumes at, and then of what the sink has added."""

        def page():
            with urllib.request.urlopen(running[0].metrics_url, timeout=30) as answer:
                return answer.read().decode()

        wait_until(lambda: running and f'topic="{name}",partition="1"' in page(), 60)
        seen.append(page())

    running = []
    config = RecoveryConfig(tmp_path / "db", snapshot_interval=0, backup_interval="1h", metrics_port=0)
    running.append(
        start(counted(records(spark, kafka.servers, subscribe=name)), config, sink=scraping, name="test",
              trigger="available-now")
    )  # fmt: skip
    running[0].await_termination()
    by_part = {
        int(number): int(behind)
        for number, behind in re.findall(r'recovery_source_lag\{.*partition="(\d)",unit="record"\} (\d+)', seen[0])
    }
    assert by_part == {number: lag for number, (_, _, lag) in found.items()}
    assert f'recovery_source_lag_seconds{{source="{kafka.servers}",topic="{name}"}} 0' in seen[0]
    assert sum(lag for _, _, lag in shown(kafka, "recovery-test", name).values()) == 0

    def failing(batch, batch_id):
        raise RuntimeError("no epoch is closed")

    with pytest.raises(FlowFailedError):
        go(records(spark, kafka.servers, subscribe=name), tmp_path, failing, resume_after=1)
    assert shown(kafka, "recovery-test", name) == found


@pytest.mark.long
def test_a_group_of_others_is_left_alone(spark, kafka, topic, tmp_path, caplog):
    """With consumers, or with offsets that consumers have committed while they are away; another group by its name,
    or none."""
    from kafka import KafkaConsumer, TopicPartition
    from kafka.structs import OffsetAndMetadata

    name = topic(1)
    kafka.send(name, some(1, 10))
    frame = records(spark, kafka.servers, subscribe=name)
    consumer = KafkaConsumer(name, bootstrap_servers=kafka.servers, group_id="others", auto_offset_reset="earliest")
    try:
        wait_until(lambda: consumer.poll(timeout_ms=200) or consumer.assignment(), 60)
        query = go(frame, tmp_path, None, kafka_group="others")
        assert query.summary.lag["problem"].startswith("consumers use the group")
        [warning] = [each.message for each in caplog.records if "consumer group others" in each.message]
        assert "--kafka-group" in warning
        consumer.seek_to_beginning()
        consumer.poll(timeout_ms=5000, max_records=3)
        consumer.commit()
        at = offsets(kafka, "others")
        assert at
    finally:
        consumer.close(autocommit=False)
    kafka.send(name, some(2, 10))
    query = go(frame, tmp_path, None, kafka_group="others")
    assert query.summary.lag["problem"].startswith("another program has committed offsets")
    assert query.summary.epochs == 1
    assert offsets(kafka, "others") == at
    came = []

    def comes_and_goes(batch, batch_id):
        """A consumer takes the run's own group between two of its epochs."""
        if batch_id and not came:
            wait_until(lambda: (name, 0) in offsets(kafka, "taken"), 60)
            with contextlib.closing(KafkaConsumer(bootstrap_servers=kafka.servers, group_id="taken")) as other:
                place = TopicPartition(name, 0)
                other.assign([place])
                other.commit({place: OffsetAndMetadata(1, "", -1)})
            came.append(1)

    (tmp_path / "other").mkdir()
    small = records(spark, kafka.servers, subscribe=name, maxOffsetsPerTrigger=10)
    query = go(small, tmp_path / "other", comes_and_goes, kafka_group="taken")
    assert query.summary.lag["problem"].startswith("another program has committed offsets")
    assert offsets(kafka, "taken") == {(name, 0): 1}
    kafka.send(name, some(3, 10))
    go(frame, tmp_path, None, kafka_group="mine")
    assert offsets(kafka, "mine") == {(name, 0): 30}
    kafka.send(name, some(4, 10))
    query = go(frame, tmp_path, None, kafka_group="off")
    assert (query.summary.lag["group"], query.summary.lag["sources"][0]["behind"]) == (None, 0)
    assert offsets(kafka, "mine") == {(name, 0): 30}


def test_a_user_without_the_right(spark, kafka, topic, tmp_path, caplog):
    """One warning with the right that is missing; the run closes its epochs, and knows its lag."""
    from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

    name, group = topic(1), "forbidden"
    kafka.send(name, some(1, 10))
    pattern = ResourcePattern(ResourceType.GROUP, group)
    acl = ACL("User:somebody", "*", ACLOperation.READ, ACLPermissionType.ALLOW, pattern)
    kafka.admin.create_acls([acl])
    frame = records(spark, kafka.servers, subscribe=name, maxOffsetsPerTrigger=2)
    query = go(frame, tmp_path, None, kafka_group=group)
    assert query.summary.epochs == 5
    assert "--operation Read --group forbidden" in query.summary.lag["problem"]
    assert query.summary.lag["sources"][0]["behind"] == 0
    assert len([each for each in caplog.records if "consumer group forbidden" in each.message]) == 1
    text = json.dumps(status_of(tmp_path / "db")["lag"])
    assert "--operation Read --group forbidden" in text


@pytest.mark.long
def test_a_topic_that_is_read_twice(spark, kafka, topic, tmp_path):
    """The group shows the lower one of the two offsets; the lag counts once."""
    name = topic(1)
    kafka.send(name, some(1, 10))
    first = counted(records(spark, kafka.servers, subscribe=name), "first")
    second = counted(
        records(spark, kafka.servers, subscribe=name, startingOffsets=json.dumps({name: {"0": 4}})), "second"
    )
    init_partitions(tmp_path / "db", 1)
    config = RecoveryConfig(tmp_path / "db", kafka_group="twice")
    query = start(first.union(second), config, name="test", trigger="available-now",
                  sink=lambda batch, number: number or kafka.send(name, some(2, 3)))  # fmt: skip
    query.await_termination()
    assert [each["behind"] for each in query.summary.lag["sources"]] == [3]
    assert offsets(kafka, "twice") == {(name, 0): 10}


def test_offsets_that_kafka_has_forgotten(spark, kafka, topic):
    """All are committed again after some hours; before that, only those that have changed."""

    class Clock:
        now_s = 100.0

        def elapsed_s(self):
            return self.now_s

    from kafka import TopicPartition

    name, clock = topic(2), Clock()
    group = ConsumerGroup("forgotten", "x", clock)
    place = TopicPartition(name, 0)
    with contextlib.closing(KafkaWatch(spark, {"kafka.bootstrap.servers": kafka.servers})) as watch:
        group.show(watch, {name: {0: 0, 1: 0}})
        kafka.admin.delete_group_offsets("forgotten", [place])
        group.show(watch, {name: {0: 0, 1: 5}})
        assert offsets(kafka, "forgotten") == {(name, 1): 5}
        clock.now_s += AGAIN_S
        group.show(watch, {name: {0: 0, 1: 5}})
        assert offsets(kafka, "forgotten") == {(name, 0): 0, (name, 1): 5}
        kafka.admin.delete_group_offsets("forgotten", [place])
        group.show(watch, {name: {0: 0, 1: 5}})
        assert offsets(kafka, "forgotten") == {(name, 1): 5}
    assert group.problem is None


def test_topics_that_replace_each_other(spark, kafka, topic):
    """The brokers are asked for the topics of the position, also when there are as many as before."""
    first, second = topic(1), topic(1)
    kafka.send(second, some(1, 3))
    with contextlib.closing(KafkaWatch(spark, {"kafka.bootstrap.servers": kafka.servers})) as watch:
        assert watch.ends({first: {0: 0}}) == {(first, 0): 0}
        # A group that shows a topic knows its partitions before their ends are asked for.
        watch.commit("replaced", {second: {0: 1}}, "x")
        assert watch.ends({second: {0: 1}}) == {(second, 0): 3}
