"""What the sink asks of Kafka's brokers: facts about the topics, the newest marker, transactions.

Every call has a limit of time, and an error of the broker becomes one of this package; see `reasons`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from recovery.errors import ConfigurationError, SinkFailedError, SinkRefusedError
from recovery.sinks.kafka.marker import KafkaTarget
from recovery.sinks.kafka.reasons import IMPOSSIBLE, broker_error
from recovery.sinks.kafka.staged import TopicLimits

PATIENCE_S = 30.0
"""How long a broker may take to answer."""
POLL_S = 0.2
TRANSACTION_MS = 60_000
"""Kafka's own default of transaction.timeout.ms."""
RECORD_OVERHEAD = 128
"""More bytes than a record and its batch have besides key, value and headers."""
OWN_OPTIONS = {
    "bootstrap.servers", "metadata.broker.list", "transactional.id", "enable.idempotence", "acks",
    "request.required.acks", "isolation.level", "group.id", "enable.auto.commit", "enable.partition.eof", "error_cb",
    "max.in.flight", "max.in.flight.requests.per.connection", "retries", "message.send.max.retries",
    "queuing.strategy", "dr_cb", "dr_msg_cb", "on_delivery", "default.topic.config",
}  # fmt: skip
"""Options of librdkafka that decide whether a record comes once: the sink sets them, or needs their defaults."""
_QUIET = {"log_level": 0}
_PRODUCING = {
    # Keys go to the partitions to which Java's clients send them.
    "partitioner": "murmur2_random", "linger.ms": 20, "transaction.timeout.ms": TRANSACTION_MS,
    # The limit is the topic's, and rows are compared with it when they are staged.
    "message.max.bytes": 1_000_000_000,
}  # fmt: skip
BATCH_BYTES = 128 << 10
"""With librdkafka's default, 1 MB, a broker with a small heap took twice the processor time for the same records."""


