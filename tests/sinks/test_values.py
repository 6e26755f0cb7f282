"""Values of Spark's rows on their way into a database. Nothing here starts Spark."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    DateType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from recovery.sinks.values import changes_of, in_utc
from tests.sinks.support import Store
from tests.sinks.test_upsert import Real, Run

LOCAL = datetime(2024, 7, 1, 8)  # noqa: DTZ001
"""As Spark gives it on a machine in New York."""
MOMENT = datetime(2024, 7, 1, 12, tzinfo=UTC)


@pytest.fixture
def new_york():
    """This machine is in New York."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def frame(schema: StructType, *rows: tuple) -> SimpleNamespace:
    """What `write` needs of a DataFrame."""
    return SimpleNamespace(schema=schema, columns=schema.names, toLocalIterator=lambda **_: iter(rows))


def of(**types) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


DEPTHS = {
    "moment": (TimestampType(), LOCAL, MOMENT),
    "array": (ArrayType(TimestampType()), [LOCAL, None], [MOMENT, None]),
    "struct": (of(n=LongType(), m=TimestampType()), Row(n=1, m=LOCAL), Row(n=1, m=MOMENT)),
    "key of a map": (MapType(TimestampType(), LongType()), {LOCAL: 1}, {MOMENT: 1}),
    "value of a map": (MapType(StringType(), TimestampType()), {"a": LOCAL}, {"a": MOMENT}),
    "structs in arrays in a map": (
        MapType(StringType(), ArrayType(of(m=TimestampType()))),
        {"a": [Row(m=LOCAL), None]},
        {"a": [Row(m=MOMENT), None]},
    ),
}


@pytest.mark.parametrize("depth", DEPTHS)
def test_moments_are_in_utc_at_every_depth(new_york, depth):
    """And what lies around them stays what it was: a struct keeps its fields' names, NULL stays NULL."""
    kind, value, expected = DEPTHS[depth]
    change = in_utc(kind)
    assert change(value) == expected
    assert repr(change(value)) == repr(expected)
    assert change(None) is None


def test_what_has_no_moments_is_left_alone():
    """Rows without moments are not taken apart; a timestamp without a zone is none, nor is a day."""
    schema = of(n=LongType(), t=TimestampNTZType(), d=DateType(), a=ArrayType(of(t=TimestampNTZType())))
    assert changes_of(schema) == []


def test_moments_in_arrays_and_maps_of_a_table(new_york, tmp_path):
    """A database that is set to another zone gets them with theirs, as it gets those of a column."""

    class Elsewhere(Real):
        def connect(self):
            connection = super().connect()
            connection.execute("SET GLOBAL TimeZone = 'Asia/Tokyo'")
            return connection

    database = Elsewhere("duckdb", tmp_path / "db")
    database.execute(
        "CREATE TABLE words (word TEXT PRIMARY KEY, m TIMESTAMPTZ, a TIMESTAMPTZ[], v MAP(TEXT, TIMESTAMPTZ))"
    )
    store = Store()
    run = Run(store, database, key=["word"])
    kinds = of(
        word=StringType(), m=TimestampType(), a=ArrayType(TimestampType()), v=MapType(StringType(), TimestampType())
    )
    run.sink.write(frame(kinds, ("w", LOCAL, [LOCAL], {"a": LOCAL})), 0)
    run.close(0)
    asked = "SELECT epoch(m), epoch(a[1]), epoch(v['a']) FROM words"
    assert database.execute(asked) == [(MOMENT.timestamp(),) * 3]
