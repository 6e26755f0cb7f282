"""`spark.read.format("recovery")` with the option `quarantine`: what waits, as rows with their types."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from recovery.base.ids import BatchId
from recovery.storage.initialize import init_partitions
from recovery.storage.seam import BatchCount
from recovery.values.keys import partition_of
from recovery.values.quarantine import WAITS_MS, Entry, KeptFailure, KeyNote, entry_key, note_key, to_text
from recovery.values.quarantined_rows import packed
from tests.stores import Driver, pack

COUNT = 3
AT_MS = 1_700_000_000_123
FAILURE = KeptFailure("ValueError", "bad value", ("flow.py, line 3, in update",))
AT = pa.array([datetime(2026, 1, 2, tzinfo=UTC)], pa.timestamp("us", "Europe/Zurich"))


def rows(**columns) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


FIRST = rows(
    key=["a"], n=[7], money=pa.array([Decimal("1.10")], pa.decimal128(10, 2)), at=AT,
    tags=[["x", None]], raw=[b"\xff"], pairs=pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
)  # fmt: skip
WAITING = {
    "totals": {
        "a": [
            Entry(4, AT_MS, 1, packed(FIRST), 2, FAILURE),
            Entry(5, AT_MS, 2, packed(rows(key=["a", "a"], n=[8, 9]))),
        ],
        "b": [Entry(5, AT_MS, 0, "", 1, FAILURE, timed_out=True)],
    },
    # Another step, whose column n has another type.
    "names": {"c": [Entry(6, AT_MS, 1, packed(rows(n=[{"x": 1}], only=[True])), 1, FAILURE)]},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    """Epoch 1: nothing waits; epoch 2: rows of two steps, of several schemas."""
    directory = tmp_path_factory.mktemp("waiting") / "db"
    init_partitions(directory, COUNT)
    with Driver(directory, ("totals", "names", *(f"$bad {step}" for step in WAITING))) as driver:
        driver.apply(0, {"a": "1"}, step="totals")
        driver.close(0, backup_interval_s=3600)
        task = driver.task()
        for step, keys in WAITING.items():
            for key, entries in keys.items():
                note = KeyNote(sum(each.rows or 1 for each in entries), 0, len(entries), AT_MS, "")
                changes = {entry_key(key, number): (to_text(each), None) for number, each in enumerate(entries)}
                changes[note_key(key)] = to_text(note), WAITS_MS
                task.apply(f"$bad {step}", BatchId(1), {partition_of(key, COUNT): [pack(changes)]}, BatchCount(0, 0))
        task.release()
        driver.apply(1, {"a": "2"}, step="totals")
        driver.close(1, backup_interval_s=3600)
    return directory


def read(spark, store, **options):
    frame = spark.read.format("recovery").options(**options).load(str(store))
    return frame, frame.orderBy("step", "key", "number", "row.n").collect()


def test_values_come_back_in_their_types(spark, store):
    """The frame has each row of a step once; columns that an entry lacks are NULL, and so is the row of a timeout."""
    frame, [first, second, third, timeout] = read(spark, store, quarantine="totals")
    assert frame.schema.simpleString() == (
        "struct<step:string,key:string,number:bigint,epoch:bigint,batch:bigint,since:timestamp,attempts:bigint,"
        "error:string,timed_out:boolean,row:struct<key:string,n:bigint,money:decimal(10,2),at:timestamp,"
        "tags:array<string>,raw:binary,pairs:map<string,bigint>>>"
    )
    assert (first.step, first.key, first.number, first.epoch, first.batch, first.attempts) == (
        "totals", "a", 0, 2, 4, 2,
    )  # fmt: skip
    assert first.since.timestamp() == AT_MS / 1000
    assert first.error == FAILURE.text
    row = first.row
    assert (row.n, row.money, row.tags, bytes(row.raw), row.pairs) == (
        7,
        Decimal("1.10"),
        ["x", None],
        b"\xff",
        {"k": 1},
    )
    assert row["at"].timestamp() == datetime(2026, 1, 2, tzinfo=UTC).timestamp()
    assert [(each.row.n, each.row.money, each.error, each.attempts) for each in (second, third)] == [
        (8, None, None, 0), (9, None, None, 0),
    ]  # fmt: skip
    assert (timeout.key, timeout.timed_out, timeout.row) == ("b", True, None)
    assert frame.where("row.n > 7").count() == 2


def test_all_steps(spark, store):
    """Together; a column that has several types is text."""
    _, found = read(spark, store, quarantine="*")
    assert [(each.step, each.key, each.row and each.row.n, each.row and each.row.only) for each in found] == [
        ("names", "c", '{"x": 1}', True),
        ("totals", "a", "7", None), ("totals", "a", "8", None), ("totals", "a", "9", None),
        ("totals", "b", None, None),
    ]  # fmt: skip


def test_an_older_epoch_and_a_step_without_such_rows(spark, store):
    """Nothing waited there."""
    for options in ({"quarantine": "totals", "epoch": 1}, {"quarantine": "other"}):
        frame = spark.read.format("recovery").options(**options).load(str(store))
        assert frame.select("key", "error").collect() == []
        assert frame.collect() == []


@pytest.mark.parametrize("options", [{"step": "totals"}, {"operator": 0}, {"sinceEpoch": 1}, {"other": "x"}])
def test_options_that_do_not_go_with_it(spark, store, options):
    """The error shows how to read such rows."""
    with pytest.raises(PySparkException, match="and no step, operator, sinceEpoch or other"):
        spark.read.format("recovery").options(quarantine="totals", **options).load(str(store))
