"""Backups and restores that are cut off anywhere: what counts is whole, and nothing is half-done."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import apsw
import pytest

from recovery.backup import repository
from recovery.backup.manifest import MANIFESTS, OBJECTS, RUNNING
from recovery.backup.repository import list_backups, prune
from recovery.errors import BackupTargetError, NoBackupError, RecoveryError, StaleDirectoryError
from recovery.places.directory import DirectoryPlace
from recovery.places.protocol import PlaceEntry
from recovery.planning.backups import KeepRule, parse_keep
from tests.backup.support import assert_sound, back_up, bring_back, states, work
from tests.forks import run_code
from tests.shares import some, steps, strided
from tests.stores import alter, paths_of

NOW_MS = 4_000_000_000_000
DAY_MS = 86_400_000


class FailingTarget:
    """A target whose k-th operation fails, once or from then on; writing fails before, between and after chunks.

    Like an object store it publishes what was written before the failure.
    """

    versions = None
    unseen = ""

    def __init__(self, inner: DirectoryPlace, fail_at: int, lasting: bool) -> None:
        self.inner = inner
        self.shown = inner.shown
        self.operations = 0
        self._fail_at = fail_at
        self._lasting = lasting
        self._lock = threading.Lock()

    def _operation(self) -> bool:
        with self._lock:
            self.operations += 1
            return self.operations == self._fail_at or (self._lasting and self.operations > self._fail_at)

    def _reach(self) -> None:
        if self._operation():
            raise BackupTargetError("the connection was cut", path=self.shown)

    def write(self, name: str, chunks: Iterable[bytes]) -> int:
        self._reach()
        written = []
        try:
            for chunk in chunks:
                written.append(chunk[: len(chunk) // 2])
                self._reach()
                written[-1] = chunk
            self._reach()
        except BackupTargetError:
            (self.inner.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.inner.root / name).write_bytes(b"".join(written))
            raise
        size = self.inner.write(name, written)
        self._reach()
        return size

    def read(self, name: str) -> Iterator[bytes]:
        self._reach()
        for chunk in self.inner.read(name):
            yield chunk
            self._reach()

    def entries(self, prefix: str) -> list[PlaceEntry]:
        self._reach()
        return self.inner.entries(prefix)

    def delete(self, name: str) -> None:
        self._reach()
        self.inner.delete(name)


@pytest.fixture
def store(make_store) -> Path:
    """Two partitions with three epochs."""
    return make_store(2, work, 3)


@pytest.fixture
def one_at_a_time(monkeypatch):
    """So that the k-th operation is the same one each time."""
    for name in (
        "recovery.backup.make.AT_ONCE",
        "recovery.backup.restore.AT_ONCE",
        "recovery.backup.repository.READERS",
        "recovery.backup.catalog.READERS",
    ):
        monkeypatch.setattr(name, 1)


@strided(4)
@pytest.mark.parametrize("lasting", some([False, True], False), ids=["once", "lasting"])
@pytest.mark.usefixtures("one_at_a_time")
def test_a_backup_cut_off_at_any_step_counts_whole_or_not_at_all(store, tmp_path, lasting, every):
    """At every operation until one is left untouched: the backup is there and restores, or the one before does."""
    first = DirectoryPlace(tmp_path / "first")
    back_up(store, first)
    before = states(store)
    work(store, 1)
    after = states(store)
    counted = 0
    for k in steps(every):
        root = Path(shutil.copytree(first.root, tmp_path / f"dest-{k}"))
        target = FailingTarget(DirectoryPlace(root), k, lasting)
        try:
            back_up(store, target)
        except BackupTargetError:
            pass
        else:
            if target.operations < k:
                break
        finished = len(list_backups(DirectoryPlace(root)).manifests)
        counted += finished == 2
        bring_back(root, tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == (after if finished == 2 else before), k
        shutil.rmtree(tmp_path / "new")
        # The next attempt is not hindered by what this one left, and a pruning a day later leaves nothing of it.
        made = back_up(store, DirectoryPlace(root)).manifest
        prune(DirectoryPlace(root), [KeepRule(count=1)], NOW_MS)
        objects = {entry.name for entry in DirectoryPlace(root).entries(OBJECTS)}
        assert objects == {copy.object_name for copy in made.copies}
        assert DirectoryPlace(root).entries(RUNNING) == []
        bring_back(root, tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == after
        shutil.rmtree(tmp_path / "new")
    assert k > 15
    assert counted > 0 or every > 1


def pruned_with_failures(first: Path, root: Path, lasting: bool) -> Iterator[Path]:
    """Prune a copy of `first`, at `root`, to one backup: with the first operation failing, then the second, until the
    pruning succeeds. Yield the copy after each."""
    for k in itertools.count(1):
        shutil.copytree(first, root)
        target = FailingTarget(DirectoryPlace(root), k, lasting)
        with contextlib.suppress(BackupTargetError):
            prune(target, [KeepRule(count=1)], NOW_MS)
        yield root
        if target.operations < k:
            assert k > 10
            return
        shutil.rmtree(root)


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.usefixtures("one_at_a_time")
def test_a_pruning_cut_off_at_any_step_leaves_every_listed_backup_whole(store, tmp_path, lasting):
    """Whatever manifest is left can be restored, and the next pruning completes the work."""
    first = tmp_path / "first"
    expected = {}
    for _ in range(3):
        made = back_up(store, first)
        expected[made.manifest.id] = states(store)
        work(store, 1)
    back_up(store, first)
    back_up(store, first)  # lists the objects of the one before
    for root in pruned_with_failures(first, tmp_path / "dest", lasting):
        stored = {entry.name for entry in DirectoryPlace(root).entries(OBJECTS)}
        for manifest in list_backups(DirectoryPlace(root)).manifests:
            assert {copy.object_name for copy in manifest.copies} <= stored
        prune(DirectoryPlace(root), [KeepRule(count=1)], NOW_MS)
        assert len(list_backups(DirectoryPlace(root)).manifests) == 1
        assert len(DirectoryPlace(root).entries(OBJECTS)) == 2
    bring_back(root, tmp_path / "new", tmp_path)
    assert states(tmp_path / "new") == states(store)


class Interleaved:
    """A target that does something else before its k-th operation."""

    def __init__(self, inner: DirectoryPlace, at: int, other: Callable[[], object]) -> None:
        self.shown = inner.shown
        self.operations = 0
        self._inner, self._at, self._other = inner, at, other

    def __getattr__(self, name: str):
        def call(*arguments):
            self.operations += 1
            if self.operations == self._at:
                self._other()
            return getattr(self._inner, name)(*arguments)

        return call


@pytest.mark.usefixtures("one_at_a_time")
class TestAtTheSameTime:
    """A pruning, a backup and a restore on different machines, at every moment of each other."""

    @pytest.fixture
    def place(self, store, tmp_path) -> Path:
        """Two backups that share nothing."""
        back_up(store, tmp_path / "first")
        work(store, 1)
        back_up(store, tmp_path / "first")
        return tmp_path / "first"

    def each_moment(self, place: Path, tmp_path: Path, act, other) -> int:
        """Run `act` on a copy of the place with `other` in between, at every operation until it is past the last."""
        for k in itertools.count(1):
            root = Path(shutil.copytree(place, tmp_path / f"dest-{k}"))
            plain = DirectoryPlace(root)
            target = Interleaved(plain, k, lambda plain=plain: other(plain))
            act(target)
            for manifest in list_backups(plain).manifests:
                stored = {entry.name for entry in plain.entries(OBJECTS)}
                assert {copy.object_name for copy in manifest.copies} <= stored, k
            assert list_backups(plain).manifests, k
            if target.operations < k:
                return k
            shutil.rmtree(root)
        raise AssertionError

    @pytest.mark.parametrize("changed", [False, True], ids=["unchanged", "changed"])
    def test_pruning_while_a_backup_is_made(self, store, place, tmp_path, changed):
        """The backup keeps what it lists, its own objects and those of an older one, whoever prunes when."""
        if changed:
            work(store, 1)
        assert (
            self.each_moment(
                place,
                tmp_path,
                lambda target: back_up(store, target),
                lambda plain: prune(plain, [KeepRule(count=1)], 0),
            )
            > 8
        )

    def test_a_backup_made_while_pruning(self, store, place, tmp_path):
        """The same from the other side, with partitions that changed and with partitions that did not."""
        assert self.each_moment(
            place,
            tmp_path,
            lambda target: prune(target, [KeepRule(count=1)], 0),
            lambda plain: (back_up(store, plain), prune(plain, [KeepRule(count=1)], 0), back_up(store, plain)),
        ) > 10  # fmt: skip

    def test_a_backup_whose_base_is_replaced_and_pruned_meanwhile(self, store, place, tmp_path):
        """Another backup and two prunings by others come between: what the slow one lists is still there. It is refused
        when it finds a backup that its directory lacks."""
        changed = Path(shutil.copytree(store, tmp_path / "changed"))
        work(changed, 1)

        def others(plain: DirectoryPlace) -> None:
            back_up(changed, plain)
            prune(plain, [KeepRule(count=1)], 0)
            prune(plain, [KeepRule(count=1)], 0)

        def act(target: Interleaved) -> None:
            with contextlib.suppress(StaleDirectoryError):
                back_up(store, target)

        assert self.each_moment(place, tmp_path, act, others) > 8

    def test_two_prunings(self, store, place, tmp_path):
        """They keep different numbers, and what both leave is whole."""
        assert (
            self.each_moment(
                place,
                tmp_path,
                lambda target: prune(target, [KeepRule(count=2)], 0),
                lambda plain: prune(plain, [KeepRule(count=1)], 0),
            )
            > 5
        )

    def test_pruning_while_restoring(self, store, place, tmp_path):
        """The copies of a pruned backup vanish under the restore: it goes on with those that were kept, or says so."""
        after = states(store)

        def act(target: Interleaved) -> None:
            target.root = Path(target.shown)
            bring_back(target, tmp_path / "new", tmp_path)
            assert states(tmp_path / "new") == after
            shutil.rmtree(tmp_path / "new")

        assert self.each_moment(place, tmp_path, act, lambda plain: prune(plain, [KeepRule(count=1)], 0)) > 5

    def test_pruning_what_is_being_restored(self, store, place, tmp_path):
        """An epoch of the pruned backup was asked for: all of it is restored, or a typed error and nothing."""
        ends = set()

        def act(target: Interleaved) -> None:
            try:
                bring_back(target, tmp_path / "new", tmp_path, at_ms=3_000)
            except RecoveryError as error:
                ends.add(type(error).__name__)
                assert not (tmp_path / "new").exists()
            else:
                ends.add("restored")
                assert max(states(tmp_path / "new")) == 3
                shutil.rmtree(tmp_path / "new")

        self.each_moment(place, tmp_path, act, lambda plain: prune(plain, [KeepRule(count=1)], 0))
        assert "restored" in ends

    def test_a_backup_that_was_taken_for_dead_does_not_count(self, store, place, monkeypatch):
        """It took more than a day and somebody pruned: its objects may be gone, so it is given up."""
        plain = DirectoryPlace(place)
        ids = [m.id for m in list_backups(plain).manifests]
        original = repository.finish

        def late(target, manifest):
            prune(target, [KeepRule(count=5)], NOW_MS)
            original(target, manifest)

        monkeypatch.setattr("recovery.backup.make.finish", late)
        with pytest.raises(BackupTargetError, match="treated as abandoned"):
            back_up(store, plain)
        assert [m.id for m in list_backups(plain).manifests] == ids


class FullDisk:
    """Lets the k-th operation of a restore on the disk fail, once or from then on: Python's and SQLite's."""

    def __init__(self, patches: pytest.MonkeyPatch, fail_at: int, lasting: bool, code: int) -> None:
        self.operations = 0
        self._fail_at, self._lasting, self._code = fail_at, lasting, code
        self._lock = threading.Lock()
        self.active = True
        for owner, name in ((Path, "open"), (Path, "mkdir"), (Path, "hardlink_to"), (os, "fsync")):
            patches.setattr(owner, name, self._before(getattr(owner, name)))

    def fails(self) -> bool:
        """Count one operation."""
        with self._lock:
            if not self.active:
                return False
            self.operations += 1
            return self.operations == self._fail_at or (self._lasting and self.operations > self._fail_at)

    def _before(self, function):
        def call(*arguments, **options):
            if self.fails():
                raise OSError(self._code, os.strerror(self._code), str(arguments[0]))
            found = function(*arguments, **options)
            return (
                _FailingFile(found, self, self._code) if hasattr(found, "write") and arguments[1:] == ("xb",) else found
            )

        return call

    @contextlib.contextmanager
    def sqlite(self) -> Iterator[None]:
        """The same for what SQLite writes."""
        disk = self

        class File(apsw.VFSFile):
            def xWrite(self, data, offset):  # noqa: N802
                disk.refuse(apsw.FullError, apsw.SQLITE_FULL)
                super().xWrite(data, offset)

            def xSync(self, flags):  # noqa: N802
                disk.refuse(apsw.IOError, apsw.SQLITE_IOERR_FSYNC)
                super().xSync(flags)

            def xRead(self, amount, offset):  # noqa: N802
                disk.refuse(apsw.IOError, apsw.SQLITE_IOERR_READ)
                return super().xRead(amount, offset)

        class Disk(apsw.VFS):
            def __init__(self):
                super().__init__("full-disk", "unix", makedefault=True)

            def xOpen(self, name, flags):  # noqa: N802
                disk.refuse(apsw.CantOpenError, apsw.SQLITE_CANTOPEN)
                return File("unix", name, flags)

        system = apsw.vfs_names()[0]
        vfs = Disk()
        try:
            yield
        finally:
            self.active = False
            vfs.unregister()
            assert apsw.vfs_names()[0] == system

    def refuse(self, kind: type[apsw.Error], code: int) -> None:
        if self.fails():
            error = kind("injected")
            error.extendedresult = code
            raise error


class _FailingFile:
    def __init__(self, file, disk: FullDisk, code: int) -> None:
        self._file, self._disk, self._code = file, disk, code

    def write(self, data):
        if self._disk.fails():
            self._file.write(data[: len(data) // 2])
            raise OSError(self._code, os.strerror(self._code))
        return self._file.write(data)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


@pytest.mark.parametrize(
    ("lasting", "code"),
    [pytest.param(False, errno.EIO, marks=pytest.mark.long), (True, errno.ENOSPC)],
    ids=["an I/O error once", "a disk that stays full"],
)
@strided(5)  # odd, for the numbers choose between two directories
@pytest.mark.usefixtures("one_at_a_time")
def test_a_restore_that_fails_at_any_operation_leaves_nothing(store, tmp_path, monkeypatch, lasting, code, every):
    """At every operation on the disk until one is left untouched: a typed error, and the directory is as before."""
    back_up(store, tmp_path / "dest")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "notes.txt").write_text("mine")
    expected = {e: s for e, s in states(store).items() if e <= 2}
    for k in steps(every):
        target = tmp_path / ("here" if k % 2 else "new") / "."
        with monkeypatch.context() as patches:
            disk = FullDisk(patches, k, lasting, code)
            with disk.sqlite():
                try:
                    bring_back(tmp_path / "dest", target, tmp_path, epoch=2)
                except RecoveryError as error:
                    failed = error
                else:
                    failed = None
        if disk.operations < k:
            assert failed is None
            break
        if failed is not None:
            assert failed.exit_code in {12, 23, 60, 62}, failed
            assert not (tmp_path / "new").exists()
            assert [path.name for path in (tmp_path / "here").iterdir()] == ["notes.txt"]
        else:
            # An operation whose failure does not matter, such as forgetting what was staged.
            assert states(target) == expected, k
            shutil.rmtree(tmp_path / "new", ignore_errors=True)
            for path in (tmp_path / "here").glob("part-*"):
                path.unlink()
    assert k > 40
    assert states(target) == expected


def test_a_killed_restore_is_cleared_by_the_next(store, tmp_path):
    """SIGKILL while files are put into place: no run can use the half, and the next restore starts again."""
    back_up(store, tmp_path / "dest")
    code = (
        "import os, pathlib, signal, sys\n"
        "link, left = pathlib.Path.hardlink_to, [1]\n"
        "def link_one(self, target):\n"
        "    left.pop() if left else os.kill(os.getpid(), signal.SIGKILL)\n"
        "    link(self, target)\n"
        "pathlib.Path.hardlink_to = link_one\n"
        "from recovery.cli import main\n"
        "main(['restore', *sys.argv[1:]])\n"
    )
    new = tmp_path / "new"
    assert run_code(code, tmp_path / "dest", new).returncode < 0
    assert sorted(path.name.split("-")[0] for path in new.iterdir()) == [".restore", "part", "restored.json"]
    bring_back(tmp_path / "dest", new, tmp_path)
    assert_sound(new)
    assert states(new) == states(store)


def test_what_a_run_has_used_is_never_cleared_away(store, tmp_path):
    """Somebody completed a half-placed restore by hand and ran on it: a new restore refuses it like any other."""
    back_up(store, tmp_path / "dest")
    new = tmp_path / "new"
    bring_back(tmp_path / "dest", new, tmp_path)
    staging = new / ".restore-1-dead"
    staging.mkdir()
    for path in paths_of(new):
        (staging / path.name).hardlink_to(path)
    work(new, 1)
    paths_of(new)[1].unlink()
    with pytest.raises(RecoveryError, match=r"part-0\.sqlite3"):
        bring_back(tmp_path / "dest", new, tmp_path)
    assert [path.name for path in paths_of(new)] == ["part-0.sqlite3"]


def test_nothing_is_restored_from_damage_that_sqlite_does_not_see(store, tmp_path):
    """The live file had a changed row when it was backed up: the digests find it at the restore, and none is made."""
    alter(paths_of(store)[0], "UPDATE snaps SET ser_change = '666' WHERE step_id = 'count'")
    back_up(store, tmp_path / "dest")
    with pytest.raises(RecoveryError, match="do not match their digest"):
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
    assert not (tmp_path / "new").exists()


def test_objects_without_a_manifest_are_no_backup(store, tmp_path):
    """All objects were stored and the manifest was not. Pruning leaves them until there is one: they may be all there
    is when the manifests were lost."""
    back_up(store, tmp_path / "dest")
    for entry in DirectoryPlace(tmp_path / "dest").entries(MANIFESTS):
        DirectoryPlace(tmp_path / "dest").delete(entry.name)
    assert prune(DirectoryPlace(tmp_path / "dest"), [parse_keep("1")], 0).objects == 0
    with pytest.raises(NoBackupError):
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
