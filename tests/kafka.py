"""A Kafka broker for tests: one process that stores its topics in a directory, and a client that does not use Spark.

`.ci/run` fetches the jars. Without them, or without kafka-python, what needs a broker is skipped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from recovery.spark.jvm.java import java_home
from tests.backup.emulators import free_port, running

ROOT = Path(__file__).parents[1]
JARS = Path(os.environ.get("RECOVERY_TEST_KAFKA_JARS", ROOT / ".ci" / "kafka-jars"))
CONNECTOR = [
    path
    for name in ("spark-sql-kafka-0-10", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
    for path in sorted(JARS.glob(f"{name}*.jar"))
]
"""What Spark needs of these jars."""
CONNECTOR_VERSION = CONNECTOR[0].stem.rpartition("-")[2] if CONNECTOR else ""
needs_jars = pytest.mark.skipif(not CONNECTOR, reason="no jars of Kafka: mvn -f .ci/kafka/pom.xml, as .ci/run does")
_SETTINGS = """
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={directory}/data-{node}
num.partitions=1
default.replication.factor={copies}
offsets.topic.replication.factor={copies}
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
# Records of tests may have times of long ago.
log.retention.ms=-1
log.retention.check.interval.ms=500
log.segment.delete.delay.ms=100
file.delete.delay.ms=100
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
"""


@dataclass
class Kafka:
    """A running broker, and what was sent to it."""

    servers: str
    admin: Any
    _producer: Any
    _start: Callable[[int], None]
    kill: Callable[[int], None]
    """Kills a node, by its number from 1 on."""
    topics: set[str] = field(default_factory=set)

    def create(self, topic: str, partitions: int = 2, **settings: str) -> str:
        """Make a topic; returns its name. settings: of the topic, with underscores for dots."""
        [made] = self.create_all([topic], partitions, **settings)
        return made

    def create_all(self, topics: list[str], partitions: int = 2, **settings: str) -> list[str]:
        """Make topics by one request; returns their names. settings: of each topic, with underscores for dots."""
        from kafka.admin import NewTopic

        configs = {name.replace("_", "."): value for name, value in settings.items()}
        self.admin.create_topics([NewTopic(each, partitions, -1, topic_configs=configs) for each in topics])
        self.topics.update(topics)
        self._await(lambda: all(len(self.partitions(each)) == partitions for each in topics))
        return topics

    def restart(self, node: int = 1) -> None:
        """Kill a node, and start it again with its data; returns when the brokers answer."""
        self._start(node)
        self._await(lambda: self.topics <= set(self.admin.list_topics()), 60)

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        self.admin.create_partitions({topic: partitions})
        self._await(lambda: len(self._producer.partitions_for(topic)) == partitions)

    def delete(self, topic: str) -> None:
        """Delete a topic with its records."""
        self.admin.delete_topics([topic])
        self.topics.discard(topic)
        self._await(lambda: topic not in self.admin.list_topics())

    def send(self, topic: str, records: Iterable[tuple[bytes | None, bytes | None]], headers: Any = ()) -> None:
        """Add records (key, value), each to a partition by chance; returns when the broker has them."""
        count = len(self.partitions(topic))
        sent = [
            self._producer.send(topic, key=key, value=value, headers=list(headers), partition=random.randrange(count))
            for key, value in records
        ]
        self._producer.flush(timeout=60)
        for each in sent:
            each.get(timeout=30)

    def send_by_key(self, topic: str, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Add records (key, value), each to the partition of its key, in their order."""
        for key, value in records:
            self._producer.send(topic, key=key, value=value)
        self._producer.flush(timeout=60)

    def remove_before(self, topic: str, partition: int, offset: int) -> None:
        """Remove the records before an offset, as retention does."""
        from kafka import TopicPartition

        self.admin.delete_records({TopicPartition(topic, partition): offset})
        self._await(lambda: self.bounds(topic)[partition][0] == offset)

    def partitions(self, topic: str) -> list[int]:
        """The partitions that a topic has."""
        [found] = self.admin.describe_topics([topic])
        return sorted(each["partition_index"] for each in found["partitions"])

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """The first and the next offset of each partition."""
        with self._consumer() as consumer:
            places = self._places(topic)
            first, after = consumer.beginning_offsets(places), consumer.end_offsets(places)
            return {place.partition: (first[place], after[place]) for place in places}

    def committed(self, *topics: str) -> list[Any]:
        """All records that a reader of committed transactions sees, read without Spark."""
        return self.records(*topics, isolation_level="read_committed")

    def records(self, *topics: str, **options: Any) -> list[Any]:
        """All records that the topics hold, read without Spark. options: of the consumer."""
        found: list[Any] = []
        deadline = time.monotonic() + 120
        with self._consumer(**options) as consumer:
            for place in [place for topic in topics for place in self._places(topic)]:
                consumer.assign([place])
                consumer.seek_to_beginning(place)
                after = consumer.end_offsets([place])[place]
                while consumer.position(place) < after:
                    assert time.monotonic() < deadline, "the broker does not answer"
                    for records in consumer.poll(timeout_ms=1000).values():
                        found += records
        return found

    def counted(self, *topics: str) -> dict[str, int]:
        """How many records the topics hold of each key."""
        return dict(Counter(record.key.decode() for record in self.records(*topics)))

    def _places(self, topic: str) -> list[Any]:
        from kafka import TopicPartition

        return [TopicPartition(topic, number) for number in self.partitions(topic)]

    @contextlib.contextmanager
    def _consumer(self, **options: Any) -> Iterator[Any]:
        from kafka import KafkaConsumer

        # A transaction ends with a mark that is no record: the broker waits so long for one behind it.
        settings = {"enable_auto_commit": False, "fetch_max_wait_ms": 20, **options}
        consumer = KafkaConsumer(bootstrap_servers=self.servers, **settings)
        try:
            yield consumer
        finally:
            consumer.close()

    def _await(self, done: Any, timeout_s: float = 30) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(Exception):
                if done():
                    return
            assert time.monotonic() < deadline, "the broker did not do it"
            time.sleep(0.05)


