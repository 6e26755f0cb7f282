"""What a run asks Kafka's brokers beside its micro-batches: how far each partition goes, and to keep a group's offsets.

One client for each source, with the options that the flow gives it. Every call has a limit of time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from recovery.planning.topics import GROUP_MARK
from recovery.spark.jvm.kafka_offsets import close_client, open_client

Offsets = Mapping[str, Mapping[int, int]]
"""The next offset to read of each partition, by topic and number."""
PATIENCE_S = 10
"""How long a broker may take for an answer. Nothing of the run waits for it."""
_END = re.compile(r"([\w.-]+)-(\d+)=ListOffsetsResultInfo\(offset=(-?\d+)")
_METADATA = re.compile(r"metadata='([^']*)'")


class KafkaWatch:
    """The brokers of one source, for one thread. Methods raise the errors of calls into the JVM if a broker does not
    answer."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        """options: of the source, by their names in lower case."""
        self._jvm: Any = spark._jvm
        self._client = open_client(self._jvm, options)
        self._places: dict[tuple[str, int], Any] = {}
        committed = options.get("kafka.isolation.level", "").strip().lower() == "read_committed"
        levels = self._jvm.org.apache.kafka.common.IsolationLevel
        self._isolation = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        self._asked: Any = None
        self._asked_for: set[tuple[str, int]] = set()

    def ends(self, offsets: Offsets) -> dict[tuple[str, int], int]:
        """Return the next offset of each partition that `offsets` has, by topic and number."""
        wanted = {(topic, number) for topic, partitions in offsets.items() for number in partitions}
        if self._asked is None or self._asked_for != wanted:
            self._asked, self._asked_for = self._jvm.java.util.HashMap(), wanted
            latest = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.latest()
            for topic, number in wanted:
                self._asked.put(self._place(topic, number), latest)
        options = self._patient(self._jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(self._isolation))
        # As one text: each call into the JVM takes longer than the broker.
        answer = str(self._answer(self._client.listOffsets(self._asked, options).all()).toString())
        return {(topic, int(number)): int(offset) for topic, number, offset in _END.findall(answer)}

    def metadata(self, group: str) -> list[str]:
        """Return the metadata of the offsets that a consumer group has."""
        admin = self._jvm.org.apache.kafka.clients.admin
        listed = self._client.listConsumerGroupOffsets(group, self._patient(admin.ListConsumerGroupOffsetsOptions()))
        return _METADATA.findall(str(self._answer(listed.partitionsToOffsetAndMetadata()).toString()))

    def commit(self, group: str, offsets: Offsets, text: str) -> None:
        """Let the brokers keep these offsets for a consumer group, with `text` behind GROUP_MARK as metadata."""
        admin, consumer = self._jvm.org.apache.kafka.clients.admin, self._jvm.org.apache.kafka.clients.consumer
        kept = self._jvm.java.util.HashMap()
        for topic, partitions in offsets.items():
            for number, offset in partitions.items():
                kept.put(self._place(topic, number), consumer.OffsetAndMetadata(offset, f"{GROUP_MARK} {text}"))
        options = self._patient(admin.AlterConsumerGroupOffsetsOptions())
        self._answer(self._client.alterConsumerGroupOffsets(group, kept, options).all())

    def close(self) -> None:
        """Close the client, within a second."""
        close_client(self._jvm, self._client)

    def _place(self, topic: str, number: int) -> Any:
        place = self._places.get((topic, number))
        if place is None:
            place = self._jvm.org.apache.kafka.common.TopicPartition(topic, number)
            self._places[topic, number] = place
        return place

    def _patient(self, options: Any) -> Any:
        return options.timeoutMs(self._jvm.java.lang.Integer.valueOf(PATIENCE_S * 1000))

    def _answer(self, future: Any) -> Any:
        return future.get(PATIENCE_S, self._jvm.java.util.concurrent.TimeUnit.SECONDS)


def why_not_shown(error: BaseException, group: str) -> str:
    """Return why the brokers do not keep offsets for a consumer group, and the way out, from the error."""
    name, text = _thrown(error)
    if name == "GroupAuthorizationException":
        return (
            f"this user lacks the right READ on the group: kafka-acls.sh --add --allow-principal User:… --operation "
            f"Read --group {group}"
        )
    if name == "TopicAuthorizationException":
        return f"this user lacks the right READ on a topic: {text}"
    if name in ("UnknownMemberIdException", "GroupNotEmptyException", "RebalanceInProgressException"):
        return "consumers use the group, and it was not touched: name another one (--kafka-group)"
    if name == "TimeoutException":
        return f"the broker has not answered within {PATIENCE_S} s"
    return f"{name}: {text}"


def _thrown(error: BaseException) -> tuple[str, str]:
    """Return the class and the message of what a client's future wraps."""
    if not isinstance(error, Py4JJavaError):
        return type(error).__name__, (str(error).splitlines() or [""])[0]
    thrown = error.java_exception
    while thrown.getClass().getSimpleName() in ("ExecutionException", "CompletionException"):
        if thrown.getCause() is None:
            break
        thrown = thrown.getCause()
    return str(thrown.getClass().getSimpleName()), str(thrown.getMessage() or "")
