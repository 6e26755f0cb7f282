"""From a recovery directory to backups and back."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import shutil
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from recovery import StateManager
from recovery.backup.manifest import FORMAT, OBJECTS, backup_id, is_ours, manifest_name, object_name
from recovery.backup.repository import list_backups, prune
from recovery.errors import (
    AlreadyInitializedError,
    BackupDamagedError,
    CorruptPartitionError,
    DirectoryLockedError,
    ForeignPartitionError,
    MissingPartitionsError,
    NoBackupError,
    NoPartitionsError,
    StorageError,
    UnsupportedVersionError,
)
from recovery.places.directory import DirectoryPlace
from recovery.planning.backups import KeepRule, parse_keep
from recovery.storage.copies import PinnedPartition
from recovery.storage.documents import change_states
from recovery.storage.scan import scan
from recovery.storage.sqlite.describe import describe
from recovery.storage.sqlite.file.reading import read_partition
from recovery.storage.verify import PartitionCheck
from tests.backup.support import assert_sound, back_up, bring_back, states, work
from tests.forks import run_code
from tests.stores import Driver, alter, paths_of


def files(directory: Path) -> dict[str, str]:
    """Every file below, by a digest of its content."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def store(make_store) -> Path:
    """Three partitions with five epochs."""
    return make_store(3, work, 5)


