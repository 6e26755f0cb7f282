"""Checkpoints exported to plain Spark and imported from it, and native state looked into: real jobs on both sides."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.fs
import pytest
from click.testing import CliRunner

import recovery
from recovery import RecoveryConfig, init_partitions, start
from recovery.base.clock import SystemClock
from recovery.checkpoint.directories import LocalCheckpoint
from recovery.cli import main
from recovery.errors import SparkCheckpointError
from recovery.operators.exporting import export
from recovery.operators.importing import import_checkpoint
from recovery.storage.store import Store
from tests.backup.emulators import BUCKET, moto
from tests.flows import windows
from tests.renaming import renaming
from tests.spark.support import set_to
from tests.spark.test_output_on_s3 import JARS, s3a_options

FILES = 6
CUT = 2
"""The micro-batch after which somebody else goes on."""
SCRIPT = Path(windows.__file__)


def plain(source: Path, checkpoint: Path, output: Path, *options: str) -> int:
    """The job in a process of its own that cannot import this project; returns its exit code."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, str(SCRIPT), str(source), str(checkpoint), str(output), *options]
    done = subprocess.run(command, env=environment, cwd=source.parent, capture_output=True, text=True, timeout=400)
    assert done.returncode in (0, -9), done.stderr[-3000:]
    return done.returncode


