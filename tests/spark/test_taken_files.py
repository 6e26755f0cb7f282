"""Real Spark runs whose files are taken away: they end with an error that names the file, and what is shown is what the
files hold."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from recovery import FileReplacedError, FileSink, RecoveryConfig, init_partitions, start
from recovery.spark.run.reporting.events import BatchDone, EpochClosed
from recovery.storage.lock import LOCK_NAME
from tests.shares import some
from tests.spark.support import run_to_end, states, totals_step
from tests.stores import problems, window


def move_partition(db: Path) -> Path:
    """It can be put back."""
    (db / "part-1.sqlite3").rename(db.parent / "moved")
    return db / "part-1.sqlite3"


def copy_directory(db: Path) -> Path:
    """`mv db db.old; cp -a db.old db`."""
    db.rename(db.with_name("db.old"))
    shutil.copytree(db.with_name("db.old"), db)
    return db


def remove_lock(db: Path) -> Path:
    """Another run could take one of the same name."""
    (db / LOCK_NAME).unlink()
    return db / LOCK_NAME


def remove_delta(db: Path) -> Path:
    """What micro-batches have touched since the last epoch."""
    first, *_ = sorted(db.glob("scratch/*/*-0.delta"))
    first.unlink()
    return first


def remove_scratch(db: Path) -> Path:
    """All of it, with Spark's checkpoint: whatever fails first, this is reported."""
    [scratch] = db.glob("scratch/ex-*")
    shutil.rmtree(scratch)
    return scratch


def outputs(rows, batch_rows: int) -> list[tuple[str, int, int]]:
    """What an uninterrupted run puts out: a row per key and micro-batch."""
    found, totals = [], {}
    for start_at in range(0, len(rows), batch_rows):
        batch = rows[start_at : start_at + batch_rows]
        for key, value in batch:
            count, total = totals.get(key, (0, 0))
            totals[key] = count + 1, total + value
        found += [(key, *totals[key]) for key in {key for key, _ in batch}]
    return found


@pytest.mark.parametrize(
    "take",
    some([move_partition, copy_directory, remove_lock, remove_delta, remove_scratch], move_partition),
)
def test_no_epoch_counts_after_a_file_was_taken_away(spark, feed, tmp_path, take):
    """Neither in the run's summary nor in an exactly-once sink nor in the files; and the next run is exact."""
    db = tmp_path / "db"
    for seed in range(6):
        feed.add_random(seed, count=40)
    init_partitions(db, 2)
    closed, taken = [], []

    def observe(event):
        if isinstance(event, EpochClosed):
            closed.append(event.epoch)
        if isinstance(event, BatchDone) and event.batch == 2:
            taken.append((take(db), len(closed)))

    query = start(
        feed.frame(spark).transform(totals_step()),
        RecoveryConfig(db, snapshot_interval=0),
        sink=FileSink(tmp_path / "out"),
        name="test",
        trigger="available-now",
        observer=observe,
    )
    with pytest.raises(FileReplacedError) as raised:
        query.await_termination()
    [(named, closed_before)] = taken
    assert raised.value.path == str(named)
    assert len(closed) <= closed_before + 1
    if take is move_partition:
        (tmp_path / "moved").rename(db / "part-1.sqlite3")
    assert window(db)[-1] == query.summary.last_epoch == len(closed)
    run_to_end(feed.frame(spark).transform(totals_step()), db, FileSink(tmp_path / "out"))
    assert states(db, "totals") == feed.totals()
    assert problems(db) == []
    shown = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(tuple(row) for row in shown) == sorted(outputs(feed.rows, 40))


@pytest.mark.long
def test_an_idle_run_notices_too(spark, feed, tmp_path):
    """Nobody waits for the next micro-batch to say so."""
    feed.add_random(1, count=20)
    init_partitions(tmp_path / "db", 2)
    config = RecoveryConfig(tmp_path / "db", snapshot_interval=0)
    query = start(feed.frame(spark).transform(totals_step()), config, name="test", trigger="100ms")
    deadline = time.monotonic() + 60
    while not query.summary.last_epoch and time.monotonic() < deadline:
        time.sleep(0.05)
    (tmp_path / "db" / "part-1.sqlite3").unlink()
    with pytest.raises(FileReplacedError, match="removed or moved away") as raised:
        query.await_termination(60)
    assert raised.value.path == str(tmp_path / "db" / "part-1.sqlite3")
