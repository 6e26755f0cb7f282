"""Checkpoints exported to plain Spark and imported from it, and native state looked into: real jobs on both sides."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import recovery
from recovery import RecoveryConfig, init_partitions, start
from recovery.checkpoint.places import LocalPlace
from recovery.clock import SystemClock
from recovery.errors import SparkCheckpointError
from recovery.native.exporting import export
from recovery.native.importing import import_checkpoint
from tests.flows import windows

FILES = 8
SCRIPT = Path(windows.__file__)


@contextlib.contextmanager
def settings(spark, store):
    """The session with a state store of this kind."""
    wanted = windows.STORES[store]
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in wanted:
            spark.conf.unset(key)


def plain(source: Path, checkpoint: Path, output: Path, *options: str) -> int:
    """The job in a process of its own that cannot import this project; returns its exit code."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, str(SCRIPT), str(source), str(checkpoint), str(output), *options]
    done = subprocess.run(command, env=environment, cwd=source.parent, capture_output=True, text=True, timeout=180)
    assert done.returncode in (0, -9), done.stderr[-3000:]
    return done.returncode


def under_recovery(spark, source: Path, directory: Path, output: Path, store: str = "hdfs"):
    """The same query under recovery, an epoch for every micro-batch; returns its summary."""
    if not directory.exists():
        init_partitions(directory, 3)
    with settings(spark, store):
        query = start(
            windows.build(spark, source),
            RecoveryConfig(directory, snapshot_interval=0, backup_interval="1h"),
            sink=windows.writer(output),
            name="windows",
            trigger="available-now",
        )
        query.await_termination()
    return query.summary