def under_recovery(spark, source: Path, directory: Path, output: Path, store: str, build=windows.build):
    """The same query under recovery, an epoch for every micro-batch; returns its summary."""
    if not directory.exists():
        init_partitions(directory, 3)
    with set_to(spark, windows.STORES[store]):
        query = start(
            build(spark, source),
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


def place(path: Path) -> LocalCheckpoint:
    return LocalCheckpoint(path, lambda: "test")


def known_rows(directory: Path, epoch: int) -> dict[int, int | None]:
    """How many rows each operator has, as reported without Spark."""
    shown = CliRunner().invoke(main, ["checkpoint", "show", str(directory), "--epoch", str(epoch), "--json"])
    return {each["operator"]: each["rows"] for each in json.loads(shown.output)["operators"]}


def later(outputs: dict[int, list], batch: int) -> dict[int, list]:
    """What came after a micro-batch."""
    return {number: rows for number, rows in outputs.items() if number > batch}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The input of a job."""
    directory = tmp_path_factory.mktemp("job") / "input"
    windows.write_events(directory, 0, FILES)
    return directory


@pytest.fixture(scope="module")
def expected(spark, source):
    """What plain Spark gives for it, uninterrupted."""
    found = truth(spark, source, source.parent)
    assert any(later(found, CUT).values())
    return found


def export_and_continue(spark, source, expected, home, store):
    """An epoch in the middle is exported, and plain Spark goes on from it as if nothing had happened."""
    under_recovery(spark, source, home / "db", home / "recovered", store)
    assert windows.outputs(home / "recovered") == expected
    exported = export(Store(home / "db"), place(home / "exported"), epoch=CUT + 1)
    assert (exported.epoch, exported.batch, exported.steps) == (CUT + 1, CUT, ())
    plain(source, home / "exported", home / "continued")
    assert windows.outputs(home / "continued") == later(expected, CUT)


def import_and_continue(spark, source, expected, home, store, kill):
    """A plain job is killed within a micro-batch; recovery goes on after the last that was done."""
    assert plain(source, home / "job", home / "before", "--store", store, "--kill", str(kill)) == -9
    init_partitions(home / "db", 3)
    before = {file: file.read_bytes() for file in (home / "job").rglob("*") if file.is_file()}
    imported = import_checkpoint(place(home / "job"), Store(home / "db"), "windows", clock=SystemClock())
    assert (imported.epoch, imported.batch, imported.begun) == (1, kill - 1, kill)
    assert {file: file.read_bytes() for file in (home / "job").rglob("*") if file.is_file()} == before
    summary = under_recovery(spark, source, home / "db", home / "after", store)
    assert summary.resume_epoch == 2
    assert windows.outputs(home / "after") == later(expected, kill - 1)
    assert windows.outputs(home / "before") | windows.outputs(home / "after") == expected


@pytest.mark.long
def test_plain_spark_continues_from_an_exported_epoch(spark, source, expected, tmp_path):
    """With RocksDB. And the native state of that run can be looked into, at any epoch and between two."""
    export_and_continue(spark, source, expected, tmp_path, "rocksdb")
    directory = tmp_path / "db"
    operators = {(row.operatorId, row.operatorName) for row in recovery.native_operators(spark, directory).collect()}
    assert operators == {(0, "stateStoreSave"), (1, "dedupeWithinWatermark")}
    for epoch in (CUT + 1, CUT + 2):
        for number, rows in known_rows(directory, epoch).items():
            assert rows == recovery.native_state(spark, directory, operator=number, epoch=epoch).count() > 0

    def state(epoch):
        frame = recovery.native_state(spark, directory, operator=0, epoch=epoch)
        assert frame.columns == ["key", "value", "partition_id"]
        return {(str(row.key.window.start), row.key.key): row.value for row in frame.collect()}

    was, now = state(CUT), state(CUT + 2)
    assert was
    assert now
    changes = recovery.native_state(spark, directory, operator=0, epoch=CUT + 2, since=CUT).collect()
    found = {(str(row.key.window.start), row.key.key): (row.change, row.before, row.after) for row in changes}
    assert found == {
        key: ("added" if key not in was else "removed" if key not in now else "changed", was.get(key), now.get(key))
        for key in was.keys() | now.keys()
        if was.get(key) != now.get(key)
    }
    assert {change for change, _, _ in found.values()} >= {"added", "removed"}


@pytest.mark.long
def test_recovery_continues_from_a_plain_job(spark, source, expected, tmp_path):
    """Which was killed within a micro-batch, on the HDFS-backed store."""
    import_and_continue(spark, source, expected, tmp_path, "hdfs", kill=CUT + 1)


@pytest.mark.long
def test_export_with_the_other_store(spark, source, expected, tmp_path):
    """The HDFS-backed one."""
    export_and_continue(spark, source, expected, tmp_path, "hdfs")


@pytest.mark.long
@pytest.mark.parametrize("kill", range(1, 1 + int(os.environ.get("RECOVERY_TEST_CHECKPOINT_KILLS", "4"))))
def test_import_with_the_other_store(spark, source, expected, tmp_path, kill):
    """RocksDB, killed within one micro-batch after the other."""
    import_and_continue(spark, source, expected, tmp_path, "rocksdb", kill)


@pytest.mark.long
@pytest.mark.parametrize("store", ["hdfs", "rocksdb"])
def test_there_and_back_again(spark, tmp_path, store):
    """A job that ended is imported, goes on, is exported, goes on in plain Spark: no row is lost, none comes twice."""
    source, directory = tmp_path / "input", tmp_path / "db"
    expected = [three_more(spark, source, tmp_path, 0)]
    assert plain(source, tmp_path / "job", tmp_path / "output", "--store", store) == 0
    init_partitions(directory, 2)
    import_checkpoint(place(tmp_path / "job"), Store(directory), "windows", clock=SystemClock())
    expected.append(three_more(spark, source, tmp_path, 3))
    under_recovery(spark, source, directory, tmp_path / "output", store)
    export(Store(directory), place(tmp_path / "exported"))
    expected.append(three_more(spark, source, tmp_path, 6))
    assert plain(source, tmp_path / "exported", tmp_path / "output", "--store", store) == 0
    assert windows.outputs(tmp_path / "output") == expected[-1]
    assert len(expected[0]) < len(expected[1]) < len(expected[2])


def three_more(spark, source, home, first):
    """Three more files, and what plain Spark has given for all so far: it ended after each three as well."""
    windows.write_events(source, first, 3)
    return truth(spark, source, home)


@pytest.mark.long
def test_state_variables_and_the_commands(spark, tmp_path):
    """transformWithState notes where its schemas lie: it goes on although every place it was at before is gone. Keys
    and values are shown, from Python and from the command line."""
    pytest.importorskip("google.protobuf", reason="transformWithState in Python needs it")
    source, directory = tmp_path / "input", tmp_path / "db"
    windows.write_events(source, 0, 6)
    options = ("--store", "rocksdb", "--query", "variables")
    assert plain(source, tmp_path / "job", tmp_path / "output", *options, "--kill", "2") == -9
    init_partitions(directory, 2)
    import_checkpoint(place(tmp_path / "job"), Store(directory), "windows", clock=SystemClock())
    shutil.rmtree(tmp_path / "job")
    under_recovery(spark, source, directory, tmp_path / "output", "rocksdb", windows.build_variables)
    export(Store(directory), place(tmp_path / "exported"), epoch=3)
    numbers = recovery.native_state(spark, directory, variable="count", epoch=3)
    counts = {row.key.key: row.value.n for row in numbers.collect()}
    elements = recovery.native_state(spark, directory, variable="values", epoch=3)
    assert sum(counts.values()) == elements.count() == 4 * 40
    changes = recovery.native_state(spark, directory, variable="values", epoch=3, since=2).collect()
    assert {row.key.key for row in changes} <= set(counts)
    assert all(len(row.after) > len(row.before or []) for row in changes)
    shown = command("checkpoint", "show", directory, "--operator", 0, "--variable", "count", "--epoch", 3, "--json")
    assert {row["key"]["key"]: row["value"]["n"] for row in shown["rows"]} == counts
    key = min(counts)
    got = command("state", "get", directory, "--operator", 0, "--variable", "count", "--epoch", 3, "--key", key)
    assert got == {"n": counts[key]}
    known = windows.outputs(tmp_path / "output")
    shutil.rmtree(directory)
    assert plain(source, tmp_path / "exported", tmp_path / "again", *options) == 0
    assert windows.outputs(tmp_path / "again") == later(known, 3)
    assert len(known) == 6


@pytest.mark.long
def test_the_stores_of_a_join(spark, tmp_path):
    """Each side's waiting rows, each store by its name, and what changed in a side; one must be named."""
    source, directory = tmp_path / "input", tmp_path / "db"
    windows.write_events(source, 0, 3)
    under_recovery(spark, source, directory, tmp_path / "output", "hdfs", windows.build_join)

    def state(store, **options):
        return recovery.native_state(spark, directory, store=store, **options)

    left = state("left", epoch=2)
    assert left.select("value.*").columns == ["left_key", "left_at", "left_value"]
    rows = {
        (row.key.field0, row.key["index"]): row.value for row in state("left-keyWithIndexToValue", epoch=2).collect()
    }
    assert len(rows) == left.count() > 0
    numbers = {row.key.field0: row.value.value for row in state("left-keyToNumValues", epoch=2).collect()}
    assert numbers == Counter(key for key, _ in rows)
    before = {
        (row.key.field0, row.key["index"]): row.value for row in state("left-keyWithIndexToValue", epoch=1).collect()
    }
    changes = {(row.key.field0, row.key["index"]): row for row in state("left", epoch=2, since=1).collect()}
    assert changes.keys() == {key for key in rows.keys() | before.keys() if rows.get(key) != before.get(key)}
    assert {row.change for row in changes.values()} >= {"added"}
    with pytest.raises(recovery.ConfigurationError, match="several stores"):
        recovery.native_state(spark, directory)


def command(*arguments):
    """What a command prints as JSON, in a process of its own."""
    line = [sys.executable, "-m", "recovery", *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_files_that_are_renamed_while_they_are_listed(spark, tmp_path):
    """As Spark finishes its logs. Hadoop asks for the permissions of a file after it has listed it."""
    from recovery.hadoop.checkpoint import HadoopCheckpoint

    place = HadoopCheckpoint(spark, f"file:{tmp_path}/made here", lambda: "test")
    assert place.sizes() == {}
    (tmp_path / "made here" / "offsets").mkdir(parents=True)
    (tmp_path / "made here" / "offsets" / "0").write_text("zero")
    with renaming(tmp_path / "made here" / "offsets"):
        for _ in range(200):
            assert place.sizes()["offsets/0"] == 4


@pytest.mark.long
@pytest.mark.skipif(not JARS, reason="no jars of S3A: mvn -f .ci/s3a/pom.xml, as .ci/run does")
def test_an_object_store(tmp_path):
    """By the commands: exported to S3 and imported from there; what is there is not written over."""
    from tests.operators.support import held, job, write_job

    write_job(tmp_path / "job", batch=3)
    for name in ("db", "again"):
        init_partitions(tmp_path / name, 2)
    command("checkpoint", "import", tmp_path / "job", tmp_path / "db", "--flow", "windows", "--json")
    with moto() as server:
        there, conf = f"s3a://{BUCKET}/made here/exported", s3a_options(server)
        command("checkpoint", "export", tmp_path / "db", there, "--json", *conf)
        listed = server.filesystem.get_file_info(pyarrow.fs.FileSelector(BUCKET, recursive=True))
        names = [each.path for each in listed if each.is_file]
        assert names
        assert all(name.startswith(f"{BUCKET}/made here/exported/") for name in names), names
        imported = command("checkpoint", "import", there, tmp_path / "again", "--flow", "windows", "--json", *conf)
        assert imported["from"] == there
        refused = [sys.executable, "-m", "recovery", "checkpoint", "export", str(tmp_path / "db"), there, *conf]
        done = subprocess.run(refused, capture_output=True, text=True, timeout=180)
        assert (done.returncode, "not empty" in done.stderr) == (11, True), done.stderr
    command("checkpoint", "export", tmp_path / "again", tmp_path / "back", "--json")
    assert held(tmp_path / "back") == job(3)


def test_another_file_system(spark, tmp_path):
    """A checkpoint is exported to a URI and imported from it, through Hadoop: what is there afterwards is the same."""
    from recovery.hadoop.checkpoint import HadoopCheckpoint
    from tests.operators.support import held, job, write_job

    write_job(tmp_path / "job", batch=3)
    init_partitions(tmp_path / "db", 2)
    there = HadoopCheckpoint(spark, (tmp_path / "job").as_uri(), lambda: "test")
    assert import_checkpoint(there, Store(tmp_path / "db"), "windows", clock=SystemClock()).batch == 3
    target = HadoopCheckpoint(spark, f"file:{tmp_path}/made here/exported", lambda: "test")
    export(Store(tmp_path / "db"), target)
    assert held(tmp_path / "made here" / "exported") == job(3)
    with pytest.raises(recovery.ConfigurationError, match="not empty"):
        export(Store(tmp_path / "db"), target)
    init_partitions(tmp_path / "mounted", 2)
    with set_to(spark, {"fs.viewfs.mounttable.cluster.link./jobs": f"file://{tmp_path}"}):
        viewed = HadoopCheckpoint(spark, "viewfs://cluster/jobs/job", lambda: "test")
        assert import_checkpoint(viewed, Store(tmp_path / "mounted"), "windows", clock=SystemClock()).batch == 3
        export(Store(tmp_path / "mounted"), HadoopCheckpoint(spark, "viewfs://cluster/jobs/again", lambda: "test"))
    assert held(tmp_path / "again") == job(3)

    def fail(event):
        if event.what == "copying":
            raise OSError(28, "No space left on device")

    there = HadoopCheckpoint(spark, f"file:{tmp_path}/made here/other", lambda: "test")
    with pytest.raises(recovery.StorageError, match="No space"):
        export(Store(tmp_path / "db"), there, observe=fail)
    assert [path.name for path in (tmp_path / "made here").iterdir()] == ["exported"]
    with pytest.raises(recovery.StorageError, match="nowhere"):
        HadoopCheckpoint(spark, "nowhere://host/path", lambda: "test")
    empty = HadoopCheckpoint(spark, (tmp_path / "nothing").as_uri(), lambda: "test")
    init_partitions(tmp_path / "fresh", 2)
    with pytest.raises(SparkCheckpointError, match="nothing"):
        import_checkpoint(empty, Store(tmp_path / "fresh"), "windows", clock=SystemClock())
