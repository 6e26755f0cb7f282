"""Texts that repeat themselves, such as JSON, packed by gzip: they take a third of their bytes, or less."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable

SPARE_BYTES = 1 << 20
HIGHEST_RATIO = 256
"""`unpacked` takes a text of `SPARE_BYTES`, and so many more bytes for each packed one. JSON seldom shrinks to a
twentieth; the same hundreds of executions in each of hundreds of partitions shrink to an eightieth."""


def packed(text: bytes) -> bytes:
    """Return a text packed by gzip: equal bytes for equal texts, whose checksum and length show that all are there."""
    return gzip.compress(text, mtime=0)


def unpacked(chunks: Iterable[bytes], most_bytes: int) -> bytearray:
    """Return the text of which `packed` has made these bytes. Raises ValueError if they are cut off, or if the text is
    larger than `most_bytes`, or shrank further than any JSON that is packed here. Some megabytes can stand for
    gigabytes, so the size is checked while unpacking."""
    found, packed_bytes, unpacker = bytearray(), 0, zlib.decompressobj(wbits=31)
    try:
        for chunk in chunks:
            packed_bytes += len(chunk)
            allowed = min(most_bytes, SPARE_BYTES + HIGHEST_RATIO * packed_bytes)
            found += unpacker.decompress(chunk, allowed + 1 - len(found))
            if len(found) > allowed:
                raise ValueError(f"it expands to more than {allowed:,} bytes")
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("data follows its end" if unpacker.eof else "it is cut off")
    return found
