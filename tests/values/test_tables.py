"""Tables from a user's function: what is taken for a declared type, and what is not."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from recovery.values.tables import as_table, columns_of

AT = dt.datetime.fromisoformat("2024-05-01T12:00:00")
TAKEN = [
    (pa.array(["a", None]).dictionary_encode(), pa.string()),
    (pa.array(["a"], pa.large_string()), pa.string()),
    (pa.array(["a"], pa.string_view()), pa.string()),
    (pa.array([b"a"], pa.binary(1)), pa.binary()),
    (pa.array([1], pa.int8()), pa.int64()),
    (pa.array([7], pa.uint64()), pa.int32()),
    (pa.array([1], pa.int32()), pa.float64()),
    (pa.array([0.5, None, float("inf")]), pa.float32()),
    (pa.array([1], pa.int32()), pa.decimal128(12, 2)),
    (pa.array([999, None]), pa.decimal128(5, 2)),
    (pa.array([2**63 - 1]), pa.decimal128(38, 18)),
    (pa.array([None]), pa.date32()),
    (pa.array([AT], pa.timestamp("s")), pa.timestamp("us")),
    (pa.array([AT], pa.timestamp("ns", "UTC")), pa.timestamp("us", "Europe/Berlin")),
    (pa.array([["a"], None], pa.large_list(pa.large_string())), pa.list_(pa.field("element", pa.string()))),
    (pa.array([{"a": 1}], pa.struct([("a", pa.int32())])), pa.struct([("a", pa.int64())])),
]
REFUSED = [
    (pa.array([1.0]), pa.int64()),
    (pa.array([1.0, 1e300]), pa.float32()),
    (pa.array([1e300]).dictionary_encode(), pa.float32()),
    (pa.array([[1.0, 1e300], None]), pa.list_(pa.float32())),
    (pa.array([{"a": 1e300}]), pa.struct([("a", pa.float32())])),
    (pa.array(["1"]), pa.int64()),
    (pa.array([1]), pa.bool_()),
    (pa.array([1]), pa.timestamp("us")),
    (pa.array([AT], pa.timestamp("us")), pa.timestamp("us", "UTC")),
    (pa.array([AT], pa.timestamp("us", "UTC")), pa.timestamp("us")),
    (pa.array([AT], pa.timestamp("us")), pa.date32()),
    (pa.array([300]), pa.int8()),
    (pa.array([1000]), pa.decimal128(5, 2)),
    (pa.array([2**60 + 1]), pa.float64()),
    (pa.array([1], pa.timestamp("ns")), pa.timestamp("us")),
    (pa.array([[1.5]]), pa.list_(pa.int64())),
    (pa.array([{"b": 1}]), pa.struct([("a", pa.int64())])),
]


@pytest.mark.parametrize(("given", "wanted"), TAKEN, ids=str)
def test_types_that_hold_the_same_values_are_taken(given, wanted):
    """They become the declared type, with equal values."""
    [found] = columns_of(pa.table({"x": given}), pa.schema([("x", wanted)]))
    assert found.type == wanted
    values = given.to_pylist()
    assert found.to_pylist() == values


@pytest.mark.parametrize(("given", "wanted"), REFUSED, ids=str)
def test_values_that_might_change_are_refused(given, wanted):
    """Nothing is rounded, parsed, cut off, or moved to another time zone."""
    with pytest.raises(ValueError, match=r"'x' (as|with values)"):
        columns_of(pa.table({"x": given}), pa.schema([("x", wanted)]))


def test_null_where_none_may_be():
    """A column that is declared NOT NULL holds none."""
    with pytest.raises(ValueError, match="NULL in 'x'"):
        columns_of(pa.table({"x": [1, None]}), pa.schema([pa.field("x", pa.int64(), nullable=False)]))


NESTED = {
    "x.a": (pa.struct([pa.field("a", pa.int64(), nullable=False)]), [{"a": 1}, None], [{"a": None}]),
    "x.element": (pa.list_(pa.field("element", pa.int64(), nullable=False)), [[1], None, []], [[1, None]]),
    "x.value": (
        pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)),
        [[("a", 1)], None],
        [[("a", None)]],
    ),
    "x.element.a": (
        pa.list_(pa.field("element", pa.struct([pa.field("a", pa.int64(), nullable=False)]))),
        [[{"a": 1}, None], None],
        [[{"a": 1}], [{"a": None}]],
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_null_inside_where_none_may_be(name):
    """In a struct, an array or a map; where the whole is NULL there is nothing inside, nor beside what is looked at."""
    kind, right, wrong = NESTED[name]
    schema = pa.schema([("x", kind)])
    both = pa.table({"x": pa.array([*right, *wrong], kind)})
    for rows in (both.slice(0, len(right)), pa.table({"x": pa.array(right, kind)})):
        assert columns_of(rows, schema)[0].to_pylist() == rows["x"].to_pylist()
    for rows in (both, both.slice(len(right))):
        with pytest.raises(ValueError, match=f"NULL in '{name}', which is declared NOT NULL"):
            columns_of(rows, schema)


def test_null_in_an_array_of_another_type():
    """What is cast to the declared type is looked at, too."""
    schema = pa.schema([("x", pa.list_(pa.field("element", pa.int64(), nullable=False)))])
    assert columns_of(pa.table({"x": [[1, 2]]}), schema)[0].to_pylist() == [[1, 2]]
    with pytest.raises(ValueError, match=r"NULL in 'x\.element'"):
        columns_of(pa.table({"x": pa.array([[1, None]], pa.list_(pa.int32()))}), schema)


@pytest.mark.parametrize("inside", ["", "a list", "a struct"])
def test_null_in_a_map_of_another_type(inside):
    """Arrow's maps may hold NULL unless that is said: those without any are taken where none may be."""
    given = pa.map_(pa.string(), pa.int64())
    wanted = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))
    right, wrong, name = [[("a", 1)], [], None], [[("a", 1), ("b", None)]], "x.value"
    if inside == "a list":
        given, wanted, name = pa.list_(given), pa.list_(pa.field("element", wanted)), "x.element.value"
        right, wrong = [right, None], [wrong]
    elif inside == "a struct":
        given, wanted, name = pa.struct([("m", given)]), pa.struct([("m", wanted)]), "x.m.value"
        right, wrong = [{"m": each} for each in right], [{"m": each} for each in wrong]
    schema = pa.schema([("x", wanted)])
    [found] = columns_of(pa.table({"x": pa.array(right, given)}), schema)
    assert (found.type, found.to_pylist()) == (wanted, right)
    both = pa.table({"x": pa.array([*right, *wrong], given)})
    assert columns_of(both.slice(0, len(right)), schema)[0].to_pylist() == right
    for rows in (both, both.slice(len(right))):
        with pytest.raises(ValueError, match=f"NULL in '{name}'"):
            columns_of(rows, schema)


