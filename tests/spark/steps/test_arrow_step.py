"""Vectorised steps on real partitions, without Spark: what `update` sees, what it may give back, what is kept."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from recovery.errors import StateValueError
from recovery.spark.tasks.arrow_task import ArrowStepTask, _places
from recovery.storage.initialize import init_partitions
from tests.stores import STEP, Driver, alter, paths_of, problems
from tests.tasks import definition, run_batch, state_key, stored

STATE = "n bigint, total bigint"
OUTPUT = "key string, n bigint, total bigint"


def add_up(rows: pa.Table, states: pa.Table):
    """Count and sum per key, by NumPy over the runs."""
    n = pc.add(states["n"].fill_null(0), states["_rows"])
    total = pc.add(states["total"].fill_null(0), pa.array(np.add.reduceat(rows["value"].to_numpy(), states["_start"])))
    new = pa.table({"key": states["key"], "n": n, "total": total})
    return new, new


def table(rows) -> pa.Table:
    """Rows of key and value."""
    rows = list(rows)
    return pa.table({
        "key": pa.array([key for key, _ in rows], pa.string()), "value": pa.array([v for _, v in rows], pa.int64())
    })  # fmt: skip


@pytest.fixture
def driver(tmp_path):
    init_partitions(tmp_path / "db", 3)
    with Driver(tmp_path / "db") as found:
        yield found


def step(update=add_up, state=STATE, output=OUTPUT, rows=table([]), key=("key",)):  # noqa: B008 - never changed
    return definition(update, state, output, rows, key)


ROWS = table([("a", 1), ("b", 2), ("a", 3)])


def test_totals_continue_over_batches_epochs_and_repeated_tasks(driver, monkeypatch):
    """Chunks that cut anywhere, tasks that run twice or with fewer rows first, closed epochs in between: exact."""
    monkeypatch.setattr(ArrowStepTask, "chunk_rows", 50)
    generator = random.Random(5)
    truth: dict[str | None, list[int]] = {}
    keys = [*(f"k{number}" for number in range(60)), None, "", "␀", "nul\0in", 'quo"te\\', "sep\x1farator", "😀"]
    for batch in range(6):
        rows = [(generator.choice(keys), generator.randrange(-100, 100)) for _ in range(400)]
        rows += [("hot", 1)] * 120
        run_batch(driver, step(), batch, table(rows[: 100 * (batch % 2)]))
        output = run_batch(driver, step(), batch, table(rows), piece=1 + batch * 7)
        for key, value in rows:
            entry = truth.setdefault(key, [0, 0])
            entry[0] += 1
            entry[1] += value
        touched = {key for key, _ in rows}
        assert {row["key"]: [row["n"], row["total"]] for row in output} == {key: truth[key] for key in touched}
        assert len(output) == len(touched)
        if batch % 2:
            driver.close(batch)
    assert stored(driver) == {state_key((key,)): {"n": n, "total": t} for key, (n, t) in truth.items()}
    assert problems(driver.directory) == []


def test_what_update_sees(driver):
    """The input's columns sorted by key, each row's group; per key its columns, its state, and where its rows are."""
    driver.apply(0, {"a": '{"n":7,"total":null}'})
    seen = []

    def look(rows, states):
        seen.append((rows.to_pydict(), states.to_pydict()))
        return None, None

    for batch in (1, 2):
        assert run_batch(driver, step(look), batch, table([("a", 3), ("a", 1)])) == []
    rows, states = seen[0]
    assert rows == {"key": ["a", "a"], "value": [3, 1], "_group": [0, 0]}
    assert states == {"key": ["a"], "n": [7], "total": [None], "_exists": [True], "_start": [0], "_rows": [2]}
    assert seen[0] == seen[1]
    run_batch(driver, step(look), 3, table([("new", 1)]))
    assert seen[2][1] == {"key": ["new"], "n": [None], "total": [None], "_exists": [False], "_start": [0], "_rows": [1]}


def test_keys_left_out_discarded_and_unchanged(driver):
    """A key left out keeps its state, one with _discard loses it, and one that is as it was is not written."""
    run_batch(driver, step(), 0, table((key, 1) for key in "abcd"))
    driver.close(0)

    def some(rows, states):
        new = pa.table({
            "total": pa.array([10 if k == "b" else 1 for k in states["key"].to_pylist()]),
            "key": states["key"],
            "n": states["n"].fill_null(1),
            "_discard": pa.array([k in "ce" or None for k in states["key"].to_pylist()], pa.bool_()),
        })  # fmt: skip
        return new.filter(pc.not_equal(new["key"], "a")), None

    run_batch(driver, step(some), 1, table((key, 1) for key in "abcdef"))
    assert driver.store.counts(driver.lease, 1).keys == 3
    driver.close(1)
    assert stored(driver) == {
        "a": {"n": 1, "total": 1}, "b": {"n": 1, "total": 10}, "d": {"n": 1, "total": 1}, "f": {"n": 1, "total": 1},
    }  # fmt: skip


def test_states_in_any_order_with_the_helper_columns_left_in(driver):
    """Joins and sorts reorder; the columns that the step added need not be taken off."""

    def shuffled(rows, states):
        n = pc.add(states["n"].fill_null(0), states["_rows"])
        new = states.set_column(1, "n", n).set_column(2, "total", n)
        return new.take(list(range(len(new)))[::-1]), None

    run_batch(driver, step(shuffled), 0, table([("a", 1), (None, 1), ("b", 1), ("a", 1), ("c", 1)]))
    driver.close(0)
    assert {key: value["n"] for key, value in stored(driver).items()} == {"a": 2, "␀": 1, "b": 1, "c": 1}


def test_empty_tables_change_nothing(driver):
    """Of whatever type their columns are, in both places; the helper columns may stay in the output as well."""
    run_batch(driver, step(), 0, ROWS)
    empty = pa.table({"key": [], "n": [], "total": []})
    assert run_batch(driver, step(lambda rows, states: (empty, empty)), 1, ROWS) == []
    found = run_batch(driver, step(lambda rows, states: (states.slice(0, 0), states)), 2, ROWS)
    assert sorted(row["total"] for row in found) == [2, 4]
    assert all(set(row) == {"key", "n", "total"} for row in found)
    assert driver.read(3, ["a", "b"]) == {"a": '{"n":2,"total":4}', "b": '{"n":1,"total":2}'}


def test_several_key_columns(driver):
    """They are columns of `states`, of their own types, and states come back by all of them."""
    rows = pa.table({
        "key": pa.array(["a", "a", None, "b"], pa.string()), "n": pa.array([1, 2, 1, None], pa.int32()),
        "v": pa.array([1.5, 2.5, 3.5, 4.5]),
    })  # fmt: skip

    def last(rows, states):
        assert states.schema.types[:2] == [pa.string(), pa.int32()]
        v = rows["v"].take(states["_start"])
        new = pa.table({"n": states["n"].cast(pa.int64()), "key": states["key"], "v": v})
        return new.take(list(range(len(new)))[::-1]), new

    made = step(last, "v double", "key string, n bigint, v double", rows, ("key", "n"))
    output = run_batch(driver, made, 0, rows)
    driver.close(0)
    assert stored(driver) == {
        '["a","1"]': {"v": 1.5}, '["a","2"]': {"v": 2.5}, '[null,"1"]': {"v": 3.5}, '["b",null]': {"v": 4.5},
    }  # fmt: skip
    assert sorted(output, key=lambda row: row["v"])[2] == {"key": None, "n": 1, "v": 3.5}


def test_moments_of_the_hour_that_comes_twice_are_two_keys():
    """Python takes datetimes of a zone that differ in their fold alone for equal."""
    kind = pa.timestamp("us", tz="Europe/Berlin")
    moments = pa.array([1_729_989_000_000_000, 1_729_992_600_000_000], pa.int64()).cast(kind)
    own = [pa.array(["a", "a"]), moments]
    assert _places(own, [column.slice(1) for column in own]).to_pylist() == [1]
    assert _places(own, [column.take(pa.array([1, 0])) for column in own]).to_pylist() == [1, 0]


@pytest.mark.parametrize("library", ["polars", "pandas", "duckdb", "dict"])
def test_tables_of_other_libraries(driver, library):
    """Whatever gives Arrow data will do, its own string and list types included."""
    module = pytest.importorskip(library) if library != "dict" else None

    def update(rows, states):
        new, output = add_up(rows, states)
        if library == "polars":
            return module.from_arrow(new).reverse(), module.from_arrow(output).select("total", "n", "key")
        if library == "pandas":
            return new.to_pandas(), output.to_pandas()
        if library == "duckdb":
            return module.sql("FROM new"), module.sql("SELECT total, n, key FROM output")
        return {name: new[name].to_numpy() for name in new.column_names}, None

    for batch in (0, 1):
        output = run_batch(driver, step(update), batch, ROWS)
    driver.close(1)
    assert stored(driver) == {"a": {"n": 4, "total": 8}, "b": {"n": 2, "total": 4}}
    assert sorted(row["key"] for row in output) == ([] if library == "dict" else ["a", "b"])


def change(**columns):
    """An update that gives the totals with other columns in place of its own."""

    def update(rows, states):
        new, _ = add_up(rows, states)
        for name, value in columns.items():
            new = new.drop_columns([name]) if name in new.column_names else new
            new = new if value is None else new.append_column(name, pa.chunked_array([value(new)]))
        return new, None

    return update


BAD_STATES = {
    "column missing": (change(total=None), "lacks the columns 'total'"),
    "column too much": (change(x=lambda t: t["n"].combine_chunks()), "unknown columns 'x'"),
    "float for integer": (change(n=lambda t: pa.array([1.0] * len(t))), "'n' as double, where int64"),
    "string for integer": (change(n=lambda t: pa.array(["1"] * len(t))), "'n' as string, where int64"),
    "too large": (change(n=lambda t: pa.array([2**63] * len(t), pa.uint64())), "'n' with values that do not fit"),
    "unknown key": (change(key=lambda t: pa.array(["zz"] * len(t))), "a state for 'zz', a key that it was not"),
    "keys twice": (lambda r, s: (pa.concat_tables([add_up(r, s)[0]] * 2), None), "two states for"),
    "discard not a flag": (change(_discard=lambda t: pa.array([1] * len(t))), "'_discard' as int64, where bool"),
    "not a pair": (lambda r, s: s, "update gave a Table"),
    "three": (lambda r, s: (None, None, None), "update gave a tuple"),
    "a list": (lambda r, s: ([1], None), "as states, a list, which is not a table"),
    "ragged": (lambda r, s: ({"key": ["a"], "n": [1, 2], "total": [1]}, None), "as states, a dict that is not a table"),
    "output column missing": (lambda r, s: (None, add_up(r, s)[0].select(["n"])), "as output.*lacks.*'key', 'total'"),
    "output of another type": (lambda r, s: (None, change(n=lambda t: t["key"].combine_chunks())(r, s)[0]), "'n' as"),
}


@pytest.mark.parametrize("case", BAD_STATES)
def test_what_does_not_fit_is_refused(driver, case):
    """By name of the step and of the column, with a way out, and nothing of the micro-batch is kept."""
    run_batch(driver, step(), 0, ROWS)
    update, message = BAD_STATES[case]
    with pytest.raises(StateValueError, match=f"step '{STEP}'.*{message}") as caught:
        run_batch(driver, step(update), 1, table([("a", 1)]))
    assert caught.value.cause
    assert caught.value.remedy
    assert driver.read(2, ["a"]) == {"a": '{"n":2,"total":4}'}


def test_nan_in_a_state_is_refused_and_in_the_output_is_not(driver):
    """As with a Python value; the output may hold what it likes."""

    def nan(rows, states):
        new = pa.table({"key": states["key"], "x": pa.array([float("nan")] * len(states))})
        return (new if rows["value"][0].as_py() else None), new

    made = step(nan, "x double", "key string, x double")
    [row] = run_batch(driver, made, 0, table([("a", 0)]))
    assert row["x"] != row["x"]
    with pytest.raises(StateValueError, match=r"'count': state column 'x'.*NaN and infinity"):
        run_batch(driver, made, 1, table([("a", 1)]))


def test_an_error_of_the_function_says_where(driver):
    """As it was raised, with a note."""

    def broken(rows, states):
        raise ZeroDivisionError("oh")

    with pytest.raises(ZeroDivisionError) as caught:
        run_batch(driver, step(broken), 4, ROWS)
    assert caught.value.__notes__[0].startswith(f"in step '{STEP}', ")
    assert caught.value.__notes__[0].endswith("micro-batch 4")


@pytest.mark.parametrize("text", ["5", "null", '{"n":"many"}'])
def test_a_state_of_another_form_is_named_by_its_key(driver, text):
    """Someone edited it, or the step was another one: an error, not a wrong value."""
    run_batch(driver, step(), 0, table((f"k{number}", 1) for number in range(9)))
    driver.close(0)
    for path in paths_of(driver.directory):
        alter(path, "UPDATE snaps SET ser_change = ? WHERE state_key = 'k5'", (text,))
    with pytest.raises(StateValueError, match=r"key 'k5': its state .* does not fit the columns n, total"):
        run_batch(driver, step(), 1, table((f"k{number}", 1) for number in range(9)))


def test_states_that_lack_a_column(driver):
    """A column that was added to the schema is NULL in them."""
    driver.apply(0, {"a": '{"n":5,"old":1}'})
    run_batch(driver, step(), 1, ROWS)
    assert driver.read(2, ["a"]) == {"a": '{"n":7,"total":4}'}
