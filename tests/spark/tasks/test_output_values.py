"""What `update` gives: as it is meant, or refused."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from recovery.base.ids import BatchId, StepId
from recovery.errors import StateValueError
from recovery.spark.steps.column_types import arrow_zone
from recovery.spark.steps.definition import ROUTE
from recovery.spark.tasks.input_values import RowMaker
from recovery.spark.tasks.output_values import in_known_zones, to_array, to_batch, zone_of
from recovery.spark.tasks.run_tasks import run_tasks
from recovery.spark.tasks.step_task import StepTask
from recovery.storage.initialize import init_partitions
from tests.stores import Driver
from tests.tasks import definition

BERLIN = "Europe/Berlin"
ZONED, PLAIN = pa.timestamp("us", tz=BERLIN), pa.timestamp("us")
LONG, FLOAT = pa.int64(), pa.float32()
PAIR = pa.struct([("a", LONG), ("b", pa.string())])
Pair = namedtuple("Pair", "a b")


def local(text):
    """A time without a zone."""
    return datetime.fromisoformat(text)


def there(value, kind):
    """A value as it comes out, on its way through an array."""
    return to_array([None, value], kind, BERLIN).to_pylist()[1]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (5, LONG, 5), (5.0, LONG, 5), (Decimal(5), LONG, 5), (np.int32(5), LONG, 5), (np.float64(5), LONG, 5),
        (Fraction(10, 2), LONG, 5), (0.5, FLOAT, 0.5), (float("inf"), FLOAT, float("inf")), (7, FLOAT, 7.0),
        ([1, 2.0, None], pa.list_(LONG), [1, 2, None]), (np.array([1, 2]), pa.list_(LONG), [1, 2]),
        ((1, 2), pa.list_(LONG), [1, 2]), (["x"], pa.list_(pa.string()), ["x"]),
        ({"a": 1}, PAIR, {"a": 1, "b": None}), ((1, "x"), PAIR, {"a": 1, "b": "x"}),
        (Pair(1, "x"), PAIR, {"a": 1, "b": "x"}), ({"k": 1.0}, pa.map_(pa.string(), LONG), [("k", 1)]),
        ([("k", 1)], pa.map_(pa.string(), LONG), [("k", 1)]), (date(2024, 5, 1), pa.date32(), date(2024, 5, 1)),
        (None, LONG, None),
    ],
)  # fmt: skip
def test_what_fits(value, kind, expected):
    """Numbers of another type where nothing is lost, structs by name or by place."""
    assert there(value, kind) == expected


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2.75, LONG), (Decimal("2.75"), LONG), (np.float64(2.75), LONG), (Fraction(5, 2), LONG), (float("nan"), LONG),
        (float("inf"), LONG), (2**70, LONG), (True, LONG), ("5", LONG), (1e300, FLOAT), ([1.5], pa.list_(LONG)),
        (np.array([1.5]), pa.list_(LONG)), ([[1e300]], pa.list_(pa.list_(FLOAT))), ({"totl": 3}, PAIR),
        ({"a": 1.5}, PAIR), ((1.5, "x"), PAIR), ((1,), PAIR), ({"k": 1.5}, pa.map_(pa.string(), LONG)),
        (datetime(2024, 1, 1, 23, 30, tzinfo=UTC), pa.date32()), ([local("2024-01-01")], pa.list_(pa.date32())),
        (5, pa.map_(pa.string(), LONG)), (5, pa.list_(LONG)), ([{"totl": 3}], pa.list_(PAIR)),
        (1714557600.25, ZONED), (1714557600.25, PLAIN), (Decimal("1.5"), pa.date32()), (1.5, pa.duration("us")),
        (1.5, pa.time64("us")), ([1.5], pa.list_(ZONED)), (np.timedelta64(5, "ns"), LONG),
        (np.timedelta64(5, "ns"), ZONED), (np.timedelta64(5, "ns"), pa.date32()),
        (np.timedelta64(5, "ns"), pa.time64("us")),
    ],
)  # fmt: skip
def test_what_does_not_fit(value, kind):
    """Refused at any depth, by an error that the step names."""
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError)):
        there(value, kind)


@pytest.mark.parametrize(
    ("nested", "wrap", "unwrap"),
    [
        (lambda kind: kind, lambda v: v, lambda v: v),
        (pa.list_, lambda v: [v], lambda v: v[0]),
        (lambda kind: pa.struct([("t", kind)]), lambda v: {"t": v}, lambda v: v["t"]),
        (lambda kind: pa.map_(pa.string(), kind), lambda v: {"k": v}, lambda v: v[0][1]),
    ],
    ids=["plain", "list", "struct", "map"],
)
def test_times_without_a_zone_are_the_sessions(nested, wrap, unwrap):
    """At any depth, and in both directions; one with a zone is the moment that it is."""
    noon = local("2024-05-01T12:00")
    for kind, given, expected in (
        (ZONED, noon, datetime(2024, 5, 1, 10, tzinfo=UTC)),
        (ZONED, noon.replace(tzinfo=timezone(timedelta(hours=-3))), datetime(2024, 5, 1, 15, tzinfo=UTC)),
        (PLAIN, noon, noon),
        (PLAIN, noon.replace(tzinfo=ZoneInfo(BERLIN)), noon),
        (PLAIN, noon.replace(tzinfo=UTC), local("2024-05-01T14:00")),
    ):
        assert unwrap(there(wrap(given), nested(kind))) == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_numpy_are_times_without_a_zone(unit):
    """Alone as in an array, whatever is beside them."""
    noon = np.datetime64("2024-05-01T12:00:00", unit)
    for kind in (ZONED, PLAIN):
        expected = there(local("2024-05-01T12:00"), kind)
        assert there(noon, kind) == expected
        assert to_array([noon], kind, BERLIN).to_pylist() == [expected]
        assert there([noon], pa.list_(kind)) == there(np.array([noon]), pa.list_(kind)) == [expected]
        assert there(np.datetime64("NaT", unit), kind) is None


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_lengths_of_time_of_numpy(unit):
    """Alone as in an array, whatever their unit is."""
    kind, minute, none = pa.duration("us"), np.timedelta64(60, "s").astype(f"m8[{unit}]"), np.timedelta64("NaT", unit)
    assert there(minute, kind) == timedelta(minutes=1)
    assert to_array([minute], kind, BERLIN).to_pylist() == [timedelta(minutes=1)]
    for values in ([minute, none], np.array([minute, none])):
        assert there(values, pa.list_(kind)) == [timedelta(minutes=1), None]
    assert there({"k": minute}, pa.map_(pa.string(), kind)) == [("k", timedelta(minutes=1))]


REQUIRED = T.StructType([
    T.StructField("n", T.LongType(), False),
    T.StructField("list", T.ArrayType(T.StringType(), False)),
    T.StructField("map", T.MapType(T.StringType(), T.LongType(), False)),
    T.StructField("struct", T.StructType([T.StructField("a", T.LongType(), False)])),
])  # fmt: skip


OUTPUT = pa.schema([("key", pa.string()), ("n", LONG), ("pair", PAIR)])
Wanted, Swapped = namedtuple("Wanted", "key n pair"), namedtuple("Swapped", "pair n key")


def test_names_of_rows_decide():
    """A Row and a named tuple go into the columns of their names, at any depth; plain tuples and lists, and Rows
    without names, by place."""
    one, key = pa.array([1]), pa.array(["a"])
    rows = [
        ("a", 1, (2, "x")), ["a", 1, {"b": "x", "a": 2}], Wanted("a", 1, Pair(2, "x")), Row("a", 1, (2, "x")),
        Swapped(namedtuple("P", "b a")("x", 2), 1, "a"), Row(pair=Row(b="x", a=2), key="a", n=1),
        *RowMaker(names := ("pair", "n", "key")).rows("s", names, [pa.array([{"b": "x", "a": 2}], PAIR), one, key], {}),
    ]  # fmt: skip
    # Arrow takes either tuples or dicts for the structs of a column.
    for some in ([rows[0], *rows[2:-1]], *([each] for each in rows)):
        found = to_batch(some, OUTPUT, StepId("s"), BERLIN).to_pylist()
        assert found == [{"key": "a", "n": 1, "pair": {"a": 2, "b": "x"}}] * len(some)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (Row(key="a", m=1, pair=None), r"has 'm', which is none of the columns key, n, pair of its output"),
        (namedtuple("Other", "key m pair")("a", 1, None), "has 'm', which is none of the columns"),
        (Row(key="a", n=1), "lacks 'pair' of the columns key, n, pair"),
        (Pair("a", 1), "has 'a', 'b', which is none of"),
        (Row("key", "key", "n")("a", "b", 1), "has a name twice"),
        (Wanted("a", 1, Row(a=2, c="x")), "has 'c', which is none of"),
        (Wanted("a", 1, Row("a", "a")(1, 2)), "has a name twice"), (("a", 1), "where its output has 3 columns"),
        (5, "gave 5 where its output has 3 columns"), ({"key": "a", "n": 1, "pair": None}, "where its output has 3"),
    ],
    ids=str,
)  # fmt: skip
def test_other_names_are_refused(row, said):
    """The error lists the names of both; a row of the right length would go into wrong columns without a word."""
    for some in ([row], [("a", 1, None), row], [Wanted("a", 1, None), row]):
        with pytest.raises(StateValueError, match=said):
            to_batch(some, OUTPUT, StepId("s"), BERLIN)


class Broken:
    """A value whose own code fails."""

    def __getattr__(self, name):
        raise RuntimeError(name)


@pytest.mark.parametrize(
    "value", [np.timedelta64(1, "s"), np.ma.masked, Broken()], ids=lambda each: type(each).__name__
)
def test_whatever_a_value_raises_the_error_names_step_and_column(value):
    """A quarantine takes such an error for the row's own."""
    with pytest.raises(StateValueError, match=r"step 's': output column 'at' \(timestamp\[us\]\): "):
        to_batch([(value,)], pa.schema([("at", PLAIN)]), StepId("s"), BERLIN)


