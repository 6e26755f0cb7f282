"""Partitions that a store lacks come back at owners, beside those that stay: `recovery restore --missing`, and what a
run does for itself."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.backup.missing import replace_lost
from recovery.backup.note import last_replaced
from recovery.base.clock import SystemClock
from recovery.base.ids import PartitionIndex
from recovery.errors import (
    InconsistentPartitionsError,
    MissingPartitionsError,
    NoBackupError,
    OwnerUnreachableError,
    RecoveryError,
    StorageError,
)
from recovery.planning.copies import Departed, age_of
from recovery.planning.replacement import Replacement
from recovery.planning.resume import plan_resume
from recovery.storage.moving.departed import write_note
from recovery.storage.scan import scan
from recovery.storage.staged import StagedRestore
from tests.backup.support import back_up, bring_back, random_id, states, work
from tests.backup.test_at_owners import call, files, together
from tests.owner.served import recovery
from tests.stores import Driver, SpreadDirectory, content, state_at


class Fleet:
    """Four partitions: one in the driver's directory, three at two owners. `backups` has the epochs up to 5; the owners
    are at epoch 7."""

    def __init__(self, made: Path, root: Path) -> None:
        self.backups = root / "backups"
        work(made, 5)
        back_up(made, self.backups, incremental=True)
        self.spread = SpreadDirectory(made, ((1,), (0, 3), (2,)))
        self.directory, self.first, self.second = self.spread.places
        work(self.spread, 2)

    def at(self, number: int) -> str:
        return f"127.0.0.1:{self.spread.services[number].port}"

    def options(self, *owners: int) -> list[object]:
        named = [word for number in owners for word in ("--owner", self.at(number))]
        return [*named, "--token-file", self.spread.token]

    def lose(self, number: int) -> Path:
        """End an owner. Return its directory, which is still there."""
        self.spread.services[number].stop(0.1)
        del self.spread.services[number]
        return self.spread.places.pop(number + 1)

    def replace(self, *lost: str, place: Path | None = None, deadline_s: float = 5.0) -> Replacement | None:
        """What a run does that holds the owners that are left."""
        store = self.spread.locations(run=random_id(), deadline_s=deadline_s)
        try:
            room = self.directory.parent / f"room-{random_id()}"
            room.mkdir()
            return replace_lost(str(place or self.backups), store, lost, room, clock=SystemClock(), random_id=random_id)
        finally:
            store.release()

    def contents(self) -> list[object]:
        """Every row of every partition, and the names of all files."""
        return [(content(place), files(place)) for place in self.spread.places]


@pytest.fixture
def fleet(make_store, tmp_path) -> Iterator[Fleet]:
    made = Fleet(make_store(4), tmp_path)
    yield made
    made.spread.close()


class TestAReplacement:
    """What a run brings back by itself."""

    def test_the_partitions_of_a_lost_owner(self, fleet, tmp_path):
        """These return as of the epoch of the backup; those that stay keep their later epochs, and the next execution
        goes back to the epoch that all share."""
        lost, stays = fleet.at(1), fleet.at(0)
        fleet.lose(1)
        done = fleet.replace(lost)
        assert (done.lost, done.owner_of, done.epoch) == ((lost,), {2: stays}, 5)
        assert done.text() == f"owner {lost} is lost; partition 2 comes back at {stays} from {fleet.backups}, epoch 5"
        assert files(fleet.first) == ["part-0.sqlite3", "part-2.sqlite3", "part-3.sqlite3"]
        with Driver(fleet.spread) as run:
            assert (run.epoch, run.execution.number) == (6, 3)
            run.apply(60, {"k1": "new"})
            run.close(60)
        bring_back(fleet.backups, tmp_path / "plain", tmp_path)
        with Driver(tmp_path / "plain") as run:
            run.apply(60, {"k1": "new"})
            run.close(60)
        assert state_at(together(fleet.spread.places, tmp_path / "all"), 6) == state_at(tmp_path / "plain", 6)

    def test_nothing_is_missing(self, fleet):
        """Then the place is not asked, and nothing is written."""
        before = fleet.contents()
        assert fleet.replace(place=fleet.directory / "nowhere") is None
        assert fleet.contents() == before

    def test_a_lost_owner_without_partitions_that_count(self, fleet):
        """The others have everything."""
        for path in fleet.second.glob("part-*"):
            path.rename(fleet.first / path.name)
        lost = fleet.at(1)
        fleet.lose(1)
        assert fleet.replace(lost) is None

    def test_an_empty_disk(self, fleet):
        """An owner that lost its disk and is back gets its partition again: it has the fewest bytes."""
        for path in fleet.second.glob("part-*"):
            path.unlink()
        done = fleet.replace()
        assert (done.lost, done.owner_of) == ((), {2: fleet.at(1)})
        assert files(fleet.second) == ["part-2.sqlite3"]

    def test_the_owner_comes_back_with_newer_epochs_before_a_run_has_begun(self, fleet, tmp_path):
        """The owner's copy counts: nothing that the owner has closed is lost."""
        lost = fleet.at(1)
        place = fleet.lose(1)
        assert fleet.replace(lost) is not None
        shutil.copy(place / "part-2.sqlite3", fleet.directory)
        with Driver(fleet.spread) as run:
            assert run.epoch == 8

    def test_the_owner_comes_back_stale(self, fleet):
        """A new execution has begun on the copy, so that the copy counts, though the owner holds more epochs."""
        lost = fleet.at(1)
        place = fleet.lose(1)
        fleet.replace(lost)
        work(fleet.spread, 1)
        shutil.copy(place / "part-2.sqlite3", fleet.directory)
        store = fleet.spread.locations()
        try:
            plan = plan_resume(store.found())
            assert plan.resume_epoch == 7
            assert [note for note in store.notes if "older copy of part-2.sqlite3" in note]
        finally:
            store.release()

    def test_an_older_copy_is_set_aside(self, fleet, tmp_path):
        """A copy that was left behind when its partition moved on, at the owner that gets the partition again. It stays
        as it was, under another name, with its log."""
        stale = fleet.second / "part-2.sqlite3"
        shutil.copy(stale, fleet.first)
        work(fleet.spread, 1)
        before = stale.read_bytes()
        room = together([fleet.directory, fleet.first], tmp_path / "all")
        back_up(room, fleet.backups)
        lost = fleet.at(0)
        fleet.lose(0)
        (fleet.second / "part-2.sqlite3-wal").write_bytes(b"")
        done = fleet.replace(lost)
        assert (sorted(done.owner_of), done.epoch) == ([0, 2, 3], 8)
        assert (fleet.second / "part-2.sqlite3.replaced").read_bytes() == before
        assert (fleet.second / "part-2.sqlite3.replaced-wal").exists()
        assert not (fleet.second / "part-2.sqlite3-wal").exists()
        with Driver(fleet.spread) as run:
            assert run.epoch == 9

    def test_an_owner_to_which_a_note_leads(self, fleet):
        """The partition had moved to the lost owner, and this start does not name that owner. The note goes."""
        [file] = scan(fleet.second)
        lost = fleet.at(1)
        fleet.lose(1)
        left = age_of(file.description)
        write_note(fleet.first, Departed(PartitionIndex(2), file.description.store_id, *left, lost, 0))
        done = fleet.replace(deadline_s=2.0)
        assert (done.lost, done.owner_of) == ((lost,), {2: fleet.at(0)})
        with Driver(fleet.spread) as run:
            assert run.epoch == 6

    def test_it_is_noted(self, fleet):
        """For `recovery status` and for metrics."""
        lost = fleet.at(1)
        fleet.lose(1)
        fleet.replace(lost)
        note = last_replaced(fleet.directory)
        assert (note.epoch, note.lost, note.owners, note.count) == (5, [lost], {"part-2.sqlite3": fleet.at(0)}, 1)
        shown = json.loads(call("status", fleet.directory, "--json", *fleet.options(0)))
        assert shown["replaced"]["owners"] == {"part-2.sqlite3": fleet.at(0)}
        assert f"since {lost} was lost: part-2 at {fleet.at(0)}" in call("status", fleet.directory, *fleet.options(0))


