"""Sorting rows by key: in memory and by way of a file, the same rows in the same order."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.spark.steps.definition import EVERYWHERE, UNHASHED
from recovery.spark.tasks.arrow_task import ArrowStepTask
from recovery.spark.tasks.sorting import _numbers, _order, sorted_by
from tests.memory_store import MemoryDirectory
from tests.stores import Driver
from tests.tasks import definition, run_batch, stored

pytestmark = pytest.mark.any_spark

KEYS = st.one_of(st.none(), st.text(st.sampled_from("ab\0é😀\uffff"), max_size=4))


def batches_of(keys: list[list[str | None]]) -> list[pa.RecordBatch]:
    """Batches with these keys and a number for each row."""
    found, start = [], 0
    for part in keys:
        found.append(pa.record_batch({"key": pa.array(part, pa.string()), "row": range(start, start + len(part))}))
        start += len(part)
    return found


def order(key: str | None) -> tuple[bool, bytes]:
    """As SQLite and Spark order keys: by their bytes, NULL first."""
    return key is not None, (key or "").encode()


@given(
    st.lists(st.lists(KEYS, min_size=1, max_size=30), max_size=8),
    st.integers(1, 40),
    st.integers(0, 2000),
    st.integers(2, 50),
)
def test_rows_come_out_sorted_and_none_is_lost(keys, piece_rows, limit_bytes, sample_rows):
    """For all batches, all limits from a file for every batch to no file at all, and whether few keys are different."""
    batches = batches_of(keys)
    with mock.patch("recovery.spark.tasks.sorting.SAMPLE_ROWS", sample_rows):
        found = list(sorted_by("key", iter(batches), piece_rows, limit_bytes))
    assert all(0 < len(batch) <= piece_rows for batch in found)
    rows = [(row["key"], row["row"]) for batch in found for row in batch.to_pylist()]
    expected = [(row["key"], row["row"]) for batch in batches for row in batch.to_pylist()]
    assert sorted(rows, key=lambda row: row[1]) == expected
    assert [key for key, _ in rows] == sorted((key for key, _ in expected), key=order)
    if limit_bytes >= sum(batch.nbytes for batch in batches):
        assert rows == sorted(expected, key=lambda row: order(row[0]))  # stable


@given(
    st.lists(st.lists(st.tuples(KEYS, st.integers(0, 3)), min_size=1, max_size=30), max_size=8),
    st.integers(1, 40),
    st.integers(0, 2000),
)
def test_groups_come_first(rows, piece_rows, limit_bytes):
    """Whole groups one after the other, and each of them sorted; in memory, and by way of a file."""
    batches = [
        pa.record_batch({"key": pa.array([key for key, _ in part], pa.string()), "group": [group for _, group in part]})
        for part in rows
    ]
    groups = lambda batch: batch.column("group").to_numpy()  # noqa: E731
    found = [
        row for batch in sorted_by("key", iter(batches), piece_rows, limit_bytes, groups) for row in batch.to_pylist()
    ]
    expected = sorted((row for part in rows for row in part), key=lambda row: (row[1], order(row[0])))
    assert [(row["key"], row["group"]) for row in found] == expected


IDS = st.builds("{}{}".format, st.sampled_from(["", "id-", "é"]), st.text(st.sampled_from("ab\0é"), max_size=7))


@given(st.lists(st.one_of(IDS, KEYS), max_size=60), st.integers(0, 60), st.integers(0, 60))
def test_keys_that_differ_in_a_few_bytes(keys, start, length):
    """Whatever they begin with, however many bytes follow, and wherever in a larger array they stand."""
    values = pa.array(keys, pa.string()).slice(start, length)
    with mock.patch("recovery.spark.tasks.sorting.SAMPLE_ROWS", 1):
        found = _order(values).to_pylist()
    asked = values.to_pylist()
    assert found == sorted(range(len(asked)), key=lambda place: order(asked[place]))


@pytest.mark.parametrize("begin", ["", "user-", "é" * 40])
def test_ids_of_one_kind_are_numbers(begin):
    keys = [f"{begin}{number * 7919 % 10_007}" for number in range(10_007)]
    values = pa.array([*keys, begin])
    numbers = _numbers(values)
    assert numbers.type == pa.uint64()
    assert _order(values).to_pylist() == sorted(range(len(values)), key=lambda place: values[place].as_py().encode())
    assert _numbers(pa.array([*keys, f"{begin}12345678"])) is None
    assert _numbers(pa.array([*keys, "other"])) is None or not begin
    assert _numbers(pa.array([*keys, None])) is None
    assert _numbers(values.cast(pa.large_string())) is None


def test_runs_are_read_in_pieces(monkeypatch):
    """A key that goes on over the end of a piece, and keys that only one run has."""
    monkeypatch.setattr("recovery.spark.tasks.sorting.PIECE_BYTES", 200)
    keys = [[f"k{number % 7}" for number in range(100)], ["k3"] * 100, [f"k{number:03}" for number in range(100)]]
    found = list(sorted_by("key", iter(batches_of(keys)), 1000, 0))
    assert len(found) > 3
    rows = [row for batch in found for row in batch.to_pylist()]
    assert [row["key"] for row in rows] == sorted(key for part in keys for key in part)
    assert sorted(row["row"] for row in rows) == list(range(300))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are looked up in /proc")
def test_nothing_is_left_when_the_rest_is_not_asked_for():
    """The file goes with the generator, as when a task fails."""
    before = open_files()
    rows = sorted_by("key", iter(batches_of([["b", "a"], ["c"]])), 1, 0)
    assert next(rows)["key"][0].as_py() == "a"
    assert len(open_files()) > len(before)
    rows.close()
    assert open_files() == before


def test_a_step_whose_rows_do_not_fit(monkeypatch):
    """Totals of a task that sorts by way of a file are those of one that does not; so are those of one task for all
    partitions, and of two that have some each."""
    monkeypatch.setattr(ArrowStepTask, "chunk_rows", 20)
    rows = pa.table({"key": [f"k{number * 37 % 101}" for number in range(1000)], "value": range(1000)})

    def add_up(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, None]:
        sums = rows.group_by("_group").aggregate([("value", "sum")]).sort_by("_group")["value_sum"]
        return pa.table({"key": states["key"], "total": sums}), None

    step = definition(add_up, "total bigint", "key string", rows, ("key",))
    totals = []
    ways = [{}, {"gathered": EVERYWHERE}, {"gathered": UNHASHED}, {"tasks": 2}, {"tasks": 1}]
    for limit_bytes, way in product([0, 1000, 1 << 20], ways):
        monkeypatch.setattr(ArrowStepTask, "sorted_bytes", limit_bytes)
        with Driver(MemoryDirectory(5)) as driver:
            run_batch(driver, step, 0, rows, piece=50, **way)
            driver.close(0)
            totals.append(stored(driver))
    assert all(each == totals[0] for each in totals)
    assert sum(state["total"] for state in totals[0].values()) == sum(range(1000))
    assert len(totals[0]) == 101


def open_files() -> list[Path]:
    """What this process has open."""
    return sorted(Path("/proc/self/fd").iterdir())
