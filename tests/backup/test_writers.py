"""One directory is a place's writer: its backups are the latest, and no other directory removes them, whatever the
clocks say."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery.backup import writer as writing
from recovery.backup.lease import NAME, read_term
from recovery.backup.manifest import manifest_name
from recovery.backup.repository import list_backups, prune
from recovery.backup.standby.promote import promote
from recovery.base.clock import SystemClock
from recovery.cli import main
from recovery.errors import (
    BackupTargetError,
    EpochNotHeldError,
    ForeignPartitionError,
    RecoveryError,
    StaleDirectoryError,
    TakenOverError,
)
from recovery.places.directory import DirectoryPlace
from recovery.planning.backups import KeepRule, parse_keep
from tests.backup.sites import (
    DAY_MS,
    MINUTE_MS,
    Sites,
    SkewedClock,
    content_of,
    edited,
    followed,
    held_by,
    noted,
    restored,
    saved,
)
from tests.backup.support import back_up, random_id, work
from tests.shares import first, seeds

AHEAD = SkewedClock(10 * MINUTE_MS)
ONE = [KeepRule(count=1)]


@pytest.fixture
def a(make_store) -> Path:
    """The directory of site A, with three epochs."""
    return make_store(2, work, 3)


@pytest.fixture
def place(tmp_path) -> Path:
    return tmp_path / "place"


def ids(place: Path) -> list[str]:
    return [manifest.id for manifest in list_backups(DirectoryPlace(place)).manifests]


@pytest.fixture
def taken_over(a, place, tmp_path) -> tuple[Path, Path]:
    """A was backed up; it goes on, its clock ahead, and has not noticed that B took over and was backed up."""
    saved(a, place)
    edited(a, "A's", AHEAD)
    b = followed(place, tmp_path / "b")
    promote(b, SystemClock(), random_id)
    for number in range(3):
        edited(b, f"B's {number}")
    saved(b, place)
    return a, b


@pytest.mark.parametrize(
    "options",
    [{}, {"incremental": True}, {"keep": ONE}, {"keep": [parse_keep("1d")]}, {"takeover": True}, {"lose_epochs": True}],
    ids=str,
)
@first("ahead_ms", [0, 10 * MINUTE_MS, 3 * DAY_MS, -3 * DAY_MS], count=2)
def test_a_job_that_comes_back_is_refused(taken_over, place, tmp_path, options, ahead_ms):
    """Nothing at the place changes, and nothing in its directory; B goes on, and B's state is restored."""
    a, b = taken_over
    for name in ("then", "later"):
        before = content_of(place), content_of(a)
        with pytest.raises(TakenOverError, match=r"a promotion on .* is the store's writer now"):
            saved(a, place, SkewedClock(ahead_ms), **options)
        assert (content_of(place), content_of(a)) == before
        assert held_by(restored(place, tmp_path / name, tmp_path)) == held_by(b)
        edited(b, "B's later")
        saved(b, place, keep=ONE)


def test_an_unclaimed_backup_is_refused_too(taken_over, place):
    """Of a user who may not write to the directory, or to its lease."""
    a, _ = taken_over
    before = content_of(place)
    with pytest.raises(TakenOverError):
        back_up(a, place)
    assert content_of(place) == before


def test_who_goes_on_after_a_restore_says_so_once(a, place, tmp_path):
    """The old machine died. A restored directory is refused until it is given --takeover; then the old one is refused,
    also with --takeover, and says what to do."""
    saved(a, place)
    b = restored(place, tmp_path / "b", tmp_path)
    edited(b, "B's")
    before = content_of(place)
    with pytest.raises(TakenOverError) as refused:
        saved(b, place)
    assert "run the backup with --takeover" in refused.value.remedy
    assert content_of(place) == before
    made = saved(b, place, takeover=True)
    assert made.manifest.term == 2
    noted(a, "A's")
    edited(a, "A's", AHEAD)
    for takeover in (False, True):
        with pytest.raises(TakenOverError) as refused:
            saved(a, place, takeover=takeover)
        assert "a place of its own" in refused.value.remedy
    edited(b, "B's later")
    saved(b, place)
    assert held_by(restored(place, tmp_path / "c", tmp_path)) == held_by(b)
    # It has what the remedy says.
    saved(a, tmp_path / "place of its own")


