"""Erasing a key from copies: no object and no file of a standby has it, and what stays restores as before."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from recovery.backup.drills import LastDrill, drill_names, note_drill
from recovery.backup.erase import (
    ACCESS,
    ErasedCopy,
    PlaceSearch,
    check_access,
    erase_place,
    erase_standby,
    search_standby,
)
from recovery.backup.make import Made
from recovery.backup.manifest import FORMAT, OBJECTS, RUNNING, manifest_name
from recovery.backup.repository import begin, list_backups, prune, running_name, under_way
from recovery.backup.writer import Writer
from recovery.base.clock import SystemClock
from recovery.errors import (
    BackupTargetError,
    ForeignPartitionError,
    NoBackupError,
    StandbyDirectoryError,
    TakenOverError,
    UnsupportedVersionError,
)
from recovery.host.processes import as_holder, has_ended
from recovery.operational.runs import RunHistory
from recovery.operational.steps.step_edits import audit
from recovery.places.directory import DirectoryPlace
from recovery.places.protocol import OlderVersion
from recovery.planning.backups import KeepRule
from recovery.storage.erasing import SoughtKeys
from recovery.storage.scan import scan
from recovery.storage.store import Store
from tests.backup.standby.support import followed, newest_state
from tests.backup.support import back_up, bring_back, states
from tests.faults.minirun import child, die_at, wait
from tests.operational.person import (
    EVERYWHERE,
    OTHER,
    PERSON,
    SECRET,
    WAITING,
    apply,
    erased,
    history,
    left,
    rest,
    traces,
)
from tests.shares import seeds
from tests.stores import STEP, Driver, paths_of, problems, window

COUNT = 2


def wanted(directory: Path) -> SoughtKeys:
    """The person, in copies of a directory's store."""
    [found, *_] = scan(directory)
    assert found.description is not None
    return SoughtKeys(EVERYWHERE, found.description.store_id, COUNT)


class Copies:
    """A directory with a history, a place with backups and a chain of it, and a standby."""

    def __init__(self, directory: Path, root: Path) -> None:
        self.directory, self.root = directory, root
        self.place = DirectoryPlace(root / "place")
        self.standby = root / "standby"
        self.wanted = wanted(directory)

    @classmethod
    def of(cls, directory: Path, root: Path) -> Copies:
        """Make the backups and the standby of a directory."""
        made = cls(directory, root)
        made.back_up()
        for _ in range(3):
            made.write()
            made.back_up(incremental=True)
        followed(root / "place", made.standby)
        assert traces(made.unpacked(), SECRET)
        return made

    def write(self) -> None:
        with Driver(self.directory, (STEP, OTHER, WAITING), backup_interval_s=3600.0) as run:
            batch = run.epoch * 1000
            apply(run, batch, STEP, {PERSON: f'"{SECRET} {batch}"', "k1": f"[{batch}]", "k5": f"[{batch}]"})
            run.close(batch, notes_made=True)

    def back_up(self, **options: object) -> Made:
        return back_up(self.directory, self.place, **options)

    def erase(self, **options: bool) -> ErasedCopy:
        return erase_place(PlaceSearch(self.place, self.wanted), self.back_up, SystemClock(), **options)

    def unpacked(self) -> Path:
        """A directory with what all objects of the place hold, unpacked."""
        shutil.rmtree(self.root / "unpacked", ignore_errors=True)
        for entry in self.place.entries(OBJECTS):
            path = self.root / "unpacked" / entry.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(self.place.read(entry.name)))
        return self.root / "unpacked"

    def restored(self, name: str, **options: object) -> Path:
        bring_back(self.place, self.root / name, self.root, **options)
        return self.root / name


@pytest.fixture(scope="module")
def made(store_maker, tmp_path_factory) -> Copies:
    return Copies.of(store_maker(COUNT, history, 1, 2), tmp_path_factory.mktemp("copies"))