class TestRefused:
    """With nothing changed anywhere."""

    @pytest.fixture
    def lost(self, fleet) -> str:
        location = fleet.at(1)
        fleet.lose(1)
        return location

    def check(self, fleet: Fleet, lost: str, error: type[RecoveryError], words: str, place: Path | None = None) -> None:
        before = fleet.contents()
        with pytest.raises(error, match=words):
            fleet.replace(lost, place=place)
        assert fleet.contents() == before

    def test_a_copy_that_is_older_than_the_window(self, fleet):
        """As for a file that is put there by hand."""
        work(fleet.spread, 2, floor=7)
        lost = fleet.at(1)
        fleet.lose(1)
        self.check(
            fleet,
            lost,
            InconsistentPartitionsError,
            "part-2.sqlite3 ends at epoch 5.*goes back no further than epoch 7",
        )

    def test_a_place_without_backups(self, fleet, lost, tmp_path):
        self.check(fleet, lost, NoBackupError, "neither backups nor copies", tmp_path / "nowhere")

    def test_a_place_that_lacks_the_partition_too(self, fleet, lost, tmp_path):
        room = tmp_path / "copies"
        bring_back(fleet.backups, room, tmp_path)
        (room / "part-2.sqlite3").unlink()
        self.check(fleet, lost, MissingPartitionsError, "part-2", room)

    def test_no_owner_is_left(self, fleet, lost):
        fleet.lose(0)
        self.check(fleet, lost, OwnerUnreachableError, "no owner is left")

    def test_a_disk_that_is_full(self, fleet, lost, monkeypatch):
        def full(self: StagedRestore, name: str, data: bytes) -> None:
            raise StorageError("no space left on device", path=self._directory)

        monkeypatch.setattr(StagedRestore, "put", full)
        self.check(fleet, lost, StorageError, "no space left")