def test_a_takeover_that_lacks_epochs_says_which(a, place, tmp_path):
    """The old machine was backed up once more after the restore. --lose-epochs gives that up, for good."""
    saved(a, place)
    b = restored(place, tmp_path / "b", tmp_path)
    edited(b, "B's")
    edited(a, "A's", AHEAD)
    saved(a, place)
    before = content_of(place)
    with pytest.raises(StaleDirectoryError, match=r"it has epoch 4, closed by execution 2 on .* ends at epoch 4"):
        saved(b, place, takeover=True)
    assert content_of(place) == before
    saved(b, place, takeover=True, lose_epochs=True)
    assert held_by(restored(place, tmp_path / "c", tmp_path)) == held_by(b)
    assert held_by(followed(place, tmp_path / "d")) == held_by(b)


def test_a_takeover_without_a_new_execution_counts(a, place, tmp_path):
    """No execution shows that the epochs after the restored one are given up: the term does."""
    saved(a, place)
    b = restored(place, tmp_path / "b", tmp_path)
    edited(a, "A's", AHEAD)
    saved(a, place, incremental=True)
    standby = followed(place, tmp_path / "standby")
    assert held_by(standby) == held_by(a)
    saved(b, place, takeover=True, lose_epochs=True, incremental=True)
    for look in (restored(place, tmp_path / "c", tmp_path), followed(place, tmp_path / "d"), followed(place, standby)):
        assert held_by(look) == held_by(b)
    assert held_by(restored(place, tmp_path / "e", tmp_path, epoch=4)) == held_by(a)


def test_operational_state_alone_is_no_other_line(a, place, tmp_path):
    """Operational state has no epochs, so only the term shows which of two directories counts."""
    saved(a, place)
    b = restored(place, tmp_path / "b", tmp_path)
    noted(a, "A's")
    noted(b, "B's")
    saved(b, place, takeover=True)
    with pytest.raises(TakenOverError):
        saved(a, place, AHEAD, keep=ONE)
    assert held_by(restored(place, tmp_path / "c", tmp_path)) == held_by(b)


def test_a_takeover_that_lacks_operational_state_says_which(a, place, tmp_path):
    """The old directory changed a document after the restore, and was backed up without another epoch."""
    noted(a, "first")
    saved(a, place)
    b = restored(place, tmp_path / "b", tmp_path)
    assert saved(b, tmp_path / "other", takeover=True)
    noted(a, "second")
    saved(a, place)
    before = content_of(place), content_of(b)
    with pytest.raises(StaleDirectoryError, match=r"it has 1 newer document of operational state, .*: doc"):
        saved(b, place, takeover=True)
    assert (content_of(place), content_of(b)) == before
    edited(b, "a later run")
    with pytest.raises(StaleDirectoryError, match="doc"):
        saved(b, place, takeover=True)
    c = restored(place, tmp_path / "c", tmp_path)
    noted(c, "third")
    saved(c, place, takeover=True)
    with pytest.raises(TakenOverError):
        saved(a, place)
    saved(b, place, takeover=True, lose_epochs=True)
    assert held_by(restored(place, tmp_path / "d", tmp_path)) == held_by(b)


@pytest.mark.parametrize("first", ["original", "copy"])
def test_of_a_directory_and_its_copy_one_goes_on(a, place, tmp_path, first):
    """`cp -r` copies the lease. The one that is backed up first from then on goes on; the other one is refused."""
    saved(a, place)
    copy = Path(shutil.copytree(a, tmp_path / "copy"))
    noted(a, "A's")
    noted(copy, "the copy's")
    if first == "original":
        saved(a, place)
        # It is not seen that the original was backed up, but which of both wrote last is.
        saved(copy, place)
        winner, loser = copy, a
    else:
        saved(copy, place)
        winner, loser = copy, a
    with pytest.raises(TakenOverError):
        saved(loser, place)
    assert held_by(restored(place, tmp_path / "c", tmp_path)) == held_by(winner)


def test_a_directory_that_was_set_back_is_refused(a, place, tmp_path):
    """A snapshot of its disk, older than the place: the lease is the same."""
    saved(a, place)
    old = Path(shutil.copytree(a, tmp_path / "old"))
    edited(a, "lost")
    saved(a, place)
    for path in a.glob("part-*"):
        path.unlink()
    for path in old.glob("part-*"):
        shutil.copy2(path, a)
    with pytest.raises(StaleDirectoryError):
        saved(a, place)
    saved(a, place, lose_epochs=True)
    assert held_by(restored(place, tmp_path / "c", tmp_path)) == held_by(a)


