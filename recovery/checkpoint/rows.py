"""Files as rows: a file is one row under its path, and a long one is one row per chunk.

    state/0/1/17.delta          the content, of at most CHUNK_BYTES
    state/0/1/20.zip#00001      the first CHUNK_BYTES
    state/0/1/20.zip#00002      what follows; all but the last have exactly CHUNK_BYTES

Paths are relative to the checkpoint. Rows that are text are kept as text, so that they can be read in SQLite.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from recovery.ids import StepId

CHECKPOINT_STEP = StepId("$checkpoint")
CHUNK_BYTES = 1 << 20
Content = str | bytes
_CHUNK = re.compile(r"(.+)#(\d{5,})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file that the partitions hold. chunks: how many rows it has besides one of its own; 0 when it is one row."""

    size_bytes: int
    chunks: int = 0


def held_file(size_bytes: int) -> HeldFile:
    """How a file of this size is held."""
    return HeldFile(size_bytes, 0 if size_bytes <= CHUNK_BYTES else -(-size_bytes // CHUNK_BYTES))


def row_keys(path: str, file: HeldFile) -> list[str]:
    """The keys of a file's rows, in the order of its content."""
    return [f"{path}#{number:05}" for number in range(1, file.chunks + 1)] or [path]


def file_of(key: str) -> tuple[str, int]:
    """The path of the file that a row belongs to, and the number of its chunk; 0 when it is the whole file."""
    match = _CHUNK.fullmatch(key)
    return (match[1], int(match[2])) if match else (key, 0)


def as_content(data: bytes) -> Content:
    """Text where it is text."""
    if b"\0" in data:
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def as_bytes(content: Content) -> bytes:
    """The bytes of a row, as they are in the file."""
    return content.encode() if isinstance(content, str) else content