class TestBackup:
    """Taking one."""

    def test_what_is_restored_is_what_was_backed_up(self, store, tmp_path):
        """Every epoch that could be resumed from still can be, with the same state."""
        back_up(store, tmp_path / "dest")
        done = bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
        assert_sound(tmp_path / "new")
        assert states(tmp_path / "new") == states(store)
        assert done.plan.lost_epochs == 0

    def test_nothing_in_the_directory_changes(self, store, tmp_path):
        """Not a byte, and no log is left beside a file; only a note says when that was."""
        before = files(store)
        back_up(store, tmp_path / "dest", check=True)
        note = json.loads((store / "last-backup.json").read_text())
        (store / "last-backup.json").unlink()
        assert (note["epoch"], note["destination"]) == (5, str(tmp_path / "dest"))
        assert files(store) == before

    def test_while_a_run_writes(self, store, tmp_path):
        """What is in the log and not in the file yet is part of it."""
        with Driver(store) as run:
            for batch in (100, 101):
                run.apply(batch, {f"new{n}": "1" for n in range(50)})
                run.close(batch)
            made = back_up(store, tmp_path / "dest")
            run.apply(102, {"late": "1"})
            run.close(102)
        assert [c.description.newest_epoch for c in made.manifest.copies] == [7, 7, 7]
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
        after = states(store)
        after.pop(8)
        assert states(tmp_path / "new") == after

    def test_all_copies_are_of_one_moment(self, store, tmp_path, monkeypatch):
        """An epoch that is closed while partitions are copied is in none of the copies."""
        original = PinnedPartition.copy_to
        with Driver(store) as run:

            def close_then_copy(self, *arguments):
                run.apply(run.epoch * 10, {"k1": f'"{run.epoch}"'})
                run.close(run.epoch * 10, floor=run.epoch - 1)
                return original(self, *arguments)

            monkeypatch.setattr("recovery.backup.make.AT_ONCE", 1)
            monkeypatch.setattr(PinnedPartition, "copy_to", close_then_copy)
            made = back_up(store, tmp_path / "dest")
            assert run.epoch == 9
        assert {c.description.newest_epoch for c in made.manifest.copies} == {5}

    def test_a_run_that_ends_while_a_partition_is_opened(self, store, tmp_path, monkeypatch):
        """What is torn because somebody wrote to the file meanwhile is read again; what is damaged is reported."""
        opened = []

        def torn(connection, path, since=0):
            opened.append(path)
            if len(opened) == 1:
                work(store, 1)
                raise CorruptPartitionError("torn", path=path)
            return describe(connection, path, since)

        monkeypatch.setattr("recovery.storage.copies.describe", torn)
        made = back_up(store, tmp_path / "dest")
        assert [c.description.newest_epoch for c in made.manifest.copies] == [6, 6, 6]
        monkeypatch.undo()
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == states(store)

        def damaged(connection, path, since=0):
            raise CorruptPartitionError("damaged", path=path)

        monkeypatch.setattr("recovery.storage.copies.describe", damaged)
        with pytest.raises(CorruptPartitionError, match="damaged"):
            back_up(store, tmp_path / "dest")

    def test_a_run_that_begins_while_partitions_are_copied(self, store, tmp_path, monkeypatch):
        """What was copied before is of another moment than what is copied after: all are copied again."""
        original = PinnedPartition.copy_to
        copied = []

        def copy_then_work(self, target, *arguments):
            found = original(self, target, *arguments)
            copied.append(self.path.name)
            if len(copied) == 1:
                work(store, 3, floor=99)
            return found

        monkeypatch.setattr("recovery.backup.make.AT_ONCE", 1)
        monkeypatch.setattr(PinnedPartition, "copy_to", copy_then_work)
        made = back_up(store, tmp_path / "dest")
        assert [c.description.newest_epoch for c in made.manifest.copies] == [8, 8, 8]
        assert len(copied) == 6
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == states(store)

        def copy_and_work(self, target, *arguments):
            found = original(self, target, *arguments)
            work(store, 3, floor=99)
            return found

        work(store, 1)
        monkeypatch.setattr(PinnedPartition, "copy_to", copy_and_work)
        with pytest.raises(StorageError, match="no consistent copies"):
            back_up(store, tmp_path / "dest")
        assert len(list_backups(DirectoryPlace(tmp_path / "dest")).manifests) == 1

    def test_operational_state_that_is_written_all_the_time(self, store, tmp_path):
        """A file that nobody holds open, but that is never left alone for as long as copying takes."""
        [path, *_] = paths_of(store)
        pinned = PinnedPartition(path)
        written = itertools.count()

        def write(_done: int, _total: int) -> None:
            number = next(written)
            change_states(path, {"process/x": lambda _: f"{number}"}, number, busy_ms=5_000)

        target = tmp_path / "copy.sqlite3"
        described = pinned.copy_to(target, write)
        pinned.release()
        assert next(written) >= 3
        assert replace(read_partition(target, partial(describe, path=target)), path=path) == described

    @pytest.mark.parametrize("how", ["gone", "short"])
    def test_a_lost_object_is_stored_again(self, store, tmp_path, how):
        """An unchanged partition is listed again only if its object is there as it was stored."""
        first = back_up(store, tmp_path / "dest")
        lost = tmp_path / "dest" / first.manifest.copies[1].object_name
        if how == "gone":
            lost.unlink()
        else:
            lost.write_bytes(lost.read_bytes()[:-1])
        second = back_up(store, tmp_path / "dest")
        assert (second.stored, second.reused) == (1, 2)
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == states(store)

    def test_check_reads_what_is_listed_again(self, store, tmp_path):
        """What an earlier backup stored and has changed since is stored again; without it sizes are compared."""
        first = back_up(store, tmp_path / "dest")
        spoilt = tmp_path / "dest" / first.manifest.copies[0].object_name
        data = bytearray(spoilt.read_bytes())
        data[len(data) // 2] ^= 1
        spoilt.write_bytes(data)
        assert back_up(store, tmp_path / "dest").stored == 0
        assert back_up(store, tmp_path / "dest", check=True).stored == 1
        assert back_up(store, tmp_path / "dest", check=True).stored == 0
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == states(store)

    def test_check_finds_what_was_damaged_when_it_was_stored(self, store, tmp_path):
        """A backup without --verify takes a damaged partition as it is; one with --verify does not list it again."""
        alter(paths_of(store)[1], "UPDATE snaps SET ser_change = '666' WHERE step_id = 'count'")
        assert back_up(store, tmp_path / "dest").stored == 3
        with pytest.raises(CorruptPartitionError, match="do not match their digest"):
            back_up(store, tmp_path / "dest", check=True)

    def test_a_backup_of_a_newer_version_is_not_pruned(self, store, tmp_path):
        """What it needs is not known, so nothing is removed."""
        made = back_up(store, tmp_path / "dest")
        path = tmp_path / "dest" / "manifests" / f"{made.manifest.id}.json.gz"
        value = json.loads(gzip.decompress(path.read_bytes()))
        path.write_bytes(gzip.compress(json.dumps(value | {"format": FORMAT + 1}).encode()))
        work(store, 1)
        back_up(store, tmp_path / "dest")
        target = DirectoryPlace(tmp_path / "dest")
        before = target.entries(OBJECTS)
        with pytest.raises(UnsupportedVersionError, match=f"format {FORMAT + 1}"):
            prune(target, [KeepRule(count=1)], time.time_ns() // 1_000_000)
        assert target.entries(OBJECTS) == before

    def test_a_torn_manifest_is_removed_when_it_is_old(self, store, tmp_path):
        """With the objects that no other backup needs."""
        made = back_up(store, tmp_path / "dest")
        path = tmp_path / "dest" / "manifests" / f"{made.manifest.id}.json.gz"
        path.write_bytes(path.read_bytes()[:-20])
        draft = path.with_name(f".{path.name}.draft")
        draft.write_bytes(b"killed while writing")
        work(store, 1)
        back_up(store, tmp_path / "dest")
        target, now_ms = DirectoryPlace(tmp_path / "dest"), time.time_ns() // 1_000_000
        prune(target, [KeepRule(count=1)], now_ms)
        assert path.exists()
        assert draft.exists()
        prune(target, [KeepRule(count=1)], now_ms + 2 * 86_400_000)
        assert not path.exists()
        assert not draft.exists()
        assert len(target.entries(OBJECTS)) == 3

    def test_a_damaged_manifest_keeps_its_objects_as_long_as_its_backup(self, store, tmp_path):
        """They are whole, and somebody may need them. When the rules would let the backup go, all of it goes."""
        back_up(store, tmp_path / "dest")
        work(store, 1)
        made = back_up(store, tmp_path / "dest")
        path = tmp_path / "dest" / "manifests" / f"{made.manifest.id}.json.gz"
        path.write_bytes(path.read_bytes()[:-20])
        target, later_ms = DirectoryPlace(tmp_path / "dest"), time.time_ns() // 1_000_000 + 2 * 86_400_000
        for keep in ("1", "30d/1d"):
            assert prune(target, [parse_keep(keep)], later_ms).objects == 0
        assert path.exists()
        assert len(target.entries(OBJECTS)) == 6
        work(store, 1)
        back_up(store, tmp_path / "dest")
        assert prune(target, [parse_keep("1")], later_ms).objects == 6
        assert not path.exists()

    def test_a_damaged_manifest_keeps_what_its_backup_shares_with_an_earlier_one(self, store, tmp_path):
        """The copies of the partitions that had not changed: once the manifest is put back, all of it is there."""
        back_up(store, tmp_path / "dest")
        StateManager(store).set_hwm("orders", 1)
        made = back_up(store, tmp_path / "dest").manifest
        content = states(store)
        work(store, 1)
        newest = back_up(store, tmp_path / "dest").manifest
        target, now_ms = DirectoryPlace(tmp_path / "dest"), time.time_ns() // 1_000_000
        path = tmp_path / "dest" / manifest_name(made.id)
        whole = path.read_bytes()
        path.write_bytes(whole[:-20])
        os.utime(path, (made.finished_ms / 1000, made.finished_ms / 1000))
        assert prune(target, [KeepRule(count=1)], now_ms).objects == 0, "which ones it shares cannot be told"
        assert {copy.object_name for copy in made.copies} <= {entry.name for entry in target.entries(OBJECTS)}
        mended = shutil.copytree(tmp_path / "dest", tmp_path / "mended")
        (mended / manifest_name(made.id)).write_bytes(whole)
        (mended / manifest_name(newest.id)).unlink()
        bring_back(mended, tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == content
        assert prune(target, [KeepRule(count=1)], now_ms + 2 * 86_400_000).objects == 4

    def test_files_of_others_are_left_alone(self, store, tmp_path):
        """A place may be the root of a bucket, which has folders of the same names: whatever is in them, however old,
        is not removed, not taken for a backup, and does not keep a pruning from its work."""
        others = {
            tmp_path / "dest" / name
            for name in (
                "objects/photo.jpg", "objects/part-0/photo.jpg", "objects/part-0/2026.sqlite3.zst",
                "objects/part-x/20260101T000000.000Z-0badcafe.sqlite3.zst",
                "objects/part-0/.photo.draft", "objects/mine/part-0/20260101T000000.000Z-0badcafe.sqlite3.zst",
                "running/job.pid", "running/job.json.gz", "running/.job.json.gz.draft",
                "manifests/app.json.gz", "manifests/app.draft", "manifests/.app.json.gz.draft",
            )
        }  # fmt: skip
        for path in others:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("not a backup")
        target, now_ms = DirectoryPlace(tmp_path / "dest"), time.time_ns() // 1_000_000
        for _ in range(2):
            back_up(store, target)
            work(store, 1)
        assert list_backups(target).unreadable == ()
        assert prune(target, [KeepRule(count=1)], now_ms).objects == 3
        back_up(store, target)
        assert prune(target, [KeepRule(count=1)], now_ms + 2 * 86_400_000).objects == 3
        assert {path for path in others if path.exists()} == others

    def test_what_backups_leave_is_known_by_its_name(self):
        """Whatever they write, under way or not; of a further attempt too."""
        name = backup_id(1_767_225_600_001, "8c671d56")
        for written in (
            manifest_name(name),
            object_name(name, 12),
            object_name(f"{name}.2", 0),
            f"running/{name}.json.gz",
        ):
            folder, _, last = written.rpartition("/")
            assert is_ours(written)
            assert is_ours(f"{folder}/.{last}.draft")
            assert not is_ours(f"{folder}/{last}.draft")

    def test_flipped_bits_in_a_manifest(self, store, tmp_path):
        """That backup is not finished, whatever the bit; the others are used, and new ones made."""
        back_up(store, tmp_path / "dest")
        work(store, 1)
        back_up(store, tmp_path / "dest")
        [path, _] = sorted((tmp_path / "dest" / "manifests").iterdir())
        whole = path.read_bytes()
        for bit in range(0, 8 * len(whole), 7):
            data = bytearray(whole)
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            found = list_backups(DirectoryPlace(tmp_path / "dest"))
            assert len(found.manifests) + len(found.unreadable) == 2
        path.write_bytes(b"\x1f\x8b\x08" + bytes(len(whole)))
        assert back_up(store, tmp_path / "dest").reused == 3
        assert bring_back(tmp_path / "dest", tmp_path / "new", tmp_path).plan.epoch == 6

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user, who may not list")
    def test_what_cannot_be_listed_is_not_empty(self, store):
        """Pruning a place whose manifests cannot be listed removes nothing."""
        public = Path(tempfile.mkdtemp(prefix="recovery-backup-", dir="/tmp"))
        try:
            back_up(store, public / "dest")
            for path in (public, *public.rglob("*")):
                os.chown(path, 65534, 65534)
            (public / "dest" / "manifests").chmod(0o300)
            code = """
import os, sys
from pathlib import Path
from recovery.backup.repository import prune
from recovery.places.directory import DirectoryPlace
from recovery.errors import BackupTargetError
from recovery.planning.backups import parse_keep
os.setgid(65534); os.setuid(65534)
try:
    print(prune(DirectoryPlace(Path(sys.argv[1])), [parse_keep("1")], 0))
except BackupTargetError as error:
    print("refused")
"""
            result = run_code(code, public / "dest")
            assert (result.stdout, result.stderr) == ("refused\n", "")
            assert len(DirectoryPlace(public / "dest").entries(OBJECTS)) == 3
        finally:
            shutil.rmtree(public)

    def test_unchanged_partitions_are_not_stored_again(self, store, tmp_path):
        """The second backup lists the objects of the first; each of both can be restored alone."""
        first = back_up(store, tmp_path / "dest")
        second = back_up(store, tmp_path / "dest")
        assert (first.stored, first.reused, second.stored, second.reused) == (3, 0, 0, 3)
        assert [c.object_name for c in first.manifest.copies] == [c.object_name for c in second.manifest.copies]
        assert len(DirectoryPlace(tmp_path / "dest").entries(OBJECTS)) == 3
        work(store, 1)
        assert back_up(store, tmp_path / "dest").stored == 3

    def test_operational_state_is_backed_up_without_a_new_epoch(self, store, tmp_path):
        """A mark is moved while the flow is stopped: the next backup has it, and so has what is restored."""
        StateManager(store).set_hwm("orders", 1)
        back_up(store, tmp_path / "dest")
        StateManager(store).set_hwm("orders", 2)
        assert (back_up(store, tmp_path / "dest").stored, back_up(store, tmp_path / "dest").stored) == (1, 0)
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
        assert StateManager(tmp_path / "new").get_hwm("orders") == 2

    def test_a_damaged_partition_is_not_backed_up_with_check(self, store, tmp_path):
        """The backup does not count; the one before is still what is restored."""
        back_up(store, tmp_path / "dest")
        work(store, 1)
        alter(paths_of(store)[1], "UPDATE snaps SET ser_change = '666' WHERE step_id = 'count'")
        with pytest.raises(CorruptPartitionError, match="do not match their digest") as damaged:
            back_up(store, tmp_path / "dest", check=True)
        assert damaged.value.path == str(paths_of(store)[1])
        assert len(list_backups(DirectoryPlace(tmp_path / "dest")).manifests) == 1
        assert bring_back(tmp_path / "dest", tmp_path / "new", tmp_path).plan.epoch == 5

    def test_a_directory_that_cannot_be_resumed_is_refused(self, store, tmp_path):
        """A backup that could not be restored is not made."""
        paths_of(store)[1].unlink()
        with pytest.raises(MissingPartitionsError):
            back_up(store, tmp_path / "dest")
        with pytest.raises(NoPartitionsError):
            back_up(tmp_path / "none", tmp_path / "dest")
        assert list_backups(DirectoryPlace(tmp_path / "dest")).manifests == ()

    def test_one_place_takes_one_store(self, store, make_store, tmp_path):
        """Backups of two directories are never mixed."""
        back_up(store, tmp_path / "dest")
        with pytest.raises(ForeignPartitionError, match="holds backups of store"):
            back_up(make_foreign(tmp_path), tmp_path / "dest")

    def test_a_fresh_directory_can_be_backed_up(self, make_store, tmp_path):
        """Nothing was closed yet: the beginning is restored."""
        back_up(make_store(2), tmp_path / "dest")
        done = bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
        assert (done.plan.epoch, done.plan.snapshot) == (0, None)


def make_foreign(tmp_path: Path) -> Path:
    """Another store."""
    from recovery import init_partitions

    init_partitions(tmp_path / "foreign", 3)
    return tmp_path / "foreign"


class TestRestore:
    """Getting one back."""

    def test_the_next_run_continues(self, store, tmp_path):
        """A restored directory is used like the original: it resumes, closes and is checked."""
        back_up(store, tmp_path / "dest")
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
        work(store, 2)
        work(tmp_path / "new", 2)
        assert states(tmp_path / "new") == states(store)

    @pytest.mark.parametrize("epoch", range(6))
    def test_any_epoch_of_the_window(self, store, tmp_path, epoch):
        """What came after is gone from the restored files, so a run resumes right there."""
        expected = {e: s for e, s in states(store).items() if e <= epoch}
        back_up(store, tmp_path / "dest")
        done = bring_back(tmp_path / "dest", tmp_path / "new", tmp_path, epoch=epoch)
        assert_sound(tmp_path / "new")
        assert states(tmp_path / "new") == expected
        assert (done.plan.epoch, done.plan.lost_epochs) == (epoch, 5 - epoch)
        assert done.rows == sum(PartitionCheck(path).run().rows for path in paths_of(tmp_path / "new"))

    def test_a_directory_with_partitions_is_refused(self, store, tmp_path):
        """Nothing in it changes, and nothing is fetched."""
        back_up(store, tmp_path / "dest")
        before = files(store)
        with pytest.raises(AlreadyInitializedError):
            bring_back(tmp_path / "dest", store, tmp_path)
        assert files(store) == before

    def test_a_log_that_was_left_behind_is_refused_too(self, store, tmp_path):
        """SQLite would take the log of the lost file for one of the restored."""
        back_up(store, tmp_path / "dest")
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "part-1.sqlite3-wal").write_bytes(b"old")
        with pytest.raises(AlreadyInitializedError, match=r"part-1\.sqlite3-wal"):
            bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)

    def test_other_files_in_the_directory_stay(self, store, tmp_path):
        """A lock file and scratch of the lost run may lie there."""
        back_up(store, tmp_path / "dest")
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "recovery.lock").touch()
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
        assert sorted(files(tmp_path / "new")) == [
            "part-0.sqlite3", "part-1.sqlite3", "part-2.sqlite3", "recovery.lock", "restored.json"
        ]  # fmt: skip

    def test_nothing_in_the_source_changes(self, store, tmp_path):
        """Restoring only reads."""
        back_up(store, tmp_path / "dest")
        before = files(tmp_path / "dest")
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path, epoch=2)
        assert files(tmp_path / "dest") == before

    @pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "flipped", "longer", "other partition's"])
    def test_a_damaged_object_is_left_out_and_an_older_copy_taken(self, store, tmp_path, damage):
        """It is named; the loss is that of the plan without it."""
        back_up(store, tmp_path / "dest")
        work(store, 2)
        made = back_up(store, tmp_path / "dest")
        path = tmp_path / "dest" / made.manifest.copies[1].object_name
        data = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            other = (tmp_path / "dest" / made.manifest.copies[0].object_name).read_bytes()
            middle = len(data) // 2
            path.write_bytes(
                {
                    "empty": b"",
                    "truncated": data[:middle],
                    "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
                    "longer": data + data,
                    "other partition's": other,
                }[damage]
            )
        plans = []
        done = bring_back(
            tmp_path / "dest", tmp_path / "new", tmp_path, announce=lambda plan, left: plans.append((plan.epoch, left))
        )
        assert [epoch for epoch, _ in plans] == [7, 5]
        assert [made.manifest.copies[1].object_name in text for text in done.left_out] == [True]
        assert (done.plan.epoch, done.plan.lost_epochs, done.plan.limiting) == (5, 2, (1,))
        assert states(tmp_path / "new") == {e: s for e, s in states(store).items() if e <= 5}

    def test_without_another_copy_nothing_is_restored(self, store, tmp_path):
        """One object is gone and there is no other backup: a typed error, and no directory."""
        made = back_up(store, tmp_path / "dest")
        (tmp_path / "dest" / made.manifest.copies[2].object_name).unlink()
        with pytest.raises(BackupDamagedError, match=r"is missing; the rest does not suffice: part-2\.sqlite3 of 3"):
            bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
        assert not (tmp_path / "new").exists()

    def test_copies_of_several_backups_are_combined(self, store, tmp_path):
        """One partition of each of three backups is left: the newest epoch that they share is restored."""
        manifests = [back_up(store, tmp_path / "dest").manifest]
        for _ in range(2):
            work(store, 1)
            manifests.append(back_up(store, tmp_path / "dest").manifest)
        for keep, manifest in enumerate(manifests):
            for copy in manifest.copies:
                if copy.description.index != keep:
                    (tmp_path / "dest" / copy.object_name).unlink()
        done = bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
        assert done.plan.epoch == 5
        assert states(tmp_path / "new") == {e: s for e, s in states(store).items() if e <= 5}

    @pytest.mark.parametrize("damage", ["empty", "truncated", "junk", "renamed"])
    def test_a_half_written_manifest_does_not_count(self, store, tmp_path, damage):
        """The backup before it is restored, and the listing says so."""
        back_up(store, tmp_path / "dest")
        work(store, 1)
        made = back_up(store, tmp_path / "dest")
        path = tmp_path / "dest" / "manifests" / f"{made.manifest.id}.json.gz"
        data = path.read_bytes()
        if damage == "renamed":
            path.rename(path.with_name("20990101T000000.000Z-0badcafe.json.gz"))
        else:
            path.write_bytes({"empty": b"", "truncated": data[:-9], "junk": b"\x00" * 500}[damage])
        assert len(list_backups(DirectoryPlace(tmp_path / "dest")).unreadable) == 1
        assert bring_back(tmp_path / "dest", tmp_path / "new", tmp_path).plan.epoch == 5

    def test_a_place_without_backups(self, tmp_path):
        """Said as such."""
        with pytest.raises(NoBackupError):
            bring_back(tmp_path, tmp_path / "new", tmp_path)


