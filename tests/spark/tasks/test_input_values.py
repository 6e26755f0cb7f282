"""The rows that `update` gets: Arrow's own Python values, and for those that Python cannot have an error where they are
used, and only there."""

from __future__ import annotations

import os
import pickle
import random
import re
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from recovery.base.ids import BatchId
from recovery.errors import StateValueError
from recovery.spark.steps.definition import HASH_BITS, KEY, ROUTE
from recovery.spark.steps.key_columns import parse_keys
from recovery.spark.tasks.arrow_task import ArrowStepTask
from recovery.spark.tasks.input_values import RowMaker, Unfit, repeated
from recovery.spark.tasks.run_tasks import run_tasks
from recovery.spark.tasks.step_task import StepTask
from tests.memory_store import MemoryDirectory
from tests.stores import Driver
from tests.tasks import definition

YEAR_10000 = 253_402_300_800_000_000
YEAR_1 = -62_135_596_800_000_000
FIRST = -(2**63)
"""The first moment that Spark allows. NumPy has no moment for this number."""
MOMENTS = pa.timestamp("us", "UTC")
BEFORE = "step 'count', key 'b': column 'at' has a value that Python cannot represent, of type timestamp"


@pytest.fixture
def driver():
    with Driver(MemoryDirectory(1)) as found:
        yield found


def moments(*micros: int | None, zone: str | None = "UTC") -> pa.Array:
    return pa.array(micros, pa.int64()).cast(pa.timestamp("us", zone))


def run(driver, update, at: pa.Array, *, key=("k",), texts=None, zone="UTC", **others):
    """What a step over the rows a, b, a with these values gives; of `update`, or of one that sees tables."""
    rows = pa.table({"k": ["a", "b", "a"][: len(at)], "at": at, "n": [1, 2, 3][: len(at)]})
    kind = ArrowStepTask if others.get("tables") else StepTask
    step = replace(definition(update, "n bigint, at timestamp", "k string, n bigint", rows, key), time_zone=zone)
    if kind is StepTask:
        step = replace(step, state_schema=None)
    if texts is not None:
        rows = rows.append_column(KEY, pa.array(texts))
    batch = rows.append_column(ROUTE, pa.array([0 << HASH_BITS] * len(rows), pa.int64())).combine_chunks()
    connect = lambda keep: (driver.task(), driver.count)  # noqa: E731
    found = run_tasks(step, iter(batch.to_batches()), connect, BatchId(0), kind, 1)
    return sorted((row["k"], row["n"]) for each in found for row in each.to_pylist())


def counted(key, rows, state):
    """A function that never looks at the column."""
    state.update(len(rows))
    yield key, sum(row.n for row in rows)


@pytest.mark.parametrize(
    ("at", "zone"),
    [
        (moments(0, YEAR_10000, None), "UTC"),
        (moments(0, FIRST, None), "UTC"),
        (moments(0, YEAR_1, 5, zone="America/New_York"), "America/New_York"),
        (moments(0, YEAR_10000 - 1, 5, zone="Asia/Tokyo"), "Asia/Tokyo"),
        (moments(0, YEAR_10000, 5, zone=None), "UTC"),
        (pa.array([0, 2_932_897, None], pa.int32()).cast(pa.date32()), "UTC"),
        (pa.array([[0], [0, YEAR_10000], None], pa.list_(MOMENTS)), "UTC"),
        (pa.array([{"x": 0}, {"x": YEAR_10000}, None], pa.struct([("x", MOMENTS)])), "UTC"),
        (pa.array([[("x", 0)], [("x", YEAR_10000)], None], pa.map_(pa.string(), MOMENTS)), "UTC"),
    ],
    ids=lambda each: str(getattr(each, "type", each)),
)
def test_a_column_that_is_not_used_stops_nothing(driver, at, zone):
    """Whatever is in it, and however deep; an error on its use names the step, the key, the column and the value."""
    assert run(driver, counted, at, zone=zone) == [("a", 4), ("b", 2)]

    def uses(key, rows, state):
        yield key, len([row.at for row in rows])

    with pytest.raises(StateValueError, match="step 'count', key 'b': column 'at' has a value that Python") as raised:
        run(driver, uses, at, zone=zone)
    assert any(
        text in raised.value.found
        for text in ("10000-01-01", "0001-01-01", "9999-12-31", "-9223372036854775808 us since 1970")
    )


