"""Packed texts: what comes back, and what is refused."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc

import pytest

from recovery.places.packed import packed, unpacked


def test_a_text_comes_back():
    """A text comes back from one piece or several; equal texts are packed as equal bytes, whenever that is."""
    text = b'{"a": 1}' * 1000
    data = packed(text)
    assert data == packed(text)
    assert len(data) < len(text) / 10
    assert unpacked([data], len(text)) == unpacked([data[:7], data[7:]], len(text)) == text


@pytest.mark.parametrize("data", [b"", b"junk", packed(b"text")[:-1], packed(b"text") + b"x", b"x" + packed(b"text")])
def test_what_packed_did_not_make_is_refused(data):
    """Cut off, followed by something, or something else."""
    with pytest.raises(ValueError, match=r"cut off|follows|header"):
        unpacked([data], 1000)


def test_a_bomb_is_counted_while_it_is_unpacked():
    """Some megabytes that stand for gigabytes take no more memory than what is allowed."""
    bomb = gzip.compress(b" " * (96 << 20), 9)
    tracemalloc.start()
    with pytest.raises(ValueError, match="expands to more than"):
        unpacked([bomb], 256 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20
    with pytest.raises(ValueError, match="expands to more than 1,000 bytes"):
        unpacked([packed(b"x" * 1001)], 1000)
    assert unpacked([packed(b"x" * 1000)], 1000) == b"x" * 1000


def test_a_text_that_repeats_itself_very_often_comes_back():
    """As the manifest of hundreds of partitions with hundreds of executions, which gzip shrinks to less than a
    sixtieth: the same list in each part, and some numbers that differ."""
    chance = random.Random(7)
    runs = json.dumps([(n, f"{chance.getrandbits(64):016x}", "word-count", n * 600_123) for n in range(500)])
    parts = [f'{{"sha256": "{chance.getrandbits(256):064x}", "executions": {runs}}}' for _ in range(200)]
    text = "".join(parts).encode()
    data = packed(text)
    assert len(text) > 60 * len(data)
    assert unpacked([data[at : at + 1000] for at in range(0, len(data), 1000)], len(text)) == text