class Broker:
    """The brokers of a target, and what they say. options: of librdkafka, for all clients. kafka: the client's module.
    patience_s: how long a broker may take to answer."""

    def __init__(self, target: KafkaTarget, options: Mapping[str, Any]) -> None:
        try:
            import confluent_kafka
            import confluent_kafka.admin
        except ImportError as error:
            raise ConfigurationError(
                f"KafkaSink needs the package confluent-kafka: {error}", remedy="pip install 'confluent-kafka>=2.16'"
            ) from error
        self.kafka, self._admin_module = confluent_kafka, confluent_kafka.admin
        self.target = target
        self._options = {**_QUIET, **options, "bootstrap.servers": target.servers, "error_cb": self._hear}
        self.patience_s = PATIENCE_S
        self._admin: Any = None
        self._said: Any = None

    # ---- topics

    def limits(self, *, compensates: bool = False) -> TopicLimits:
        """Return what the topic takes. Raises SinkRefusedError if there is none, or this user may not write to it;
        compensates: also if it does not keep the last value of each key, or this user may not read it."""
        topic = self.target.topic
        found = self._described(topic)
        if found is None:
            raise self.refused(f"there is no such topic at {self.target.servers}", "Make it, or correct its name.")
        self._check_right(topic, found, "WRITE")
        settings = self._settings(topic)
        if compensates:
            self._check_right(topic, found, "READ")
            self._check_compacted(topic, settings.get("cleanup.policy"))
        largest, latest = (
            _number(settings.get(name)) for name in ("max.message.bytes", "message.timestamp.after.max.ms")
        )
        creates = settings.get("message.timestamp.type") == "CreateTime"
        return TopicLimits(
            id=str(found.topic_id),
            partitions=len(found.partitions),
            bytes_of_record=None if largest is None else largest - RECORD_OVERHEAD,
            needs_key="compact" in settings.get("cleanup.policy", ""),
            latest_ms=latest if creates else None,
            by_key=compensates,
        )

    def _check_compacted(self, topic: str, policy: str | None) -> None:
        if policy is None:
            raise self.refused(
                f"this user may not see the cleanup.policy of topic {topic}, which compensate=True depends on",
                f"Grant DESCRIBE_CONFIGS on topic {topic} to the user of the sink.",
            )
        if "compact" not in policy:
            raise self.refused(
                f"topic {topic} has cleanup.policy={policy}: its readers do not take the last value of each key alone, "
                "and compensate=True corrects nothing else",
                f"Set cleanup.policy=compact for it (kafka-configs.sh --alter --topic {topic} --add-config "
                "cleanup.policy=compact), or leave compensate out.",
            )

    def has_control(self) -> bool:
        """Whether the control topic exists. Raises SinkRefusedError if it cannot keep markers."""
        control = self.target.control
        found = self._described(control)
        if found is None:
            return False
        for right in ("READ", "WRITE"):
            self._check_right(control, found, right)
        policy = self._settings(control).get("cleanup.policy", "compact")
        if policy != "compact":
            raise self.refused(
                f"control topic {control} has cleanup.policy={policy}: markers of what was produced would be deleted",
                f"Set cleanup.policy=compact for it (kafka-configs.sh --alter --topic {control} --add-config "
                "cleanup.policy=compact), or name another one: control=….",
            )
        return True

    def make_control(self, *, only_try: bool = False) -> None:
        """Make the control topic. only_try: let the broker say whether it would. Raises SinkRefusedError."""
        control = self.target.control
        topic = self._admin_module.NewTopic(control, 1, -1, config={"cleanup.policy": "compact"})
        asked = self._asked().create_topics([topic], request_timeout=self.patience_s, validate_only=only_try)
        with self.translated(f"making control topic {control} (one partition, cleanup.policy=compact)"):
            try:
                asked[control].result(self.patience_s)
            except self.kafka.KafkaException as error:
                if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                    raise
        deadline = time.monotonic() + self.patience_s
        while not only_try and self._described(control) is None:
            if time.monotonic() > deadline:
                raise self.late(f"control topic {control} was made, and is not there yet")
            time.sleep(POLL_S)

    def _described(self, topic: str) -> Any:
        asked = self._asked().describe_topics(
            self.kafka.TopicCollection([topic]), include_authorized_operations=True, request_timeout=self.patience_s
        )
        with self.translated(f"looking at topic {topic}"):
            try:
                return asked[topic].result(self.patience_s)
            except self.kafka.KafkaException as error:
                if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                    raise
        return None

    def _check_right(self, topic: str, described: Any, right: str) -> None:
        rights = described.authorized_operations
        if rights and right not in {each.name for each in rights}:
            raise self.refused(
                f"this user may not {right} topic {topic}", f"Grant {right} on topic {topic} to the user of the sink."
            )

    def _settings(self, topic: str) -> dict[str, str]:
        """Return a topic's settings; nothing if this user may not see them."""
        kind = self._admin_module.ConfigResource.Type.TOPIC
        resource = self._admin_module.ConfigResource(kind, topic)
        asked = self._asked().describe_configs([resource], request_timeout=self.patience_s)
        with self.translated(f"looking at the settings of topic {topic}"):
            try:
                found = asked[resource].result(self.patience_s)
            except self.kafka.KafkaException as error:
                if error.args[0].name() not in ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"):
                    raise
                return {}
        return {name: each.value for name, each in found.items() if each.value is not None}

    # ---- clients

    def consumer(self, own: Mapping[str, Any]) -> Any:
        """Return a client that reads, with these options of the sink's own."""
        return self._made(self.kafka.Consumer, own)

    def ends(self, topic: str, partitions: int) -> dict[int, int]:
        """Return the offset after the newest record of each partition, whether its transaction has ended or not."""
        places = {
            self.kafka.TopicPartition(topic, n): self._admin_module.OffsetSpec.latest() for n in range(partitions)
        }
        asked = self._asked().list_offsets(
            places, isolation_level=self.kafka.IsolationLevel.READ_UNCOMMITTED, request_timeout=self.patience_s
        )
        with self.translated(f"looking at topic {topic}"):
            return {place.partition: each.result(self.patience_s).offset for place, each in asked.items()}

    def transactions(self, transactional_id: str, limits: TopicLimits) -> Transactions:
        """Return a producer under this id. From now on no other producer of this id can commit. Raises SinkRefusedError
        or SinkFailedError where the broker has no transactions for it."""
        batch_bytes = min(BATCH_BYTES, limits.bytes_of_record or BATCH_BYTES)
        own = {**_PRODUCING, "batch.size": batch_bytes, **self._options, "transactional.id": transactional_id}
        producer = self._made(self.kafka.Producer, own)
        timeout_s = int(own.get("transaction.timeout.ms", TRANSACTION_MS)) / 1000
        doing = f"beginning transactions as {transactional_id!r}"
        try:
            with self.translated(doing):
                producer.init_transactions(self.patience_s)
        except SinkFailedError as error:
            # They have just answered about the topics.
            cause = "The brokers answer, and none of them coordinates transactions; they may be too few for that."
            raise SinkFailedError(error.found, path=error.path, cause=cause, remedy=IMPOSSIBLE.remedy) from None
        return Transactions(self, producer, timeout_s)

    def _asked(self) -> Any:
        if self._admin is None:
            self._admin = self._made(self._admin_module.AdminClient, {})
        return self._admin

    def _made(self, kind: Any, own: Mapping[str, Any]) -> Any:
        try:
            return kind({**own, **self._options, **{name: each for name, each in own.items() if name in OWN_OPTIONS}})
        except (self.kafka.KafkaException, TypeError, ValueError) as error:
            said = error.args[0].str() if isinstance(error, self.kafka.KafkaException) else str(error)
            raise ConfigurationError(
                f"KafkaSink: librdkafka does not take the options: {said}",
                remedy="Correct options=…; the names are those of librdkafka's CONFIGURATION.md.",
            ) from None

    def _hear(self, error: Any) -> None:
        """Keep what a client says beside its answers: why it cannot connect, or log in."""
        if error.name() != "_ALL_BROKERS_DOWN":
            self._said = error

    # ---- errors

    def refused(self, found: str, remedy: str) -> SinkRefusedError:
        """Return the error about something that a person has to correct."""
        return SinkRefusedError(
            found,
            path=self.target.path,
            cause="The topics are not made for it, or the names or servers are wrong.",
            remedy=f"{remedy} Then run the same command again.",
        )

    def late(self, found: str) -> SinkFailedError:
        """Return the error about an answer that does not come."""
        return SinkFailedError(
            found,
            path=self.target.path,
            cause="The broker is slow, or another run's transaction on the control topic has not ended.",
            remedy="Run the same command again: nothing is lost or produced twice.",
        )

    @contextlib.contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Raise the errors of `reasons` for those of librdkafka."""
        try:
            yield
        except (self.kafka.KafkaException, TimeoutError) as error:
            said, self._said = self._said, None
            late = self.kafka.KafkaError(self.kafka.KafkaError._TIMED_OUT)
            answer = error.args[0] if isinstance(error, self.kafka.KafkaException) else late
            raise broker_error(answer, self.target.topic, doing, said) from None


class Transactions:
    """A producer whose transactions are fenced by its id: once another one has begun with it, no further commit."""

    def __init__(self, broker: Broker, producer: Any, timeout_s: float) -> None:
        self._broker, self._producer, self.timeout_s = broker, producer, timeout_s
        self._began_s = 0.0

    @property
    def age_s(self) -> float:
        """How long the open transaction has lasted."""
        return time.monotonic() - self._began_s

    @contextlib.contextmanager
    def transaction(self, doing: str) -> Iterator[None]:
        """Begin a transaction, which the block has to commit. Aborts it if the block fails. Raises the errors of
        `reasons`. doing: what the block does, for errors."""
        self._began_s = time.monotonic()
        try:
            with self._broker.translated(doing):
                self._producer.begin_transaction()
                yield
        except BaseException:
            with contextlib.suppress(Exception):
                self._producer.abort_transaction(PATIENCE_S)
            raise

    def send(self, topic: str, records: Iterable[tuple[Any, ...]]) -> None:
        """Add records to the transaction: key and value, or key, value, headers, partition and timestamp."""
        add = self._add
        for key, value, *others in records:
            if not others:
                add(topic, value, key)
                continue
            headers, partition, timestamp = others
            more: dict[str, Any] = {}
            if headers is not None:
                more["headers"] = [(pair["key"], pair["value"]) for pair in headers]
            if partition is not None:
                more["partition"] = partition
            if timestamp is not None:
                more["timestamp"] = timestamp
            add(topic, value, key, **more)
        self._producer.poll(0)

    def _add(self, topic: str, value: bytes | None, key: bytes | None, **more: Any) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, **more)
                return
            except BufferError:
                # The broker is slower than this loop.
                self._producer.poll(POLL_S)
                if self.age_s > self.timeout_s:
                    raise TimeoutError from None

    def commit(self, control: str, name: str, marker: bytes) -> None:
        """Commit the records of the transaction together with the marker. Fails if the broker has refused a record."""
        self._producer.produce(control, marker, name.encode(), partition=0)
        self._producer.commit_transaction(max(self.timeout_s, PATIENCE_S))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdecimal() else None
