"""A partition's file as blocks of one size: their digests, and those blocks that another copy lacks.

Blocks that are read while a run writes may not fit together. They need not: once nobody writes, the digests say which
blocks of the copy are still wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import apsw

from recovery.storage.sqlite.file.statements import translated

BLOCK_BYTES = 64 << 10
DIGEST_BYTES = 16
AT_ONCE = 16
"""Blocks in one message: 1 MiB."""
DIGESTS_AT_ONCE = 4096

Reader = Callable[[int, int], bytes]
"""Returns so many bytes at an offset; fewer at the end of the file."""


@contextlib.contextmanager
def database(path: Path) -> Iterator[tuple[Reader, int]]:
    """Yield a reader of a file that SQLite may have open, and the file's size. Raises StorageError."""
    # SQLite's own files: closing another descriptor of the file would drop the locks of this process.
    with translated(path):
        file = apsw.VFSFile("", os.path.realpath(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        with translated(path):
            size_bytes = file.xFileSize()

        def read(amount: int, offset: int) -> bytes:
            with translated(path):
                # SQLite takes a short read for an error; the file may have become shorter meanwhile.
                left = min(amount, file.xFileSize() - offset)
                return file.xRead(left, offset) if left > 0 else b""

        yield read, size_bytes
    finally:
        with translated(path):
            file.xClose()


@contextlib.contextmanager
def plain(path: Path) -> Iterator[tuple[Reader, int]]:
    """Yield a reader of a file that SQLite never opened, and the file's size. Raises StorageError."""
    with translated(path), path.open("rb", buffering=0) as file:
        yield (lambda amount, offset: os.pread(file.fileno(), amount, offset)), os.fstat(file.fileno()).st_size


def digests(read: Reader, size_bytes: int) -> Iterator[list[bytes]]:
    """Yield the digests of a file's blocks in order, some at a time."""
    found: list[bytes] = []
    for offset in range(0, size_bytes, BLOCK_BYTES * AT_ONCE):
        data = memoryview(read(BLOCK_BYTES * AT_ONCE, offset))
        for begin in range(0, len(data), BLOCK_BYTES):
            found.append(digest_of(data[begin : begin + BLOCK_BYTES]))
        if len(found) >= DIGESTS_AT_ONCE:
            yield found
            found = []
    if found:
        yield found


def digest_of(block: bytes | memoryview) -> bytes:
    """Return the digest of a block."""
    return hashlib.blake2b(block, digest_size=DIGEST_BYTES).digest()


def blocks(read: Reader, numbers: Iterable[int]) -> Iterator[list[tuple[int, bytes]]]:
    """Yield blocks with their numbers, some at a time."""
    found: list[tuple[int, bytes]] = []
    for number in numbers:
        found.append((number, read(BLOCK_BYTES, number * BLOCK_BYTES)))
        if len(found) >= AT_ONCE:
            yield found
            found = []
    if found:
        yield found


def differing(theirs: Sequence[bytes], own: Sequence[bytes]) -> list[int]:
    """Return the numbers of the blocks that `theirs`, the digests of a copy, lacks or has otherwise."""
    return [number for number, digest in enumerate(own) if number >= len(theirs) or theirs[number] != digest]
