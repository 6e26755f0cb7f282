"""A run whose files are taken away: nothing counts that is not in the file at its path, and the file is named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from recovery.base.clock import SystemClock
from recovery.epochs.writer import EpochWriter
from recovery.errors import FileReplacedError, LeaseLostError, StorageError
from recovery.planning.resume import plan_resume
from recovery.storage.documents import change_states, home
from recovery.storage.lock import LOCK_NAME, DirectoryLock
from recovery.storage.scan import scan
from recovery.storage.sqlite import store as files_module
from recovery.storage.sqlite.store import FilePartitions
from recovery.storage.store import Store
from tests.stores import STEP, Driver, alter, problems, state_at, window

Fault = Callable[[Path, Driver], Path]


class Run(Driver):
    """A driver that holds the directory's lock, as a run does, and has closed epoch 1."""

    def __init__(self, directory: Path) -> None:
        self.lock = DirectoryLock(directory, SystemClock(), "flow")
        self.lock.acquire()
        super().__init__(directory)
        self.batch(0)

    def batch(self, number: int) -> None:
        """One micro-batch, and an epoch that ends with it."""
        self.store.open(self.lease, number)
        self.apply(number, {"a": str(number), "b": str(number)})
        self.close(number)

    def end(self) -> None:
        """Give everything back."""
        self.store.release()
        self.lock.release()


@pytest.fixture
def run(store_dir) -> Iterator[Run]:
    """A run on a directory of two partitions."""
    made = Run(store_dir)
    yield made
    made.end()


def put_copy(path: Path) -> Path:
    """The same content in another file."""
    shutil.copy2(path, path.with_name("copied"))
    path.with_name("copied").replace(path)
    return path


def remove(path: Path) -> Path:
    """The name is gone; whoever has the file open keeps it."""
    path.unlink()
    return path


def cut(path: Path, size: int) -> Path:
    """Cut off where it is."""
    os.truncate(path, size)
    return path


def move_directory(directory: Path, _: Driver) -> Path:
    """`mv db db.old`."""
    directory.rename(directory.with_name(f"{directory.name}.old"))
    return directory


def copy_directory(directory: Path, run: Driver) -> Path:
    """`mv db db.old; cp -a db.old db`."""
    move_directory(directory, run)
    shutil.copytree(directory.with_name(f"{directory.name}.old"), directory, copy_function=shutil.copy2)
    return directory


def link_directory(directory: Path, run: Driver) -> Path:
    """The same files in another directory."""
    move_directory(directory, run)
    shutil.copytree(directory.with_name(f"{directory.name}.old"), directory, copy_function=os.link)
    return directory


def delta(run: Driver, suffix: str = "") -> Path:
    """A scratch file of the run."""
    return sorted(run.store.scratch.glob("*.delta"))[0].with_suffix(f".delta{suffix}")


def old_partition(directory: Path, run: Driver) -> Path:
    """A copy of an earlier moment, with its log."""
    path, kept = directory / "part-1.sqlite3", directory / "kept"
    shutil.copy2(path, kept)
    run.batch(1)
    kept.replace(path)
    return path


FAULTS: dict[str, Fault] = {
    "partition removed": lambda d, _: remove(d / "part-1.sqlite3"),
    "partition replaced by an identical copy": lambda d, _: put_copy(d / "part-1.sqlite3"),
    "partition replaced by an older copy": old_partition,
    "partition cut off": lambda d, _: cut(d / "part-0.sqlite3", 4096),
    "partition emptied": lambda d, _: cut(d / "part-0.sqlite3", 0),
    "log removed": lambda d, _: remove(d / "part-0.sqlite3-wal"),
    "log replaced by a copy": lambda d, _: put_copy(d / "part-0.sqlite3-wal"),
    "log cut off": lambda d, _: cut(d / "part-1.sqlite3-wal", 5000),
    "log emptied": lambda d, _: cut(d / "part-1.sqlite3-wal", 0),
    "index of the log removed": lambda d, _: remove(d / "part-0.sqlite3-shm"),
    "directory moved": move_directory,
    "directory replaced by a copy": copy_directory,
    "directory replaced by one of hard links": link_directory,
    "lock removed": lambda d, _: remove(d / LOCK_NAME),
    "lock replaced": lambda d, _: put_copy(d / LOCK_NAME),
    "delta removed": lambda _, run: remove(delta(run)),
    "delta replaced": lambda _, run: put_copy(delta(run)),
    "log of a delta removed": lambda _, run: remove(delta(run, "-wal")),
    "scratch directory removed": lambda _, run: shutil.rmtree(run.store.scratch) or delta_directory(run),
}