def test_a_row_of_the_input_goes_by_the_names_of_its_columns():
    """A row of the input goes by the names of its columns, also by names that Python does not allow as attributes,
    which are `_0` and so on there."""
    [row] = RowMaker(("sum(n)", "key")).rows("s", ["sum(n)", "key"], [pa.array([1]), pa.array(["a"])], {})
    assert (row._0, row.key) == (1, "a")
    schema = pa.schema([("key", pa.string()), ("sum(n)", LONG)])
    assert to_batch([row], schema, StepId("s"), BERLIN).to_pylist() == [{"key": "a", "sum(n)": 1}]


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ((1, ["x"], {"k": 1}, {"a": 1}), None), ((1, None, None, None), None), ((1, [], {}, (1,)), None),
        ((None, [], {}, (1,)), "n"), ((1, ["x", None], {}, (1,)), "list.element"),
        ((1, [], {"k": None}, (1,)), "map.value"), ((1, [], {}, {"a": None}), "struct.a"),
        ((1, [], {}, {}), "struct.a"),
    ],
    ids=str,
)  # fmt: skip
def test_none_where_the_output_is_not_null(tmp_path, row, name):
    """Refused by the names of step and column, at any depth: Spark would read a zero, or an empty string."""
    rows = pa.table({"key": ["a"]})
    step = replace(definition(lambda *_: [row], "x int", REQUIRED, rows, ["key"]), state_schema=None)
    batch = rows.append_column(ROUTE, pa.array([0], pa.int64())).to_batches()
    init_partitions(tmp_path / "db", 1)
    with Driver(tmp_path / "db") as driver:
        found = run_tasks(
            step, iter(batch), lambda keep: (driver.task(), driver.count), BatchId(0), StepTask, driver.count
        )
        if name is None:
            assert [each.num_rows for each in found] == [1]
            return
        column = name.partition(".")[0]
        with pytest.raises(StateValueError, match=f"step 'count': output column '{column}' .*: NULL in '{name}'"):
            list(found)