@pytest.fixture
def copies(made, tmp_path) -> Copies:
    """As if they had been made where the test has them."""
    for origin in (made.directory, made.root / "place", made.standby):
        shutil.copytree(origin, tmp_path / origin.name)
    copies = Copies(tmp_path / made.directory.name, tmp_path)
    for file in (copies.directory / "last-backup.json", copies.standby / "standby.json"):
        file.write_text(file.read_text().replace(str(made.root), str(tmp_path)))
    return copies


@pytest.mark.parametrize("seed", seeds(40))
def test_a_place_holds_one_backup_without_the_key(make_store, tmp_path, seed):
    """Which restores every epoch that the directory holds; no object has a byte of the key, unpacked or not."""
    copies = Copies.of(make_store(COUNT, history, seed, 2), tmp_path)
    before = states(copies.directory)
    assert erased(copies.directory) is not None
    found = PlaceSearch(copies.place, copies.wanted).found()
    done = copies.erase()
    assert set(found.held) <= set(done.held)
    assert done.left == ()
    assert [each.id for each in list_backups(copies.place).manifests] == [done.backup]
    assert set(done.removed) == set(found.removed)
    assert traces(copies.root / "place", SECRET) == traces(copies.unpacked(), SECRET) == []
    back = copies.restored("back")
    assert problems(back) == []
    assert states(back) == {epoch: rest(state) for epoch, state in before.items()}
    assert copies.erase() == ErasedCopy(copies.place.shown)


def test_backups_without_the_key_stay(make_store, tmp_path):
    """Only those that list an object with the key go, and objects of no backup that have it."""
    directory, place = make_store(COUNT), DirectoryPlace(tmp_path / "place")
    with Driver(directory) as run:
        run.apply(1, {"k1": "1"})
        run.close(1)
    first = back_up(directory, place).manifest
    history(directory, 3, executions=1)
    back_up(directory, place)
    name = next(each for each in PlaceSearch(place, wanted(directory)).found().held)
    (tmp_path / "place" / name.replace(name.split("-")[-1], "00ff.sqlite3.zst")).write_bytes(
        (tmp_path / "place" / name).read_bytes()
    )
    assert erased(directory) is not None
    done = erase_place(PlaceSearch(place, wanted(directory)), lambda: back_up(directory, place), SystemClock())
    assert done.left == ()
    assert len(done.held) == 2
    assert [each.id for each in list_backups(place).manifests] == [first.id, done.backup]
    bring_back(place, tmp_path / "back", tmp_path, epoch=1)
    assert window(tmp_path / "back")[-1] == 1


def test_no_chain_continues_across_an_erasure(copies):
    """Whole copies are stored, which restore; the key is not in what was made since, named or not."""
    assert erased(copies.directory) is not None
    for _ in range(2):
        with Driver(copies.directory, (STEP,), backup_interval_s=3600.0) as run:
            batch = run.epoch * 1000
            apply(run, batch, STEP, {"k1": f"[{batch}]"})
            run.close(batch, notes_made=True)
        made = copies.back_up(incremental=True)
        whole = made.stored
    assert whole == 0, "the second backup continues the first one after the erasure"
    back = copies.restored("back")
    assert problems(back) == []
    assert states(back) == states(copies.directory)
    assert traces(back, SECRET) == []


def test_a_rewind_after_an_erasure_keeps_its_backups_right(copies):
    """The next incremental backup begins before the erasure's newest epoch, of which the place has other rows."""
    assert erased(copies.directory) is not None
    held = left(copies.directory)
    for epoch in sorted(held)[-3:]:
        with Driver(copies.directory, (STEP,), resume_epoch=epoch + 1, backup_interval_s=3600.0) as run:
            batch = run.epoch * 1000 + 1
            apply(run, batch, STEP, {"k1": f"[{batch}]"})
            run.close(batch, notes_made=True)
        copies.back_up(incremental=True)
        back = copies.restored(f"back-{epoch}")
        assert problems(back) == []
        assert newest_state(back) == newest_state(copies.directory)