@contextlib.contextmanager
def broker(directory: Path, nodes: int = 1, **more: object) -> Iterator[Kafka]:
    """A broker of its own, or several ones, with data in this directory; removes it. Each of several nodes is a broker
    and a controller, and each topic has a copy at each. more: of the settings, with underscores for dots."""
    kafka = pytest.importorskip("kafka", reason="kafka-python is not installed (the test extra has it)")
    if not CONNECTOR:
        pytest.skip(needs_jars.kwargs["reason"])
    # Its threads would report each topic that was deleted, again and again, in the logs of other tests.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    ports = {node: (free_port(), free_port()) for node in range(1, nodes + 1)}
    voters = ",".join(f"{node}@127.0.0.1:{controller}" for node, (_, controller) in ports.items())
    if nodes > 1:
        # A node asks its authorizer for the others before it has read any rule.
        more = {"super_users": "User:ANONYMOUS", **more}
    added = "".join(f"{name.replace('_', '.')}={value}\n" for name, value in more.items())
    quick = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:MetaspaceSize=128m"]
    java = [str(java_home() / "bin" / "java"), *quick, "-cp", f"{JARS}/*"]
    environment = {name: text for name, text in os.environ.items() if name != "JAVA_TOOL_OPTIONS"}
    cluster = _random_id()
    for node, (port, controller) in ports.items():
        text = _SETTINGS.format(
            port=port, controller=controller, directory=directory, node=node, voters=voters, copies=nodes
        )
        (directory / f"{node}.properties").write_text(text + added)
        # What Kafka's command `format` would write, in a JVM of its own.
        data = directory / f"data-{node}"
        data.mkdir()
        identity = {"version": 1, "cluster.id": cluster, "node.id": node, "directory.id": _random_id()}
        (data / "meta.properties").write_text("".join(f"{name}={value}\n" for name, value in identity.items()))
    with contextlib.ExitStack() as processes:
        running_nodes = {node: processes.enter_context(contextlib.ExitStack()) for node in ports}

        def kill(node: int) -> None:
            running_nodes[node].close()

        def start(node: int) -> None:
            kill(node)
            command = [*java, "kafka.Kafka", f"{directory}/{node}.properties"]
            running_nodes[node].enter_context(running(command, ports[node][0], env=environment))

        if nodes > 1:
            # None of several listens before they have found a leader.
            with ThreadPoolExecutor(nodes) as threads:
                list(threads.map(start, ports))
        else:
            start(1)
        servers = ",".join(f"127.0.0.1:{port}" for port, _ in ports.values())
        producer = kafka.KafkaProducer(bootstrap_servers=servers, acks="all", metadata_max_age_ms=200)
        admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
        found = Kafka(servers, admin, producer, start, kill)
        try:
            if nodes > 1:
                found._await(lambda: len(admin.describe_cluster()["brokers"]) == nodes, 60)
                # This client goes on with the brokers that it found first.
                admin.close()
                found.admin = admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
            yield found
        finally:
            producer.close(timeout=5)
            admin.close()
    shutil.rmtree(directory, ignore_errors=True)


def _random_id() -> str:
    """A random id in the form that Kafka gives its clusters and directories."""
    import base64

    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "a", 1)