def test_frames_of_pandas_that_were_filtered_or_sorted():
    """The rows' old numbers are no column; an index that has a name is one."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"user": ["b", "a", "c"], "n": [1, 2, 3]})
    for given in (frame[frame["n"] > 1], frame.sort_values("user"), frame.set_index([[7, 8, 9], [1, 2, 3]])):
        table = as_table(given)
        assert table.column_names == ["user", "n"]
        assert table["n"].to_pylist() == given["n"].tolist()
    assert set(as_table(frame.groupby("user").sum()).column_names) == {"user", "n"}


def test_columns_by_name_and_in_pieces():
    """Any order, several chunks, ignored ones beside them; the same name twice is not guessed about."""
    table = pa.concat_tables([pa.table({"b": [1], "a": [2], "_x": [0]})] * 2)
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    assert [column.to_pylist() for column in columns_of(table, schema, ["_x"])] == [[2, 2], [1, 1]]
    with pytest.raises(ValueError, match="unknown columns '_x'"):
        columns_of(table, schema)
    with pytest.raises(ValueError, match="has twice 'a'"):
        columns_of(pa.table([[1], [1], [1]], names=["a", "a", "b"]), schema)


def test_a_record_batch_is_a_table():
    """And the error for anything else names its type."""
    assert as_table(pa.record_batch({"x": [1]})) == pa.table({"x": [1]})
    for wrong in (None, [1], "x", pa.array([1])):
        with pytest.raises(ValueError, match=f"a {type(wrong).__name__}"):
            as_table(wrong)
