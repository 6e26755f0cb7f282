"""The records that the keys of a topic had before, kept so that a run that goes back can produce them again."""

from __future__ import annotations

import contextlib
import secrets
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from recovery.errors import CorruptPartitionError
from recovery.sinks.disk import Disk
from recovery.sinks.kafka.marker import KafkaNote, KafkaTarget, Marker
from recovery.storage.kept import KeptRecords, Record

TOMBSTONE = (None, None, None)
CHUNK = 5000


class KeptTopic:
    """The kept records of one sink, in a file of a directory of this machine. Raises OutputMismatchError for a damaged
    file."""

    def __init__(self, directory: Path, target: KafkaTarget) -> None:
        self._directory, self._target = directory, target
        self._records = KeptRecords(directory / "unknown")
        self.is_usable = False
        """Whether the file has the records as of what the topic holds. Otherwise it has to be begun again."""

    @property
    def path(self) -> Path:
        """The file."""
        return self._records.path

    def use(self, sink: str) -> None:
        """Let this be the records of a sink with this id."""
        path = self._directory / f"kafka-{sink}.sqlite3"
        if path != self.path:
            self.close()
            self._records = KeptRecords(path)

    def check_writable(self) -> None:
        """Raise OSError if this user may not write there. Changes nothing."""
        Disk().check_writable(self._directory)

    def has(self, marker: Marker, epoch: int, execution: str) -> bool:
        """Whether it is known which records the keys had as of an epoch, and which of them the topic has got since."""
        with self._translated():
            return (
                self._records.id == marker.kept != ""
                and self._records.has(marker.epoch, marker.closed_by)
                and self._records.has(epoch, execution)
            )

    def claim(self, marker: Marker) -> None:
        """Let the execution of the marker write, as of what the topic has."""
        with self._translated():
            self.is_usable = self.has(marker, marker.epoch, marker.closed_by)
            if self.is_usable:
                self._records.claim(marker.execution)
                self._records.go_back(marker.epoch)

    def begin(self, marker: Marker, records: Iterable[Sequence[tuple[Any, ...]]]) -> Marker:
        """Begin the file again with the records that the topic holds. Return the marker that makes it count."""
        Disk().make_directory(self._directory)
        packed = (pack(key, *others) for chunk in records for key, *others in chunk)
        kept = secrets.token_hex(8)
        with self._translated():
            self._records.begin(kept, marker.execution, marker.epoch, marker.closed_by, packed)
        return replace(marker, kept=kept)

    def keep(self, execution: str, note: KafkaNote, records: Iterable[Record]) -> None:
        """Add the records of an epoch, which are not produced yet. Durable. Raises LeaseLostError."""
        with self._translated():
            if self.is_usable and self._records.newest != (note.epoch, note.execution):
                self._records.keep(execution, note.epoch, note.execution, records)

    def count(self, low: int) -> int:
        """Return how many keys the epochs after `low` have touched."""
        with self._translated():
            return self._records.count(low)

    def chunks(self, low: int, to: int, skip: int, size: int) -> Iterator[list[tuple[Any, ...]]]:
        """Yield a record for each key that epochs after `low` have touched, as of epoch `to`, in the order of the keys,
        without the first ones."""
        chunk: list[tuple[Any, ...]] = []
        with self._translated():
            for key, record in self._records.values(low, to, skip):
                value, headers, timestamp = TOMBSTONE if record is None else self._unpacked(key, record)
                chunk.append((key, value, headers, None, timestamp))
                if len(chunk) == size:
                    yield chunk
                    chunk = []
            if chunk:
                yield chunk

    def check(self, marker: Marker, back: Marker) -> None:
        """Raise OutputMismatchError if a record that a compensation produces is damaged. Changes nothing."""
        low = low_of(marker, back)
        self.count(low)
        for _ in self.chunks(low, back.epoch, 0, CHUNK):
            pass

    def go_back(self, epoch: int) -> None:
        """Forget the epochs after this one."""
        with self._translated():
            self._records.go_back(epoch)

    def collect(self, floor: int) -> None:
        """Forget what is needed only to go back to an epoch below `floor`."""
        with self._translated():
            if self.is_usable:
                self._records.collect(floor)

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    def _unpacked(self, key: bytes, record: bytes) -> tuple[Any, Any, Any]:
        if zlib.crc32(record[4:], zlib.crc32(key)) != int.from_bytes(record[:4], "big"):
            raise CorruptPartitionError("a record has another content than when it was written", path=self.path)
        value, headers, timestamp = msgspec.msgpack.decode(record[4:])
        return value, headers, timestamp

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except CorruptPartitionError as error:
            raise self._target.mismatch(
                f"its kept records, {self.path}, are damaged: {error.found}",
                "The disk is failing, or something else wrote to the file.",
                f"Remove {self.path}: the next run begins it again with what the topic holds, and no run can go back "
                "behind that moment.",
            ) from error


def low_of(marker: Marker, back: Marker) -> int:
    """Return the epoch after which the keys were touched that a compensation to `back` gives a value."""
    return min(back.epoch, marker.epoch if marker.compensating is None else marker.compensating.low)


def pack(
    key: bytes, value: bytes | None, headers: Any = None, _partition: object = None, timestamp: int | None = None
) -> Record:
    """Return a record as bytes that a flipped bit is seen in; None for a tombstone."""
    if value is None:
        return key, None
    content = msgspec.msgpack.encode((value, headers, timestamp))
    return key, zlib.crc32(content, zlib.crc32(key)).to_bytes(4, "big") + content
