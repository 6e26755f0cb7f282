"""Flows that could not be gone on with, or whose rows Python could not have, are refused before anything is written."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, SimpleDataSourceStreamReader

from recovery import (
    ConfigurationError,
    DiscardSink,
    FlowFailedError,
    RecoveryConfig,
    StateValueError,
    UnsupportedPlanError,
    UpsertSink,
    aggregate,
    init_partitions,
    start,
    stateful,
    stateful_arrow,
)
from recovery.aggregates import count, last
from recovery.spark.jvm.versions import VERSION
from recovery.spark.planner.bind import bind
from tests.shares import first
from tests.spark.support import run_to_end, set_to, totals_step


class ForgetfulReader(SimpleDataSourceStreamReader):
    def initialOffset(self):  # noqa: N802 - Spark's name
        return {"at": 0}

    def read(self, start):
        return iter([]), start


class ReplayingReader(ForgetfulReader):
    def readBetweenOffsets(self, start, end):  # noqa: N802 - Spark's name
        return iter([])


class Forgetful(DataSource):
    """A source in Python whose rows cannot be had again."""

    @classmethod
    def name(cls):
        return "forgetful"

    def schema(self):
        return "value string"

    def simpleStreamReader(self, schema):  # noqa: N802 - Spark's name
        return ForgetfulReader()


class Replaying(Forgetful):
    @classmethod
    def name(cls):
        return "replaying"

    def simpleStreamReader(self, schema):  # noqa: N802 - Spark's name
        return ReplayingReader()


class Whole(Forgetful):
    @classmethod
    def name(cls):
        return "whole"

    def streamReader(self, schema):  # noqa: N802 - Spark's name
        return DataSourceStreamReader()


SOCKETS = [
    "socket", "SOCKET", "org.apache.spark.sql.execution.streaming.sources.TextSocketSourceProvider",
]  # fmt: skip


@pytest.mark.parametrize("name", SOCKETS)
def test_a_socket_is_no_source_to_continue_from(spark, tmp_path, name):
    """By whatever name: its rows are in memory alone, so that the next run, and all after it, would fail."""
    init_partitions(tmp_path / "db", 1)
    before = (tmp_path / "db" / "part-0.sqlite3").read_bytes()
    frame = spark.readStream.format(name).option("host", "localhost").option("port", 9).load()
    for flow in (frame, frame.selectExpr("value AS key", "1 AS value").transform(totals_step())):
        with pytest.raises(UnsupportedPlanError, match=f"the source '{name}' cannot be read again") as raised:
            start(flow, RecoveryConfig(tmp_path / "db"), name="test", sink=DiscardSink())
        assert "Kafka" in raised.value.remedy
    assert (tmp_path / "db" / "part-0.sqlite3").read_bytes() == before
    bind(frame, 1, keeps_position=False)


def test_a_memory_stream_is_refused(spark):
    """Which tests in Scala make."""
    jvm = spark._jvm
    streaming, session = jvm.org.apache.spark.sql.execution.streaming, spark._jsparkSession
    package, context = (streaming, session.sqlContext()) if VERSION < (4, 1) else (streaming.runtime, session)
    encoder = jvm.org.apache.spark.sql.Encoders.STRING()
    stream = getattr(getattr(package, "MemoryStream$"), "MODULE$").apply(encoder, context)
    from pyspark.sql import DataFrame

    with pytest.raises(UnsupportedPlanError, match="cannot be read again from a position"):
        bind(DataFrame(stream.toDF(), spark), 1)


def test_a_simple_reader_has_to_replay(spark):
    """A source in Python is refused by its reader's name where that has nothing for a micro-batch that is known."""
    for source in (Forgetful, Replaying, Whole):
        spark.dataSource.register(source)
    with pytest.raises(UnsupportedPlanError, match=r"'forgetful' .* reader ForgetfulReader has no readBetweenOffsets"):
        bind(spark.readStream.format("forgetful").load(), 1)
    for name in ("replaying", "whole", "rate", "rate-micro-batch"):
        bind(spark.readStream.format(name).option("rowsPerBatch", 1).load(), 1)


TYPES = {
    "interval": ("INTERVAL '1-2' YEAR TO MONTH", "interval year to month", "c"),
    "months": ("array(INTERVAL '1' MONTH)", "interval month", "c[]"),
    "calendar": ("make_interval(1, 2, 3)", "interval", "c"),
    "variant": ("parse_json('{}')", "variant", "c"),
    "in a struct": ("struct(1 AS a, struct(parse_json('{}') AS b) AS s)", "variant", "c.s.b"),
    "in a map": ("map('x', INTERVAL '1' YEAR)", "interval year", "c.value"),
    "as a map's key": ("map(INTERVAL '1' YEAR, 'x')", "interval year", "c.key"),
}
if VERSION >= (4, 2):
    TYPES["a place"] = ("ST_GeomFromWKB(X'0101000000000000000000F03F0000000000000040')", "geometry", "c")
    TYPES["a place on earth"] = ("ST_GeogFromWKB(X'0101000000000000000000F03F0000000000000040')", "geography", "c")


