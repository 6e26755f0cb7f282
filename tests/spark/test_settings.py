"""Settings of a user's session that change Arrow's types, time zones or nullability, with each kind of step."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3

import pytest
from pyspark.sql import functions as F

from recovery import (
    FileSink,
    Node,
    Pipeline,
    RecoveryConfig,
    UpsertSink,
    aggregate,
    incremental,
    init_partitions,
    native_state,
    register,
    run_pipeline,
    stateful,
    stateful_arrow,
    stateful_map,
)
from recovery.aggregates import approx_distinct, collect, count, first, last, max_, mean, min_, sum_, top_k, variance
from recovery.spark.tuning import gathering, merging
from tests.shares import some
from tests.spark.support import run_to_end, set_to

ARROW = "spark.sql.execution.arrow."
SETTINGS = {
    "large types": {f"{ARROW}useLargeVarTypes": "TRUE"},
    "no zone by default": {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
    "a zone west of UTC": {"spark.sql.session.timeZone": "America/New_York"},
    "pieces and lz4": {
        f"{ARROW}maxRecordsPerBatch": "1",
        f"{ARROW}maxRecordsPerOutputBatch": "2",
        f"{ARROW}compression.codec": "lz4",
    },
}
MORE_SETTINGS = {
    "an offset": {"spark.sql.session.timeZone": "GMT+8"},
    "a short name": {"spark.sql.session.timeZone": "EST"},
    "half an hour": {"spark.sql.session.timeZone": "Asia/Kolkata"},
    "zstd": {f"{ARROW}compression.codec": "zstd", f"{ARROW}maxBytesPerBatch": "1"},
    "small output": {f"{ARROW}maxBytesPerOutputBatch": "10"},
    "not ANSI": {"spark.sql.ansi.enabled": "false"},
    "not nullable": {
        "spark.sql.streaming.fileSource.schema.forceNullable": "false",
        "spark.sql.legacy.respectNullabilityInTextDatasetConversion": "true",
    },
    "interpreted": {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"},
    "JSON and Java": {
        "spark.sql.jsonGenerator.ignoreNullFields": "false",
        "spark.sql.datetime.java8API.enabled": "true",
        "spark.sql.execution.pyspark.binaryAsBytes": "false",
        "spark.sql.decimalOperations.allowPrecisionLoss": "false",
        "spark.sql.caseSensitive": "true",
    },
    "pandas": {
        f"{ARROW}pyspark.validateSchema.enabled": "true",
        f"{ARROW}pyspark.selfDestruct.enabled": "true",
        "spark.sql.execution.pandas.convertToArrowArraySafely": "false",
        "spark.sql.execution.pandas.structHandlingMode": "dict",
        "spark.sql.execution.pythonUDF.mapInBatch.legacy.acceptAnyIterable.enabled": "false",
        "spark.sql.execution.pythonUDF.arrow.concurrency.level": "2",
    },
    "legacy": {
        f"spark.sql.legacy.{name}": "true"
        for name in (
            "allowNegativeScaleOfDecimal", "castComplexTypesToString.enabled", "charVarcharAsString",
            "interval.enabled",
            "codingErrorAction", "decimal.retainFractionDigitsOnTruncate", "disableMapKeyNormalization", "javaCharsets",
            "statisticalAggregate", "typeCoercion.datetimeToString.enabled", "collationAwareHashFunctions",
        )
    },
    "char and varchar": {"spark.sql.preserveCharVarcharTypeInfo": "true", "spark.sql.charAsVarchar": "true"},
    "types to come": {"spark.sql.timeType.enabled": "true", "spark.sql.timestampNanosTypes.enabled": "true"},
    "parsing": {"spark.sql.parser.escapedStringLiterals": "true", "spark.sql.ansi.doubleQuotedIdentifiers": "true"},
    "off the heap": {"spark.sql.columnVector.offheap.enabled": "true"},
}  # fmt: skip
SCHEMA = (
    "k string, i long, d double, s string, at timestamp_ltz, day date, dec decimal(20,3), arr array<string>, "
    "st struct<a: string, b: timestamp_ltz>, b binary, ntz timestamp_ntz, m map<string, long>"
)
VALUES = "at timestamp_ltz, s string, arr array<string>, b binary"
KEYS = ["a", "é", "long" * 20, 'with "quotes"', "␀", None]


def row(i: int) -> dict:
    at = f"2024-03-{1 + i % 28:02}T0{i % 10}:30:00Z"
    return {
        "k": KEYS[i % 6], "i": i, "d": i / 4, "s": f"s{i}" if i % 3 else None, "at": at, "day": at[:10],
        "dec": f"{i}.5",
        "arr": [f"x{i}", None], "st": {"a": f"q{i}", "b": at}, "b": "QUJD", "ntz": at[:19], "m": {"u": i},
    }  # fmt: skip


def newest(key, rows, state):
    """All kinds of columns, and a count."""
    state.update((state.getOption or 0) + len(rows))
    top = max(rows, key=lambda each: each.i)
    yield key, state.get, top.ntz, top.dec, top.st, top.m, top.at, top.s, top.arr, top.b


def parts(key, rows, state):
    """A key of many columns."""
    state.update(len(rows))
    yield key


def counted(state, value):
    """One value after the other."""
    return (state or 0) + 1, ((state or 0) + 1, value[1])


def tables(rows, states):
    """The first row of each key."""
    top = rows.take(states["_start"])
    new = states.select(["k"]).append_column("n", states["_rows"])
    for name in ("at", "s", "arr", "b"):
        new = new.append_column(name, top[name])
    return new, new


FLOWS = {
    "key by key": lambda frame: frame.transform(
        stateful(
            "s", key="k", update=newest,
            output="k string, n long, ntz timestamp_ntz, dec decimal(20,3), st struct<a: string, b: timestamp_ltz>, "
            f"m map<string, long>, {VALUES}",
        )
    ),
    "keys of all types": lambda frame: frame.transform(
        stateful(
            "s", key=["k", "i", "at", "day", "dec", "d", "ntz"], update=parts, order_by="s",
            output="k string, i long, at timestamp_ltz, day date, dec decimal(20,3), d double, ntz timestamp_ntz",
        )
    ),
    "a mapper": lambda frame: frame.transform(
        stateful_map("s", key="k", value=["i", "at"], mapper=counted, output="k string, n long, at timestamp_ltz")
    ),
    "tables": lambda frame: frame.transform(
        stateful_arrow(
            "s", key="k", update=tables, state_schema=f"n long, {VALUES}", output=f"k string, n long, {VALUES}"
        )
    ),
    "combined": lambda frame: frame.transform(
        aggregate(
            "s", key="k", n=count(), t=sum_("i"), m=mean("d"), lo=min_("at"), hi=max_("day"), dc=sum_("dec"),
            v=variance("d"), la=last("s", by="i"), f=first("at", by="i"), mx=max_("s"), mb=max_("b"),
            c=collect("s", 3, by="i"), ats=top_k("at", 2),
        )
    ),
    "not combined": lambda frame: frame.transform(
        aggregate(
            "s", key=["k", "s"], n=count("m"), la=last("s", by="i"), f=first("at", by="i"), c=collect("s", 3, by="i"),
            mx=max_("s"), mb=max_("b"), ad=approx_distinct("arr"),
        )
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Two files, which are two micro-batches."""
    path = tmp_path_factory.mktemp("input")
    for n in range(2):
        (path / f"{n}.json").write_text("".join(json.dumps(row(i)) + "\n" for i in range(n * 30, n * 30 + 30)))
        os.utime(path / f"{n}.json", (1_700_000_000 + n, 1_700_000_000 + n))
    return path


