"""A directory's part of a restore to several owners: what is there after each step, and after a kill."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import ClassVar

import pytest

from recovery import init_partitions
from recovery.errors import AlreadyInitializedError, DirectoryLockedError, StorageError
from recovery.host.durable import PRIVATE
from recovery.storage.initialize import clear_killed_attempt
from recovery.storage.staged import StagedRestore, end_left, left
from tests.faults.minirun import child, wait
from tests.stores import Driver

NAME = ".restore-0-ab12"
FILES = ["part-1.sqlite3", "part-2.sqlite3"]


@pytest.fixture
def made(make_store) -> Path:
    return make_store(3)


@pytest.fixture
def here(tmp_path) -> Path:
    directory = tmp_path / "owner"
    directory.mkdir()
    return directory


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def begun(here: Path, name: str = NAME, indexes: tuple[int, ...] = (1, 2)) -> StagedRestore:
    return StagedRestore(here, name, "h1:7337", indexes, PRIVATE)


def filled(here: Path, made: Path) -> StagedRestore:
    """All files have come, in pieces, and are checked."""
    staged = begun(here)
    digests = {}
    for name in FILES:
        data = (made / name).read_bytes()
        for begin in range(0, len(data), 30_000):
            staged.put(name, data[begin : begin + 30_000])
        digests[name] = hashlib.sha256(data).hexdigest()
    staged.check(digests)
    return staged


def killed(here: Path, tmp_path: Path) -> Path:
    """The directory as a kill leaves it: links are links to the same files, and nobody has locked it."""
    copy = tmp_path / "killed"
    shutil.copytree(here, copy)
    for path in copy.glob("part-*"):
        path.unlink()
        path.hardlink_to(copy / NAME / path.name)
    return copy


def test_its_life(here, made):
    """Nothing is in place before `place`; afterwards the same bytes, and in the end nothing else."""
    staged = filled(here, made)
    assert names(here) == [NAME]
    staged.place()
    assert names(here) == [NAME, *FILES]
    staged.end(counts=True)
    staged.end(counts=False)
    assert names(here) == FILES
    assert all((here / name).read_bytes() == (made / name).read_bytes() for name in FILES)
    assert left(here) == []
    with pytest.raises(AlreadyInitializedError, match=r"part-1\.sqlite3, part-2"):
        begun(here)


@pytest.mark.parametrize("places", [False, True])
def test_what_does_not_count_is_removed(here, made, places):
    """Also what is in place."""
    staged = filled(here, made)
    if places:
        staged.place()
    staged.end(counts=False)
    assert names(here) == []
    with pytest.raises(StorageError, match="has ended"):
        staged.place()


def test_nobody_says_how_it_ended(here, made):
    """Files that are staged go, those in place wait for the home's answer; each answer is carried out."""
    filled(here, made).end()
    assert names(here) == []
    for counts in (False, True):
        staged = filled(here, made)
        staged.place()
        staged.end()
        [found] = left(here)
        assert (found.name, found.home, found.files, found.was_used) == (NAME, "h1:7337", tuple(FILES), False)
        end_left(here, NAME, counts=counts)
        assert names(here) == (FILES if counts else [])


def test_killed(here, made, tmp_path):
    """Before all files are in place, nothing stays; not even if `init` is the next to come."""
    begun(here).put(FILES[0], b"x")
    copy = killed(here, tmp_path)
    assert left(copy) == []
    assert names(copy) == []
    shutil.rmtree(copy)
    shutil.rmtree(here / NAME)
    staged = filled(here, made)
    staged.place()
    copy = killed(here, tmp_path)
    (copy / FILES[1]).unlink()
    shutil.copytree(copy, tmp_path / "other", symlinks=True)
    assert left(copy) == []
    assert names(copy) == []
    shutil.rmtree(copy)
    copy = killed(here, tmp_path)
    clear_killed_attempt(copy)
    assert [each.name for each in left(copy)] == [NAME], "the home has to tell"


def test_a_partition_that_a_run_has_used(make_store, here):
    """It is named so, whatever the note says."""
    made = make_store(1)
    data = (made / "part-0.sqlite3").read_bytes()
    staged = begun(here, indexes=(0,))
    staged.put("part-0.sqlite3", data)
    staged.check({"part-0.sqlite3": hashlib.sha256(data).hexdigest()})
    staged.place()
    staged.end()
    (here / NAME / "part-home.json").write_text("{")
    with Driver(here) as run:
        run.apply(0, {"a": "1"})
        run.close(0)
    [found] = left(here)
    assert (found.home, found.was_used) == ("", True)


def test_other_files_and_other_bytes(here, made):
    """Nothing but the files that are due, each of them whole."""
    staged = begun(here)
    for name in ("part-0.sqlite3", "../part-1.sqlite3", "x"):
        with pytest.raises(StorageError, match="is not due"):
            staged.put(name, b"x")
    staged.put(FILES[0], b"x")
    digest = hashlib.sha256(b"x").hexdigest()
    with pytest.raises(StorageError, match=r"part-1.sqlite3 came instead of part-1.sqlite3, part-2"):
        staged.check(dict.fromkeys(FILES, digest))
    staged.put(FILES[1], b"y")
    with pytest.raises(StorageError, match="File exists"):
        staged.put(FILES[0], b"x")
    with pytest.raises(StorageError, match="not what was sent"):
        staged.check(dict.fromkeys(FILES, digest))
    staged.end()
    assert names(here) == []


@pytest.mark.parametrize("name", ["db", "../.restore-0-ab", ".restore-0-ab/x", ".restore-x-ab", ".init-ab", ""])
def test_a_name_of_something_else(here, name):
    with pytest.raises(StorageError, match="not the name of a restore"):
        begun(here, name)
    end_left(here, name, counts=False)
    assert here.is_dir()
    assert names(here) == []