USES = {
    "by name": lambda row: row.at,
    "by place": lambda row: row[1],
    "from the end": lambda row: row[-2],
    "a slice": lambda row: row[:2],
    "taken apart": lambda row: [at for _, at, _ in [row]],
    "as a tuple": lambda row: tuple(row),
    "as a list": lambda row: [*row],
    "as a dict": lambda row: row._asdict(),
    "compared": lambda row: sorted([row, (row.k, datetime(2020, 1, 1, tzinfo=UTC), 0)]),
    "hashed": lambda row: {row},
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_however_a_value_is_used(driver, use):
    """The other rows of the micro-batch, and the other values of the row, are what they are elsewhere."""

    def update(key, rows, state):
        for row in rows:
            assert (row.k, row.n, row[0], row[-1]) == (key, row.n, key, row.n)
            assert (isinstance(row, tuple), len(row), "Row(" in repr(row)) == (True, 3, True)
            use(row)
        return ()

    with pytest.raises(StateValueError, match=BEFORE):
        run(driver, update, moments(0, YEAR_10000, 5))


def test_what_can_be_had_is_a_moment(driver):
    """Also in the column that has another value that cannot."""

    def update(key, rows, state):
        yield key, sum(row.at.year for row in rows if key == "a")

    assert run(driver, update, moments(0, YEAR_10000, 5)) == [("a", 3940), ("b", 0)]


@pytest.mark.parametrize(
    ("kinds", "texts"), [([T.LongType()], ["1", "x", "3"]), ([T.LongType()] * 2, ['["1","2"]', '["1"]'])]
)
def test_a_text_that_is_no_key_is_named(kinds, texts):
    """Of several that are read together, the one that no run wrote."""
    with pytest.raises(StateValueError, match=re.escape(f"the state key {texts[1]!r} does not fit")):
        parse_keys(texts, kinds, "UTC")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (T.TimestampType(), str(YEAR_10000)),
        (T.TimestampNTZType(), "+10000-01-01 00:00:00"),
        (T.DateType(), "+10000-01-01"),
        (T.DateType(), "-0044-03-15"),
    ],
    ids=str,
)
def test_a_key_that_python_cannot_have_is_named(driver, kind, text):
    """It is given to the function in any case; also when it is read from its text, for a timeout."""
    [at] = parse_keys([text], [kind], "UTC")
    assert parse_keys([f'["x","{text}"]'], [T.StringType(), kind], "UTC")[1].equals(at)
    for key, texts in (("at",), [text]), (("k", "at"), [f'["a","{text}"]']):
        with pytest.raises(StateValueError, match=r"step 'count', key .*: column 'at' has a value") as raised:
            run(driver, counted, at, key=key, texts=texts)
        assert text.lstrip("+")[:10] in raised.value.found


def test_tables_have_any_value_and_states_none_without_a_form(driver):
    """A step that sees tables may look at it, and hold it as a key; as a state it is refused, with its key."""

    def held(rows, states):
        new = states.select(["k", "at"]) if "at" not in rows.column_names else rows.select(["k", "at"])
        return new.append_column("n", rows["n"]), None

    with pytest.raises(StateValueError, match=r"state column 'at' .* of key 'b': only the years 1 to 9999") as raised:
        run(driver, held, moments(0, YEAR_10000), tables=True)
    assert "10000-01-01" in raised.value.found


