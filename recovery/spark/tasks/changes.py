"""Keys and their packed changes: by partition, in chunks, and within what a partition stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from recovery.base.ids import PartitionIndex, StepId
from recovery.errors import StateValueError, shown
from recovery.storage.seam import FIELD_SEPARATOR, Changes, Keys

CHUNK_ROWS = 16_384
STATE_BYTES = 1_000_000_000 - (1 << 16)
"""The most bytes of a state with its key: SQLite's limit for a value, with room for the columns beside it."""

K = TypeVar("K")
V = TypeVar("V", bound=int)


def key_of(change: str, changes: Changes) -> str:
    """Return the state key of a packed change."""
    if changes.key_chars:
        return change[: changes.key_chars]
    return change.split(FIELD_SEPARATOR, 2 if changes.timeouts else 1)[-1]


def value_of(change: str, changes: Changes) -> str | None:
    """Return the stored state of a packed change; None if it discards the key."""
    if changes.key_chars:
        return change[changes.key_chars :] or None
    return change.partition(FIELD_SEPARATOR)[0] or None


def too_large(step: StepId, changes: Changes) -> Iterator[tuple[str, StateValueError]]:
    """Yield the key of each state that no partition can store, and the error for it."""
    # A character takes four bytes at most, and counting them is quick.
    if max(map(len, changes.packed), default=0) <= STATE_BYTES // 4:
        return
    for one in changes.packed:
        size_bytes = len(one.encode(errors="replace"))
        if size_bytes > STATE_BYTES:
            key = key_of(one, changes)
            yield (
                key,
                StateValueError(
                    f"step {step!r}, key {shown(key)}: its state takes {size_bytes:,} bytes",
                    cause=f"A partition stores at most {STATE_BYTES:,} bytes in one value.",
                    remedy="Keep less in the state of one key, or spread it over several keys.",
                ),
            )


def common_length(texts: list[str]) -> int:
    """Return the number of characters that all texts have; 0 if their lengths differ."""
    return len(texts[0]) if len(set(map(len, texts))) == 1 else 0


def in_chunks(due: Sequence[tuple[PartitionIndex, list[str]]]) -> Iterator[dict[PartitionIndex, Keys]]:
    """Yield keys by partition, of as many partitions together as make up a chunk."""
    chunk: dict[PartitionIndex, Keys] = {}
    size = 0
    for partition, texts in due:
        for start in range(0, len(texts), CHUNK_ROWS):
            piece = tuple(texts[start : start + CHUNK_ROWS])
            if chunk and (size + len(piece) > CHUNK_ROWS or partition in chunk):
                yield chunk
                chunk, size = {}, 0
            chunk[partition] = piece
            size += len(piece)
    if chunk:
        yield chunk


def by_value(values: Mapping[K, V]) -> list[tuple[V, list[K]]]:
    """Return the keys that have each value; the values sorted, the keys in their order."""
    found: dict[V, list[K]] = {}
    for key, each in values.items():
        found.setdefault(each, []).append(key)
    return sorted(found.items())