@pytest.mark.parametrize("point", ["place.2", "place.4.manifests", "place.4"])
def test_killed_at_any_step_the_same_call_completes_it(copies, point):
    """And in between, the latest backup restores without the key."""
    assert erased(copies.directory) is not None

    def work() -> None:
        die_at(point)
        copies.erase()

    assert wait(child(work)) < 0
    back = copies.restored("between")
    assert problems(back) == []
    assert traces(back, SECRET) == []
    assert copies.erase().left == ()
    assert traces(copies.unpacked(), SECRET) == []
    assert newest_state(copies.restored("back")) == newest_state(copies.directory)


def test_a_place_that_refuses_to_remove_is_reported(copies):
    """As a bucket with object lock: what is left is named; the latest backup is without the key."""

    class Locked(DirectoryPlace):
        def delete(self, name: str) -> None:
            if name.startswith("objects/"):
                raise BackupTargetError("the object is locked until 2027", path=name)
            super().delete(name)

    assert erased(copies.directory) is not None
    place = Locked(copies.root / "place")
    done = erase_place(PlaceSearch(place, copies.wanted), copies.back_up, SystemClock())
    assert set(done.left) == set(done.held)
    assert "locked until 2027" in done.why
    assert traces(copies.restored("back"), SECRET) == []
    assert copies.erase().left == ()


def test_a_backup_that_is_being_made_is_waited_for_by_the_user(copies):
    """A backup that runs may have read the key before, so nothing is removed until that backup has ended."""
    assert erased(copies.directory) is not None
    name = running_name("20300101T000000.000Z-00")
    copies.place.write(name, [b"x"])
    done = copies.erase()
    assert name in done.left
    assert "is being made" in done.why
    assert done.removed == ()
    assert set(done.held) < set(done.left)
    assert "--killed-backups" in done.why
    assert copies.erase(killed=True).left == ()
    assert copies.place.entries(RUNNING) == []


def test_a_backup_that_is_being_made_counts_where_the_place_has_nothing_yet(make_store, tmp_path):
    """A backup that has read the key before may store it later: nothing is called erased before that backup has ended,
    nor by a look."""
    directory, place = make_store(COUNT), DirectoryPlace(tmp_path / "place")
    back_up(directory, place)
    history(directory, 1, executions=1)
    sought, name = wanted(directory), running_name("20300101T000000.000Z-00")
    place.write(name, [b"x"])
    assert erased(directory) is not None
    looked = PlaceSearch(place, sought).found(under_way(place, SystemClock().wall_ms()))
    done = erase_place(PlaceSearch(place, sought), lambda: back_up(directory, place), SystemClock())
    for found in (looked, done):
        assert found.held == ()
        assert name in found.left
        assert "is being made" in found.why
        assert not found.is_done
    assert place.entries(RUNNING)
    done = erase_place(PlaceSearch(place, sought), lambda: back_up(directory, place), SystemClock(), killed=True)
    assert done.left == ()
    assert place.entries(RUNNING) == []


def announced(place: DirectoryPlace, identity: str, maker: dict[str, Any]) -> str:
    """The name of the note of a backup by this process."""
    begin(place, identity, lambda: None, SystemClock().wall_ms(), maker)
    return running_name(identity)


def another(*, host: str | None = None, process: str | None = None, pid: int | None = None) -> dict[str, Any]:
    """This process, but for what is given."""
    given = {"host": host, "process": process, "pid": pid}
    return as_holder("backup") | {name: value for name, value in given.items() if value is not None}


