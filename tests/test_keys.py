"""State keys as text, and the partition that holds them."""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.keys import ESCAPE, decode_key, encode_key, partition_of

KEYS = st.none() | st.text(st.sampled_from("a0\0\u2400 😀'")) | st.text(st.characters(exclude_categories=["Cs"]))


@given(key=KEYS)
def test_every_key_comes_back(key):
    """Encoding loses nothing, NULL and the escape character itself included."""
    assert decode_key(encode_key(key)) == key


@given(one=KEYS, two=KEYS)
def test_different_keys_stay_different(one, two):
    """No two keys share a state."""
    assert (encode_key(one) == encode_key(two)) == (one == two)


@given(key=KEYS)
def test_an_encoded_key_holds_no_nul(key):
    """SQLite's C interface would end the text there."""
    assert "\0" not in encode_key(key)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (None, "\u2400"), ("", ""), ("plain", "plain"), ("\u2400", "\u2400\u2400"), ("\0", "\u24000"),
        ("a\0b\u2400", "a\u24000b\u2400\u2400"), ("\u24000", "\u2400\u24000"),
    ],
)  # fmt: skip
def test_the_documented_forms(key, text):
    """The text in the files is what the documentation says; ordinary keys are themselves."""
    assert encode_key(key) == text
    assert encode_key(None) == ESCAPE


@given(key=st.text(st.characters(exclude_categories=["Cs"])), count=st.integers(1, 64))
def test_the_partition_is_the_checksum_modulo_n(key, count):
    """The same rule in any language: crc32 of the UTF-8 bytes."""
    assert partition_of(key, count) == crc32(key.encode("utf-8")) % count
    assert 0 <= partition_of(key, count) < count


def test_known_partitions():
    """Keys written long ago are found again: it is the common CRC-32, with its published check value."""
    assert partition_of("123456789", 1 << 32) == 0xCBF43926
    assert [partition_of(key, 8) for key in ("", "a", "123456789", "naïve", "😀", "\u2400")] == [0, 3, 6, 6, 4, 6]


def test_keys_spread_evenly():
    """Numbered keys, the usual ones, fill the partitions alike."""
    counts = Counter(partition_of(f"user-{number}", 7) for number in range(70_000))
    assert min(counts.values()) > 9_000
    assert max(counts.values()) < 11_000