def test_days_that_python_cannot_have_are_parts_of_keys(driver):
    """Keys of several columns are compared by what they are."""

    def keep(rows, states):
        new = states.select(["k", "at"]).append_column("n", states["_rows"])
        return new.take([1, 0]), new.select(["k", "n"])

    days = pa.array([2_932_897, 2_932_898], pa.int32()).cast(pa.date32())
    rows = pa.table({"k": ["a", "b"], "at": days, "n": [1, 2]})
    step = definition(keep, "n bigint", "k string, n bigint", rows, ["k", "at"])
    rows = rows.append_column(KEY, pa.array(['["a","+10000-01-01"]', '["b","+10000-01-02"]']))
    batch = rows.append_column(ROUTE, pa.array([0, 0], pa.int64())).combine_chunks()
    connect = lambda keep: (driver.task(), driver.count)  # noqa: E731
    found = list(run_tasks(step, iter(batch.to_batches()), connect, BatchId(0), ArrowStepTask, 1))
    assert [row["k"] for each in found for row in each.to_pylist()] == ["a", "b"]


def test_rows_with_several_values_that_python_cannot_have(driver):
    """They are looked at one by one."""

    def update(key, rows, state):
        for row in rows:
            with pytest.raises(StateValueError, match="column 'at' has a value"):
                _ = row.at
            with pytest.raises(StateValueError, match="column 'until' has a value"):
                _ = row.until
            yield row.k, 1

    rows = pa.table({"k": ["a", "a"], "at": moments(YEAR_10000, YEAR_1 - 1), "until": moments(YEAR_10000, YEAR_10000)})
    step = replace(definition(update, "n bigint", "k string, n bigint", rows, ["k"]), state_schema=None)
    batch = rows.append_column(ROUTE, pa.array([0, 0], pa.int64())).combine_chunks()
    connect = lambda keep: (driver.task(), driver.count)  # noqa: E731
    found = list(run_tasks(step, iter(batch.to_batches()), connect, BatchId(0), StepTask, 1))
    assert [row["n"] for each in found for row in each.to_pylist()] == [1, 1]


ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "+05:30", "-08:00"]
SEED = int(os.environ.get("RECOVERY_TEST_SEED", 0))
FOLD = 1_729_990_800_000_000
"""One o'clock in UTC on the day in 2024 when Berlin's clocks went back: half past two came twice."""


def random_type(rng: random.Random, depth: int = 2) -> pa.DataType:
    """One of the types that Spark gives to a step."""
    if depth and rng.random() < 0.25:
        inner = random_type(rng, depth - 1)
        return rng.choice([pa.list_(inner), pa.struct([("x", inner), ("y", pa.int64())]), pa.map_(pa.string(), inner)])
    precision = rng.randint(1, 38)
    return rng.choice([
        pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32(),
        pa.timestamp("us"), pa.timestamp("us", rng.choice(ZONES)), pa.timestamp("us", rng.choice(ZONES)),
        pa.decimal128(precision, rng.randint(0, precision)), pa.duration("us"), pa.null(),
    ])  # fmt: skip


