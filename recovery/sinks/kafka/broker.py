"""What the sink asks of Kafka's brokers: facts about the topics, the newest marker, transactions.

Every call has a limit of time, and an error of the broker becomes one of this package; see `reasons`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from recovery.errors import SinkFailedError, SinkRefusedError
from recovery.sinks.kafka.client import Client
from recovery.sinks.kafka.marker import KafkaTarget
from recovery.sinks.kafka.reasons import IMPOSSIBLE
from recovery.sinks.kafka.staged import TopicLimits

PATIENCE_S = 30.0
"""How long a broker may take to answer."""
POLL_S = 0.2
TRANSACTION_MS = 60_000
"""Kafka's own default of transaction.timeout.ms."""
_LIMITS = "max.message.bytes", "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"
RECORD_OVERHEAD = 128
"""More bytes than a record and its batch have besides key, value and headers."""
_PRODUCING = {
    # Keys go to the partitions to which Java's clients send them.
    "partitioner": "murmur2_random", "linger.ms": 20, "transaction.timeout.ms": TRANSACTION_MS,
    # The limit is the topic's, and rows are compared with it when they are staged.
    "message.max.bytes": 1_000_000_000,
}  # fmt: skip
BATCH_BYTES = 128 << 10
"""With librdkafka's default, 1 MB, a broker with a small heap took twice the processor time for the same records."""


class Broker(Client):
    """The brokers of a target, and what they say about its topics."""

    def __init__(self, target: KafkaTarget, options: Mapping[str, Any]) -> None:
        """options: of librdkafka, for all clients. Raises ConfigurationError without the package confluent-kafka."""
        super().__init__("KafkaSink", target.servers, target.topic, options, PATIENCE_S)
        self.target = target

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
        largest, latest, earliest = (_number(settings.get(name)) for name in _LIMITS)
        creates = settings.get("message.timestamp.type") == "CreateTime"
        return TopicLimits(
            id=str(found.topic_id),
            partitions=len(found.partitions),
            bytes_of_record=None if largest is None else largest - RECORD_OVERHEAD,
            needs_key="compact" in settings.get("cleanup.policy", ""),
            latest_ms=latest if creates else None,
            earliest_ms=earliest if creates else None,
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
        topic = self.admin_module.NewTopic(control, 1, -1, config={"cleanup.policy": "compact"})
        asked = self.asked().create_topics([topic], request_timeout=self.patience_s, validate_only=only_try)
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
        return self.described([topic], rights=True).get(topic)

    def _check_right(self, topic: str, described: Any, right: str) -> None:
        rights = described.authorized_operations
        if rights and right not in {each.name for each in rights}:
            raise self.refused(
                f"this user may not {right} topic {topic}", f"Grant {right} on topic {topic} to the user of the sink."
            )

    def _settings(self, topic: str) -> dict[str, str]:
        """Return a topic's settings; nothing if this user may not see them."""
        kind = self.admin_module.ConfigResource.Type.TOPIC
        resource = self.admin_module.ConfigResource(kind, topic)
        asked = self.asked().describe_configs([resource], request_timeout=self.patience_s)
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
        return self.made(self.kafka.Consumer, own)

    def ends(self, topic: str, partitions: int) -> dict[int, int]:
        """Return the offset after the newest record of each partition, whether its transaction has ended or not."""
        found = self.offsets([(topic, number) for number in range(partitions)], "latest")
        return {number: end for (_, number), (end,) in found.items()}

    def transactions(self, transactional_id: str, limits: TopicLimits) -> Transactions:
        """Return a producer under this id. From now on no other producer of this id can commit. Raises SinkRefusedError
        or SinkFailedError where the broker has no transactions for it."""
        batch_bytes = min(BATCH_BYTES, limits.bytes_of_record or BATCH_BYTES)
        own = {**_PRODUCING, "batch.size": batch_bytes, **self._options, "transactional.id": transactional_id}
        producer = self.made(self.kafka.Producer, own)
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
