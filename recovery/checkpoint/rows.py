"""Files as rows: a file is one row under its path, and a long file is one row per chunk.

    state/0/1/17.delta          the content, of at most CHUNK_BYTES
    state/0/1/20.zip#00001      the first CHUNK_BYTES
    state/0/1/20.zip#00002      the next bytes; all chunks but the last have exactly CHUNK_BYTES

Paths are relative to the checkpoint. Text is stored as text, so it is readable in SQLite. The rows of a partition are
untrusted: `row_objection` checks every path before it is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from recovery.base.untrusted_paths import objection
from recovery.errors import CorruptPartitionError, shown

CHUNK_BYTES = 1 << 20
Content = str | bytes
_CHUNK = re.compile(r"(.+)#([0-9]{5,7})", re.DOTALL)
_OF_CHECKPOINT = re.compile(r"metadata|(offsets|commits)/(-1|0|[1-9][0-9]{0,14})|(sources|state)/.+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file that the partitions hold. chunks: the number of its rows, one per chunk; 0: one row has the whole file."""

    size_bytes: int
    chunks: int = 0


def held_file(size_bytes: int) -> HeldFile:
    """Return how a file of this size is held."""
    return HeldFile(size_bytes, 0 if size_bytes <= CHUNK_BYTES else -(-size_bytes // CHUNK_BYTES))


def row_keys(path: str, file: HeldFile) -> list[str]:
    """Return the keys of a file's rows, in the order of its content."""
    return [f"{path}#{number:05}" for number in range(1, file.chunks + 1)] or [path]


def file_of(key: str) -> tuple[str, int]:
    """Return the path of a row's file, and the number of the chunk; 0 when the row is the whole file."""
    match = _CHUNK.fullmatch(key)
    return (match[1], int(match[2])) if match else (key, 0)


def row_objection(key: object) -> str | None:
    """Return why no run can have left a checkpoint row with this key; None: one can."""
    if not isinstance(key, str):
        return f"the key {shown(key)} of a file of Spark's checkpoint is not text"
    path, chunk = file_of(key)
    wrong = objection(path)
    if wrong is None and _OF_CHECKPOINT.fullmatch(path) is None:
        wrong = "does not belong to a checkpoint"
    if wrong is None and path != key and (chunk < 1 or key != f"{path}#{chunk:05}"):
        wrong = "has no such part"
    return None if wrong is None else f"the path {shown(key)} of a file of Spark's checkpoint {wrong}"


def checked_row(key: object, content: object) -> tuple[str, int, bytes]:
    """Return the path, the number of the chunk and the bytes of a row that will become a file. Raises
    CorruptPartitionError."""
    wrong = row_objection(key)
    if wrong is None and not isinstance(content, str | bytes):
        wrong = f"the row {shown(key)} of Spark's checkpoint does not hold the content of a file"
    if wrong is not None:
        raise CorruptPartitionError(wrong)
    assert isinstance(key, str)
    assert isinstance(content, str | bytes)
    return *file_of(key), as_bytes(content)


def as_content(data: bytes) -> Content:
    """Return the data as text if it is text, otherwise as bytes."""
    if b"\0" in data:
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def as_bytes(content: Content) -> bytes:
    """Return the bytes of a row as they are in the file."""
    return content.encode() if isinstance(content, str) else content
