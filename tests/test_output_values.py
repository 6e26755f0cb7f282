"""What `update` gives: as it is meant, or refused."""

from __future__ import annotations

from collections import namedtuple
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from recovery.spark.output_values import to_array, zone_of

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
    """Alone as in an array, whatever stands beside them."""
    noon = np.datetime64("2024-05-01T12:00:00", unit)
    for kind in (ZONED, PLAIN):
        expected = there(local("2024-05-01T12:00"), kind)
        assert there(noon, kind) == expected
        assert to_array([noon], kind, BERLIN).to_pylist() == [expected]
        assert there([noon], pa.list_(kind)) == there(np.array([noon]), pa.list_(kind)) == [expected]
        assert there(np.datetime64("NaT", unit), kind) is None


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