def test_the_note_of_a_killed_backup_holds_up_nothing_where_its_process_is_known_to_have_ended(copies):
    """This host knows that; a process of another host, boot or container may still write, and a living one does."""
    assert erased(copies.directory) is not None
    identity, _, start = (as_holder("backup")["process"] or "").rpartition(":")
    makers = {
        "the same number, another process": (another(process=f"{identity}:{int(start) + 1}"), False),
        "no such process": (another(pid=(1 << 22) + 7), False),
        "alive": (another(), True),
        "another host": (another(host="elsewhere", pid=(1 << 22) + 7), True),
        "another boot": (another(process=f"boot:1:{start}", pid=(1 << 22) + 7), True),
        "an older version": ({"process": None}, True),
    }
    for number, (what, (maker, is_under_way)) in enumerate(makers.items()):
        name = announced(copies.place, f"20300101T000000.000Z-0{number}", maker)
        shown = [each.shown for each in under_way(copies.place, SystemClock().wall_ms()) if each.name == name]
        assert (len(shown) == 1) is is_under_way, what
        if "elsewhere" in str(maker):
            assert "on elsewhere (backup)" in shown[0]
    kept = [each.name for each in under_way(copies.place, SystemClock().wall_ms())]
    prune(copies.place, [KeepRule(count=100)], SystemClock().wall_ms())
    assert [each.name for each in copies.place.entries(RUNNING)] == kept
    done = copies.erase()
    assert set(kept) < set(done.left)
    assert copies.erase(killed=True).left == ()