@pytest.fixture(scope="module")
def usual():
    """What the flows give in a session that is left as it is, by their names."""
    return {}


def outcome(spark, source, directory, flow):
    """Everything that a run gives: its output, and the states as frames."""
    register(spark)
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))
    rows = []
    run_to_end(FLOWS[flow](frame), directory, lambda batch, _: rows.extend(batch.collect()))
    states = spark.read.format("recovery").option("step", "s").load(str(directory)).select("key", "state", "timeout")
    return sorted(repr(plain(each)) for each in rows), sorted(map(repr, states.collect()))


def plain(value):
    """Values with one form, whatever PySpark makes of bytes."""
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, bytearray) else value


def check(spark, source, usual, tmp_path, settings, flow):
    if flow not in usual:
        usual[flow] = outcome(spark, source, tmp_path / "usual", flow)
    with set_to(spark, settings):
        found = outcome(spark, source, tmp_path / "db", flow)
    assert found == usual[flow]


MOST_TOLD = ["keys of all types", "tables", "not combined"]
"""Which flows show the most of a setting."""


@pytest.mark.parametrize("flow", some(MOST_TOLD, "keys of all types"))
def test_a_step_gives_the_same_in_any_session(spark, source, usual, tmp_path, flow):
    """One whose strings have 64-bit offsets ended the JVM, where the driver merges an aggregate."""
    check(spark, source, usual, tmp_path, SETTINGS["large types"], flow)


