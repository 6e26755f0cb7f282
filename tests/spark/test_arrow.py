"""Vectorised steps and declared aggregates in Spark: keys and types on their way, retried tasks, resuming, changes of
what is declared."""

from __future__ import annotations

import datetime as dt
import os
import re

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F

from recovery import AllKeysSink, ConfigurationError, StateValueError, StepChangedError, aggregate, stateful_arrow
from recovery.aggregates import approx_distinct, collect, count, last, max_, mean, min_, sum_, top_k, variance
from tests.shares import first
from tests.spark.support import run_to_end, states

STATE = "n bigint, total bigint"


def totals_arrow(update, step_id="totals", state_schema=STATE, **options):
    """Count and sum per key."""
    options = {"key": "key", "output": "key string, n long, total long", **options}
    return stateful_arrow(step_id, update=update, state_schema=state_schema, **options)


def add_up(rows, states):
    """Count and sum per key."""
    totals = np.add.reduceat(rows["value"].to_numpy(), states["_start"])
    new = pa.table({
        "key": states["key"],
        "n": states["n"].fill_null(0).to_numpy() + states["_rows"].to_numpy(),
        "total": states["total"].fill_null(0).to_numpy() + totals,
    })  # fmt: skip
    return new, new


@pytest.mark.usefixtures("tuning", "retries")
def test_exact_through_failed_tasks_and_a_resume(spark, feed, tmp_path):
    """Tasks that fail after some of their work are run again, and a second run goes on: nothing counts twice."""
    marks = str(tmp_path / "failed")

    def fails_once(rows, states):
        result = add_up(rows, states)
        try:
            os.close(os.open(f"{marks}-{rows['value'][0].as_py() % 4}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return result
        raise RuntimeError("once")

    seen = []
    for seed in range(4):
        feed.add_random(seed)
        if seed % 2:
            frame = feed.frame(spark).transform(totals_arrow(fails_once if seed == 1 else add_up))
            run_to_end(frame, tmp_path / "db", lambda batch, _: seen.extend(batch.collect()))
    truth = {key: {"n": n, "total": total} for key, (n, total) in feed.totals().items()}
    assert states(tmp_path / "db", "totals") == truth
    assert {row.key: {"n": row.n, "total": row.total} for row in seen} == truth
    assert list(tmp_path.glob("failed-*"))


def test_computed_keys_and_every_type_on_its_way(spark, feed, tmp_path):
    """A key may be several expressions; states and output hold dates, timestamps of the session's zone, decimals and
    arrays; what a state held comes back as it was."""
    feed.add([("a", 1), ("b", 2), ("a", 1)])
    feed.add([("a", 1)])
    schema = "day date, at timestamp, price decimal(9,2), tags array<string>, raw binary, local timestamp_ntz"
    moment = dt.datetime(2024, 5, 1, 12, 30, tzinfo=dt.UTC)
    values = {
        "day": dt.date(2024, 5, 1), "at": moment, "price": 150, "tags": ["x", None, 'y"'], "raw": b"\0\xff",
        "local": moment.replace(tzinfo=None),
    }  # fmt: skip

    def update(rows, known):
        assert known.column_names[:2] == ["half", "key"]
        new = {name: pa.array([value] * len(known)) for name, value in values.items()}
        table = pa.table({"half": known["half"], "key": known["key"], **new})
        return table, pa.table({**{n: known[n] for n in ("half", "key", *values)}, "held": known["_exists"]})

    step = stateful_arrow(
        "types", key=[(F.col("value") / 2).alias("half"), "key"], update=update, state_schema=schema,
        output=f"half double, key string, {schema}, held boolean",
    )  # fmt: skip
    seen = []
    run_to_end(feed.frame(spark).transform(step), tmp_path / "db", lambda batch, _: seen.extend(batch.collect()))
    assert sorted((row.half, row.key, row.held) for row in seen) == [
        (0.5, "a", False), (0.5, "a", True), (1.0, "b", False),
    ]  # fmt: skip
    [held] = [row for row in seen if row.held]
    assert (held.day, str(held.price), held.tags, bytes(held.raw), held.local) == (
        values["day"], "150.00", values["tags"], values["raw"], values["local"],
    )  # fmt: skip
    assert held["at"].astimezone(dt.UTC) == moment
    assert states(tmp_path / "db", "types")['["0.5","a"]'] == {
        "day": "2024-05-01", "at": "2024-05-01T12:30:00.000000Z", "price": "150.00", "tags": ["x", None, 'y"'],
        "raw": "AP8=", "local": "2024-05-01T12:30:00.000000",
    }  # fmt: skip


def test_a_changed_schema_is_reported_or_migrated(spark, feed, tmp_path):
    """A column may be added; another type is refused with the choices; `migrate` gives the new columns."""
    feed.add([("a", 1), ("b", 2)])
    run_to_end(feed.frame(spark).transform(totals_arrow(add_up)), tmp_path / "db")
    feed.add([("a", 3)])

    def mean(rows, known):
        table = pa.table({"key": known["key"], "n": known["_rows"], "mean": np.ones(len(known))})
        return table, None

    changed = {"state_schema": "n bigint, mean double", "output": "key string"}
    with pytest.raises(StepChangedError, match="has no 'total' any more"):
        run_to_end(feed.frame(spark).transform(totals_arrow(mean, **changed)), tmp_path / "db")

    def migrate(old):
        return {"n": old["n"], "mean": old["total"] / old["n"]} if old["total"] != 2 else None

    run_to_end(feed.frame(spark).transform(totals_arrow(mean, migrate=migrate, **changed)), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == {"a": {"n": 1, "mean": 1.0}}
    feed.add([("c", 3)])

    def added(rows, known):
        return known.set_column(known.column_names.index("more"), "more", known["n"]).slice(0, 0), None

    grown = totals_arrow(added, state_schema="n bigint, mean double, more bigint", output="key string")
    run_to_end(feed.frame(spark).transform(grown), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == {"a": {"n": 1, "mean": 1.0}}


BAD = [
    ({"state_schema": "n bigint, key string"}, "'key', or one has it twice"),
    ({"state_schema": "_exists boolean"}, "'_exists' names a column that the step adds"),
    ({"state_schema": "m map<string,int>"}, "'m' is a map.*no form"),
    ({"state_schema": "n long, n long"}, "state_schema has two columns 'n'"),
    ({"output": ""}, "output has no columns"),
    ({"state_schema": "nonsense(("}, "is not a schema"),
    ({"state_schema": "string"}, "state_schema='string' is one type, and no columns"),
    ({"output": "array<long>"}, "output='array<long>' is one type"),
    ({"state_schema": ""}, "has no column"),
    ({"key": "nothing"}, "no column 'nothing'"),
    ({"step_id": "$x"}, "not a step id"),
    ({"update": None}, "is not a function"),
    ({"migrate": 1}, "migrate=1 is not a function"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD)
def test_wrong_declarations_are_refused_immediately(spark, feed, wrong, message):
    """Before anything runs."""
    with pytest.raises(ConfigurationError, match=message):
        feed.frame(spark).transform(totals_arrow(**{"update": add_up, **wrong}))


@pytest.mark.usefixtures("tuning")
def test_aggregates_equal_those_of_spark(spark, feed, tmp_path):
    """Over two runs, by a computed key, of columns and expressions, the running figures end as Spark's batch ones."""
    v = F.col("value")
    columns = {
        "n": count(), "some": count(F.when(v > 20, v)), "total": sum_("value"), "half": sum_(v / 2),
        "exact": sum_(v.cast("decimal(9,2)")), "low": min_("value"), "high": max_(-v),
        "mean": mean("value"), "var": variance("value"), "different": approx_distinct("value"),
        "name": max_("key"), "latest": last("key", by="value"),
        "pairs": approx_distinct(F.struct(F.when(v % 2 == 0, F.lit(1)), F.when(v % 2 == 1, F.lit(1)))),
        "top": top_k("value", 3), "few": collect("key", 2),
    }  # fmt: skip
    seen = {}

    def keep(batch, _):
        seen.update({row.bucket: row.asDict() for row in batch.collect()})

    for seed in range(4):
        feed.add_random(seed)
        if seed % 2:
            step = aggregate("figures", key=F.substring("key", 2, 1).alias("bucket"), **columns)
            run_to_end(feed.frame(spark).transform(step), tmp_path / "db", keep)
    rows = spark.createDataFrame(feed.rows, "key string, value long")
    bucketed = rows.groupBy(F.substring("key", 2, 1).alias("bucket"))
    truth = bucketed.agg(
        F.count("*").alias("n"), F.count(F.when(v > 20, v)).alias("some"), F.sum("value").alias("total"),
        F.sum(v / 2).alias("half"), F.sum(v.cast("decimal(9,2)")).alias("exact"), F.min("value").alias("low"),
        F.max(-v).alias("high"), F.avg("value").alias("mean"), F.var_samp("value").alias("var"),
        F.countDistinct("value").alias("different"), F.max("key").alias("name"),
        F.max(F.struct("value", "key")).key.alias("latest"), F.countDistinct(v % 2).alias("pairs"),
        F.slice(F.sort_array(F.collect_list("value"), asc=False), 1, 3).alias("top"),
        F.slice(F.sort_array(F.collect_list("key")), 1, 2).alias("few"),
    ).collect()  # fmt: skip
    for row in truth:
        found, wanted = seen.pop(row.bucket), row.asDict()
        assert found.pop("var") == pytest.approx(wanted.pop("var"), rel=1e-12)
        assert found == wanted
    assert seen == {}
    held = states(tmp_path / "db", "figures")
    assert {bucket: state["total"] for bucket, state in held.items()} == {row.bucket: row.total for row in truth}


def test_a_changed_aggregate_is_reported(spark, feed, tmp_path):
    """Under the same name another one, one more, one less: it would go on from what the other one kept."""
    feed.add([("a", 1), ("b", 2)])
    step = aggregate("s", key="key", n=count(), total=sum_("value"))
    run_to_end(feed.frame(spark).transform(step), tmp_path / "db")
    feed.add([("a", 3)])
    for columns, message in (
        ({"n": count(), "total": max_("value")}, "'total' of the state was sum.value. as bigint and is max.value. as"),
        ({"n": count(), "total": sum_("value"), "low": min_("value")}, "'low' of the state is new and has no default"),
        ({"n": count()}, "no 'total' any more"),
    ):
        with pytest.raises(StepChangedError, match=message):
            run_to_end(feed.frame(spark).transform(aggregate("s", key="key", **columns)), tmp_path / "db")
    more = aggregate("s", key="key", n=count(), total=sum_("value"), low=min_("value"))
    run_to_end(feed.frame(spark).transform(more), tmp_path / "db", keep_steps=("s",))
    assert states(tmp_path / "db", "s")["a"] == {"n": 2, "total": 4, "low": 3}


LARGE = 2**62
HUGE = "cast(value AS decimal(38,0)) * 20000000000000000000bd"


@pytest.mark.long
@first(
    ("function", "value", "advice", "wider", "wanted"),
    [
        (sum_, "value", "in sum_(...) to decimal(38,0), with", "cast(value AS decimal(38,0))", {"t": str(2 * LARGE)}),
        pytest.param(
            sum_, "value", "or to double, with --keep-step", "cast(value AS double)", {"t": 2.0 * LARGE},
            marks=pytest.mark.long,
        ),
        pytest.param(
            mean, "value", "in mean(...) to double, with --keep-step", "cast(value AS double)",
            {"t.sum": 2.0 * LARGE, "t.count": 2}, marks=pytest.mark.long,
        ),
        (sum_, HUGE, "in sum_(...) to double, with aggregate", f"cast({HUGE} AS double)", {"t": 4e19 * LARGE}),
    ],
)  # fmt: skip
def test_sums_continue_in_a_larger_type(spark, feed, tmp_path, function, value, advice, wider, wanted):
    """By the way that the error names: under the same id, with all that the states hold."""

    def run(expression, migrate=None, **config):
        summed = F.when(F.col("value") > 0, F.expr(expression))
        moment, raw = F.timestamp_seconds(F.col("value") % 10), F.col("key").cast("binary")
        step = aggregate("s", key="key", migrate=migrate, t=function(summed), at=max_(moment), raw=max_(raw))
        run_to_end(feed.frame(spark).transform(step), tmp_path / "db", **config)

    feed.add([("a", LARGE), ("none", 0)])
    run(value)
    before = states(tmp_path / "db", "s")
    feed.add([("a", LARGE)])
    with pytest.raises(StateValueError, match="step 's': key 'a': the sum of 't' overflows") as raised:
        run(value)
    remedy = raised.value.remedy
    assert advice in remedy
    if "--keep-step" in advice:
        run(wider, keep_steps=("s",))
    else:
        run(wider, eval(re.search(r"migrate=(lambda old: .*?)\)(, or .*)?: its sums go on", remedy)[1]))
    assert states(tmp_path / "db", "s") == {**before, "a": {**before["a"], **wanted}}
    assert before["a"] == {**before["a"], "at": "1970-01-01T00:00:04.000000Z", "raw": "YQ=="}


def test_all_keys_each_time_an_epoch_is_closed(spark, feed, tmp_path):
    """The sink's function gets the whole state of every closed epoch, of the resumed one, and after going back of the
    older one."""
    feed.add([("a", 1), ("b", 2)])
    feed.add([("b", 3), ("", 4)])
    shown = []

    def run(**config):
        step = aggregate("s", key=["key"], n=count(), mean=mean("value"), late=last("value", by="value"))
        sink = AllKeysSink(step, tmp_path / "db", lambda frame, epoch: shown.append((epoch, frame.collect())))
        with pytest.raises(ConfigurationError, match="not applied"):
            step.all_keys(spark, tmp_path / "db")
        run_to_end(feed.frame(spark).transform(step), tmp_path / "db", sink, backup_interval=3600, **config)
        found = [(epoch, sorted(map(tuple, rows))) for epoch, rows in shown]
        shown.clear()
        return found

    first, second = [("a", 1, 1.0, 1), ("b", 1, 2.0, 2)], [("", 1, 4.0, 4), ("a", 1, 1.0, 1), ("b", 2, 2.5, 3)]
    assert run() == [(0, []), (1, first), (2, second)]
    feed.add([("b", 1)])
    third = [*second[:2], ("b", 3, 2.0, 3)]
    assert run() == [(2, second), (3, third)]
    assert run(resume_epoch=2) == [(1, first), (2, second), (3, third)]


def test_all_keys_where_the_start_changes_states(spark, feed, tmp_path):
    """Renamed, converted, dropped: the function gets the epoch of that, not states that the step may not read."""
    feed.add([("a", 1), ("b", 2)])
    shown, steps = [], []

    def run(step_id, total, migrate=None, **config):
        step = aggregate(step_id, key="key", migrate=migrate, t=total)
        sink = AllKeysSink(step, tmp_path / "db", lambda frame, epoch: shown.append((epoch, frame.collect())))
        run_to_end(feed.frame(spark).transform(step), tmp_path / "db", sink, backup_interval=3600, **config)
        found = [(epoch, sorted(map(tuple, rows))) for epoch, rows in shown]
        shown.clear()
        steps.append(step)
        return found

    run("s", sum_("value"))
    assert run("other", sum_("value"), rename_steps={"s": "other"}) == [(2, [("a", 1), ("b", 2)])]
    wide = sum_(F.expr("cast(value AS decimal(38,0))"))
    assert run("other", wide, lambda old: old) == [(3, [("a", 1), ("b", 2)])]
    with pytest.raises(PythonException, match="StateValueError: the states are not those of t: "):
        steps[-1].all_keys(spark, tmp_path / "db", epoch=2).collect()
    feed.add([("a", 3)])
    assert run("other", max_("key"), drop_steps=("other",)) == [(4, []), (5, [("a", "a")])]


@pytest.mark.long
def test_all_keys_of_another_directory(spark, feed, tmp_path):
    """They are not shown as this run's; nor is a step taken that has none."""
    feed.add([("a", 1)])
    shown = []

    def run(name):
        step = aggregate("s", key="key", n=count())
        sink = AllKeysSink(step, tmp_path / "one", lambda frame, epoch: shown.append(epoch))
        run_to_end(feed.frame(spark).transform(step), tmp_path / name, sink)

    run("one")
    assert shown == [0, 1]
    with pytest.raises(ConfigurationError, match="is not the recovery directory of this run"):
        run("two")
    assert shown == [0, 1]
    with pytest.raises(ConfigurationError, match=r"a step of recovery\.aggregate"):
        AllKeysSink(totals_arrow(add_up), tmp_path / "one", print)


BAD_AGGREGATES = [
    ({}, "aggregates nothing"),
    ({"n": 5}, "n=5 is not an aggregate"),
    ({"n": sum_("nothing")}, "which its input does not have"),
    ({"n": sum_("key")}, "of a column of type string"),
    ({"key": "value", "value": count()}, "'value' names a key and an aggregate"),
    ({"_exists": count()}, "'_exists' names a column"),
]


def test_a_key_named_as_an_input_is_refused(spark, feed):
    """Those names are the step's own."""
    with pytest.raises(ConfigurationError, match="a key is named _input_"):
        feed.frame(spark).transform(aggregate("s", key=F.col("key").alias("_input_1"), n=count()))


@pytest.mark.parametrize(("wrong", "message"), BAD_AGGREGATES)
def test_wrong_aggregates_are_refused_immediately(spark, feed, wrong, message):
    """Before anything runs."""
    with pytest.raises(ConfigurationError, match=message):
        feed.frame(spark).transform(aggregate("s", **{"key": "key", **wrong}))
