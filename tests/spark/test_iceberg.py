"""IcebergSink in a running flow: types, kills of the process, and rewinds."""

from __future__ import annotations

import pytest

from recovery import IcebergSink
from tests.flows.tables import NAME, properties
from tests.spark.support import run_to_end, totals_step
from tests.spark.tables import ALL_TYPES, ODD_KEY, ROW_OF_ODD_KEY, check_kills, points
from tests.spark.test_sinks import running_totals

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy", reason="the catalog of these tests: pip install 'pyiceberg[sql-sqlite]'")
from pyiceberg.catalog import load_catalog


def table(path):
    return load_catalog("default", **properties(path)).load_table(NAME)


def rows(path) -> list[tuple]:
    """The rows of the table, sorted."""
    found = table(path).scan().to_arrow().to_pylist()
    return sorted(tuple(row[name] for name in ("key", "n", "total")) for row in found)


def test_types(spark, feed, tmp_path):
    """Every type that Spark and Iceberg share comes back as it was; a byte is an int there."""
    feed.add([("a", 1), (ODD_KEY, 2)])
    feed.add([("", 3)])
    run_to_end(
        feed.frame(spark).selectExpr(ALL_TYPES), tmp_path / "db", IcebergSink(NAME, properties=properties(tmp_path))
    )
    found = table(tmp_path).scan().to_arrow().sort_by("b").to_pylist()
    assert [row["key"] for row in found] == [key for key, _ in feed.rows]
    assert found[1] == ROW_OF_ODD_KEY


def test_each_row_once_through_a_rewind(spark, feed, tmp_path):
    """After runs and a rewind the table has what an uninterrupted run gives; no snapshot is gone."""
    frame = feed.frame(spark).transform(totals_step())
    for seed in range(3):
        feed.add_random(seed)
    run_to_end(frame, tmp_path / "db", IcebergSink(NAME, properties=properties(tmp_path)), backup_interval="1h")
    before = {each.snapshot_id for each in table(tmp_path).snapshots()}
    feed.add_random(3)
    sink = IcebergSink(NAME, properties=properties(tmp_path))
    run_to_end(frame, tmp_path / "db", sink, resume_epoch=2, backup_interval="1h")
    assert rows(tmp_path) == sorted(running_totals(feed.rows))
    assert before < {each.snapshot_id for each in table(tmp_path).snapshots()}


@pytest.mark.long
@pytest.mark.parametrize("kills", [pytest.param(each, id=i) for i, each in points("iceberg").items()])
def test_killed_between_the_steps_of_publishing(feed, tmp_path, kills):
    """After kill -9 at each step of publishing and of going back, each row is in the table once."""
    flow = f"tests/flows/tables.py:make_iceberg({str(feed.path)!r}, {str(tmp_path)!r})"
    check_kills(feed, tmp_path / "db", flow, kills, lambda: rows(tmp_path))
