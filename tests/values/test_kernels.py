"""Declared aggregates against plain Python, on real partitions, without Spark: every function, batch after batch."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

from recovery import ConfigurationError, aggregate, aggregates
from recovery.aggregates import (
    approx_distinct,
    collect,
    count,
    count_distinct,
    last,
    max_,
    mean,
    min_,
    stddev,
    sum_,
    top_k,
    variance,
)
from recovery.errors import StateValueError
from recovery.spark.steps.aggregate import Aggregation, PlannedAggregate
from recovery.spark.steps.aggregate_functions import FUNCTIONS, plan_aggregate
from recovery.spark.tasks.arrow_task import ArrowStepTask
from recovery.storage.initialize import init_partitions
from recovery.values.declaration import lambdas_numbered, misfits
from tests.aggregate_model import COLUMNS, ROUNDED, SCHEMA, expected, random_row
from tests.shares import some
from tests.stores import Driver, problems
from tests.tasks import definition, run_batch, stored


def step(columns, schema=SCHEMA, key="key"):
    """The step that `aggregate` makes, over rows that hold its inputs already."""
    planned, inputs = [], {}
    for name, each in columns.items():
        kinds = [from_arrow_type(schema.field(one).type) for one in each.inputs]
        casts, made = plan_aggregate("s", name, each, kinds)
        for number, (one, cast) in enumerate(zip(each.inputs, casts, strict=True)):
            inputs[f"{name}.{number}"] = (one, None if cast is None else to_arrow_type(cast))
        names = tuple(f"{name}.{number}" for number in range(len(each.inputs)))
        planned.append(PlannedAggregate(name, made.kernel, names, made.states, made.result))
    output = T.StructType(
        [
            T.StructField(key, from_arrow_type(schema.field(key).type)),
            *(T.StructField(p.name, p.result) for p in planned),
        ]
    )
    states = T.StructType([field for each in planned for field in each.states])

    def rows(table):
        taken = {name: table[one] if to is None else table[one].cast(to) for name, (one, to) in inputs.items()}
        return pa.table({key: table[key], **taken})

    made = definition(Aggregation((key,), tuple(planned)), states, output, rows(schema.empty_table()), (key,))
    return made, rows


@pytest.fixture
def driver(tmp_path):
    init_partitions(tmp_path / "db", 2)
    with Driver(tmp_path / "db") as found:
        yield found


@pytest.mark.parametrize("seed", some(range(6), 0, 1))
def test_every_function_equals_plain_python(driver, seed, monkeypatch):
    """Over many batches, chunks that cut anywhere, tasks that run twice, and closed epochs."""
    monkeypatch.setattr(ArrowStepTask, "chunk_rows", 7)
    generator = random.Random(seed)
    made, prepare = step(COLUMNS)
    seen = defaultdict(list)
    for batch in range(12):
        rows = [random_row(generator) for _ in range(generator.choice([1, 5, 40]))]
        again = generator.random() < 0.5
        if again:
            run_batch(driver, made, batch, prepare(pa.Table.from_pylist(rows[:3], SCHEMA)))
        output = run_batch(driver, made, batch, prepare(pa.Table.from_pylist(rows, SCHEMA)), piece=9)
        for row in rows:
            seen[row["key"]].append(row)
        assert {row["key"] for row in output} == {row["key"] for row in rows}
        for row in output:
            truth = expected(seen[row["key"]])
            for name in ROUNDED:
                found, wanted = row.pop(name), truth.pop(name)
                assert (found is None) == (wanted is None), (seed, batch, name)
                assert math.isclose(found or 0.0, wanted or 0.0, rel_tol=1e-9, abs_tol=1e-9), (seed, batch, name)
            assert {name: row[name] for name in truth} == truth, (seed, batch, row["key"])
        if generator.random() < 0.3:
            driver.close(batch)
    assert problems(driver.directory) == []


OF_A_KIND = {
    "date": (pa.date32(), [dt.date(2024, 5, day) for day in (3, 1, 2)]),
    "timestamp": (pa.timestamp("us", "UTC"), [dt.datetime(2024, 5, 1, h, tzinfo=dt.UTC) for h in (3, 1, 2)]),
    "boolean": (pa.bool_(), [True, False, True]),
    "binary": (pa.binary(), [b"\xff", b"", b"\x00"]),
    "int": (pa.int32(), [3, -1, 2]),
    "float": (pa.float32(), [3.5, -1.5, 2.5]),
    "decimal": (pa.decimal128(38, 18), [decimal.Decimal(n) / 8 for n in (3, -1, 2)]),
}


@pytest.mark.parametrize("kind", OF_A_KIND)
def test_every_type_that_has_an_order(driver, kind):
    """Least, greatest, last by it and an array of it, over two micro-batches, keep their type."""
    declared, values = OF_A_KIND[kind]
    schema = pa.schema([("key", pa.string()), ("v", declared), ("n", pa.int64())])
    columns = {"low": min_("v"), "high": max_("v"), "at": last("n", by="v"), "all": collect("v", 9), "c": count("v")}
    made, prepare = step(columns, schema)
    for batch, part in enumerate((values[:2], [*values[2:], None])):
        rows = [{"key": "a", "v": value, "n": 7 if value == max(values) else 0} for value in part]
        [row] = run_batch(driver, made, batch, prepare(pa.Table.from_pylist(rows, schema)))
    wanted = {"low": min(values), "high": max(values), "at": 7, "all": sorted(values), "c": 3}
    assert {name: row[name] for name in wanted} == wanted


def test_states_are_readable(driver):
    """Plain values under the names of the output, and of their parts."""
    columns = {"n": count(), "price": mean("d"), "last": last("s", by="at"), "top": top_k("v", 2)}
    made, prepare = step(columns)
    rows = [{"key": "a", "v": v, "d": decimal.Decimal("1.50"), "s": f"s{v}", "at": v} for v in (1, 2, 3)]
    run_batch(driver, made, 0, prepare(pa.Table.from_pylist(rows, SCHEMA)))
    driver.close(0)
    assert stored(driver)["a"] == {
        "n": 3, "price.sum": 4.5, "price.count": 3, "last": "s3", "last.by": 3, "top": [3, 2],
    }  # fmt: skip


LARGE = 2**62


@pytest.mark.parametrize("values", [[LARGE, LARGE], [-LARGE, -LARGE, -1], [2 * LARGE - 1, 1]])
def test_sums_that_leave_the_range_are_errors(driver, values):
    """Of integers within one batch or over two; never a wrapped sum, and what was held stays."""
    made, prepare = step({"total": sum_("v")})
    with pytest.raises(StateValueError, match="'count': key 'a': the sum of 'total' overflows"):
        run_batch(driver, made, 0, prepare(pa.Table.from_pylist([{"key": "a", "v": v} for v in values], SCHEMA)))
    for batch, value in enumerate(values[:-1]):
        run_batch(driver, made, batch, prepare(pa.Table.from_pylist([{"key": "a", "v": value}], SCHEMA)))
    with pytest.raises(StateValueError, match="overflows"):
        run_batch(driver, made, 8, prepare(pa.Table.from_pylist([{"key": "a", "v": values[-1]}], SCHEMA)))
    assert driver.read(9, ["a"])["a"] == f'{{"total":{sum(values[:-1])}}}'


def test_sums_that_only_pass_beyond_the_range_are_exact(driver):
    """The order of the rows decides nothing."""
    values = [LARGE, LARGE, -LARGE, -LARGE, 5, -(2 * LARGE), 2 * LARGE - 1]
    made, prepare = step({"total": sum_("v")})
    [row] = run_batch(driver, made, 0, prepare(pa.Table.from_pylist([{"key": "a", "v": v} for v in values], SCHEMA)))
    assert row["total"] == sum(values)


def test_a_decimal_sum_that_overflows_names_a_larger_decimal(driver):
    """Of the same scale, as long as there is one."""
    schema = pa.schema([("key", pa.string()), ("d", pa.decimal128(20, 2))])
    made, prepare = step({"total": sum_("d")}, schema)
    driver.apply(0, {"a": '{"total":"9999999999999999999999999999.99"}'})
    rows = pa.Table.from_pylist([{"key": "a", "d": decimal.Decimal(1)}], schema)
    with pytest.raises(StateValueError, match=r"is not a decimal\(30,2\)") as raised:
        run_batch(driver, made, 1, prepare(rows))
    assert r"in sum_(...) to decimal(38,2), with aggregate(..., migrate=lambda old: old)" in raised.value.remedy


def test_decimal_sums_are_exact_up_to_their_last_digit(driver):
    """38 digits, and an error beyond them instead of a wrapped sum."""
    schema = pa.schema([("key", pa.string()), ("d", pa.decimal128(38, 2))])
    made, prepare = step({"total": sum_("d")}, schema)
    most = decimal.Decimal("9" * 36 + ".99")

    def run(batch, *values):
        rows = [{"key": "a", "d": value} for value in values]
        return run_batch(driver, made, batch, prepare(pa.Table.from_pylist(rows, schema)))

    with decimal.localcontext(decimal.Context(prec=60)):
        less = most - decimal.Decimal("0.02")
        assert run(0, less, decimal.Decimal("0.01"))[0]["total"] == less + decimal.Decimal("0.01")
        assert run(1, decimal.Decimal("0.01"))[0]["total"] == most
    for values in ([decimal.Decimal("0.01")], [most, most]):
        with pytest.raises(StateValueError, match="overflows"):
            run(2, *values)


@pytest.mark.parametrize("function", [sum_, mean, variance, lambda x: max_(x), lambda x: top_k("v", 2, by=x)])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_nan_and_infinity_never_become_null(driver, function, value):
    """They have no form in the state: the column is named. Where it is a matter of order, NaN is passed over as NULL
    is, whatever comes with it."""
    made, prepare = step({"it": function("x")})
    rows = prepare(pa.Table.from_pylist([{"key": "a", "x": value, "v": 1}, {"key": "a", "x": 1.0, "v": 2}], SCHEMA))
    expected = {"Extreme": 1.0, "Ranked": [2]}.get(made.update.columns[0].kernel.__class__.__name__)
    if math.isnan(value) and expected is not None:
        alone = prepare(pa.Table.from_pylist([{"key": "b", "x": value, "v": 1}], SCHEMA))
        assert run_batch(driver, made, 0, alone)[0]["it"] is None
        assert run_batch(driver, made, 1, rows)[0]["it"] == expected
        return
    with pytest.raises(StateValueError, match=r"state column 'it.*NaN and infinity"):
        run_batch(driver, made, 0, rows)


def test_approximate_distinct_is_as_close_as_it_says(driver):
    """50,000 values at 5 %: off by less than four standard errors; the state stays small; the same over batches."""
    made, prepare = step({"n": approx_distinct("h")})
    hashes = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 50_000)
    for batch, part in enumerate(np.array_split(hashes, 5)):
        table = pa.table({"key": ["a"] * len(part) * 2, "h": np.concatenate([part, part])})
        [row] = run_batch(driver, made, batch, prepare(table.cast(pa.schema([("key", "string"), ("h", "int64")]))))
    assert abs(row["n"] / 50_000 - 1) < 0.2
    driver.close(4)
    assert sorted(stored(driver)["a"]["n"]) == sorted(hashes.tolist())[:402]


@pytest.mark.parametrize(
    "call",
    [
        lambda: top_k("v", 0), lambda: top_k("v", True), lambda: collect("v", 10**6), lambda: collect("v", 1, keep="x"),
        lambda: approx_distinct("v", error=0), lambda: plan_aggregate("s", "n", sum_("s"), [T.StringType()]),
        lambda: plan_aggregate("s", "n", top_k("m", 1), [T.ArrayType(T.LongType())]),
        lambda: plan_aggregate("s", "n", count_distinct("s"), [T.DoubleType()]),
        lambda: plan_aggregate("s", "n", count_distinct("s"), [T.StringType("UTF8_LCASE")]),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_is_refused(call):
    """Before anything runs."""
    with pytest.raises(ConfigurationError):
        call()


TEXT = "sum(aggregate(a, 0, (x_1, y_2) -> +(x_1, transform(y_2, x_3 -> +(x_3, x_9))))) as bigint"


@pytest.mark.parametrize(
    ("now", "same"),
    [
        (TEXT, True),
        (TEXT.replace("x_1", "x_41").replace("y_2", "y_42").replace("x_3", "x_1"), True),
        (lambdas_numbered(TEXT), True),
        (TEXT.replace("x_9", "x_8"), False),  # a column of the input
        (TEXT.replace("+(x_3, x_9)", "+(x_1, x_9)"), False),
        (TEXT.replace("x_3 -> +(x_3,", "x_3 -> +(x_9,"), False),
        (TEXT.replace("bigint", "double"), False),
    ],
)
def test_variables_of_lambdas_have_no_names(now, same):
    """Spark counts them on in each process: what was recorded with one number is the same with another."""
    old, new = ({"struct": "aggregates", "fields": [["total", text, True]]} for text in (TEXT, now))
    assert (list(misfits(old, new)) == []) == same
    assert lambdas_numbered(lambdas_numbered(now)) == lambdas_numbered(now)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sum(array(x_1, x_2), (x_1, y_2) -> (x_1 + y_2))", "sum(array(x_1, x_2), (#1, #2) -> (#1 + #2))"),
        (
            "f(v, (x_1, y_2) -> (x_1 + g(y_2, 1)), x_3 -> x_3) + x_1",
            "f(v, (#1, #2) -> (#1 + g(#2, 1)), #3 -> #3) + x_1",
        ),
        ("exists(v, x_1 -> (x_1 = ))) + x_1", "exists(v, #1 -> (#1 = ))) + #1"),
    ],
)
def test_columns_that_are_called_like_variables(text, expected):
    """They have their name outside of the lambda; in a text whose parentheses tell nothing they have none."""
    assert lambdas_numbered(text) == expected


def test_every_function_is_tested_and_documented():
    """What the module offers is in COLUMNS here."""
    functions = set(aggregates.__all__) - {"Aggregate"}
    assert {kind.__doc__ is not None for kind in (getattr(aggregates, name) for name in functions)} == {True}
    used = {str(each).partition("(")[0].removesuffix("_first").removesuffix("_last") for each in COLUMNS.values()}
    named = {"var_samp": "variance", "stddev_pop": "stddev", "sum": "sum_", "min": "min_", "max": "max_"}
    assert {named.get(each, each) for each in used} == functions


def test_the_table_has_every_function_and_no_other():
    """An entry without a public function, or the reverse, is a mistake."""
    variants = (variance("x", population=True), stddev("x"))
    assert {each.function for each in (*COLUMNS.values(), *variants)} == set(FUNCTIONS)


def test_unknown_functions_are_refused():
    """An Aggregate that no function of the module made has no entry in the table."""
    with pytest.raises(ConfigurationError, match="is not an aggregate"):
        aggregate("s", key="key", n=aggregates.Aggregate("median", ("v",)))