def test_one_at_a_time(here, made):
    """Others that make partitions there are refused meanwhile."""
    staged = filled(here, made)
    with pytest.raises(DirectoryLockedError):
        begun(here, ".restore-0-cd")
    with pytest.raises(DirectoryLockedError):
        init_partitions(here, 2)
    staged.end()
    init_partitions(here, 2)


def test_a_disk_that_fails_while_files_are_put_into_place(here, made, monkeypatch):
    """Then none is, and the restore goes on if it is asked again."""
    staged = filled(here, made)
    original, calls = Path.hardlink_to, []

    def fails(path: Path, target: Path) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError(5, "the disk failed")
        original(path, target)

    monkeypatch.setattr(Path, "hardlink_to", fails)
    with pytest.raises(StorageError, match="the disk failed"):
        staged.place()
    assert names(here) == [NAME]
    staged.place()
    staged.end(counts=True)
    assert names(here) == FILES


class TestBeside:
    """Single partitions join those that are there, each for itself."""

    LEFT = b"of a copy that was left behind"
    BESIDE: ClassVar = {
        "-wal": b"its log",
        "-lazy": b"its pages that are there",
        "-lazy-wal": b"its log while they are fetched",
    }

    def begun(self, here: Path, made: Path) -> StagedRestore:
        staged = StagedRestore(here, NAME, None, (1, 2), PRIVATE)
        digests = {}
        for name in FILES:
            staged.put(name, (made / name).read_bytes())
            digests[name] = hashlib.sha256((made / name).read_bytes()).hexdigest()
        staged.check(digests)
        return staged

    @pytest.fixture
    def used(self, here, make_store) -> Path:
        """A directory with a partition, and an older copy of another one, with all that can belong to it."""
        shutil.copy(make_store(3) / "part-0.sqlite3", here)
        (here / FILES[0]).write_bytes(self.LEFT)
        for end, content in self.BESIDE.items():
            (here / f"{FILES[0]}{end}").write_bytes(content)
        return here

    def assert_whole(self, copy: Path) -> None:
        assert copy.read_bytes() == self.LEFT
        assert {end: copy.with_name(f"{copy.name}{end}").read_bytes() for end in self.BESIDE} == self.BESIDE

    def test_an_older_copy_is_set_aside(self, used, made):
        """With what belongs to it, in place of what was set aside before. The partition that stays is not touched."""
        (used / f"{FILES[0]}.replaced").write_bytes(b"earlier")
        stays = (used / "part-0.sqlite3").read_bytes()
        staged = self.begun(used, made)
        assert (used / FILES[0]).read_bytes() == self.LEFT
        staged.place()
        staged.end(counts=True)
        aside = [f"{FILES[0]}.replaced{end}" for end in ("", *self.BESIDE)]
        assert names(used) == sorted(["part-0.sqlite3", *FILES, *aside])
        assert (used / "part-0.sqlite3").read_bytes() == stays
        self.assert_whole(used / f"{FILES[0]}.replaced")
        assert [(used / name).read_bytes() == (made / name).read_bytes() for name in FILES] == [True, True]

    def test_the_log_of_a_partition_that_somebody_has_moved(self, used, made):
        """The log is set aside, and the new file has none."""
        (used / FILES[0]).unlink()
        staged = self.begun(used, made)
        staged.place()
        staged.end(counts=True)
        aside = [f"{FILES[0]}.replaced{end}" for end in self.BESIDE]
        assert names(used) == sorted(["part-0.sqlite3", *FILES, *aside])

    @pytest.mark.parametrize("counts", [False, None])
    def test_what_is_not_in_place_leaves_nothing(self, used, made, counts):
        """Whoever ends it; what is in place stays, even if nobody says that it counts."""
        before = {path.name: path.read_bytes() for path in used.iterdir()}
        self.begun(used, made).end(counts=counts)
        assert {path.name: path.read_bytes() for path in used.iterdir()} == before
        staged = self.begun(used, made)
        staged.place()
        staged.end(counts=counts)
        assert set(FILES) < set(names(used))
        assert NAME not in names(used)

    @pytest.mark.parametrize("operations", range(22))
    def test_killed_while_it_is_put_into_place(self, used, made, operations):
        """After any number of changes to the directory: the older copy is whole under one name, and the next restore
        comes to its end. No new file gets an old log."""
        staged = self.begun(used, made)

        def die() -> None:
            left = iter(range(operations))
            for name in ("unlink", "hardlink_to", "replace"):
                original = getattr(Path, name)

                def dying(path: Path, *arguments: object, original=original, **named: object) -> object:
                    if next(left, None) is None:
                        os._exit(9)
                    return original(path, *arguments, **named)

                setattr(Path, name, dying)
            staged.place()

        assert wait(child(die)) in (0, 9)
        staged._alone.close()
        under = FILES[0] if (used / FILES[0]).exists() and (used / FILES[0]).read_bytes() == self.LEFT else ""
        kept = used / (under or f"{FILES[0]}.replaced")
        self.assert_whole(kept)
        shutil.rmtree(used / NAME)
        if not under:
            # A kill has set it aside; what was linked is a copy of its own.
            for name in FILES:
                (used / name).unlink(missing_ok=True)
        again = self.begun(used, made)
        again.place()
        again.end(counts=True)
        assert (used / FILES[0]).read_bytes() == (made / FILES[0]).read_bytes()
        assert not [end for end in self.BESIDE if (used / f"{FILES[0]}{end}").exists()]
        self.assert_whole(used / f"{FILES[0]}.replaced")
