"""Rows that Spark combines before a step's exchange: the same figures as without, and how the planner learns."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import defaultdict
from decimal import Decimal

import pytest
from pyspark.sql import functions as F

from recovery import RecoveryConfig, aggregate, init_partitions, start
from recovery.aggregates import count, max_, mean, min_, stddev, sum_, top_k, variance
from recovery.errors import StateValueError
from recovery.spark.run.reporting.events import BatchDone
from tests.shares import first
from tests.spark.support import run_to_end, states

LARGE = 2**62
COLUMNS = {
    "n": count(), "some": count("v"), "total": sum_("v"), "small": sum_("i"), "sum_x": sum_("x"),
    "sum_d": sum_("d"), "mean": mean("v"), "mean_d": mean("d"), "var": variance("x"),
    "dev": stddev("v", population=True), "low": min_("x"), "high": max_("x"), "low_d": min_("d"), "high_v": max_("v"),
    "first": min_("day"), "last": max_("day"),
}  # fmt: skip


def parsed(frame):
    """Columns of each type: NULL where the text is empty, NaN where it says so; sums of x are exact."""
    word = F.split("key", ":")
    v = F.col("value")
    return frame.select(
        F.when(word[0] != "", word[0]).alias("key"),
        F.when(word[1] == "v", v).alias("v"),
        F.when(word[1] == "v", v.cast("int")).alias("i"),
        F.when(word[1] == "nan", F.lit(math.nan)).when(word[1] != "", (v / 4).cast("double")).alias("x"),
        F.when(word[1] == "v", (v / 100).cast("decimal(12,2)")).alias("d"),
        F.when(word[1] == "v", F.date_add(F.lit("2024-01-01"), v.cast("int"))).alias("day"),
    )


def expected(rows):
    """COLUMNS of a key's rows (kind, value), by plain Python."""
    v = [value for kind, value in rows if kind == "v"]
    # Least and greatest pass over NaN; no sum gets one here.
    x = [value / 4 for kind, value in rows if kind not in ("", "nan")]
    d = [Decimal(value) / 100 for value in v]
    days = [dt.date(2024, 1, 1) + dt.timedelta(value) for value in v]
    average = sum(v) / len(v) if v else None
    spread = sum((one - sum(x) / len(x)) ** 2 for one in x)
    return {
        "n": len(rows), "some": len(v), "total": sum(v) if v else None, "small": sum(v) if v else None,
        "sum_x": sum(x) if x else None, "sum_d": sum(d) if d else None, "mean": average,
        "mean_d": float(sum(d)) / len(d) if d else None, "var": spread / (len(x) - 1) if len(x) > 1 else None,
        "dev": math.sqrt(sum((one - average) ** 2 for one in v) / len(v)) if v else None, "low": min(x, default=None),
        "high": max(x, default=None), "low_d": min(d, default=None), "high_v": max(v, default=None),
        "first": min(days, default=None), "last": max(days, default=None),
    }  # fmt: skip


@pytest.mark.long
def test_every_function_that_can_be_combined(spark, feed, tmp_path):
    """Over several partitions and micro-batches, with NULL in values and keys: what plain Python computes."""
    generator = random.Random(5)
    seen, rows = {}, defaultdict(list)
    for _ in range(4):
        some = [(generator.choice(["", "a", "b", "é"]), generator.choice(["v", "v", "x", ""])) for _ in range(60)]
        feed.add([(f"{key}:{kind}", generator.randrange(-200, 200)) for key, kind in some])
    for text, value in feed.rows:
        key, kind = text.split(":")
        rows[key or None].append((kind, value))
    step = aggregate("figures", key="key", **COLUMNS)
    frame = parsed(feed.frame(spark).repartition(3)).transform(step)
    done = run_to_end(frame, tmp_path / "db", lambda batch, _: seen.update({row.key: row for row in batch.collect()}))
    assert done.states == len(states(tmp_path / "db", "figures")) * 4
    assert set(seen) == set(rows)
    for key, row in seen.items():
        found, truth = row.asDict(), expected(rows[key])
        for name in ("var", "dev", "mean_d", "sum_d"):
            assert float(found.pop(name)) == pytest.approx(float(truth.pop(name)), rel=1e-9)
        assert {name: found[name] for name in truth} == truth


@pytest.mark.long
def test_nan_is_passed_over_by_least_and_greatest(spark, feed, tmp_path):
    """As where rows are not combined, which a function that cannot be makes of the step."""
    feed.add([("a:nan", 1), ("a:x", 8), ("b:x", -4), ("b:nan", 0), ("b:x", -8), ("c:x", 0)])
    feed.add([("a:nan", 4), ("c:nan", 0)])
    extremes = {"low": min_("x"), "high": max_("x")}
    found = []
    for number, columns in enumerate((extremes, {**extremes, "top": top_k("v", 1)})):
        step = aggregate("s", key="key", **columns)
        run_to_end(parsed(feed.frame(spark)).transform(step), tmp_path / str(number))
        held = states(tmp_path / str(number), "s")
        found.append({key: (state["low"], state["high"]) for key, state in held.items()})
    assert found[0] == found[1] == {"a": (2.0, 2.0), "b": (-2.0, -1.0), "c": (0.0, 0.0)}


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
        self.combined.append("HashAggregate" in plan)


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