def test_several_places(a, tmp_path):
    """A directory holds the term of each; another one takes over one of them, and only that."""
    places = [tmp_path / f"place {number}" for number in range(3)]
    for place in places:
        saved(a, place)
    b = restored(places[1], tmp_path / "b", tmp_path)
    saved(b, places[1], takeover=True)
    edited(a, "A's")
    saved(a, places[0])
    with pytest.raises(TakenOverError):
        saved(a, places[1])
    saved(a, places[2])
    for place, holder in zip(places, (a, b, a), strict=True):
        assert held_by(restored(place, tmp_path / f"of {place.name}", tmp_path)) == held_by(holder)


def test_places_of_older_versions_go_on(a, place, tmp_path):
    """Without a term, the first directory that has all that the place has claims it; one that lacks epochs does not."""
    back_up(a, place)
    b = restored(place, tmp_path / "b", tmp_path)
    edited(a, "A's")
    back_up(a, place)
    assert read_term(DirectoryPlace(place)) is None
    for one in (saved, back_up):
        with pytest.raises(StaleDirectoryError, match="it has epoch 4"):
            one(b, place)
    assert read_term(DirectoryPlace(place)) is None
    assert saved(a, place).manifest.term == 1
    with pytest.raises(TakenOverError):
        saved(b, place)


def test_backups_of_a_later_term_stay(taken_over, place):
    """The writer before may be past its last check when another one takes over: what it prunes is its own."""
    _, b = taken_over
    saved(b, place)
    target = DirectoryPlace(place)
    of_a = list_backups(target).manifests[0]
    assert of_a.term == 1
    kept = prune(target, ONE, SkewedClock(3 * DAY_MS).wall_ms(), None, of_a).kept
    assert kept == tuple(ids(place))
    assert len(kept) == 3


@pytest.mark.parametrize("ahead_ms", [3 * DAY_MS, -3 * DAY_MS])
def test_no_clock_makes_a_pruning_remove_young_backups(a, place, ahead_ms):
    """Ages are counted from the latest backup: the clock of the host that prunes removes none."""
    for _ in range(3):
        edited(a, "more")
        saved(a, place)
    assert prune(DirectoryPlace(place), [parse_keep("1d")], SkewedClock(ahead_ms).wall_ms()).removed == ()


def test_a_backup_whose_note_a_pruning_removed_does_not_count(a, place, monkeypatch):
    """A host whose clock is days ahead takes it for abandoned, at the last moment: its objects may be gone."""
    saved(a, place)
    edited(a, "more")
    target, write = DirectoryPlace(place), DirectoryPlace.write

    def pruned(self, name: str, chunks) -> int:
        if name.startswith("manifests/"):
            prune(target, ONE, SkewedClock(3 * DAY_MS).wall_ms())
        return write(self, name, chunks)

    monkeypatch.setattr(DirectoryPlace, "write", pruned)
    before = ids(place)
    with pytest.raises(BackupTargetError, match="treated as abandoned"):
        saved(a, place)
    assert ids(place) == before


def test_two_stores_in_one_place_are_not_pruned(a, make_store, place, tmp_path):
    """Somebody copied two places into one: nothing is removed."""
    other = make_store(3)
    work(other, 2)
    saved(a, place)
    saved(other, tmp_path / "other")
    shutil.copytree(tmp_path / "other", place, dirs_exist_ok=True)
    before = content_of(place)
    for work_on in (lambda: prune(DirectoryPlace(place), ONE, AHEAD.wall_ms()), lambda: saved(a, place)):
        with pytest.raises(ForeignPartitionError):
            work_on()
    assert content_of(place) == before
    assert prune(DirectoryPlace(tmp_path / "other"), ONE, AHEAD.wall_ms()).removed == ()


def test_a_term_that_cannot_be_read_is_not_taken_for_none(taken_over, place):
    """The backup is refused, by the name of the file; nothing changes."""
    a, b = taken_over
    (place / NAME).write_bytes(b"{")
    before = content_of(place)
    for directory in (a, b):
        with pytest.raises(RecoveryError, match=r"lease\.json cannot be read"):
            saved(directory, place)
    assert content_of(place) == before


def test_a_user_who_may_not_write_to_the_directory(a, place, monkeypatch):
    """Backs it up until another directory claims the place; the directory does not change."""
    access = os.access
    monkeypatch.setattr(writing.os, "access", lambda path, mode: path != a and access(path, mode))
    saved(a, place)
    assert not (a / NAME).exists()
    assert not (place / NAME).exists()
    edited(a, "more")
    assert saved(a, place).manifest.term == 0
    monkeypatch.undo()
    saved(a, place)
    monkeypatch.setattr(writing.os, "access", lambda path, mode: path != a and access(path, mode))
    edited(a, "still more")
    assert saved(a, place).manifest.term == 1