def truth(spark, source: Path, home: Path) -> dict[int, list]:
    """What the query gives when nothing interrupts it: plain Spark, in the tests' session."""
    query = windows.build(spark, source).writeStream.foreachBatch(windows.writer(home / "truth"))
    query.option("checkpointLocation", str(home / "truth-checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    return windows.outputs(home / "truth")


def place(path: Path) -> LocalPlace:
    return LocalPlace(path, lambda: "test")


def later(outputs: dict[int, list], batch: int) -> dict[int, list]:
    """What came after a micro-batch."""
    return {number: rows for number, rows in outputs.items() if number > batch}


def export_and_continue(spark, tmp_path, store):
    """An epoch in the middle is exported, and plain Spark goes on from it as if nothing had happened."""
    source, directory = tmp_path / "input", tmp_path / "db"
    windows.write_events(source, 0, FILES)
    expected = truth(spark, source, tmp_path)
    under_recovery(spark, source, directory, tmp_path / "recovered", store)
    assert windows.outputs(tmp_path / "recovered") == expected
    exported = export(directory, place(tmp_path / "exported"), epoch=4)
    assert (exported.epoch, exported.batch, exported.steps) == (4, 3, ())
    plain(source, tmp_path / "exported", tmp_path / "continued")
    assert windows.outputs(tmp_path / "continued") == later(expected, 3)
    assert any(later(expected, 3).values())
    return directory


def import_and_continue(spark, tmp_path, store, kill):
    """A plain job is killed within a micro-batch, or ends; recovery goes on after the last that was done."""
    source, directory = tmp_path / "input", tmp_path / "db"
    windows.write_events(source, 0, FILES)
    expected = truth(spark, source, tmp_path)
    assert plain(source, tmp_path / "job", tmp_path / "before", "--store", store, "--kill", str(kill)) == -9
    init_partitions(directory, 3)
    before = {file: file.read_bytes() for file in (tmp_path / "job").rglob("*") if file.is_file()}
    imported = import_checkpoint(place(tmp_path / "job"), directory, "windows", clock=SystemClock())
    assert (imported.epoch, imported.batch, imported.begun) == (1, kill - 1, kill)
    assert {file: file.read_bytes() for file in (tmp_path / "job").rglob("*") if file.is_file()} == before
    summary = under_recovery(spark, source, directory, tmp_path / "after", store)
    assert summary.resume_epoch == 2
    assert windows.outputs(tmp_path / "after") == later(expected, kill - 1)
    assert windows.outputs(tmp_path / "before") | windows.outputs(tmp_path / "after") == expected


def test_plain_spark_goes_on_from_an_exported_epoch(spark, tmp_path):
    """With RocksDB; then the native state of that run is looked into."""
    directory = export_and_continue(spark, tmp_path, "rocksdb")
    operators = {(row.operatorId, row.operatorName) for row in recovery.native_operators(spark, directory).collect()}
    assert operators == {(0, "stateStoreSave"), (1, "dedupeWithinWatermark")}
    newest = recovery.native_state(spark, directory, operator=0)
    assert newest.columns == ["key", "value", "partition_id"]
    older = recovery.native_state(spark, directory, operator=0, epoch=3)
    was = {(str(row.key.window.start), row.key.key): row.value for row in older.collect()}
    now = {
        (str(row.key.window.start), row.key.key): row.value
        for row in recovery.native_state(spark, directory, operator=0, epoch=4).collect()
    }
    assert was
    assert now
    changes = recovery.native_state(spark, directory, operator=0, epoch=4, since=3).collect()
    found = {(str(row.key.window.start), row.key.key): (row.change, row.before, row.after) for row in changes}
    assert found == {
        key: ("added" if key not in was else "removed" if key not in now else "changed", was.get(key), now.get(key))
        for key in was.keys() | now.keys()
        if was.get(key) != now.get(key)
    }
    first = recovery.native_state(spark, directory, operator=0, epoch=1, since=0).collect()
    assert {row.change for row in first} == {"added"}


def test_recovery_goes_on_from_a_plain_job(spark, tmp_path):
    """Which was killed within a micro-batch, on the HDFS-backed store."""
    import_and_continue(spark, tmp_path, "hdfs", kill=4)


@pytest.mark.long
@pytest.mark.parametrize("store", ["hdfs", "rocksdb"])
def test_both_ways_with_both_stores(spark, tmp_path, store):
    """Export and import, with each kind of state store."""
    export_and_continue(spark, tmp_path / "export", store)
    for kill in (1, 6):
        import_and_continue(spark, tmp_path / f"import-{kill}", store, kill)


@pytest.mark.long
@pytest.mark.parametrize("store", ["hdfs", "rocksdb"])
def test_there_and_back_again(spark, tmp_path, store):
    """A job that ended is imported, goes on, is exported, goes on in plain Spark: no row is lost, none comes twice."""
    source, directory = tmp_path / "input", tmp_path / "db"
    windows.write_events(source, 0, 3)
    assert plain(source, tmp_path / "job", tmp_path / "plain", "--store", store) == 0
    init_partitions(directory, 2)
    import_checkpoint(place(tmp_path / "job"), directory, "windows", clock=SystemClock())
    windows.write_events(source, 3, 3)
    under_recovery(spark, source, directory, tmp_path / "recovered", store)
    export(directory, place(tmp_path / "exported"))
    windows.write_events(source, 6, 3)
    assert plain(source, tmp_path / "exported", tmp_path / "again", "--store", store) == 0
    found = [
        row
        for name in ("plain", "recovered", "again")
        for rows in windows.outputs(tmp_path / name).values()
        for row in rows
    ]
    expected = [row for rows in truth(spark, source, tmp_path).values() for row in rows]
    assert sorted(found) == sorted(expected)
    assert found


def test_another_file_system(spark, tmp_path):
    """A checkpoint is exported to a URI and imported from it, through Hadoop: what is there afterwards is the same."""
    from recovery.spark.hadoop import HadoopPlace
    from tests.native.support import held, job, write_job

    write_job(tmp_path / "job", batch=3)
    init_partitions(tmp_path / "db", 2)
    there = HadoopPlace(spark, (tmp_path / "job").as_uri(), lambda: "test")
    assert import_checkpoint(there, tmp_path / "db", "windows", clock=SystemClock()).batch == 3
    target = HadoopPlace(spark, (tmp_path / "made here" / "exported").as_uri().replace("%20", " "), lambda: "test")
    export(tmp_path / "db", target)
    assert held(tmp_path / "made here" / "exported") == job(3)
    with pytest.raises(recovery.ConfigurationError, match="not empty"):
        export(tmp_path / "db", target)
    assert [path.name for path in (tmp_path / "made here").iterdir()] == ["exported"]
    with pytest.raises(recovery.StorageError, match="nowhere"):
        HadoopPlace(spark, "nowhere://host/path", lambda: "test")
    empty = HadoopPlace(spark, (tmp_path / "nothing").as_uri(), lambda: "test")
    init_partitions(tmp_path / "fresh", 2)
    with pytest.raises(SparkCheckpointError, match="nothing"):
        import_checkpoint(empty, tmp_path / "fresh", "windows", clock=SystemClock())
