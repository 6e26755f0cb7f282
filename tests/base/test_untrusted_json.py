"""JSON that others wrote: read in the form that was asked for, or refused with the caller's error."""

from __future__ import annotations

import msgspec
import pytest

from recovery.base.untrusted_json import FIRST_MOMENT_MS, LAST_MOMENT_MS, MOST, Count, decode_json, is_moment
from recovery.errors import StorageError


class Entry(msgspec.Struct):
    """A form to ask for."""

    rows: Count


def refuse(why: str) -> StorageError:
    return StorageError(why)


def test_what_fits_is_given():
    assert decode_json(b'{"a":[1,null]}', refuse) == {"a": [1, None]}
    assert decode_json(f'{{"rows":{MOST}}}', refuse, Entry) == Entry(MOST)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"rows":-1}', f'{{"rows":{MOST + 1}}}', '{"rows":1.5}', '{"rows":"1"}', '{"rows":NaN}', b"\xff",
     '"\ud800"'],
)  # fmt: skip
def test_what_does_not_fit_is_the_callers_error(text):
    """Also bytes and text that are no Unicode."""
    with pytest.raises(StorageError, match="not the JSON that recovery wrote"):
        decode_json(text, refuse, Entry)


def test_deep_nesting_is_refused():
    """It does not exhaust the stack."""
    with pytest.raises(StorageError, match="nested too deep"):
        decode_json("[" * 100_000 + "]" * 100_000, refuse)


def test_moments_are_dates():
    assert is_moment(0)
    assert is_moment(FIRST_MOMENT_MS)
    assert is_moment(LAST_MOMENT_MS)
    assert not any(map(is_moment, (FIRST_MOMENT_MS - 1, LAST_MOMENT_MS + 1, 1.0, True, "1", None)))
