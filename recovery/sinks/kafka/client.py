"""Librdkafka's clients of some brokers: what the brokers say about topics and consumer groups.

Every call has a limit of time, and an error of the broker becomes one of this package; see `reasons`. `KafkaSink` and
--if-new-input ask by it.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from recovery.errors import ConfigurationError
from recovery.sinks.kafka.reasons import broker_error

OWN_OPTIONS = {
    "bootstrap.servers", "metadata.broker.list", "transactional.id", "enable.idempotence", "acks",
    "request.required.acks", "isolation.level", "group.id", "enable.auto.commit", "enable.partition.eof", "error_cb",
    "max.in.flight", "max.in.flight.requests.per.connection", "retries", "message.send.max.retries",
    "queuing.strategy", "dr_cb", "dr_msg_cb", "on_delivery", "default.topic.config",
}  # fmt: skip
"""Options of librdkafka that decide whether a record comes once: the sink sets them, or needs their defaults."""
_QUIET = {"log_level": 0}
SHOWN = 3
"""How many topics an error names that are asked about in one question."""
TRIES = 5
"""How often a consumer group's metadata are read that do not come as text."""
_NO_TOPIC = "UNKNOWN_TOPIC_OR_PART"


class Client:
    """Clients of some brokers. patience_s: how long a broker may take to answer."""

    def __init__(self, asker: str, servers: str, topic: str, options: Mapping[str, Any], patience_s: float) -> None:
        """asker: what asks, and topic: which one is asked about, for errors. options: of librdkafka, for all clients.
        Raises ConfigurationError without the package confluent-kafka."""
        self.patience_s = patience_s
        self._asker, self._topic = asker, topic
        self._options = {**_QUIET, **options, "bootstrap.servers": servers, "error_cb": self._hear}
        self._admin: Any = None
        self._said: Any = None
        with contextlib.suppress(ValueError):
            if importlib.util.find_spec("confluent_kafka") is not None:
                return
        raise self._lacking("there is no such package")

    @cached_property
    def kafka(self) -> Any:
        """The clients' module. Imported when it is needed: what a flow's code imports is watched."""
        try:
            import confluent_kafka
            import confluent_kafka.admin
        except ImportError as error:
            raise self._lacking(str(error)) from error
        return confluent_kafka

    @property
    def admin_module(self) -> Any:
        """The part of the module that asks."""
        return self.kafka.admin

    def names(self) -> list[str]:
        """Return the names of all topics that this user may see."""
        with self.translated("listing the topics"):
            return list(self.asked().list_topics(timeout=self.patience_s).topics)

    def described(self, topics: Collection[str], *, rights: bool = False) -> dict[str, Any]:
        """Return those topics that exist, as the broker describes them. rights: with what this user may do."""
        if not topics:
            return {}
        with self.translated(f"looking at topic {', '.join(list(topics)[:SHOWN])}"):
            asked = self.asked().describe_topics(
                self.kafka.TopicCollection(list(topics)), include_authorized_operations=rights,
                request_timeout=self.patience_s,
            )  # fmt: skip
        found = {}
        for topic, answer in asked.items():
            with self.translated(f"looking at topic {topic}"):
                try:
                    found[topic] = answer.result(self.patience_s)
                except self.kafka.KafkaException as error:
                    if error.args[0].name() != _NO_TOPIC:
                        raise
        return found

    def offsets(
        self, places: Iterable[tuple[str, int]], *specs: str, committed: bool = False
    ) -> dict[tuple[str, int], tuple[int, ...]]:
        """Return offsets of each partition, in the order of `specs`: "earliest" is that of the first record, "latest"
        the one after the newest record. committed: transactions that have not ended, and what comes behind them, do not
        count."""
        levels = self.kafka.IsolationLevel
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        wanted = [self.kafka.TopicPartition(topic, number) for topic, number in places]
        if not wanted:
            return {}
        names = sorted({place.topic for place in wanted})
        with self.translated(f"looking at topic {', '.join(names[:SHOWN])}"):
            answers = [
                self.asked().list_offsets(
                    {place: getattr(self.admin_module.OffsetSpec, spec)() for place in wanted},
                    isolation_level=level, request_timeout=self.patience_s,
                )
                for spec in specs
            ]  # fmt: skip
            return {
                (place.topic, place.partition): tuple(each[place].result(self.patience_s).offset for each in answers)
                for place in wanted
            }

    def committed(self, group: str, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, str]]:
        """Return the offset that a consumer group has of each partition, with its metadata; one below zero: none."""
        wanted = [self.kafka.TopicPartition(topic, number) for topic, number in places]
        # Not the client that asks: its list_consumer_group_offsets crashed where a group had no offsets.
        reader = self.made(self.kafka.Consumer, {"group.id": group, "enable.auto.commit": False})
        with contextlib.closing(reader), self.translated(f"looking at consumer group {group}"):
            for left in reversed(range(TRIES)):
                try:
                    found = reader.committed(wanted, self.patience_s)
                    break
                except UnicodeDecodeError:
                    # It reads metadata beyond their end, up to a zero, and what lies there need not be text.
                    if not left:
                        raise self.kafka.KafkaException(self.kafka.KafkaError(self.kafka.KafkaError._BAD_MSG)) from None
        return {(place.topic, place.partition): (place.offset, place.metadata or "") for place in found}

    @staticmethod
    def id_of(described: Any) -> str:
        """Return the id of a described topic as Kafka's own tools and the connector write it."""
        found = described.topic_id
        halves = (found.get_most_significant_bits(), found.get_least_significant_bits())
        content = b"".join(half.to_bytes(8, "big", signed=True) for half in halves)
        return base64.urlsafe_b64encode(content).decode().rstrip("=")

    def asked(self) -> Any:
        """Return the client that asks."""
        if self._admin is None:
            self._admin = self.made(self.admin_module.AdminClient, {})
        return self._admin

    def made(self, kind: Any, own: Mapping[str, Any]) -> Any:
        """Return a client of this kind, with own options. Raises ConfigurationError for options that it lacks."""
        try:
            return kind({**own, **self._options, **{name: each for name, each in own.items() if name in OWN_OPTIONS}})
        except (self.kafka.KafkaException, TypeError, ValueError) as error:
            said = error.args[0].str() if isinstance(error, self.kafka.KafkaException) else str(error)
            raise ConfigurationError(
                f"{self._asker}: librdkafka does not take the options: {said}",
                remedy="Correct options=…; the names are those of librdkafka's CONFIGURATION.md.",
            ) from None

    def _lacking(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._asker} needs the package confluent-kafka (the extra kafka): {why}",
            remedy="pip install 'confluent-kafka>=2.16'",
        )

    def _hear(self, error: Any) -> None:
        """Keep what a client says beside its answers: why it cannot connect, or log in."""
        if error.name() != "_ALL_BROKERS_DOWN":
            self._said = error

    @contextlib.contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Raise the errors of `reasons` for those of librdkafka."""
        try:
            yield
        except (self.kafka.KafkaException, TimeoutError) as error:
            said, self._said = self._said, None
            late = self.kafka.KafkaError(self.kafka.KafkaError._TIMED_OUT)
            answer = error.args[0] if isinstance(error, self.kafka.KafkaException) else late
            raise broker_error(answer, self._topic, doing, said) from None