def random_column(rng: random.Random, kind: pa.DataType, count: int, nulls: float) -> pa.Array:
    """Values of all kinds, also at the ends of what Python can have, and perhaps of what it cannot; a part is NULL."""
    beyond = rng.random() < 0.1
    first, last = (YEAR_1 - 1, YEAR_10000) if beyond else (YEAR_1 + 86_400_000_000, YEAR_10000 - 86_400_000_001)

    def number(low: int, high: int) -> int:
        near = [max(low, -1), 0 if low <= 0 else low, min(high, 1), low, high]
        return rng.choice([*near, *(rng.randint(low, high) for _ in near)])

    def value(kind: pa.DataType) -> Any:
        if pa.types.is_null(kind) or rng.random() < nulls:
            return None
        if pa.types.is_list(kind):
            return [value(kind.value_type) for _ in range(rng.randint(0, 2))]
        if pa.types.is_struct(kind):
            return {field.name: value(field.type) for field in map(kind.field, range(kind.num_fields))}
        if pa.types.is_map(kind):
            return [(str(each), value(kind.item_type)) for each in range(rng.randint(0, 2))]
        if pa.types.is_decimal(kind):
            return Decimal(f"{number(-(10**kind.precision) + 1, 10**kind.precision - 1)}E-{kind.scale}")
        if pa.types.is_floating(kind):
            return rng.choice([0.0, -0.0, float("nan"), float("inf"), 0.5, 1e-30, rng.random()])
        if pa.types.is_boolean(kind):
            return rng.random() < 0.5
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            text = rng.choice(["", "a", "ü\0", "\U0001f600", "x" * 40])
            return text if pa.types.is_string(kind) else text.encode()
        if pa.types.is_timestamp(kind):
            return rng.choice([number(FIRST if beyond else first, last), FOLD + rng.randint(-7_200, 7_200) * 1_000_000])
        if pa.types.is_date32(kind):
            return number(first // 86_400_000_000, last // 86_400_000_000)
        return number(-128, 127)

    return pa.array([value(kind) for _ in range(count)], kind)


def seen(values: list[Any]) -> list[str]:
    """The values with their types, exponents, zones and folds; of an Unfit value only that it is one."""
    return [
        f"{type(value).__name__} " + ("" if isinstance(value, Unfit) else f"{value!r} {getattr(value, 'tzinfo', '')!r}")
        for value in values
    ]


def slow(column: pa.Array) -> list[Any]:
    """Arrow's value of each place by itself."""

    def at(place: int) -> Any:
        try:
            return column[place].as_py()
        except (ValueError, OverflowError):
            return Unfit("c", column, place)

    return [at(place) for place in range(len(column))]


@pytest.mark.parametrize("seed", range(SEED, SEED + 40))
def test_rows_of_any_types_have_arrows_values(seed):
    """Rows made from columns equal those made value by value, in any slice. Replay one with
    RECOVERY_TEST_SEED=<seed>."""
    rng = random.Random(seed)
    names = tuple(f"c{number}" for number in range(rng.randint(1, 6)))
    nulls = rng.choice([0, 0, 0.3, 1])
    columns = [random_column(rng, random_type(rng), 60, nulls).slice(rng.randint(0, 5), 50) for _ in names]
    rows = RowMaker(names).rows("count", names, columns, {})
    for place, (name, column) in enumerate(zip(names, columns, strict=True)):
        expected = slow(column)
        assert seen([tuple.__getitem__(row, place) for row in rows]) == seen(expected), (seed, column.type)
        for row, value in zip(rows, expected, strict=True):
            if not isinstance(value, Unfit):
                assert repr(getattr(row, name)) == repr(value)
    plain = [tuple(row) for row in rows if type(row).__mro__[1] is tuple]
    assert repr(pickle.loads(pickle.dumps(plain))) == repr(plain)


@pytest.mark.parametrize("seed", range(SEED, SEED + 10))
def test_rows_have_the_key_that_they_were_grouped_by(driver, seed):
    """With a text for the key, each row's is taken from its group, also NULL and texts that are escaped. Each row comes
    once, and a key's rows come in the order in which they were given."""
    rng = random.Random(seed)
    texts = rng.sample([None, "", "a", "b", "\0", "\x1b", "ü", "0", "aa"], rng.randint(1, 9))
    keys = [rng.choice(texts) for _ in range(rng.randint(1, 60))]
    rows = pa.table({"v": pa.array(range(len(keys)), pa.int64()), "k": pa.array(keys, pa.string())})
    given: dict[str | None, list[tuple[int, str | None]]] = {}

    def update(key, rows, state):
        assert key not in given
        given[key] = [(row.v, row.k) for row in rows]
        return ()

    step = replace(definition(update, "n bigint", "k string", rows, ["k"]), state_schema=None)
    batch = rows.append_column(ROUTE, pa.array([0] * len(rows), pa.int64())).combine_chunks()
    assert not list(
        run_tasks(step, iter(batch.to_batches()), lambda keep: (driver.task(), driver.count), BatchId(0), StepTask, 1)
    )
    places = range(len(keys))
    assert given == {key: [(place, key) for place in places if keys[place] == key] for key in set(keys)}


def test_what_is_repeated_is_the_value_itself():
    """Not a copy, and not another type: also of values that NumPy has its own types for."""
    values = [None, "a", 1, 2.5, ("x", 1), [1, 2]]
    found = repeated(values, pa.array(np.cumsum([1, 2, 0, 3, 1, 2])))
    assert [id(each) for each in found] == [id(values[place]) for place in (0, 1, 1, 3, 3, 3, 4, 5, 5)]
    assert repeated([], pa.array([], pa.int64())) == []