def test_where_clocks_change():
    """As in Python and Java: the first of two, and as long after the change as it says."""
    found = to_array([local("2024-10-27T02:30"), local("2024-03-31T02:45")], ZONED, BERLIN).cast(LONG)
    twice, never = datetime(2024, 10, 27, 0, 30, tzinfo=UTC), datetime(2024, 3, 31, 1, 45, tzinfo=UTC)
    assert found.to_pylist() == [int(each.timestamp() * 1_000_000) for each in (twice, never)]
    later = there(local("2024-10-27T02:30").replace(fold=1), ZONED)
    assert later.timestamp() == twice.timestamp() + 3600


@pytest.mark.parametrize(
    ("name", "hours"), [("Z", 0), ("UTC", 0), ("GMT+8", 8), ("+05:30", 5.5), ("UTC-3", -3), ("-0100", -1)]
)
def test_names_of_zones(name, hours):
    """Spark takes offsets, too."""
    assert zone_of(name).utcoffset(local("2024-01-01")) == timedelta(hours=hours)


@pytest.mark.parametrize("name", ["Z", "UTC", "GMT+8", "+05:30", "UTC-3", "-0100", "+5:00", "Europe/Berlin"])
def test_times_of_any_zone_can_be_read(name):
    """At any depth, as the moments that they are; Arrow knows few of the names."""
    assert zone_of(arrow_zone(name)).utcoffset(local("2024-01-01")) == zone_of(name).utcoffset(local("2024-01-01"))
    times = pa.array([0, 86_400_000_000], pa.int64()).cast(pa.timestamp("us", tz=name))
    offsets = pa.array([0, 1, 2], pa.int32())
    columns = [
        times,
        pa.ListArray.from_arrays(offsets, times),
        pa.StructArray.from_arrays([times], names=["t"]),
        pa.MapArray.from_arrays(offsets, pa.array(["k", "k"]), times),
        pa.array([1, 2]),
    ]
    rows = in_known_zones(pa.record_batch(columns, names=list("alsmn")).slice(1))
    day = datetime(1970, 1, 2, tzinfo=UTC)
    assert rows.to_pylist() == [{"a": day, "l": [day], "s": {"t": day}, "m": [("k", day)], "n": 2}]
