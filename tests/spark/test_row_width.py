"""Lifting Spark's limit on the bytes of Arrow batches: when it is done, and for whom."""

from __future__ import annotations

import json
from unittest import mock

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recovery import FileSink, aggregate, stateful
from recovery.aggregates import count
from recovery.spark.tuning import row_width
from recovery.spark.tuning.outcome import Outcome
from recovery.spark.tuning.row_width import LIMIT, UNLIMITED
from recovery.spark.tuning.tuning import VARIABLE
from tests.shares import first, some
from tests.spark.support import run_to_end, set_to, states, totals_step


@pytest.fixture(autouse=True)
def many(monkeypatch):
    """What counts as many rows, in tests that take not so many."""
    monkeypatch.setattr(row_width, "MANY_ROWS", 100)


def limit() -> str | None:
    """What the task reads as its limit."""
    context = TaskContext.get()
    return context.getLocalProperty(LIMIT) if context else None


def asking(key, rows, state):
    state.update([*(state.get if state.exists else []), limit()])
    return [(key, limit())]


def asking_step():
    return stateful("asking", key="key", update=asking, output="key string, asked string")


def add(feed, files=3, rows=200, wide=""):
    for _ in range(files):
        feed.add((f"k{number % 10}{wide}", number) for number in range(rows))


def asked(path) -> list[str | None]:
    """What the tasks of each micro-batch read."""
    [found] = {json.dumps(each) for each in states(path, "asking").values()}
    return json.loads(found)


class Wide:
    """A function as sink, that has Python take rows itself."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    def __call__(self, batch, _) -> None:
        def ask(batches):
            for _ in batches:
                yield pa.record_batch({"asked": pa.array([limit()], pa.string())})

        self.asked += [row.asked for row in batch.mapInArrow(ask, "asked string").collect()]


@pytest.mark.parametrize("sink", some(["discard", "files", "function"], "function"))
def test_many_small_rows(spark, feed, tmp_path, monkeypatch, sink):
    """Nothing is known before the first micro-batch. A lent batch has the setting in another way."""
    monkeypatch.setenv(VARIABLE, "-lending")
    add(feed)
    sinks = {"discard": None, "files": FileSink(tmp_path / "out"), "function": Wide()}
    run_to_end(feed.frame(spark).transform(asking_step()), tmp_path / "db", sinks[sink])
    assert asked(tmp_path / "db") == [None, UNLIMITED, UNLIMITED]
    assert spark.sparkContext.getLocalProperty(LIMIT) is None


@pytest.mark.long
def test_a_sinks_own_functions_keep_it(spark, feed, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "-lending")
    add(feed)
    sink = Wide()
    run_to_end(feed.frame(spark).transform(asking_step()), tmp_path / "db", sink)
    assert asked(tmp_path / "db") == [None, UNLIMITED, UNLIMITED]
    assert sink.asked
    assert set(sink.asked) == {None}


@pytest.mark.long
def test_a_sink_that_runs_the_plan_itself_keeps_it(spark, feed, tmp_path):
    """What it adds to the plan is in the same jobs."""
    add(feed)
    sink = Wide()
    sink.single_action = True
    run_to_end(feed.frame(spark).transform(asking_step()), tmp_path / "db", sink)
    assert set(asked(tmp_path / "db")) == {None}


@first(("rows", "wide"), [(50, ""), (200, "x" * 300)])
def test_few_or_wide_rows_keep_it(spark, feed, tmp_path, rows, wide):
    add(feed, rows=rows, wide=wide)
    run_to_end(feed.frame(spark).transform(asking_step()), tmp_path / "db")
    assert set(asked(tmp_path / "db")) == {None}


def test_a_sessions_own_limit_stays(spark, feed, tmp_path):
    add(feed)
    with set_to(spark, {LIMIT: "1m"}):
        run_to_end(feed.frame(spark).transform(asking_step()), tmp_path / "db")
    assert set(asked(tmp_path / "db")) == {"1m"}


@pytest.mark.long
def test_a_threads_own_limit_stays(spark, feed, tmp_path):
    add(feed)
    spark.sparkContext.setLocalProperty(LIMIT, "1m")
    try:
        run_to_end(feed.frame(spark).transform(asking_step()), tmp_path / "db")
        assert spark.sparkContext.getLocalProperty(LIMIT) == "1m"
    finally:
        spark.sparkContext.setLocalProperty(LIMIT, None)
    assert set(asked(tmp_path / "db")) == {"1m"}


def test_much_to_read_keeps_it(spark, feed, tmp_path, monkeypatch):
    """Should all of it be wide, it would be too large for one batch."""
    add(feed, files=2)
    add(feed, files=1, rows=2000)
    add(feed, files=1)
    monkeypatch.setattr(row_width, "MOST_BYTES", (feed.path / "0002.txt").stat().st_size - 1)
    run_to_end(feed.frame(spark).transform(asking_step()), tmp_path / "db")
    assert asked(tmp_path / "db") == [None, UNLIMITED, None, UNLIMITED]


@pytest.mark.long
@pytest.mark.parametrize("reader_of", ["Python", "the JVM"])
def test_appended_by_either_reader(spark, tmp_path, monkeypatch, reader_of):
    """The JVM's reader reports how much there is; Python's does not, so the setting stays."""
    if reader_of == "Python":
        monkeypatch.setenv(VARIABLE, "-appended-lines")
    log = tmp_path / "input.log"
    log.write_text("".join(f"k{number % 10},{number}\n" for number in range(400)))
    reader = spark.readStream.format("appended").option("maxBytesPerTrigger", log.stat().st_size // 2 + 1)
    frame = reader.load(str(log)).selectExpr("split(value, ',')[0] AS key", "value")
    assert run_to_end(frame.transform(asking_step()), tmp_path / "db").batches > 1
    first, *others = asked(tmp_path / "db")
    assert first is None
    assert set(others) == {None if reader_of == "Python" else UNLIMITED}


@pytest.mark.long
def test_functions_within_an_rdd_keep_it(spark, feed, tmp_path):
    """What it is made of is not in the plan, and is computed again in each micro-batch's own jobs."""
    add(feed)
    names = spark.createDataFrame([(f"k{number}",) for number in range(10)], "key string")
    names = spark.createDataFrame(names.mapInArrow(lambda batches: batches, names.schema).rdd, names.schema)
    run_to_end(feed.frame(spark).join(names, "key").transform(asking_step()), tmp_path / "db")
    assert set(asked(tmp_path / "db")) == {None}


