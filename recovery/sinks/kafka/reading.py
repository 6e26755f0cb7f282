"""What the sink reads from topics: the newest marker of the control topic, and the last record of each key."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from recovery.base.printable import one_line
from recovery.errors import OutputMismatchError
from recovery.sinks.kafka.broker import POLL_S, Broker
from recovery.sinks.kafka.marker import decode_marker

OTHERS_S = 90.0
"""How long a transaction of another producer may keep records unread: longer than Kafka lets it last."""
CHUNK = 5000
_RECONNECTS = ("_TRANSPORT", "_ALL_BROKERS_DOWN")
"""What a client says, and tries again."""
_READING = {
    "group.id": "recovery", "isolation.level": "read_committed", "enable.auto.commit": False,
    "enable.partition.eof": True, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10,
}  # fmt: skip


class ControlTopic:
    """The records of the control topic under the name of one sink."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reader: Any = None
        self._read = 0
        self._newest: bytes | None = None

    def newest(self, say: Callable[[str], None]) -> bytes | None:
        """Return the newest committed record under the name; None if there is none.

        A transaction that is open is waited for where a record under the name comes after its first record: Kafka shows
        no committed record before that transaction has ended. say: gets a sentence about such a wait.
        """
        target = self._broker.target
        end = self._broker.ends(target.control, 1)[0]
        with self._broker.translated(f"reading control topic {target.control}"):
            if self._reader is None:
                self._reader = self._broker.consumer(_READING)
            # Assigned again, the client says again where the committed records end.
            self._reader.assign([self._place(self._read)])
            try:
                self._read_to(end, say)
            finally:
                self._reader.unassign()
        return self._newest

    def close(self) -> None:
        """Close the client; a later look opens another one."""
        if self._reader is not None:
            self._reader.close()
        self._reader, self._read, self._newest = None, 0, None

    def _place(self, offset: int) -> Any:
        return self._broker.kafka.TopicPartition(self._broker.target.control, 0, offset)

    def _read_to(self, end: int, say: Callable[[str], None]) -> None:
        until, holder = time.monotonic() + OTHERS_S, ""
        while self._read < end:
            message = self._reader.poll(POLL_S)
            if _is_record(self._broker, message):
                self._read = message.offset() + 1
                if message.key() == self._broker.target.name.encode():
                    self._newest = message.value()
            elif message is not None and message.error().name() == "_PARTITION_EOF":
                self._read = message.offset()
                if self._read < end:
                    found = self._holder(end)
                    if found is None:
                        return
                    if not holder:
                        say(
                            f"control topic {self._broker.target.control}: waits up to {OTHERS_S:g} s for the "
                            f"transaction of {found}, which hides the newest marker of this sink"
                        )
                    holder = found
            if time.monotonic() > until:
                because = f": the transaction of {holder} does not end" if holder else ""
                raise self._broker.late(
                    f"the records of control topic {self._broker.target.control} up to {end} do not come{because}"
                )

    def _holder(self, end: int) -> str | None:
        """Return who keeps the committed records from being read on; None if none of the hidden ones has the name."""
        name = self._broker.target.name.encode()
        first, is_hidden = None, False
        with contextlib.closing(self._broker.consumer({**_READING, "isolation.level": "read_uncommitted"})) as reader:
            reader.assign([self._place(self._read)])
            until = time.monotonic() + self._broker.patience_s
            while time.monotonic() < until:
                message = reader.poll(POLL_S)
                if _is_record(self._broker, message):
                    first = first or message
                    is_hidden = is_hidden or message.key() == name
                if message is not None and (message.error() or message.offset() + 1 >= end):
                    break
            else:
                is_hidden = True
        if not is_hidden:
            return None
        return "an unknown producer" if first is None else self._producer_of(first)

    def _producer_of(self, message: Any) -> str:
        name = one_line((message.key() or b"").decode(errors="replace"))
        with contextlib.suppress(OutputMismatchError):
            marker = decode_marker(message.value(), self._broker.target)
            if marker is not None:
                return one_line(
                    f"sink {name!r} (flow {marker.flow!r}, execution {marker.number} ({marker.execution}) on "
                    f"{marker.host})"
                )
        return f"{name!r}"


def committed_records(broker: Broker, partitions: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the committed records with a key that the topic holds, in the order of each partition: key, value, headers,
    no partition, and time. Waits for transactions that are open."""
    topic = broker.target.topic
    ends = {number: end for number, end in broker.ends(topic, partitions).items() if end > 0}
    read = dict.fromkeys(ends, 0)
    until = time.monotonic() + OTHERS_S
    with broker.translated(f"reading topic {topic}"), contextlib.closing(broker.consumer(_READING)) as reader:
        reader.assign([broker.kafka.TopicPartition(topic, number, broker.kafka.OFFSET_BEGINNING) for number in ends])
        while any(read[number] < end for number, end in ends.items()):
            chunk = []
            for message in reader.consume(CHUNK, POLL_S):
                if _is_record(broker, message):
                    read[message.partition()] = message.offset() + 1
                    if message.key() is not None:
                        kind, time_ms = message.timestamp()
                        headers = [{"key": name, "value": text} for name, text in message.headers() or ()]
                        is_known = kind == broker.kafka.TIMESTAMP_CREATE_TIME
                        chunk.append(
                            (message.key(), message.value(), headers or None, None, time_ms if is_known else None)
                        )
                elif message.error().name() == "_PARTITION_EOF":
                    read[message.partition()] = message.offset()
            if chunk:
                until = time.monotonic() + OTHERS_S
                yield chunk
            if time.monotonic() > until:
                raise broker.late(f"the records of topic {topic} do not come: a transaction on it does not end")


def _is_record(broker: Broker, message: Any) -> bool:
    """Return whether a client got a record. Raises what the broker refuses."""
    error = None if message is None else message.error()
    if error is not None and error.name() not in ("_PARTITION_EOF", "GROUP_AUTHORIZATION_FAILED", *_RECONNECTS):
        raise broker.kafka.KafkaException(error)
    return message is not None and error is None
