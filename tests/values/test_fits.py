"""What a person gives, beside what a step declares."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pytest

from recovery.values.codec import StateCodec
from recovery.values.declaration import form_of
from recovery.values.fits import key_check, state_check
from tests.values.test_declaration import KINDS, ONE, High, Pair, Triple

TEXTS = [
    "0", "1", "-1", "1.5", '"a"', '"AP8="', '"2026-01-31"', '"2026-01-31T05:17:00Z"', "true", "[]", "[1]", '[1,"a"]',
    "[1,2.5]", "[1,2.5,0.5]", '["a"]', "{}", '{"n":1}', '{"n":"1"}', '{"n":1.5}', '{"a":[1,2]}', '[{"n":1},null]',
    '{"type":"t","n":1}', '{"type":"u","n":1}', '{"value":1,"below":[{"value":2}]}', '{"value":1,"below":[5]}', "[[]]",
    '{"value":1}',
]  # fmt: skip
MORE = [
    High, Triple, float, bool, datetime.date, datetime.timedelta, Decimal, uuid.UUID, list[datetime.datetime],
    dict[int, str], Annotated[str, msgspec.Meta(min_length=2)], Annotated[list[int], msgspec.Meta(max_length=1)],
    Annotated[datetime.datetime, msgspec.Meta(tz=True)], Literal["a"] | None,
]  # fmt: skip


def reads(kind: Any, text: str) -> bool:
    try:
        StateCodec(kind).decode(text)
    except Exception:
        return False
    return True


def inside_itself(form: Any) -> bool:
    return "again" in json.dumps(form)


@pytest.mark.parametrize("kind", [kind for kind in KINDS + MORE if kind != "pickle"], ids=str)
def test_a_state_fits_if_the_step_reads_it(kind):
    """By the form that the partitions hold, for states of every shape; a type inside itself is not looked into."""
    form = json.loads(json.dumps(form_of(kind)))
    check = state_check(form)
    seen = set()
    for text in TEXTS:
        if inside_itself(form) and "below" in text:
            continue
        said = check(text)
        if said is not None and "unknown field" in said:
            # A run would drop it.
            continue
        assert (said is None) == reads(kind, text), (text, said)
        seen.add(said is None)
    assert seen == {True, False} or kind in (None, Any, datetime.timedelta, uuid.UUID)
    assert check("null") == "null is no state: remove the key in its place"


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [(ONE, '{"n":1,"m":2}', "unknown field `m`"), (ONE, '{"n":"x"}', "`str` - at `$.n`"),
     (ONE, "{}", "missing required field `n`"), (Pair, '[1,"x"]', "`str` - at `$.high`"),
     (Pair, "[1,2.5,3]", "length 2"),
     (list[ONE], '[{"n":1},5]', "at `$[1]`"),
     ("pickle", '"no base64!"', "base64"), ("pickle", "5", "Expected `str`"), (None, '{"a":1e999}', "out of range")],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_is_named(kind, text, said):
    """The field, also of a tuple; and a field that the class does not have, which a run would drop."""
    assert said in (state_check(form_of(kind))(text) or "")
    assert state_check(form_of("pickle"))(StateCodec("pickle").encode({1})) is None


COLUMNS = {
    "tinyint": (["127", "-128", "null"], ["128", "1.5", '"1"']),
    "bigint": (["9223372036854775807"], ["9223372036854775808", "true"]),
    "double": (["1", "1.5"], ['"1"']),
    "string": (['"a"'], ["1"]),
    "binary": (['"AP8="'], ['"?"']),
    "date": (['"2026-01-31"'], ['"31.1.2026"']),
    "timestamp": (['"2026-01-31T05:17:00.000000Z"'], ['"2026-01-31T05:17:00"', "1"]),
    "timestamp_ntz": (['"2026-01-31T05:17:00"'], ['"2026-01-31T05:17:00Z"']),
    "decimal(10,2)": (['"1.50"', '"-1"'], ["1.5", '"x"']),
    "array<int>": (["[1,null]", "[]"], ["[2147483648]", "1"]),
    "from a later version": (["1", '"a"'], []),
}


def columns() -> Iterator[Any]:
    for kind, (good, bad) in COLUMNS.items():
        yield from ((kind, text, True) for text in good)
        yield from ((kind, text, False) for text in bad)


@pytest.mark.parametrize(("kind", "text", "fits"), list(columns()))
def test_states_of_columns(kind, text, fits):
    """Of steps with tables, where a column may be left out, and of aggregates, which have them all."""
    table = state_check({"struct": "columns", "fields": [["c", kind, False]]})
    sums = state_check({"struct": "aggregates", "fields": [["c", f"sum(as as x) as {kind}", True]]})
    assert (table(f'{{"c":{text}}}') is None, sums(f'{{"c":{text}}}') is None) == (fits, fits)
    assert (table("{}") is None, sums("{}") is None) == (True, False)
    assert table('{"d":1}') is not None


@pytest.mark.parametrize("form", ["later", {"later": 1}, {"dict": []}, {"struct": "x", "fields": [[]]}, {"any of": []}])
def test_a_form_of_a_later_version(form):
    """Nothing is known about it, so nothing is refused."""
    assert state_check(form)('{"a":1}') is None


KEYS = {
    "string": (["", "a", "␀", "␀␀", "a␀0", "007"], ["␀a", "a␀"]),
    "int": (["0", "-1", "2147483647"], ["007", "+1", "1.0", "", " 1", "2147483648", "x", "1" * 5000]),
    "bigint": (["9223372036854775807"], ["9223372036854775808"]),
    "boolean": (["true", "false"], ["True", "1"]),
    "double": (["1.0", "1.0E10", "NaN", "-Infinity"], ["1", "x"]),
    "decimal(4,2)": (["1.50", "-0.10"], ["1.5", "01.50"]),
    "decimal(4,0)": (["15"], ["15.0"]),
    "date": (["2026-01-31", "+12026-01-31"], ["2026-1-31", "31.1.2026"]),
    "timestamp": (["1769836620000000", "-1"], ["2026-01-31 05:17:00"]),
    "timestamp_ntz": (["2026-01-31 05:17:00", "2026-01-31 05:17:00.5"], ["2026-01-31T05:17:00"]),
    "binary": (["FF00", ""], ["ff00", "F"]),
    "from a later version": (["anything"], []),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys(kind):
    """A key in another form than Spark writes it is one that no row has. Alone and as one of several columns."""
    good, bad = KEYS[kind]
    alone, several = key_check([("k", kind)]), key_check([("j", "string"), ("k", kind)])
    for text in good:
        assert (alone(text), several(json.dumps(["a", text], ensure_ascii=False, separators=(",", ":")))) == (
            None,
            None,
        )
    for text in bad:
        assert alone(text) is not None
        assert kind == "string" or several(json.dumps(["a", text], separators=(",", ":"))) is not None
    assert (alone("␀"), several('["a",null]')) == (None, None)


@pytest.mark.parametrize(
    "text", ["a", "[]", '["a"]', '["a","b","c"]', '["a", "b"]', '["a",1]', '{"a":"b"}', '["a","b"']
)
def test_keys_of_several_columns(text):
    """A compact JSON array of as many texts as the key has columns."""
    assert key_check([("a", "string"), ("b", "string")])(text) is not None


def test_a_key_with_an_escape_of_spark():
    """Its digits are in upper case."""
    assert key_check([("a", "string"), ("b", "string")])('["\\u001F","b"]') is None
