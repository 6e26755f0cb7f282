"""Texts that repeat themselves, such as JSON, packed by gzip: they take a third of their bytes, or less."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable

HIGHEST_RATIO = 64
"""The highest ratio of a text to its packed size: times and numbers of JSON do not shrink to a twentieth."""


def packed(text: bytes) -> bytes:
    """Return a text packed by gzip: equal bytes for equal texts, whose checksum and length show that all are there."""
    return gzip.compress(text, mtime=0)


def unpacked(chunks: Iterable[bytes], most_bytes: int) -> bytearray:
    """Return the text of which `packed` has made these bytes. Raises ValueError if they are cut off, or if the text is
    larger than `most_bytes`, or better compressed than any that is written here. Some megabytes can stand for
    gigabytes, so the size is checked while unpacking."""
    found, packed_bytes, unpacker = bytearray(), 0, zlib.decompressobj(wbits=31)
    try:
        for chunk in chunks:
            packed_bytes += len(chunk)
            allowed = min(most_bytes, (1 << 20) + HIGHEST_RATIO * packed_bytes)
            found += unpacker.decompress(chunk, allowed + 1 - len(found))
            if len(found) > allowed:
                raise ValueError(f"it expands to more than {allowed:,} bytes")
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("data follows its end" if unpacker.eof else "it is cut off")
    return found
