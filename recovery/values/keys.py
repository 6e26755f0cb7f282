"""State keys: the TEXT form of a key, and the partition that holds it.

A key of one string column is that string. A key of one column of another type is Spark's own cast to
string. A key of several columns is a JSON array of those strings. NULL is a key like any other. SQLite's
C interface ends a text at NUL, so two characters and NULL are written in escaped form:

    NULL        ␀
    ␀ (U+2400)  ␀␀
    U+0000      ␀0

The partition of a key is crc32 of its UTF-8 bytes, modulo the number of partitions. Spark SQL's `crc32`
gives the same number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar
from zlib import crc32

from recovery.base.ids import PartitionIndex
from recovery.base.reserved import EPOCH_STEP, QUARANTINE_PREFIX

T = TypeVar("T")

ESCAPE = "\u2400"
WAITING_SEPARATOR = "\x1e"
"""Separates a key from the number of its entry in a quarantine. A key may contain it: the last one separates."""
_ESCAPED = re.compile("\u2400(.?)", re.DOTALL)


def is_escaped(text: str) -> bool:
    """Return whether a state key writes any character of the text in escaped form."""
    return ESCAPE in text or "\0" in text


def encode_key(key: str | None) -> str:
    """Return the state key of one string column's value."""
    if key is None:
        return ESCAPE
    if is_escaped(key):
        return key.replace(ESCAPE, ESCAPE + ESCAPE).replace("\0", ESCAPE + "0")
    return key


def decode_key(text: str) -> str | None:
    """Return the string column's value for the state key `text`."""
    if text == ESCAPE:
        return None
    return _ESCAPED.sub(lambda match: "\0" if match[1] == "0" else ESCAPE, text)


def hash_of(state_key: str) -> int:
    """Return the hash of an encoded key, by which rows are spread over partitions."""
    return crc32(state_key.encode())


def partition_of(state_key: str, partition_count: int) -> PartitionIndex:
    """Return the recovery partition that holds `state_key`, an encoded key."""
    return PartitionIndex(crc32(state_key.encode()) % partition_count)


class RowsView(Mapping[str, T]):
    """A view of some rows of a mapping, which reads a value only when asked for it."""

    def __init__(self, rows: Mapping[str, T]) -> None:
        self.keys_held: list[str] = []
        self._rows = rows

    def __getitem__(self, key: str) -> T:
        return self._rows[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_held)

    def __len__(self) -> int:
        return len(self.keys_held)


def shares(rows: Mapping[str, T], home: Callable[[str], PartitionIndex], count: int) -> list[RowsView[T]]:
    """Divide the rows among `count` partitions; `home` returns the partition of a key."""
    divided = [RowsView(rows) for _ in range(count)]
    for key in rows:
        divided[home(key)].keys_held.append(key)
    return divided


def home_of(step: str, partition_count: int, key: str) -> PartitionIndex:
    """Return the recovery partition that holds a key of any step. Partition 0 holds all high-water marks that epochs
    move, beside the documents that are read with them. A row in a quarantine is in the partition of its key."""
    if step == EPOCH_STEP:
        return PartitionIndex(0)
    if step.startswith(QUARANTINE_PREFIX):
        key = key.rpartition(WAITING_SEPARATOR)[0]
    return partition_of(key, partition_count)