@pytest.mark.long
@pytest.mark.parametrize("few", [-1, 10_000], ids=["exchanged", "gathered"])
@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("settings", (MORE_SETTINGS | SETTINGS).values(), ids=MORE_SETTINGS | SETTINGS)
def test_a_step_gives_the_same_in_more_sessions(spark, source, usual, tmp_path, monkeypatch, settings, flow, few):
    """All settings that were found to change types, zones, nullability or plans."""
    monkeypatch.setattr(gathering, "FEW_ROWS", few)
    monkeypatch.setattr(gathering, "FIRST_BYTES", few)
    monkeypatch.setattr(merging, "FEW_ROWS", few)
    check(spark, source, usual, tmp_path, settings, flow)


@pytest.mark.long
@pytest.mark.parametrize("settings", [SETTINGS["large types"], SETTINGS["no zone by default"]], ids=str)
def test_all_keys_of_an_aggregate_in_any_session(spark, source, tmp_path, monkeypatch, settings):
    """They are read of the state, and merged rows are given back to Spark for what is above the step."""
    monkeypatch.setattr(merging, "FEW_ROWS", 10_000)
    with set_to(spark, settings):
        step = aggregate("s", key="k", n=count(), last_day=max_("day"))
        frame = spark.readStream.schema(SCHEMA).json(str(source))
        rows = []
        above = frame.transform(step).where("n > 9").selectExpr("upper(k) AS k", "n", "last_day")
        run_to_end(above, tmp_path / "db", lambda batch, _: rows.extend(map(tuple, batch.collect())))
        held = list(map(tuple, step.all_keys(spark, tmp_path / "db").selectExpr("upper(k)", "n", "last_day").collect()))
    assert sorted(held, key=str) == sorted(rows, key=str)
    assert len(held) == len(KEYS)


AROUND = {
    "large types": SETTINGS["large types"],
    "no zone by default, far from UTC": {
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.session.timeZone": "GMT+8",
    },
}


def around(spark, source, home):
    """What a run gives besides steps: native state as frames, in both ways, the files of a sink, and the row of a
    database; and two incremental loads, of which the second has nothing."""
    register(spark)
    home.mkdir()
    rows = spark.readStream.schema(SCHEMA).json(str(source)).where("k IS NOT NULL")
    counts = rows.groupBy("k").agg(F.count("*").alias("n"), F.max("at").alias("at"), F.min("s").alias("s"))
    run_to_end(counts, home / "db", FileSink(home / "files"), output_mode="update")
    native = (
        native_state(spark, home / "db"),
        spark.read.format("recovery").option("operator", 0).load(str(home / "db")),
    )
    connect = lambda: sqlite3.connect(home / "out.sqlite3")  # noqa: E731
    with contextlib.closing(connect()) as database:
        database.execute("CREATE TABLE newest (k TEXT PRIMARY KEY, at TEXT, s TEXT)")
        database.commit()
        step = aggregate("s", key="k", at=max_("at"), s=last("s", by="i"))
        run_to_end(rows.transform(step), home / "steps", UpsertSink(connect, "newest", ["k"]))
        upserted = database.execute("SELECT k, at, s FROM newest").fetchall()
    loads = []
    init_partitions(home / "loads", 1)
    read = incremental(lambda spark: spark.read.schema(SCHEMA).json(str(source)), column="at", key="rows")
    for _ in range(2):
        node = Node("n", read=read, write=lambda frame: loads.append(frame.count()))
        run_pipeline(Pipeline("p", [node]), RecoveryConfig(home / "loads"), spark=spark)
    frames = [
        sorted(repr(plain(row)) for row in each.collect())
        for each in (*native, spark.read.parquet(str(home / "files")))
    ]
    return frames, sorted(upserted), loads


@pytest.mark.long
@pytest.mark.parametrize("name", some(AROUND, "large types"))
def test_what_is_around_steps_gives_the_same_in_any_session(spark, source, usual, tmp_path, name):
    """State as frames, sinks and loads."""
    if "around" not in usual:
        usual["around"] = around(spark, source, tmp_path / "usual")
    with set_to(spark, AROUND[name]):
        found = around(spark, source, tmp_path / "again")
    assert found == usual["around"]
    assert found[0][0] == found[0][1]
    assert found[2] == [60, 0]