class TestTheCommand:
    """`recovery restore SRC DIR --missing --owner …`."""

    def test_one_lost_disk_in_one_command(self, fleet, tmp_path):
        """What comes back, where, and as of when."""
        fleet.lose(1)
        words = ["restore", fleet.backups, fleet.directory, "--missing", *fleet.options(0)]
        before = fleet.contents()
        planned = json.loads(call(*words, "--dry-run", "--json"))
        assert (planned["owners"], planned["epoch"]) == ({"part-2.sqlite3": fleet.at(0)}, 5)
        assert [each["file"] for each in planned["copies"]] == ["part-2.sqlite3"]
        assert f"part-2 would go to {fleet.at(0)}" in call(*words, "--dry-run")
        assert fleet.contents() == before
        done = call(*words)
        assert f"part-2 are at {fleet.at(0)}" in done
        assert "1 partition came back as of epoch 5" in done
        with Driver(fleet.spread) as run:
            assert run.epoch == 6
        assert "no partition is missing" in call(*words)
        assert json.loads(call(*words, "--json"))["owners"] == {}

    @pytest.mark.long
    def test_the_partition_had_moved_to_the_lost_owner(self, fleet):
        """What that owner has does not count any more, though a note says that it is newer: the next run begins without
        it. A kill before the note is removed changes nothing."""
        [file] = scan(fleet.second)
        for path in fleet.second.glob("part-2.*"):
            path.unlink()
        lost = "127.0.0.1:1"
        write_note(
            fleet.first, Departed(PartitionIndex(2), file.description.store_id, *age_of(file.description), lost, 0)
        )
        words = ["restore", fleet.backups, fleet.directory, "--missing", *fleet.options(0, 1)]
        assert json.loads(call(*words, "--dry-run", "--json"))["lost"] == [lost]
        assert recovery(*words, RECOVERY_CRASH_AT="missing.5").returncode == -9
        assert (fleet.second / "part-2.sqlite3").exists()
        assert (fleet.first / ".moved-part-2.json").exists()
        assert f"{lost}, to which partitions had moved, was not reached" in call(*words)
        assert not (fleet.first / ".moved-part-2.json").exists()
        assert json.loads(call(*words, "--json"))["lost"] == []
        with Driver(fleet.spread) as run:
            assert run.epoch == 6

    def test_a_run_that_holds_an_owner(self, fleet):
        fleet.lose(1)
        run = fleet.spread.locations(run="one")
        try:
            words = ["restore", fleet.backups, fleet.directory, "--missing", *fleet.options(0)]
            assert "run one" in call(*words, code=40)
        finally:
            run.release()

    @pytest.mark.parametrize("option", [["--lazy"], ["--epoch", 3], ["--timestamp", "2026-01-01T00:00:00"]])
    def test_options_that_do_not_fit(self, fleet, option):
        words = ["restore", fleet.backups, fleet.directory, "--missing", *fleet.options(0)]
        assert f"{option[0]} does not go with --missing" in call(*words, *option, code=2)

    def test_without_owners_or_a_directory(self, fleet):
        assert "--owner" in call("restore", fleet.backups, fleet.directory, "--missing", code=2)
        assert "'DIR'" in call("restore", fleet.backups, "--missing", *fleet.options(0), code=2)

    @pytest.mark.long
    @pytest.mark.parametrize("seed", range(8))
    def test_killed_at_any_step(self, seed, fleet, tmp_path):
        """A killed command, given again, brings what is still missing."""
        chance = random.Random(seed)
        fleet.lose(1)
        words = ["restore", fleet.backups, fleet.directory, "--missing", *fleet.options(0)]
        for _ in range(3):
            point = chance.choice(["missing.3", "missing.4", "missing.5"])
            done = recovery(*words, RECOVERY_CRASH_AT=point, TMPDIR=str(tmp_path))
            assert done.returncode in (-9, 0), done.stderr
        done = recovery(*words, TMPDIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert files(fleet.first) == ["part-0.sqlite3", "part-2.sqlite3", "part-3.sqlite3"]
        with Driver(fleet.spread) as run:
            assert run.epoch == 6
        assert states(together(fleet.spread.places, tmp_path / "all"))[5]
