"""Texts that name a key lose it; all others stay, and so does what a record says in other fields."""

from __future__ import annotations

import pytest

from recovery.errors import shown
from recovery.planning.redaction import DEEPEST, ERASED, named_as, redacted


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("user-81", f"step 'count', key {shown('user-81')}, micro-batch 3"),
        ("user-81", "ValueError: no street for user-81"),
        ("user-81", "ValueError: user-81: their street"),
        ("81", f"step 'count', key {shown(81)}, micro-batch 3"),
        ("81", f"step 'count', key {shown(81)}: the sum overflows"),
        ("81", "the state of key '81' is damaged"),
        ("2.5", "key 2.5: the sum overflows"),
        ('["UA","user-81"]', f"key {('UA', 'user-81')!r}: the sum overflows"),
        ('["UA","81"]', f"key {('UA', 81)!r}: the sum overflows"),
        ('["UA",null]', f"the state key {['UA', None]!r} does not fit"),
        ('["UA","user-81"]', """the state of key '["UA","user-81"]' is damaged"""),
        ("x" * 300, f"key {shown('x' * 300)}: no"),
        ("x" * 300, f"key {'x' * 300!r:.200}"),
        ("O'Neil", f"key {shown(chr(39).join(('O', 'Neil')))}: no"),
        ("", "step 'count', key '': no"),
    ],
)  # fmt: skip
def test_errors_that_name_the_key(key, text):
    """Are replaced as a whole, in whichever form the key is shown: as its text, or as the value of its columns."""
    record = {"error": text, "nodes": {"n": {"error": text}}, "status": "failed"}
    assert redacted(record, named_as(key)) == {
        "error": ERASED, "nodes": {"n": {"error": ERASED}}, "status": "failed",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("81", "micro-batch 81 of key 'user-81', key 810"),
        ("user-81", "key 'user-812', xuser-81"),
        ("fail", "it has failed"),
        ("no", "there is no file"),
        ("", "key 'k'"),
        ("", "invalid literal for int() with base 10: ''"),
        ('["UA","user-81"]', "key ('UA', 'user-812')"),
        ("[not json", "key 'k'"),
        ("[1", "key 'k'"),
    ],
)
def test_errors_of_others(key, text):
    """Stay as they are."""
    assert redacted({"error": text}, named_as(key)) == {"error": text}


def test_a_key_that_is_the_word_of_a_field_leaves_the_record_readable():
    """Only sentences are searched for the key by itself."""
    record = {"status": "failed", "details": {"what": "erase"}, "error": "no"}
    assert redacted(record, [*named_as("failed"), *named_as("erase")]) == record


def test_what_lies_too_deep_is_replaced():
    """No record of a run is as deep, and nobody looks there."""
    deep: object = "x"
    for _ in range(DEEPEST + 2):
        deep = [deep]
    assert ERASED in str(redacted(deep, ()))
