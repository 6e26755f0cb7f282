"""An output directory in an object store: kills and failures at every request. Nothing here starts Spark."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from recovery import ConfigurationError, FileSink, OutputLostError
from recovery.errors import SinkFailedError
from recovery.hadoop.reports import reported
from recovery.sinks import hadoop_disk
from tests.shares import some
from tests.sinks.memory_disk import Killed
from tests.sinks.object_store import StoreDisk
from tests.sinks.support import OUT, Run, Store, visible
from tests.sinks.test_output import RESUMES, is_exact, story

KINDS = pytest.mark.parametrize("torn", [False, True], ids=["s3", "hdfs"])


def lived(torn: bool) -> tuple[Store, StoreDisk]:
    """An output with a past: a run, a rewind, and another run."""
    store, disk = Store(), StoreDisk(torn)
    story(store, disk)
    again = disk.restarted()
    story(store, again, resume_epoch=2)
    return store, again.restarted()


@KINDS
@pytest.mark.parametrize("name", some(RESUMES, "goes back"))
def test_killed_at_every_request(name, torn):
    """And once more at some request of the run that follows: after the next one all is exact."""
    store, disk = lived(torn)
    story(store, disk, RESUMES[name])
    for kill_at in range(1, disk.store.operations + 1):
        store, disk = lived(torn)
        disk.store.kill_at = kill_at
        with pytest.raises(Killed):
            story(store, disk, RESUMES[name])
        disk = disk.restarted()
        disk.store.kill_at = random.Random(kill_at).randrange(1, 40)
        with contextlib.suppress(Killed):
            Run(store, disk)
        disk = disk.restarted()
        Run(store, disk)
        is_exact(store, disk)
        story(store, disk.restarted())


@KINDS
@pytest.mark.parametrize("lasting", some([False, True], False), ids=["once", "lasting"])
def test_every_request_fails(lasting, torn):
    """A failed request is a SinkFailedError, and the next run is exact."""
    store, disk = lived(torn)
    story(store, disk)
    for fail_at in range(1, disk.store.operations + 1):
        store, disk = lived(torn)
        disk.store.fail_at, disk.store.fail_from = (0, fail_at) if lasting else (fail_at, 0)
        with contextlib.suppress(SinkFailedError):
            story(store, disk)
        disk = disk.restarted()
        Run(store, disk)
        is_exact(store, disk)


@KINDS
def test_the_manifest_stays_few_objects(torn, monkeypatch):
    """Each epoch is added without writing the others again, and a kill at any request of it loses and
    repeats nothing."""
    fold = 4
    monkeypatch.setattr(hadoop_disk, "FOLD", fold)
    store, disk = Store(), StoreDisk(torn)
    run = Run(store, disk)
    for batch in range(fold * 3 - 1):
        run.write(batch, files=1)
        run.close(batch)
    hidden = OUT / "_recovery"
    assert len(disk.text(hidden)) < fold + 8
    is_exact(store, disk)
    before = disk.store.operations
    objects = dict(disk.store.objects)
    run.write(fold * 3 - 1, files=1)
    run.close(fold * 3 - 1)
    requests = disk.store.operations - before
    assert requests > fold
    for kill_at in range(1, requests + 1):
        store.closed = store.closed[: fold * 3 - 1]
        again = StoreDisk(torn)
        again.store.objects = dict(objects)
        resumed = Run(store, again)
        again.store.operations, again.store.kill_at = 0, kill_at
        with contextlib.suppress(Killed):
            resumed.write(fold * 3 - 1, files=1)
            resumed.close(fold * 3 - 1)
        again = again.restarted()
        Run(store, again)
        is_exact(store, again)


def test_what_is_appended_keeps_its_order_and_its_cost(monkeypatch):
    """However much was appended before, by this process or by others: few objects hold it, and an append costs as many
    requests."""
    monkeypatch.setattr(hadoop_disk, "FOLD", 4)
    disk, path = StoreDisk(), OUT / "_recovery" / "manifest.jsonl"
    disk.replace(path, b"")
    costs, lines = list[int](), list[bytes]()
    for number in range(200):
        if number % 50 == 49:
            disk = disk.restarted()
        lines.append(b"%d\n" % number)
        before = disk.store.operations
        disk.append(path, lines[-1])
        costs.append(disk.store.operations - before)
        assert len(disk.text(path.parent)) <= 4 * 4
    assert disk.read(path) == b"".join(lines)
    assert max(costs[64:]) <= max(costs[:64])
    assert sum(costs) <= 10 * len(costs)


@KINDS
def test_a_replaced_file_is_the_old_or_the_new(torn):
    """At any request: a reader finds one of the two, whole."""
    path = Path("/out/owner.json")
    for kill_at in range(1, 20):
        disk = StoreDisk(torn)
        disk.replace(path, b"old")
        disk.store.operations, disk.store.kill_at = 0, kill_at
        with contextlib.suppress(Killed):
            disk.replace(path, b"new content")
        disk = disk.restarted()
        assert disk.read(path) in (b"old", b"new content")
        disk.replace(path, b"third")
        assert disk.restarted().read(path) == b"third"


@pytest.mark.parametrize("found", [None, b"short"], ids=["missing", "cut off"])
def test_a_file_that_a_task_reported_is_there_or_the_run_ends(found):
    """An error names the file, the task's host and the way out; nothing of the micro-batch is published."""
    disk = StoreDisk()
    run = Run(Store(), disk)
    directory = run.output.staging(run.lease.id, 0)
    disk.put(directory / "part-00000-a-c000.json", b"a record\n")
    if found is not None:
        disk.put(directory / "part-00001-b-c000.json", found)
    reported = {"part-00000-a-c000.json": 9, "part-00001-b-c000.json": 12}
    with pytest.raises(OutputLostError, match=r"host h2 wrote part-00001-b-c000\.json with 12 bytes.*") as error:
        run.output.stage(0, directory, reported, lambda *_: False, lambda _: "h2")
    assert "file:///mnt" in str(error.value)
    assert error.value.exit_code == 49
    run.close(0)
    assert visible(disk) == []


def test_reports_of_tasks():
    """Paths and sizes as Spark writes them, and an error for anything else."""
    line = b'{"path":"s3a://b/a%20b/part-00000-x-c000.json","size":12,"isDir":false,"action":"add"}'
    assert reported([None, b"v1\n" + line], "out") == {"s3a://b/a b/part-00000-x-c000.json": 12}
    assert reported([b"v1", None], "out") == {}
    with pytest.raises(ValueError):
        reported([b"v2\n" + line], "out")
    with pytest.raises(OutputLostError, match="report of its tasks is missing"):
        reported([None, None], "out")


def test_addresses():
    """What each names, and that nothing is reached before a run or a reader needs it."""
    assert FileSink("s3a://bucket/out/").path == "s3a://bucket/out"
    assert FileSink("hdfs:///out").path == "hdfs:///out"
    assert FileSink("abfs://box@account.dfs.core.windows.net/out").shared
    assert FileSink("file:///mnt/share/out").path == Path("/mnt/share/out")
    assert FileSink("file:///mnt/share/out").shared
    assert not FileSink("out").shared


@pytest.mark.parametrize("text", ["", "s3a:///out", "file://host/out", "file:///", "s3a:/b", "s3a://b/x?k=v"])
def test_addresses_that_are_not_whole(text):
    with pytest.raises(ConfigurationError):
        FileSink(text)


def test_no_password_in_an_address():
    """It would be in logs and in the partitions."""
    with pytest.raises(ConfigurationError) as error:
        FileSink("s3a://key:topsecret@bucket/out")
    assert "topsecret" not in str(error.value)