def test_an_error_stays_the_error_when_the_jvm_is_gone():
    spark = mock.Mock()
    spark.sparkContext.getLocalProperty.return_value = None
    spark.sparkContext.setLocalProperty.side_effect = [None, ConnectionRefusedError]
    width = row_width.RowWidth(spark, steps_only=True)
    width.learn(Outcome(row_width.MANY_ROWS, keys=1, row_bytes=1))
    query = mock.MagicMock()
    query.streamingQuery().lastExecution().logical().collectLeaves().length.return_value = 0
    with pytest.raises(ZeroDivisionError), width.expected(query):
        1 / 0  # noqa: B018


@pytest.mark.long
def test_wide_rows_have_it_again(spark, feed, tmp_path):
    add(feed, files=2)
    add(feed, files=1, wide="x" * 300)
    add(feed, files=1)
    add(feed, files=1)
    run_to_end(feed.frame(spark).transform(asking_step()), tmp_path / "db")
    asked_by = states(tmp_path / "db", "asking")
    assert asked_by["k0"] == [None, UNLIMITED, None, UNLIMITED]
    assert asked_by["k0" + "x" * 300] == [UNLIMITED]


def echo(values: pa.Array) -> pa.Array:
    return values


class Echo:
    def eval(self, value):
        yield (value,)


def with_function(frame):
    return frame.withColumn("key", F.arrow_udf(echo, T.StringType())("key"))


def with_map(frame):
    return frame.mapInArrow(lambda batches: batches, frame.schema)


def with_filter(frame):
    return frame.where(F.arrow_udf(echo, T.StringType())("key") == F.col("key"))


@pytest.mark.long
@pytest.mark.parametrize("other", some([with_function, with_map, with_filter], with_map))
@first("place", ["before", "behind"])
def test_other_functions_of_the_flow_keep_it(spark, feed, tmp_path, other, place):
    """They may be given wide rows, of which the step sees little."""
    add(feed)
    step = asking_step()
    frame = feed.frame(spark)
    frame = other(frame).transform(step) if place == "before" else other(frame.transform(step))
    run_to_end(frame, tmp_path / "db")
    assert set(asked(tmp_path / "db")) == {None}


@pytest.mark.long
@pytest.mark.parametrize(
    "lateral", some(["LATERAL echo_rows(key)", "LATERAL (SELECT * FROM echo_rows(key))"], "LATERAL echo_rows(key)")
)
def test_table_functions_keep_it(spark, feed, tmp_path, lateral):
    add(feed)
    spark.udtf.register("echo_rows", F.udtf(Echo, returnType="again string"))
    feed.frame(spark).createOrReplaceTempView("rows_of_test")
    frame = spark.sql(f"SELECT key, value FROM rows_of_test, {lateral}")
    run_to_end(frame.transform(asking_step()), tmp_path / "db")
    assert set(asked(tmp_path / "db")) == {None}


@pytest.mark.long
def test_generators_of_sparks_own_do_not(spark, feed, tmp_path):
    add(feed)
    frame = feed.frame(spark).select("key", F.explode(F.array("value", "value")).alias("value"))
    run_to_end(frame.transform(asking_step()), tmp_path / "db")
    assert asked(tmp_path / "db") == [None, UNLIMITED, UNLIMITED]


@pytest.mark.long
def test_steps_behind_each_other(spark, feed, tmp_path):
    """The widest rows count, whichever step's they are."""
    add(feed)
    wider = F.concat("key", F.lit("x" * 300))
    behind = feed.frame(spark).transform(totals_step()).select(wider.alias("key"))
    run_to_end(behind.transform(asking_step()), tmp_path / "db")
    assert set(asked(tmp_path / "db")) == {None}


@pytest.mark.long
def test_aggregates(spark, feed, tmp_path):
    add(feed)
    frame = feed.frame(spark).transform(asking_step()).transform(aggregate("n", key="key", n=count()))
    run_to_end(frame, tmp_path / "db")
    assert asked(tmp_path / "db") == [None, UNLIMITED, UNLIMITED]