class TestPlainCopies:
    """A directory of copied files as a source."""

    def test_files_of_different_ages_in_subdirectories(self, store, tmp_path):
        """The newest common epoch of all copies, whatever the files are called."""
        for day in ("monday", "tuesday"):
            (tmp_path / "copies" / day).mkdir(parents=True)
            for path in paths_of(store):
                if (day, path.name) != ("tuesday", "part-1.sqlite3"):
                    shutil.copy(path, tmp_path / "copies" / day / f"{path.stem}-of-{day}.sqlite3")
            work(store, 2)
        before = files(tmp_path / "copies")
        (tmp_path / "scratch").mkdir()
        done = bring_back(tmp_path / "copies", tmp_path / "new", tmp_path / "scratch")
        assert (done.plan.epoch, done.plan.lost_epochs, done.plan.limiting) == (5, 2, (1,))
        assert_sound(tmp_path / "new")
        assert states(tmp_path / "new") == {e: s for e, s in states(store).items() if e <= 5}
        assert files(tmp_path / "copies") == before
        assert list((tmp_path / "scratch").iterdir()) == []

    def test_a_log_beside_a_copy_belongs_to_it(self, store, tmp_path):
        """After a crash the newest epochs may be in the log alone; the source is left as it is."""
        (tmp_path / "copies").mkdir()
        (tmp_path / "scratch").mkdir()
        with Driver(store) as run:
            run.apply(100, {f"k{n}": '"in the log"' for n in range(40)})
            run.close(100)
            for path in store.iterdir():
                if path.name.startswith("part-") and not path.name.endswith("-shm"):
                    shutil.copy(path, tmp_path / "copies")
        assert (tmp_path / "copies" / "part-0.sqlite3-wal").stat().st_size > 0
        before = files(tmp_path / "copies")
        assert bring_back(tmp_path / "copies", tmp_path / "new", tmp_path / "scratch").plan.epoch == 6
        assert_sound(tmp_path / "new")
        assert states(tmp_path / "new") == states(store)
        assert files(tmp_path / "copies") == before

    def test_a_damaged_copy_is_not_used(self, store, tmp_path):
        """A file with a changed row is found by its digest, and an older copy is taken."""
        for age in ("old", "new"):
            shutil.copytree(store, tmp_path / "copies" / age)
            work(store, 1)
        alter(tmp_path / "copies" / "new" / "part-2.sqlite3", "UPDATE snaps SET ser_change = '666'")
        (tmp_path / "copies" / "junk.sqlite3").write_bytes(b"junk" * 1000)
        (tmp_path / "scratch").mkdir()
        done = bring_back(tmp_path / "copies", tmp_path / "restored", tmp_path / "scratch")
        assert done.plan.epoch == 5
        assert [Path(text.split(":")[0]).name for text in done.left_out] == ["part-2.sqlite3"]
        assert states(tmp_path / "restored") == {e: s for e, s in states(store).items() if e <= 5}

    def test_the_newest_operational_state_is_taken(self, store, tmp_path):
        """Of copies with the same epoch, whichever was copied last: a file's time says nothing of its age."""
        for number, day in enumerate(("monday", "tuesday"), 1):
            StateManager(store).set_hwm("orders", number)
            shutil.copytree(store, tmp_path / "copies" / day)
            time.sleep(0.002)
        for path in (tmp_path / "copies" / "monday").iterdir():
            os.utime(path)
        (tmp_path / "scratch").mkdir()
        bring_back(tmp_path / "copies", tmp_path / "new", tmp_path / "scratch")
        assert StateManager(tmp_path / "new").get_hwm("orders") == 2

    def test_a_live_directory_is_not_a_place_of_copies(self, store, tmp_path):
        """Files that a run has open are not copied with `cp`."""
        from recovery.base.clock import SystemClock
        from recovery.storage.lock import DirectoryLock

        with (
            DirectoryLock(store, SystemClock(), "flow x"),
            pytest.raises(DirectoryLockedError, match="a run is using it"),
        ):
            bring_back(store, tmp_path / "new", tmp_path)
        assert {f.error for f in scan(store)} == {None}
