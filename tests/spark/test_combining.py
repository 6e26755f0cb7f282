"""Rows that Spark combines before a step's exchange: the same figures as without, and how the planner learns."""

from __future__ import annotations

import math
import os
import random
from collections import defaultdict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from recovery import RecoveryConfig, aggregate, init_partitions, start
from recovery.aggregates import count, last, max_, mean, sum_, top_k
from recovery.aggregates import first as first_
from recovery.errors import StateValueError
from recovery.spark.run.reporting.events import BatchDone
from recovery.spark.steps.aggregate_functions import FUNCTIONS
from recovery.spark.steps.combine import combined
from recovery.spark.tuning.tuning import VARIABLE
from tests.aggregate_model import COMBINED, ROUNDED, SCHEMA, expected, random_row
from tests.shares import first, some
from tests.spark.support import run_to_end, states

LARGE = 2**62


@pytest.mark.parametrize("off", some(["", "-combining", "-combining,-merging", "-merging"], "", "-merging"))
def test_every_function_equals_plain_python(spark, tmp_path, monkeypatch, off):
    """Over partitions and micro-batches, with NULL and NaN, ties, values of every type, and strings beyond ASCII,
    whether rows are combined or not, and whoever merges them."""
    monkeypatch.setenv(VARIABLE, off)
    generator = random.Random(5)
    rows = defaultdict(list)
    (tmp_path / "in").mkdir()
    for number in range(4):
        some_rows = [random_row(generator) for _ in range(generator.choice([1, 7, 300]))]
        pq.write_table(pa.Table.from_pylist(some_rows, SCHEMA), tmp_path / f"in/{number}.parquet")
        os.utime(tmp_path / f"in/{number}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))
        for row in some_rows:
            rows[row["key"]].append(row)
    schema = spark.read.parquet(str(tmp_path / "in")).schema
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    frame = files.repartition(3).transform(aggregate("figures", key="key", **COMBINED))
    plans, seen = Plans(spark), {}

    def write(batch, number):
        plans(batch, number)
        seen.update({row["key"]: row for row in batch.toArrow().to_pylist()})

    run_to_end(frame, tmp_path / "db", write)
    assert plans.combined == ["-combining" not in off] * 4
    assert set(seen) == set(rows)
    for key, found in seen.items():
        truth = expected(rows[key], COMBINED)
        for name in ROUNDED:
            assert found.pop(name) == pytest.approx(truth.pop(name), rel=1e-9)
        assert {name: found[name] for name in truth} == truth


@first("off", ["", "-combining"])
@pytest.mark.parametrize("function", some([first_, last], last))
def test_values_of_the_same_order(spark, tmp_path, monkeypatch, off, function):
    """NaN loses to numbers, and NULL to both, whichever row comes first."""
    monkeypatch.setenv(VARIABLE, off)
    given = [(key, value) for key in "ab" for value in ([math.nan, 2.0, None, 1.0] if key == "a" else [None, None])]
    frame = spark.createDataFrame(given[:: 1 if function is last else -1], "key string, x double")
    frame.coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "in"))
    step = aggregate("s", key="key", it=function("x", by=F.lit(1)))
    run_to_end(stream.transform(step), tmp_path / "db")
    assert states(tmp_path / "db", "s") == {
        "a": {"it": 2.0 if function is last else 1.0, "it.by": 1}, "b": {"it": None, "it.by": 1},
    }  # fmt: skip


@pytest.mark.long
def test_what_is_not_combined(spark, feed, tmp_path):
    """Long arrays, which tasks would hold of many keys, and strings that Spark orders by other rules than their bytes.
    Bytes order all strings of the state."""
    feed.add([("a", number) for number in range(300)])
    word = F.when(F.col("value") % 2 == 0, F.lit("b")).otherwise(F.lit("B"))
    for number, (columns, found) in enumerate([
        ({"all": top_k("value", 101)}, {"all": list(range(299, 198, -1))}),
        ({"word": max_(F.collate(word, "UTF8_LCASE"))}, {"word": "b"}),
        ({"word": last(F.collate(word, "UTF8_LCASE"), by=F.lit(1))}, {"word": "b", "word.by": 1}),
    ]):  # fmt: skip
        plans = Plans(spark)
        frame = feed.frame(spark).transform(aggregate("s", key="key", n=count(), **columns))
        run_to_end(frame, tmp_path / str(number), plans)
        assert plans.combined == [False]
        assert states(tmp_path / str(number), "s") == {"a": {"n": 300, **found}}


