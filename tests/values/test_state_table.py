"""States of many keys as columns and as JSON: they come back equal to what they were, or are refused."""

from __future__ import annotations

import datetime as dt
import decimal
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.errors import StateValueError
from recovery.values import state_table
from recovery.values.codec import StateCodec
from recovery.values.state_table import StateTable

TIME = st.datetimes(*(dt.datetime.fromisoformat(at) for at in ("0001-01-02", "9999-12-30")))
ODD_TEXT = st.text() | st.text('\\"/\n\x00\x1f{}:,u0é😀', max_size=8)
KINDS = {
    "bool": (pa.bool_(), st.booleans()),
    "byte": (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    "double": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "string": (pa.string(), ODD_TEXT),
    "binary": (pa.binary(), st.binary()),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", "Europe/Berlin"), TIME.map(lambda at: at.replace(tzinfo=dt.UTC))),
    "timestamp_ntz": (pa.timestamp("us"), TIME),
    "decimal": (
        pa.decimal128(38, 18),
        st.decimals(-(10**19), 10**19, places=18, allow_nan=False, allow_infinity=False),
    ),
    "whole decimal": (pa.decimal128(38, 0), st.integers(-(10**38) + 1, 10**38 - 1).map(decimal.Decimal)),
}
KINDS["array"] = (pa.list_(pa.field("element", pa.int64())), st.lists(st.none() | KINDS["bigint"][1], max_size=4))
KINDS["arrays"] = (
    pa.list_(pa.field("element", pa.list_(pa.field("element", pa.string())))),
    st.lists(st.none() | st.lists(st.none() | ODD_TEXT, max_size=3), max_size=3),
)
KINDS["dates"] = (pa.list_(pa.field("element", pa.date32())), st.lists(st.none() | st.dates(), max_size=3))


def bits(column: pa.Array) -> list:
    """Python values in which 0.0 and -0.0 differ."""
    return [repr(value) for value in column.to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_value_comes_back(kind, data):
    """Of every type, NULLs among them, whatever stands in strings; slices of columns too; as JSON of one line."""
    declared, values = KINDS[kind]
    given_ = pa.array(data.draw(st.lists(st.none() | values, min_size=1, max_size=8)), declared)
    given_ = given_.slice(data.draw(st.integers(0, len(given_) - 1)))
    table = StateTable(pa.schema([("a", pa.int64()), ('"v"\x1f', declared)]))
    texts = table.encode([pa.array(range(len(given_)), pa.int64()), given_]).to_pylist()
    _, back = table.decode(texts)
    assert back.type == given_.type
    assert bits(back) == bits(given_)
    assert [json.loads(text)["a"] for text in texts] == list(range(len(given_)))
    assert not any(set("\n\x1f\0") & set(text) for text in texts)


def test_it_is_what_people_read():
    """The form that the documentation shows."""
    schema = pa.schema([
        ("n", pa.int64()), ("mean", pa.float64()), ("last", pa.timestamp("us", "UTC")), ("price", pa.decimal128(9, 2)),
        ("day", pa.date32()), ("tags", pa.list_(pa.string())), ("note", pa.string()),
    ])  # fmt: skip
    rows = pa.Table.from_pylist(
        [{
            "n": 3, "mean": 0.5, "last": dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC), "price": decimal.Decimal("1.50"),
            "day": dt.date(2024, 5, 1), "tags": ["a", None], "note": None,
        }],
        schema,
    )  # fmt: skip
    [text] = StateTable(schema).encode([column.combine_chunks() for column in rows.columns]).to_pylist()
    assert text == (
        '{"n":3,"mean":0.5,"last":"2024-05-01T12:00:00.000000Z","price":"1.50","day":"2024-05-01",'
        '"tags":["a",null],"note":null}'
    )


def test_states_larger_than_the_reader_takes_in_one_call(monkeypatch):
    """They are read in parts."""
    monkeypatch.setattr(state_table, "BLOCK_BYTES", 40)
    table = StateTable(pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))]))
    texts = [f'{{"n":{number},"tags":["{"x" * number}",null]}}' for number in range(30)]
    n, tags = table.decode([None, *texts])
    assert n.to_pylist() == [None, *range(30)]
    assert tags.to_pylist() == [None, *(["x" * number, None] for number in range(30))]


def test_keys_without_state_and_columns_that_were_not_stored():
    """Both are NULL; columns that the schema no longer has are passed over."""
    table = StateTable(pa.schema([("n", pa.int64()), ("later", pa.string())]))
    n, later = table.decode([None, '{"n":1}', '{"gone":[{}],"later":"x"}', "{}"])
    assert (n.to_pylist(), later.to_pylist()) == ([None, 1, None, None], [None, None, "x", None])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.list_(pa.float64())])
def test_nan_and_infinity_are_refused(value, kind):
    """As a state of plain Python values refuses them; never stored as NULL."""
    with pytest.raises(StateValueError):
        StateCodec().encode(value)
    column = pa.array([[None, 1.0], [value]] if pa.types.is_list(kind) else [None, value], kind)
    with pytest.raises(StateValueError, match=r"'x'.*NaN and infinity"):
        StateTable(pa.schema([("x", kind)])).encode([column])


def test_years_without_an_iso_form_are_refused():
    """Arrow would write something else in their place."""
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32()):
        odd = pa.array(
            [5_000_000 if pa.types.is_date(kind) else 10**18], pa.int32() if pa.types.is_date(kind) else "i8"
        )
        with pytest.raises(StateValueError, match="years 1 to 9999"):
            StateTable(pa.schema([("at", kind)])).encode([odd.cast(kind)])


@pytest.mark.parametrize(
    "text", ["5", "null", '{"n":"x"}', '{"n":1.5}', '{"n":1}{"n":2}', '{"n":99999999999999999999}', "[1]", "{", " "]
)
def test_texts_of_another_form_are_refused(text):
    """What someone else wrote into the state is never misread."""
    with pytest.raises(ValueError):
        StateTable(pa.schema([("n", pa.int64())])).decode(['{"n":1}', text])
    with pytest.raises(ValueError):
        StateTable(pa.schema([("n", pa.int64())])).decode([text])


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.int64()), pa.struct([("a", pa.int64())]), pa.duration("us")])
def test_types_without_a_form(kind):
    """They are named before anything runs."""
    with pytest.raises(ValueError, match=r"'x'.*no form"):
        StateTable(pa.schema([("x", kind)]))


def test_doubles_of_any_bits_are_exact():
    """Random bit patterns, all that are finite."""
    bits_ = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, 200_000)
    values = bits_.view(np.float64)
    values = values[np.isfinite(values)]
    table = StateTable(pa.schema([("x", pa.float64())]))
    [back] = table.decode(table.encode([pa.array(values)]).to_pylist())
    assert back.to_numpy().tobytes() == values.tobytes()