@pytest.mark.parametrize("seed", seeds(120))
def test_a_random_history_of_two_sites(a, tmp_path, seed):
    """Edits, backups, restores, promotions, copies, kills, and clocks that jump by seconds and days."""
    sites = Sites(tmp_path, a, random.Random(seed))
    for _ in range(15):
        sites.step()


class TestCommands:
    """As a user meets it."""

    def call(self, *arguments: object, code: int = 0) -> str:
        result = CliRunner().invoke(main, [str(each) for each in arguments])
        assert result.exit_code == code, result.output
        return result.output

    def test_the_refused_job_says_why_and_what_to_do(self, a, place, tmp_path):
        """Exit code 59, also with --every, and in JSON."""
        self.call("backup", a, place)
        self.call("restore", place, tmp_path / "b")
        refused = self.call("backup", tmp_path / "b", place, code=59)
        assert "with --takeover" in refused
        self.call("backup", tmp_path / "b", place, "--takeover")
        self.call("backup", tmp_path / "b", place)
        before = content_of(place)
        for options in ((), ("--every", "1s"), ("--incremental",), ("--keep", "1"), ("--takeover",)):
            assert "a place of its own" in self.call("backup", a, place, *options, code=59)
        found = json.loads(self.call("backup", a, place, "--json", code=59))
        assert (found["error"], found["path"]) == ("TakenOverError", str(place))
        assert content_of(place) == before
        for wrong in (("--every", "1s"), ("--list",), ("--prune", "--keep", "1")):
            assert "decide once" in self.call("backup", a, place, "--takeover", *wrong, code=2)

    def test_two_lines_are_shown(self, a, place, tmp_path):
        """By --list, restore and drill, in text and JSON: older versions let two directories write."""
        saved(a, place)
        b = restored(place, tmp_path / "b", tmp_path)
        edited(a, "A's", AHEAD)
        saved(a, place)
        assert "another directory wrote here" not in self.call("drill", place)
        saved(b, place, takeover=True, lose_epochs=True)
        first, of_a, of_b = ids(place)
        for command in (
            ("backup", "--list", place), ("restore", place, tmp_path / "c", "--dry-run"), ("drill", place),
        ):  # fmt: skip
            assert f"another directory wrote here, too: backup {of_a} of epoch 4" in self.call(*command)
            lines = json.loads(self.call(*command, "--json"))["lines"]
            assert [(each["backup"], each["term"], each["epoch"]) for each in lines] == [(of_a, 1, 4), (of_b, 2, 3)]
        assert first

    def test_a_newer_manifest_that_cannot_be_read_is_said(self, a, place, tmp_path):
        """What it holds is lost: never "nothing"."""
        saved(a, place)
        edited(a, "more")
        name = manifest_name(saved(a, place).manifest.id)
        assert "nothing in the copies will be lost" in self.call("restore", place, tmp_path / "c", "--dry-run")
        (place / name).write_bytes(b"torn")
        for command in (("restore", place, tmp_path / "c", "--dry-run"), ("drill", place)):
            code = 62 if command[0] == "drill" else 0
            said = self.call(*command, code=code)
            assert "nothing in the copies will be lost" not in said
            assert f"will be lost: {name} cannot be read" in said
            assert json.loads(self.call(*command, "--json", code=code))["unread"] == [name]
        edited(a, "still more")
        saved(a, place)
        assert "nothing in the copies will be lost" in self.call("restore", place, tmp_path / "d")

    def test_a_drill_finds_an_object_that_is_missing(self, a, place):
        """Also one that only an older backup needs."""
        first = saved(a, place)
        edited(a, "more")
        saved(a, place)
        self.call("drill", place)
        name = first.manifest.copies[0].object_name
        (place / name).unlink()
        said = self.call("drill", place, code=62)
        assert f"{name} is missing, and backup {first.manifest.id} needs it" in said

    @pytest.mark.parametrize("command", ["restore", "drill"])
    def test_a_time_before_the_first_epoch(self, a, place, tmp_path, command):
        """Is refused: an empty store is what nobody asked for."""
        saved(a, place)
        to = (tmp_path / "c",) if command == "restore" else ()
        said = self.call(command, place, *to, "--timestamp", "1970-01-01T00:00:00Z", code=EpochNotHeldError.exit_code)
        assert "--epoch 0" in said
        assert not (tmp_path / "c").exists()
