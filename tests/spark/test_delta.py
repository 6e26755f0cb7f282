"""DeltaSink in a running flow: types, partition columns, kills of the process, and rewinds."""

from __future__ import annotations

import os
import shutil

import pytest

from recovery import DeltaSink, init_partitions
from recovery.errors import OutputMismatchError
from tests.shares import first
from tests.spark.support import ROOT, run_to_end, states, totals_step
from tests.spark.tables import (
    ALL_TYPES,
    ODD_KEY,
    ROW_OF_ODD_KEY,
    check_kills,
    kill_at_any_moment,
    points,
    whole_history,
)
from tests.spark.test_crashes import recovery_command
from tests.spark.test_sinks import running_totals

deltalake = pytest.importorskip("deltalake")
KILLS = int(os.environ.get("RECOVERY_TEST_DELTA_KILLS", "50"))


def rows(path) -> list[tuple]:
    """The rows of the table, sorted."""
    table = deltalake.DeltaTable(str(path)).to_pyarrow_table()
    return sorted(tuple(row[name] for name in ("key", "n", "total")) for row in table.to_pylist())


@first("partition_by", [[], ["key", "day"]], ids=["whole", "partitioned"])
def test_types(spark, feed, tmp_path, partition_by):
    """Every type that Spark and Delta share comes back as it was, also as a partition column."""
    feed.add([("a", 1), (ODD_KEY, 2)])
    feed.add([("", 3)] if not partition_by else [("z", 3)])
    run_to_end(
        feed.frame(spark).selectExpr(ALL_TYPES), tmp_path / "db", DeltaSink(tmp_path / "t", partition_by=partition_by)
    )
    found = deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table().sort_by("b").to_pylist()
    assert [row["key"] for row in found] == [key for key, _ in feed.rows]
    assert found[1] == ROW_OF_ODD_KEY


@first(("mode", "key"), [pytest.param("append", [], id="append"), pytest.param("merge", ["key"], id="merge")])
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
    whole_history(tmp_path / "t")


@pytest.mark.long
def test_a_table_that_somebody_restored(spark, feed, tmp_path):
    """The run is refused and nothing has changed; it goes back on request, and --lose-epochs accepts the loss once."""
    frame, db, path = feed.frame(spark).transform(totals_step()), tmp_path / "db", tmp_path / "t"
    for seed in range(4):
        feed.add_random(seed)
    run_to_end(frame, db, DeltaSink(path), backup_interval="1h")
    table, before = deltalake.DeltaTable(str(path)), states(db, "totals")
    table.restore(table.version() - 2)
    kept = rows(path)
    feed.add_random(4)
    with pytest.raises(OutputMismatchError, match="rows of closed epochs 3 to 4 are no longer in the table") as caught:
        run_to_end(frame, db, DeltaSink(path), backup_interval="1h")
    assert "--resume-after 2" in caught.value.remedy
    assert rows(path) == kept
    assert states(db, "totals") == before
    for name in ("db", "t"):
        shutil.copytree(tmp_path / name, tmp_path / "kept" / name)
    run_to_end(frame, db, DeltaSink(path), resume_epoch=3, backup_interval="1h")
    every = sorted(running_totals(feed.rows))
    assert rows(path) == every
    for name in ("db", "t"):
        shutil.rmtree(tmp_path / name)
        (tmp_path / "kept" / name).rename(tmp_path / name)
    run_to_end(frame, db, DeltaSink(path), lose_epochs=True, backup_interval="1h")
    feed.add_random(5)
    run_to_end(frame, db, DeltaSink(path), backup_interval="1h")
    assert set(kept) < set(rows(path)) < set(running_totals(feed.rows))


@pytest.mark.long
@pytest.mark.parametrize("kills", [pytest.param(each, id=i) for i, each in points("delta").items()])
def test_killed_between_the_steps_of_publishing(feed, tmp_path, kills):
    """After kill -9 at each step of publishing and of going back, each row is in the table once."""
    table = tmp_path / "table"
    flow = f"tests/flows/tables.py:make_delta({str(feed.path)!r}, {str(table)!r})"
    check_kills(feed, tmp_path / "db", flow, kills, lambda: rows(table))


@pytest.mark.long
def test_killed_at_any_moment(feed, tmp_path):
    """Killed KILLS times, of which each fifth run goes back first: each row is in the table once, and Delta's history
    is whole."""
    db, table = tmp_path / "db", tmp_path / "table"
    init_partitions(db, 3)

    def begin(*options):
        flow = f"{ROOT}/tests/flows/tables.py:make_delta({str(feed.path)!r}, {str(table)!r})"
        return recovery_command(flow, db, "-s", "0", "-b", "1h", *options)

    def add(lot):
        for _ in range(8):
            feed.add_random(lot.randrange(10**6), count=40)

    done = kill_at_any_moment(db, begin, add, KILLS)
    assert rows(table) == sorted(running_totals(feed.rows, 40))
    assert states(db, "totals") == feed.totals()
    print(f"{done}, {whole_history(table)} versions, {len(feed.rows)} rows")