@first(("expression", "kind", "place"), TYPES.values(), count=3, ids=TYPES)
def test_an_input_column_that_python_cannot_have_is_named(spark, expression, kind, place):
    """Of each kind of step, whether it uses the column or not; an aggregate is given only what it aggregates."""
    frame = (
        spark.readStream.format("rate").load().select(F.lit("k").alias("key"), "value", F.expr(expression).alias("c"))
    )
    arrow = stateful_arrow("s", key="key", update=lambda r, s: (None, None), state_schema="n long", output="key string")
    for step in (totals_step("s"), arrow):
        with pytest.raises(ConfigurationError) as raised:
            frame.transform(step)
        assert raised.value.found.startswith(f"step 's': input column {place!r} has the type {kind}")
        assert "drop the column before the step" in raised.value.remedy
    with pytest.raises(ConfigurationError, match="key column 'c' has the type"):
        frame.transform(stateful("s", key="c", update=print, output="n long"))
    frame.transform(aggregate("s", key="key", n=count("c"), v=last("value", by="value")))


@pytest.mark.skipif(VERSION < (4, 3), reason="Spark has such types since 4.3")
def test_a_type_that_pyspark_does_not_know_is_named(spark):
    """It cannot even tell the frame's schema."""
    with set_to(spark, {"spark.sql.timestampNanosTypes.enabled": "true"}):
        frame = spark.readStream.format("rate").load()
        frame = frame.selectExpr("'k' AS key", "value", "CAST(timestamp AS TIMESTAMP_NTZ(9)) AS c")
        with pytest.raises(ConfigurationError, match=r"input column 'c' has the type timestamp_ntz\(9\)"):
            frame.transform(totals_step())


@pytest.mark.parametrize(
    ("output", "place"),
    [
        ("k string, c interval year to month", "c"),
        ("c array<variant>", r"c\[\]"),
        ("c interval", "c"),
        ("c varchar(5)", "c"),
        ("c struct<a: char(3)>", "c.a"),
        ("c map<string, interval year>", "c.value"),
    ],
)
def test_a_declared_column_that_python_cannot_give_is_named(spark, output, place):
    """As output, and as state of a step that sees tables."""
    frame = spark.readStream.format("rate").load()
    with pytest.raises(ConfigurationError, match=f"step 's': output column '{place}' has the type"):
        frame.transform(stateful("s", key="value", update=print, output=output))
    with pytest.raises(ConfigurationError, match=f"step 's': state_schema column '{place}' has the type"):
        frame.transform(stateful_arrow("s", key="value", update=print, state_schema=output, output="value long"))


def modes(spark):
    """Flows that have not the output mode that they need, and what the remedy says."""
    rows = spark.readStream.format("rate").load().withColumn("v", F.col("value"))
    late = rows.withWatermark("timestamp", "1 minute")
    with_state = rows.groupBy("v").applyInPandasWithState(
        lambda *_: iter([]), "v long", "n long", "update", "NoTimeout"
    )
    yield "append", rows.groupBy("v").count(), ['output_mode="update"', "withWatermark"]
    yield "update", late.groupBy(F.session_window("timestamp", "5 minutes")).count(), ['"append"', '"complete"']
    yield "complete", rows, ['"append"', "AllKeysSink"]
    yield "complete", late.join(late.select("timestamp"), "timestamp"), ['"append"']
    yield "update", late.alias("a").join(late.alias("b"), ["timestamp", "v"], "left"), ['output_mode="append"']
    yield "update", rows.limit(3), ['"append"']
    yield "append", rows.orderBy("v"), ["in the sink", 'output_mode="complete"']
    yield "append", with_state, ['output_mode="update"']


def test_a_wrong_output_mode_comes_with_the_right_one(spark, tmp_path):
    """By the mode and the operator, with steps in the flow and without."""
    init_partitions(tmp_path / "db", 1)
    for mode, frame, remedies in modes(spark):
        with pytest.raises(FlowFailedError) as raised:
            start(frame, RecoveryConfig(tmp_path / "db"), name="test", sink=DiscardSink(), output_mode=mode)
        assert raised.value.cause, raised.value.found
        for remedy in remedies:
            assert remedy in raised.value.remedy, raised.value.found
    keyed = spark.readStream.format("rate").load().selectExpr("'k' AS key", "value")
    with pytest.raises(UnsupportedPlanError, match=r"Spark refuses the plan.*complete") as refused:
        bind(keyed.transform(totals_step()), 1, "complete")
    assert "AllKeysSink" in refused.value.remedy


def test_a_time_that_python_cannot_have_is_named_by_a_database_sink(spark, tmp_path):
    """The rows of a flow without a step reach Python in the sink."""
    connect = lambda: sqlite3.connect(tmp_path / "out.sqlite3")  # noqa: E731
    with contextlib.closing(connect()) as database:
        database.execute("CREATE TABLE days (k TEXT PRIMARY KEY, day TEXT)")
        database.commit()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"k": "a", "n": 2932897}')
    frame = spark.readStream.schema("k string, n int").json(str(tmp_path / "in"))
    frame = frame.selectExpr("k", "date_from_unix_date(n) AS day")
    with pytest.raises(StateValueError, match=r"cannot represent: \+10000-01-01, in column 'day'"):
        run_to_end(frame, tmp_path / "db", UpsertSink(connect, "days", ["k"]))
