"""Forks: an independent store of the same history, made while a run goes on, whole or not at all."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery import fork
from recovery.backup.fork import plan_fork
from recovery.cli import main
from recovery.errors import (
    AlreadyInitializedError,
    ConfigurationError,
    DirectoryLockedError,
    EpochNotHeldError,
    ForeignPartitionError,
    StorageError,
)
from recovery.host.new_directory import new_directory
from recovery.planning.resume import plan_resume
from recovery.storage.origin import read_origins
from recovery.storage.scan import scan
from tests.backup.support import assert_sound, states, work
from tests.backup.writer import state_of, wait_until_closed, writing
from tests.forks import Forked
from tests.stores import ROOT, STEP, Driver, alter, paths_of, problems, state_at

CLONING = os.environ.get("RECOVERY_TEST_CLONING_DIRECTORY")
"""A directory on a file system that clones files, such as btrfs or XFS."""


def contents(directory):
    """All files, byte by byte, but what a reader leaves beside them: the index of a log, and a log without content."""
    found = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    return {name: content for name, content in found.items() if content and not name.endswith("-shm")}


def up_to(directory, epoch):
    """The held epochs up to one, with their states."""
    return {each: state for each, state in states(directory).items() if each <= epoch}


@pytest.fixture
def store(make_store):
    """Three partitions with four epochs."""
    return make_store(3, work, 4)


@pytest.mark.parametrize("epoch", [None, 4, 2, 0])
def test_a_fork_holds_every_epoch_up_to_its_own(store, tmp_path, epoch):
    """With an id of its own, and the origin recorded; nothing of the origin changes, and both go on."""
    before = contents(store)
    made = fork(store, tmp_path / "new", epoch)
    assert contents(store) == before
    newest = 4 if epoch is None else epoch
    assert_sound(tmp_path / "new")
    assert states(tmp_path / "new") == up_to(store, newest)
    planned = plan_resume(scan(tmp_path / "new"))
    assert planned.resume_epoch == newest + 1
    [origin] = read_origins(tmp_path / "new")
    old = plan_resume(scan(store)).store_id
    assert (origin.how, origin.store_id, origin.epoch, origin.partitions) == ("fork", old, newest, 3)
    assert origin.directory == str(store)
    assert planned.store_id == made.store_id != old
    for directory in (store, tmp_path / "new"):
        work(directory, 2)
        assert problems(directory) == []
    assert read_origins(store) == ()


@settings(max_examples=8)
@given(seed=st.integers(0, 10**9))
def test_random_histories(store_maker, seed):
    """Over logged and folded epochs, collection, rewinds, and forks of forks."""
    generator = random.Random(seed)
    directory = store_maker(generator.randrange(1, 4))
    with tempfile.TemporaryDirectory() as name:
        for number in range(2):
            logged = generator.random() < 0.5
            window = plan_resume(scan(directory)).window
            back = generator.choice(window) + 1
            with Driver(directory, resume_epoch=back) as run:
                for _ in range(generator.randrange(1, 5)):
                    keys = generator.sample("abcdefgh", 3)
                    run.apply(run.epoch, {key: generator.choice([None, f'"{seed % 97}{run.epoch}"']) for key in keys})
                    run.close(run.epoch, logged=logged, floor=generator.choice([0, max(0, run.epoch - 2)]))
            window = plan_resume(scan(directory)).window
            chosen = generator.choice([None, *window])
            target = Path(name) / str(number)
            fork(directory, target, chosen)
            assert states(target) == up_to(directory, window[-1] if chosen is None else chosen)
            assert problems(target) == []
            directory = target
        assert len(read_origins(directory)) == 2


@pytest.mark.parametrize(
    "root",
    [None, pytest.param(CLONING, marks=pytest.mark.skipif(not CLONING, reason="no file system that clones is named"))],
    ids=["copied", "cloned"],
)
def test_while_a_run_writes(make_store, tmp_path, root):
    """Each fork is of one epoch of all partitions."""
    store = make_store(2) if root is None else Path(tempfile.mkdtemp(dir=root)) / "store"
    if root is not None:
        shutil.copytree(make_store(2), store)
    place = tmp_path if root is None else store.parent
    try:
        with writing(store) as process:
            for number in range(5):
                wait_until_closed(process, 3)
                made = fork(store, place / str(number))
                assert made.cloned == (0 if root is None else 2)
                assert state_at(place / str(number), made.origin.epoch) == state_of(made.origin.epoch)
                assert problems(place / str(number)) == []
    finally:
        if root is not None:
            shutil.rmtree(store.parent)


def test_a_log_that_a_killed_run_left(make_store, tmp_path):
    """It belongs to the file, and stays where it is."""
    store = make_store(3)
    with writing(store, 0.001) as process:
        wait_until_closed(process, 20)
    process.wait()
    before = contents(store)
    made = fork(store, tmp_path / "new")
    assert_sound(tmp_path / "new")
    assert state_at(tmp_path / "new", made.origin.epoch) == state_of(made.origin.epoch)
    assert contents(store) == before


def test_files_of_the_origin_are_named(store, tmp_path):
    """A file that is put back from a backup of the origin is refused as that."""
    fork(store, tmp_path / "new")
    shutil.copy(store / "part-1.sqlite3", tmp_path / "new")
    with pytest.raises(ForeignPartitionError, match="the store that this one was forked from"):
        plan_resume(scan(tmp_path / "new"))


def test_what_is_refused(store, tmp_path):
    """With nothing written."""
    with pytest.raises(EpochNotHeldError):
        fork(store, tmp_path / "new", 9)
    with pytest.raises(ConfigurationError):
        fork(store, tmp_path / "new", -1)
    with pytest.raises(ConfigurationError, match="lies within"):
        fork(store, store / "new")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(StorageError, match=r"it holds notes\.txt"):
        fork(store, tmp_path / "other")
    with pytest.raises(StorageError):
        fork(store, tmp_path / "other" / "notes.txt")
    with pytest.raises(AlreadyInitializedError):
        fork(store, store)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="link"):
        fork(store, tmp_path / "link")
    with new_directory(tmp_path / "new", "fork"), pytest.raises(DirectoryLockedError):
        fork(store, tmp_path / "new")
    (store / "part-1.sqlite3").unlink()
    with pytest.raises(Exception, match=r"part-1.sqlite3 of 3 partitions missing"):
        fork(store, tmp_path / "deep" / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "new", "other"]


def test_an_empty_directory_and_missing_parents(store, tmp_path):
    """Both become the new store; its files are as readable as the origin's."""
    (tmp_path / "empty").mkdir()
    (store / "part-0.sqlite3").chmod(0o640)
    umask = os.umask(0o022)
    try:
        for target in (tmp_path / "empty", tmp_path / "a" / "b"):
            fork(store, target)
            assert {path.stat().st_mode & 0o777 for path in paths_of(target)} == {0o640}
            assert target.stat().st_mode & 0o777 == 0o750
    finally:
        os.umask(umask)