@first("values", [[LARGE] * 6 + [-LARGE] * 6 + [5], [-LARGE, -1, LARGE, 2**63 - 1, -7]])
def test_sums_are_exact_to_the_last_bit(spark, feed, tmp_path, values):
    """What passes beyond the range on the way does no harm, within a partition or between two."""
    feed.add([("a", value) for value in values])
    step = aggregate("s", key="key", total=sum_("value"), mean=mean("value"))
    run_to_end(feed.frame(spark).repartition(2).transform(step), tmp_path / "db")
    assert states(tmp_path / "db", "s")["a"] == {
        "total": sum(values), "mean.sum": sum(values), "mean.count": len(values),
    }  # fmt: skip


def test_a_sum_beyond_the_range_is_reported(spark, feed, tmp_path):
    """With the key, and what was held stays."""
    feed.add([("a", LARGE)])
    step = aggregate("s", key="key", total=sum_("value"))
    run_to_end(feed.frame(spark).transform(step), tmp_path / "db")
    feed.add([("a", LARGE), ("b", 1)])
    with pytest.raises(StateValueError, match="key 'a': the sum of 'total' overflows"):
        run_to_end(feed.frame(spark).transform(step), tmp_path / "db")
    assert states(tmp_path / "db", "s") == {"a": {"total": LARGE}}


class Plans:
    """A sink that notes in which micro-batches rows were combined."""

    def __init__(self, spark) -> None:
        self._spark = spark
        self.combined: list[bool] = []

    def __call__(self, batch, _) -> None:
        batch.collect()
        [query] = self._spark.streams.active
        plan = query._jsq.streamingQuery().lastExecution().executedPlan().toString()
        self.combined.append("Aggregate" in plan)


@pytest.mark.long
def test_rows_that_do_not_shrink_are_not_combined(spark, feed, tmp_path):
    """A micro-batch of keys that are all different shows that combining is of no use; few rows show nothing. The rows
    that are counted are those of the input."""
    feed.add((f"k{number % 7}", number) for number in range(3000))
    feed.add((f"k{number}", number) for number in range(300))
    feed.add((f"k{number}", number) for number in range(3000))
    for _ in range(2):
        feed.add((f"k{number % 7}", number) for number in range(3000))
    plans = Plans(spark)
    step = aggregate("s", key="key", n=count(), total=sum_("value"))
    init_partitions(tmp_path / "db", 2)
    events = []
    config = RecoveryConfig(tmp_path / "db", snapshot_interval=0)
    frame = feed.frame(spark).transform(step)
    start(frame, config, sink=plans, name="s", trigger="available-now", observer=events.append).await_termination()
    assert plans.combined == [True, True, True, False, False]
    assert {key: [s["n"], s["total"]] for key, s in states(tmp_path / "db", "s").items()} == feed.totals()
    assert [event.rows for event in events if isinstance(event, BatchDone)] == [3000, 300, 3000, 3000, 3000]


@pytest.mark.long
def test_two_steps_over_one_frame(spark, feed, tmp_path):
    """Each combines for itself, by a key of its own; their rows meet again."""
    feed.add_random(1)
    feed.add_random(2)
    frame = feed.frame(spark)
    parity = (F.col("value") % 2).cast("string").alias("key")
    both = frame.transform(aggregate("keys", key="key", total=sum_("value"))).union(
        frame.transform(aggregate("parity", key=parity, total=sum_("value")))
    )
    run_to_end(both, tmp_path / "db")
    truth = {key: total for key, (_, total) in feed.totals().items()}
    assert {key: state["total"] for key, state in states(tmp_path / "db", "keys").items()} == truth
    odd = sum(value for _, value in feed.rows if value % 2)
    assert states(tmp_path / "db", "parity") == {"1": {"total": odd}, "0": {"total": sum(truth.values()) - odd}}


@pytest.mark.parametrize("name", ["top", "top_s", "late_d"])
def test_arrays_of_a_row_without_a_value(spark, name):
    """They are NULL where rows are not combined, and declared so: PySpark 4.0 fails at a NULL that is not declared."""
    one = COMBINED[name]
    frame = spark.createDataFrame([], from_arrow_schema(SCHEMA))
    parts = FUNCTIONS[one.function].parts(one, [(F.col(each), frame.schema[each].dataType) for each in one.inputs])
    names = tuple(f"part_{number}" for number in range(len(parts)))
    schema = combined(frame, [F.col("key")], {names: parts}).schema
    assert all(schema[each].nullable for each in names)


def test_an_aggregate_without_columns_beside_it(spark, feed, tmp_path):
    """Spark takes all columns from the different rows of a table if only their number counts."""
    feed.add([("a", 1), ("a", 2)])
    table = spark.createDataFrame([("x",), ("x",), ("y",)], "word string").distinct().select()
    plans = Plans(spark)
    frame = feed.frame(spark).transform(aggregate("s", key="key", n=count())).crossJoin(table)
    run_to_end(frame, tmp_path / "db", plans)
    assert plans.combined == [True]
    assert states(tmp_path / "db", "s") == {"a": {"n": 2}}