def delta_directory(run: Driver) -> Path:
    """Where the scratch files are, or were."""
    return run.store.scratch


@pytest.mark.parametrize("kind", FAULTS)
class TestEveryKind:
    """Each thing that can happen to a file that is in use."""

    def test_no_micro_batch_begins(self, run, store_dir, kind):
        """The error names the file, or the directory that it lost with it."""
        named = FAULTS[kind](store_dir, run)
        with pytest.raises(FileReplacedError) as raised:
            run.store.open(run.lease, 5)
        assert raised.value.path == str(named)
        assert not raised.value.closes_epoch

    def test_no_epoch_is_closed(self, run, store_dir, kind):
        """Nothing is written to any file before it is noticed."""
        named = FAULTS[kind](store_dir, run)
        before = run.epoch
        with pytest.raises(FileReplacedError) as raised:
            run.close(5)
        assert raised.value.path == str(named)
        where = store_dir if store_dir.exists() else store_dir.with_name(f"{store_dir.name}.old")
        found = [file.description for file in scan(where) if file.description is not None]
        assert max((each.newest_epoch for each in found), default=0) < before


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if FAULTS[kind] is not old_partition])
def test_the_epoch_that_it_happens_in_does_not_count(run, store_dir, kind, monkeypatch):
    """Also when every partition has committed: the last look comes after that, and before anything is shown."""
    reached, closed = [], []
    monkeypatch.setattr(files_module.faults, "reach", reached.append)
    original = FilePartitions.close_partition

    def then(store, index, lease, request):
        found = original(store, index, lease, request)
        closed.append(index)
        if len(closed) == 2:
            FAULTS[kind](store_dir, run)
        return found

    monkeypatch.setattr(FilePartitions, "close_partition", then)
    with pytest.raises(FileReplacedError):
        run.close(5)
    assert "close.3" not in reached


def test_the_next_run_continues_from_what_all_files_hold(run, store_dir):
    """After a partition was replaced by an older copy, nothing but its age counts."""
    old_partition(store_dir, run)
    with pytest.raises(FileReplacedError):
        run.store.open(run.lease, 2)
    run.end()
    for suffix in ("-wal", "-shm"):
        (store_dir / f"part-1.sqlite3{suffix}").unlink(missing_ok=True)
    assert plan_resume(scan(store_dir)).resume_epoch == 1
    with Driver(store_dir) as again:
        again.apply(0, {"a": "7"})
        again.close(0)
    assert state_at(store_dir, 1) == {(STEP, "a"): ("7", None)}


def test_the_end_of_a_run_leaves_a_copy_in_its_place_alone(run, store_dir):
    """SQLite, which moves a log into its file at the end, does neither that nor remove the log of the copy."""
    copy_directory(store_dir, run)

    def content():
        return {path.name: path.read_bytes() for path in store_dir.iterdir() if path.name.startswith("part-")}

    before = content()
    assert "part-0.sqlite3-wal" in before
    with pytest.raises(FileReplacedError):
        run.store.open(run.lease, 1)
    with pytest.raises(FileReplacedError):
        run.store.checkpoint()
    run.end()
    assert content() == before
    assert window(store_dir) == (0, 1)
    assert problems(store_dir) == []


def test_a_log_that_was_removed_costs_no_epoch(run, store_dir):
    """The run still has it open, and moves it into the file at its end."""
    for path in store_dir.glob("part-*-wal"):
        path.unlink()
    with pytest.raises(FileReplacedError):
        run.store.open(run.lease, 1)
    run.end()
    assert window(store_dir) == (0, 1)
    assert problems(store_dir) == []


@pytest.mark.parametrize("mode", [apsw.SQLITE_CHECKPOINT_TRUNCATE, apsw.SQLITE_CHECKPOINT_RESTART])
def test_a_tool_that_moves_the_log_into_the_file_is_no_fault(run, store_dir, mode):
    """As Litestream does; also when the log is empty then, or begins again."""
    for number in range(1, 4):
        for path in sorted(store_dir.glob("part-*.sqlite3")):
            other = apsw.Connection(str(path))
            other.wal_checkpoint("main", mode=mode)
            other.close()
        run.batch(number)
    assert window(store_dir) == tuple(range(5))


def test_a_state_edited_beside_the_run_is_no_fault(run, store_dir):
    """Operational state is written by others while a run goes on."""
    change_states(home(store_dir), {"x": lambda _: '"1"'}, 5, busy_ms=1000)
    run.batch(1)
    run.store.checkpoint()
    run.batch(2)
    assert window(store_dir) == (0, 1, 2, 3)