def test_an_error_leaves_nothing(store, tmp_path):
    """Damage that the copy shows."""
    alter(store / "part-2.sqlite3", "UPDATE parts SET flow_id = 'other'")
    with pytest.raises(Exception, match="digest"):
        fork(store, tmp_path / "a" / "new")
    assert list(tmp_path.iterdir()) == []


def test_the_command(store, tmp_path):
    """Dry run, text, JSON and exit codes."""

    def call(*words):
        done = CliRunner().invoke(main, ["fork", str(store), *map(str, words)])
        return done.exit_code, done.stdout, done.stderr

    code, text, _ = call(tmp_path / "new", "--dry-run", "--epoch", 3)
    assert code == 0
    assert "would fork store" in text
    assert "after epoch 3, closed" in text
    assert json.loads(call(tmp_path / "new", "--dry-run", "--json")[1])["epoch"] == 4
    assert not (tmp_path / "new").exists()
    code, text, progress = call(tmp_path / "new", "--epoch", 3)
    assert code == 0
    assert "after epoch 3 as store" in text
    assert progress.count("copied") + progress.count("cloned") == 3
    made = json.loads(call(tmp_path / "other", "--json")[1])
    assert (made["origin"]["epoch"], made["resume_epoch"], made["partitions"]) == (4, 5, 3)
    assert call(tmp_path / "new")[0] == AlreadyInitializedError.exit_code
    assert call(tmp_path / "third", "--epoch", 9)[0] == EpochNotHeldError.exit_code
    assert plan_fork(scan(tmp_path / "other"), tmp_path / "other", tmp_path / "third").resume_epoch == 5


KILLED = """
import sys
from pathlib import Path
import recovery.backup.fork as module
from recovery.backup.fork import fork
from tests.syscalls import killed_at

# One thread is traced.
module.each = lambda work, items, **_: [work(item) for item in items]
source, root, first, step = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
number, twice = first, 0
while killed_at(lambda: fork(source, root / "new", 2), number, changes=True):
    there = (root / "new").exists()
    if there:
        print("whole", flush=True)
    elif number % (3 * step) == first % (3 * step):
        # The next call is killed too, elsewhere.
        twice += killed_at(lambda: fork(source, root / "new", 2), number // 2 + 1, changes=True)
        there = (root / "new").exists()
    if not there:
        fork(source, root / "new", 2)
    print("made", number, flush=True)
    sys.stdin.readline()
    number += step
print("ended", number, twice, flush=True)
"""


def killed_at_file_operations(store, root, first, step):
    """Kill a fork at some of its system calls, and the next call now and then; returns how many kills."""
    before, expected = contents(store), up_to(store, 2)
    words = ["-c", KILLED, store, root, first, step]
    process = Forked(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    kills = 0
    with process:
        for line in process.stdout:
            if line.startswith("ended"):
                break
            if line.startswith("made"):
                kills += 1
                assert contents(store) == before, line
                assert [path.name for path in root.iterdir()] == ["new"], line
                assert_sound(root / "new")
                assert states(root / "new") == expected, line
                shutil.rmtree(root / "new")
                process.stdin.write("\n")
                process.stdin.flush()
        else:
            raise AssertionError("the process died")
    assert process.returncode == 0
    return kills


def test_killed_at_some_file_operations(make_store, tmp_path):
    """The source is byte-identical, and the next call makes the fork whole and clears what was left."""
    store = make_store(1)
    work(store, 3, keys=5)
    assert killed_at_file_operations(store, tmp_path, random.randrange(1, 10), 9) > 3


@pytest.mark.long
def test_killed_at_every_file_operation(make_store, tmp_path):
    """The same, at each of them."""
    store = make_store(2)
    work(store, 3, keys=5)
    kills = killed_at_file_operations(store, tmp_path, 1, 1)
    print("kills:", kills)
    assert kills > 50


def test_a_store_without_an_epoch(store_dir, tmp_path):
    """Its fork begins at the start of the input too."""
    fork(store_dir, tmp_path / "new")
    assert plan_resume(scan(tmp_path / "new")).window == (0,)
    with Driver(tmp_path / "new") as run:
        run.apply(0, {"a": "1"})
        run.close(0)
    assert state_at(tmp_path / "new", 1) == {(STEP, "a"): ("1", None)}
