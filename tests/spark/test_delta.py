"""DeltaSink in a running flow: types, partition columns, kills of the process, and rewinds."""

from __future__ import annotations

import datetime
import decimal
import signal

import pytest

from recovery import DeltaSink, init_partitions
from tests.spark.support import ROOT, run_to_end, states, totals_step
from tests.spark.test_crashes import finish, recovery_command
from tests.spark.test_sinks import running_totals

deltalake = pytest.importorskip("deltalake")


def rows(path) -> list[tuple]:
    """The rows of the table, sorted."""
    table = deltalake.DeltaTable(str(path)).to_pyarrow_table()
    return sorted(tuple(row[name] for name in ("key", "n", "total")) for row in table.to_pylist())


ALL_TYPES = [
    "key", "cast(value AS byte) AS b", "cast(value AS short) AS s", "cast(value AS int) AS i",
    "cast(value AS float) AS f", "cast(value AS double) AS d", "cast(value AS decimal(20, 3)) AS dec",
    "value > 1 AS yes", "cast(key AS binary) AS bin", "make_date(2024, 2, 29) AS day",
    "timestamp_micros(1700000000123456 + value) AS at", "make_timestamp_ntz(2024, 3, 31, 2, 30, 0.5) AS wall",
    "array(value, NULL) AS list", "map(key, value) AS pairs", "named_struct('x', value, 'y', key) AS inner",
    "CAST(NULL AS string) AS none",
]  # fmt: skip


@pytest.mark.parametrize("partition_by", [[], ["key", "day"]], ids=["whole", "partitioned"])
def test_types(spark, feed, tmp_path, partition_by):
    """Every type that Spark and Delta share comes back as it was, also as a partition column."""
    feed.add([("a", 1), ("b c/d:e=%f é", 2)])
    feed.add([("", 3)] if not partition_by else [("z", 3)])
    run_to_end(
        feed.frame(spark).selectExpr(ALL_TYPES), tmp_path / "db", DeltaSink(tmp_path / "t", partition_by=partition_by)
    )
    found = deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table().sort_by("b").to_pylist()
    assert [row["key"] for row in found] == [key for key, _ in feed.rows]
    zone = datetime.UTC
    assert found[1] == {
        "key": "b c/d:e=%f é", "b": 2, "s": 2, "i": 2, "f": 2.0, "d": 2.0, "dec": decimal.Decimal("2.000"), "yes": True,
        "bin": "b c/d:e=%f é".encode(), "day": datetime.date(2024, 2, 29),
        "at": datetime.datetime(2023, 11, 14, 22, 13, 20, 123458, zone),
        "wall": datetime.datetime.fromisoformat("2024-03-31T02:30:00.5"), "list": [2, None],
        "pairs": [("b c/d:e=%f é", 2)],
        "inner": {"x": 2, "y": "b c/d:e=%f é"}, "none": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "key"), [pytest.param("append", [], id="append"), pytest.param("merge", ["key"], id="merge")]
)
def test_each_row_once_through_a_rewind(spark, feed, tmp_path, mode, key):
    """After runs and a rewind the table has what an uninterrupted run gives; Delta's history is whole."""
    frame = feed.frame(spark).transform(totals_step())
    for seed in range(3):
        feed.add_random(seed)
    run_to_end(frame, tmp_path / "db", DeltaSink(tmp_path / "t", mode, key=key), backup_interval="1h")
    feed.add_random(3)
    run_to_end(frame, tmp_path / "db", DeltaSink(tmp_path / "t", mode, key=key), resume_epoch=2, backup_interval="1h")
    every = running_totals(feed.rows)
    wanted = sorted(every if mode == "append" else {row[0]: row for row in every}.values())
    assert rows(tmp_path / "t") == wanted
    history = deltalake.DeltaTable(str(tmp_path / "t")).history()
    assert len(history) == deltalake.DeltaTable(str(tmp_path / "t")).version() + 1


POINTS = {
    "some": ["close.3:2", "delta.3"],
    "all": [
        "delta.1:2", "delta.2:2", "close.1.prepared:2", "close.2.epochs:5", "close.2.committed:4", "close.3:2",
        "close.4:2", "close.4.published:2", "close.3", "delta.3", "delta.4", "start.3.output",
        ("delta.3", "--resume-epoch", "3"), ("delta.4", "--resume-epoch", "2"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "points",
    [pytest.param(points, id=i, marks=[] if i == "some" else pytest.mark.long) for i, points in POINTS.items()],
)
def test_killed_between_the_steps_of_publishing(feed, tmp_path, points):
    """After kill -9 at each step of publishing and of going back, each row is in the table once."""
    for seed in range(3 * len(points)):
        feed.add_random(seed, count=40)
    directory, output = tmp_path / "db", tmp_path / "table"
    init_partitions(directory, 3)
    target = f"{ROOT / 'tests/flows/delta.py'}:make({str(feed.path)!r}, {str(output)!r})"
    for each in [*points, ""]:
        point, *options = [each] if isinstance(each, str) else each
        process = recovery_command(target, directory, "-s", "0", "-b", "1h", *options, crash_at=point)
        printed = finish(process)
        assert process.returncode == (-signal.SIGKILL if point else 0), f"{point}: {printed}"
    assert rows(output) == sorted(running_totals(feed.rows, 40))
    assert states(directory, "totals") == feed.totals()
