"""Texts that repeat themselves, such as JSON, packed by gzip: they take a third of their bytes, or less."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable

SPARE_BYTES = 1 << 20
HIGHEST_RATIO = 64
"""`unpacked` takes a text of `SPARE_BYTES`, and so many more bytes for each packed one. JSON seldom shrinks to a
twentieth; but the same hundreds of executions in each of hundreds of partitions would shrink to an eightieth."""
LOOSER = ((12, zlib.Z_DEFAULT_STRATEGY), (15, zlib.Z_HUFFMAN_ONLY))
"""What would shrink further is packed in the first of these ways that `unpacked` takes: only repetitions within 4 kB
are used, or none. Each is the number of bits of the window, and the strategy of zlib."""
_PIECE_BYTES = 1 << 10


def packed(text: bytes) -> bytes:
    """Return a text packed by gzip: equal bytes for equal texts, whose checksum and length show that all are there.
    However often a text repeats itself, `unpacked` takes it."""
    found = gzip.compress(text, mtime=0)
    for window_bits, strategy in LOOSER:
        if len(text) <= SPARE_BYTES or _is_taken(found, len(text)):
            break
        packer = zlib.compressobj(wbits=16 + window_bits, strategy=strategy)
        found = packer.compress(text) + packer.flush()
    return found


def unpacked(chunks: Iterable[bytes], most_bytes: int) -> bytearray:
    """Return the text of which `packed` has made these bytes. Raises ValueError if they are cut off, or if the text is
    larger than `most_bytes`, or shrank further than any that is packed here. Some megabytes can stand for gigabytes, so
    the size is checked while unpacking."""
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


def _is_taken(data: bytes, text_bytes: int) -> bool:
    """Return whether `unpacked` takes this data, also if it comes piece by piece."""
    pieces = (data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES))
    try:
        unpacked(pieces, text_bytes)
    except ValueError:
        return False
    return True