def test_a_task_does_not_read_a_file_that_was_put_in_the_place(run, store_dir):
    """It would compute on from older states."""
    assert run.read(1, ["a"]) == {"a": "0"}
    put_copy(store_dir / "part-0.sqlite3")
    put_copy(store_dir / "part-1.sqlite3")
    for _ in range(2):
        with pytest.raises(FileReplacedError) as raised:
            run.read(1, ["a"])
        assert "part-" in raised.value.path


def test_a_successor_comes_before_the_file_that_it_took_away(run, store_dir):
    """It removes the scratch files of those before it: what ended this run is the successor."""
    with Driver(store_dir):
        with pytest.raises(LeaseLostError):
            run.store.check(run.lease)
        with pytest.raises(LeaseLostError):
            run.close(1)


def test_a_link_that_leads_elsewhere(store_dir, tmp_path):
    """A partition that is a link is watched where it leads, and so is a directory."""
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.move(store_dir / "part-1.sqlite3", first)
    (store_dir / "part-1.sqlite3").symlink_to(first)
    run = Run(store_dir)
    try:
        shutil.copy2(first, second)
        (store_dir / "part-1.sqlite3").unlink()
        (store_dir / "part-1.sqlite3").symlink_to(second)
        with pytest.raises(FileReplacedError) as raised:
            run.store.open(run.lease, 1)
        assert raised.value.path == str(store_dir / "part-1.sqlite3")
    finally:
        run.end()


def test_a_link_to_the_directory_that_leads_elsewhere(store_dir, tmp_path):
    """The run was started on what it led to before."""
    shutil.copytree(store_dir, tmp_path / "other")
    (tmp_path / "db").symlink_to(store_dir)
    run = Run(tmp_path / "db")
    try:
        (tmp_path / "db").unlink()
        (tmp_path / "db").symlink_to(tmp_path / "other")
        with pytest.raises(FileReplacedError) as raised:
            run.close(1)
        assert raised.value.path == str(tmp_path / "db")
    finally:
        run.end()


def test_what_is_collected_is_in_the_directory(run, store_dir):
    """gc looks before and after; that it makes files smaller is no fault."""
    run.batch(1)
    run.store.collect(2)
    run.store.check(run.lease)
    put_copy(store_dir / "part-1.sqlite3")
    with pytest.raises(FileReplacedError):
        run.store.collect(2)


def test_an_edit_is_in_the_directory(run, store_dir, monkeypatch):
    """What closes epochs without a stream looks at the same."""
    run.end()
    with DirectoryLock(store_dir, SystemClock(), "edit"):
        writer = EpochWriter(Store(store_dir), plan_resume(scan(store_dir)), "flow", SystemClock(), backup_interval_s=0)
        try:
            (store_dir / LOCK_NAME).unlink()
            with pytest.raises(FileReplacedError, match="removed or moved away"):
                writer.close({(STEP, "a"): ("5", None)})
        finally:
            writer.release()
    assert window(store_dir) == (0, 1)


def test_operational_state_is_in_the_directory(store_dir):
    """A document that was written to a file which lost its name is not said to be set."""

    def meanwhile(_):
        put_copy(store_dir / "part-0.sqlite3")
        return '"1"'

    with pytest.raises(FileReplacedError):
        change_states(home(store_dir), {"x": meanwhile}, 5, busy_ms=1000)


def test_a_file_that_is_replaced_while_it_is_opened(store_dir, monkeypatch):
    """What SQLite has open is asked of SQLite, not of the path."""
    original = files_module.open_partition

    def opening(path, mode):
        connection = original(path, mode)
        if path.name == "part-1.sqlite3":
            alter(path, "PRAGMA user_version")
            put_copy(path)
        return connection

    monkeypatch.setattr(files_module, "open_partition", opening)
    with pytest.raises(FileReplacedError):
        FilePartitions(sorted(store_dir.glob("part-*.sqlite3")), store_dir / "scratch")


def test_a_link_that_leads_nowhere_is_named_with_where_it_led(store_dir, tmp_path):
    """In a plan, and where operational state is asked for."""
    path = store_dir / "part-0.sqlite3"
    path.unlink()
    path.symlink_to(tmp_path / "unmounted" / "part-0.sqlite3")
    [first, _] = scan(store_dir)
    assert isinstance(first.error, StorageError)
    assert f"a link to {tmp_path / 'unmounted' / 'part-0.sqlite3'}" in first.error.found
    assert "not mounted" in first.error.cause
    with pytest.raises(StorageError, match="unmounted"):
        home(store_dir)
