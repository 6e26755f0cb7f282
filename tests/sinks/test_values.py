"""Values of Spark's rows on their way into a database. Nothing here starts Spark."""

from __future__ import annotations

import os
import sqlite3
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace

import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from recovery.errors import FlowFailedError, SinkFailedError
from recovery.sinks.upsert.values import changes_of, in_utc
from tests.sinks.conftest import Real
from tests.sinks.support import Store
from tests.sinks.test_upsert import Run

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


UNFIT = {
    "decimal": (DecimalType(10, 2), Decimal("1.50"), r"column n \(decimal\(10,2\)\)"),
    "array": (ArrayType(LongType()), [1], r"column n \(array<bigint>\)"),
    "struct": (of(a=LongType()), Row(a=1), r"column n \(struct<a:bigint>\)"),
    "text": (StringType(), "\ud800", r"column n \(string\)"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_value_that_the_database_does_not_take(tmp_path, kind):
    """The error names table, column and type, and what to do in the flow; then the same database goes on."""
    spark_type, value, named = UNFIT[kind]
    database = Real("sqlite3", tmp_path / "db")
    database.execute("CREATE TABLE words (word TEXT PRIMARY KEY, day TEXT, n)")
    store = Store()
    run = Run(store, database, key=["word"])
    schema = of(word=StringType(), day=DateType(), n=spark_type)
    rows = [("a", date(2024, 7, 1), None), ("b", None, value)]
    with pytest.raises(FlowFailedError, match=f"table words does not take a value of {named}: the database") as caught:
        run.sink.write(frame(schema, *rows), 0)
    assert "Cast it in the flow" in caught.value.remedy
    run.sink.write(frame(of(word=StringType(), n=StringType()), ("b", "1.50")), 0)
    run.close(0)
    assert database.execute("SELECT * FROM words") == [("b", None, "1.50")]


def test_a_value_of_another_type_than_the_column(tmp_path):
    """DuckDB knows the type of a column: the error names the first one whose value is not of it."""
    database = Real("duckdb", tmp_path / "db")
    database.execute("CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER)")
    run = Run(Store(), database, key=["word"])
    with pytest.raises(FlowFailedError, match=r"table words does not take a value of column n \(string\)"):
        run.sink.write(frame(of(word=StringType(), n=StringType()), ("a", "1"), ("b", "many")), 0)


def test_a_failing_database_is_not_taken_for_a_value(tmp_path):
    """No column is blamed when rows cannot be staged for another reason."""
    path = tmp_path / "db"
    errors = [sqlite3.OperationalError("disk full"), sqlite3.ProgrammingError("closed")]

    class Cursor(sqlite3.Cursor):
        def executemany(self, *arguments):
            raise errors.pop()

    class Failing(sqlite3.Connection):
        def cursor(self):
            return super().cursor(Cursor)

    class Full:
        @staticmethod
        def connect():
            return sqlite3.connect(path, factory=Failing)

    Real("sqlite3", path).execute("CREATE TABLE words (word TEXT PRIMARY KEY, n)")
    run = Run(Store(), Full, key=["word"])
    while errors:
        with pytest.raises(SinkFailedError, match=r"^the database says") as caught:
            run.sink.stage(["word", "n"], [("a", 1)], 0)
        assert "no room on its disk" in caught.value.cause or "failing or not reachable" in caught.value.cause