def test_a_process_that_this_user_cannot_see_has_not_ended(monkeypatch):
    """Where /proc hides the processes of others (hidepid), only the right to signal one tells that it is there."""
    unseen = another(pid=(1 << 22) + 7)
    assert has_ended(unseen)

    def kill(_pid: int, _signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr("recovery.host.processes.os.kill", kill)
    assert not has_ended(unseen)


def test_a_number_that_no_process_has_is_not_known_to_have_ended():
    """Whoever writes to the place has written the note: the number may be larger than the system's calls take."""
    for pid in (1 << 31, 1 << 61):
        assert not has_ended(another(pid=pid))


@pytest.mark.parametrize("point", ["backup.stored", "place.2"])
def test_a_killed_backup_is_no_obstacle_to_the_same_command(copies, point):
    """The process that made the backup is gone, so its note does not count, and goes."""
    assert erased(copies.directory) is not None

    def work() -> None:
        begin(copies.place, "20300101T000000.000Z-00", lambda: None, SystemClock().wall_ms(), as_holder("backup"))
        if point == "place.2":
            die_at(point)
            copies.erase()
        os._exit(1)

    assert wait(child(work)) != 0
    assert len(copies.place.entries(RUNNING)) == 1
    assert copies.erase().left == ()
    assert copies.place.entries(RUNNING) == []
    assert traces(copies.unpacked(), SECRET) == []


def test_an_object_that_cannot_be_read_is_reported(copies):
    """An unreadable object may hold the key: the backups that list the object stay until they are pruned."""
    assert erased(copies.directory) is not None
    name = PlaceSearch(copies.place, copies.wanted).found().held[0]
    (copies.root / "place" / name).write_bytes(b"no object")
    found = PlaceSearch(copies.place, copies.wanted).found()
    assert found.left == (name,)
    assert found.why
    done = copies.erase()
    assert done.left == (name,)
    assert done.why == found.why
    prune(copies.place, [KeepRule(count=1)], SystemClock().wall_ms())
    assert not (copies.root / "place" / name).exists()
    assert copies.erase() == ErasedCopy(copies.place.shown)


class Versions:
    """A bucket's older versions, which this user may list, and neither read nor see locked."""

    def entries(self, prefix: str) -> list[OlderVersion]:
        """Two of one object."""
        return [OlderVersion("objects/part-0/x", each) for each in "ab" if prefix == OBJECTS]

    def read(self, older: OlderVersion) -> Iterator[bytes]:
        """Refuse."""
        raise BackupTargetError("AccessDenied: s3:GetObjectVersion", path="place")

    def delete(self, older: OlderVersion) -> None:
        """Not asked."""
        raise AssertionError

    def lock(self, name: str, version: str | None = None) -> None:
        """None is known."""


def test_versions_that_this_user_may_not_read_are_left(copies):
    """Reading them takes a permission of its own. The objects are erased without it, and the rest is named."""
    assert erased(copies.directory) is not None
    copies.place.versions = Versions()
    found = PlaceSearch(copies.place, copies.wanted).found()
    done = copies.erase()
    for each in (found, done):
        assert each.left == ("objects/part-0/x?versionId=a", "objects/part-0/x?versionId=b")
        assert "s3:GetObjectVersion" in each.why
    assert done.backup is not None
    assert traces(copies.unpacked(), SECRET) == []


def test_who_may_not_remove_is_told_what_stays(tmp_path):
    """Only removing shows the right to remove; the error names the object that was written to learn it."""

    class Kept(DirectoryPlace):
        def delete(self, name: str) -> None:
            raise BackupTargetError("AccessDenied", path=name)

    with pytest.raises(BackupTargetError, match=rf"not remove objects: AccessDenied; {ACCESS}, .* stays"):
        check_access(Kept(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [ACCESS]
    check_access(DirectoryPlace(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_another_directory_is_the_writer(copies, tmp_path):
    """Then nothing is removed: the place is that directory's, in which the key may still be."""
    other = copies.restored("other")
    with Driver(other, (STEP,)) as run:
        run.close(1)
    writer = Writer(
        other, copies.place, SystemClock(), lambda: "ab", place=str(copies.root / "place"), takeover=True,
        lose_epochs=True,
    )  # fmt: skip
    back_up(other, copies.place, writer=writer)
    assert erased(copies.directory) is not None
    before = sorted(path for path in (copies.root / "place").rglob("*") if path.is_file())
    with pytest.raises(TakenOverError):
        copies.erase()
    assert sorted(path for path in (copies.root / "place").rglob("*") if path.is_file()) == before


def test_a_standby_gets_files_without_the_key(copies):
    """By following its place, once the key is erased there; before that, it still holds the key."""
    assert erased(copies.directory) is not None
    assert search_standby(copies.standby, copies.wanted).held
    early = erase_standby(copies.standby, copies.wanted, SystemClock())
    assert early.left
    assert "--place" in early.why
    assert copies.erase().left == ()
    done = erase_standby(copies.standby, copies.wanted, SystemClock())
    assert done.held == early.held
    assert done.left == ()
    assert traces(copies.standby, SECRET) == []
    assert problems(copies.standby) == []
    assert newest_state(copies.standby) == newest_state(copies.directory)


def test_a_standby_loses_what_applied_changes_left_in_free_pages(make_store, tmp_path, monkeypatch):
    """A row that the changes deleted is none any more, and its bytes go too; following goes on from there."""
    directory, place, standby = make_store(1), DirectoryPlace(tmp_path / "place"), tmp_path / "standby"

    def go_on(*batches: tuple[dict, int]) -> None:
        with Driver(directory, (STEP,), backup_interval_s=3600.0) as run:
            for changes, floor in batches:
                run.apply(run.epoch, changes)
                run.close(run.epoch, floor=floor, notes_made=True)
        back_up(directory, place, incremental=True)
        followed(tmp_path / "place", standby)

    many = {f"k{number}": "x" * 200 for number in range(200)}
    go_on(({**many, PERSON: f'"{SECRET}"'}, 0))
    go_on((dict.fromkeys([*many, PERSON]), 1), ({"k1": "1"}, 2), ({"k1": "2"}, 3))
    sought = SoughtKeys(EVERYWHERE, wanted(directory).store_id, 1)
    assert search_standby(standby, sought).held == ()
    assert traces(standby, SECRET)
    monkeypatch.setattr("recovery.storage.sqlite.file.connections.BUSY_TIMEOUT_MS", 50)
    with closing(apsw.Connection(str(paths_of(standby)[0]))) as reader:
        reader.execute("BEGIN; SELECT count(*) FROM snaps").fetchall()
        kept = erase_standby(standby, sought, SystemClock())
    assert kept.left == ("part-0.sqlite3",)
    assert "log still holds" in kept.why
    assert erase_standby(standby, sought, SystemClock()) == ErasedCopy(str(standby))
    assert traces(standby, SECRET) == problems(standby) == []
    go_on(({"k2": "3"}, 3))
    assert newest_state(standby) == newest_state(directory)


def test_what_is_no_copy_of_the_store_is_refused(copies, tmp_path):
    """Nothing of the key is there, which would be no answer about the copies that the user meant."""
    empty = DirectoryPlace(tmp_path / "misspelt")
    with pytest.raises(NoBackupError):
        PlaceSearch(empty, copies.wanted)
    other = replace(copies.wanted, store_id="another")
    with pytest.raises(ForeignPartitionError):
        PlaceSearch(copies.place, other)
    with pytest.raises(ForeignPartitionError):
        search_standby(copies.standby, other)
    with pytest.raises(StandbyDirectoryError):
        erase_standby(copies.directory, copies.wanted, SystemClock())


def test_a_backup_of_a_newer_version_is_refused(copies):
    """A manifest of a newer version may list any object; nothing is removed, and no backup is made."""
    assert erased(copies.directory) is not None
    path = copies.root / "place" / manifest_name(list_backups(copies.place).manifests[0].id)
    value = json.loads(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(json.dumps(value | {"format": FORMAT + 1}).encode()))
    before = {path: path.read_bytes() for path in (copies.root / "place").rglob("*") if path.is_file()}
    for call in (copies.erase, lambda: PlaceSearch(copies.place, copies.wanted).found()):
        with pytest.raises(UnsupportedVersionError, match=f"format {FORMAT + 1}"):
            call()
    assert {path: path.read_bytes() for path in (copies.root / "place").rglob("*") if path.is_file()} == before


def test_records_of_failed_runs_in_copies_are_found(make_store, tmp_path):
    """The run history lies with partition 0, and is in every copy."""
    directory, place = make_store(COUNT), DirectoryPlace(tmp_path / "place")
    history(directory, 12, executions=1)
    records: RunHistory = audit(Store(directory), SystemClock())
    records.begin("flow", "flow").end(ValueError(f"step 'count', key {PERSON!r}: their street is {SECRET}"))
    back_up(directory, place)
    assert {name.split("/")[1] for name in PlaceSearch(place, wanted(directory)).found().held} == {
        "part-0",
        f"part-{max(wanted(directory).partitions)}",
    }
    assert erased(directory) is not None
    done = erase_place(PlaceSearch(place, wanted(directory)), lambda: back_up(directory, place), SystemClock())
    assert done.left == ()
    assert PlaceSearch(place, wanted(directory)).found().held == ()


def test_notes_of_drills_that_name_the_key_go(copies):
    """A drill that failed says which rows were damaged; notes of others stay. Notes alone need no new backup."""

    def noted(found: str) -> set[str]:
        before = set(drill_names(copies.place))
        assert note_drill(copies.place, LastDrill(1, "place", None, 0.5, found, PERSON)) is None
        return set(drill_names(copies.place)) - before

    stays = noted("rows do not match (step 'count' key 'k1')")
    [name] = noted(f"rows do not match (step 'count' key {PERSON!r})")
    assert name in PlaceSearch(copies.place, copies.wanted).found().held
    assert erased(copies.directory) is not None
    done = copies.erase()
    assert name in done.held
    assert done.left == ()
    assert done.is_place
    assert set(drill_names(copies.place)) == stays
    [name] = noted(f"key {PERSON!r}")
    before = list_backups(copies.place).manifests
    assert copies.erase() == ErasedCopy(copies.place.shown, (name,))
    assert list_backups(copies.place).manifests == before
    assert set(drill_names(copies.place)) == stays
