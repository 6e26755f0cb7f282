"""Drills: what a restore would do, rehearsed, with nothing changed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery.backup.drills import DRILLS, KEPT, LAST, LastDrill, drill_text, last_drill_at, note_drill
from recovery.backup.manifest import manifest_name
from recovery.backup.note import last_drill, note_last_drill
from recovery.backup.sources import open_source
from recovery.base.clock import SystemClock
from recovery.base.untrusted_json import LAST_MOMENT_MS
from recovery.base.wording import moment_text
from recovery.cli import main
from recovery.errors import BackupTargetError
from recovery.places.directory import DirectoryPlace
from recovery.places.protocol import PlaceEntry
from tests.backup.support import back_up, work
from tests.backup.test_commands import call
from tests.backup.test_round_trip import files
from tests.stores import Driver, alter, paths_of
from tests.ui.support import ask, served


@pytest.fixture
def store(make_store) -> Path:
    """Three partitions with five epochs."""
    return make_store(3, work, 5)


@pytest.mark.parametrize("plain", [False, True], ids=["backups", "plain copies"])
def test_a_drill_that_passes(store, tmp_path, plain):
    """It says what would be lost and how long each step took; source and scratch are as they were."""
    if plain:
        shutil.copytree(store, tmp_path / "dest")
    else:
        back_up(store, tmp_path / "dest")
    before = files(tmp_path / "dest")
    (tmp_path / "scratch").mkdir()
    facts = json.loads(call("drill", tmp_path / "dest", "--scratch", tmp_path / "scratch", "--json"))
    assert (facts["passed"], facts["epoch"], facts["began_at"], facts["lost_epochs"]) == (True, 5, 6, 0)
    assert facts["steps"] == ["count"]
    assert set(facts["seconds"]) == {"list_copies", "plan", "fetch", "check", "put_into_place", "begin_a_run"}
    assert all(seconds >= 0 for seconds in facts["seconds"].values())
    assert {name: text for name, text in files(tmp_path / "dest").items() if "drills/" not in str(name)} == before
    assert facts["noted"] is not plain
    assert list((tmp_path / "scratch").iterdir()) == []
    assert "a run would begin at epoch 6" in call("drill", tmp_path / "dest")


def test_an_older_epoch_can_be_rehearsed(store, tmp_path):
    """As restore would do it."""
    back_up(store, tmp_path / "dest")
    facts = json.loads(call("drill", tmp_path / "dest", "--epoch", 2, "--json"))
    assert (facts["began_at"], facts["lost_epochs"]) == (3, 3)


def test_a_drill_with_a_damaged_copy_fails(store, tmp_path):
    """Another copy takes its place, and the drill fails all the same: the backup is not what it should be."""
    back_up(store, tmp_path / "dest")
    work(store, 1)
    made = back_up(store, tmp_path / "dest")
    (tmp_path / "dest" / made.manifest.copies[1].object_name).write_bytes(b"junk")
    facts = json.loads(call("drill", tmp_path / "dest", "--json", code=62))
    assert (facts["passed"], facts["epoch"], facts["lost_epochs"]) == (False, 5, 1)
    assert facts["problem"]["error"] == "BackupDamagedError"
    call("drill", tmp_path / "dest", code=62)


def test_a_drill_with_a_damaged_manifest_fails(store, tmp_path):
    """In a directory it was whole once; so the newest backup is lost, though an older one can be restored."""
    back_up(store, tmp_path / "dest")
    work(store, 1)
    made = back_up(store, tmp_path / "dest").manifest
    path = tmp_path / "dest" / manifest_name(made.id)
    path.write_bytes(path.read_bytes()[:-1])
    facts = json.loads(call("drill", tmp_path / "dest", "--json", code=62))
    assert (facts["passed"], facts["epoch"]) == (False, 5)
    assert f"{manifest_name(made.id)} is damaged" in facts["problem"]["found"]


def test_a_manifest_in_a_bucket_that_cannot_be_read(store, tmp_path):
    """An upload may be on its way, or was cut off: only after a day it is damage."""

    class Bucket:
        """Not known to be a directory."""

        def __init__(self, inner: DirectoryPlace) -> None:
            self._inner = inner

        def __getattr__(self, name: str):
            return getattr(self._inner, name)

    back_up(store, tmp_path / "dest")
    work(store, 1)
    path = tmp_path / "dest" / manifest_name(back_up(store, tmp_path / "dest").manifest.id)
    path.write_bytes(path.read_bytes()[:-1])
    source = open_source(Bucket(DirectoryPlace(tmp_path / "dest")), tmp_path, SystemClock())
    assert (len(source.problems), source.damaged) == (1, [])
    os.utime(path, (0, 0))
    source = open_source(Bucket(DirectoryPlace(tmp_path / "dest")), tmp_path, SystemClock())
    assert source.damaged == source.problems
    assert len(source.damaged) == 1


def test_a_drill_on_plain_copies_of_which_one_is_no_database_any_more(store, tmp_path):
    """Older copies do for a restore, and the drill fails all the same."""
    for day in ("one", "two"):
        shutil.copytree(store, tmp_path / "copies" / day)
    with paths_of(tmp_path / "copies/two")[1].open("r+b") as file:
        file.write(b"x" * 100)
    facts = json.loads(call("drill", tmp_path / "copies", "--json", code=62))
    assert (facts["passed"], facts["epoch"]) == (False, 5)


def test_a_drill_of_what_cannot_be_restored_fails(store, tmp_path):
    """With the code of the error that a restore would end with."""
    back_up(store, tmp_path / "dest")
    shutil.copytree(store, tmp_path / "copies")
    paths_of(tmp_path / "copies")[0].unlink()
    call("drill", tmp_path / "copies", code=21)
    call("drill", tmp_path / "dest", "--epoch", 99, code=28)
    call("drill", tmp_path / "nothing", code=61)
    damaged = tmp_path / "damaged"
    shutil.copytree(store, damaged)
    alter(paths_of(damaged)[2], "UPDATE snaps SET ser_change = '666'")
    call("drill", damaged, code=62)


def test_a_drill_fails_when_the_newest_epoch_is_too_old(store, tmp_path):
    """The epochs of these tests were closed in 1970."""
    back_up(store, tmp_path / "dest")
    assert json.loads(call("drill", tmp_path / "dest", "--max-age", "100000d", "--json"))["passed"]
    facts = json.loads(call("drill", tmp_path / "dest", "--max-age", "1h", "--json", code=63))
    assert facts["problem"]["error"] == "BackupTooOldError"


def test_a_drill_does_not_take_an_epoch_of_the_future_for_a_new_one(make_store, tmp_path):
    """A clock that is ahead would hide for as long that no backup is made any more."""
    directory = make_store(1)
    with Driver(directory) as run:
        run.apply(1, {"k1": "1"})
        run.close(1, closed_ms=SystemClock().wall_ms() + 3600_000)
    back_up(directory, tmp_path / "dest")
    facts = json.loads(call("drill", tmp_path / "dest", "--max-age", "1d", "--json", code=63))
    assert "ahead of this host's clock" in facts["problem"]["found"]
    call("drill", tmp_path / "dest")


def test_plan_explains_every_file(store, tmp_path):
    """The table is shown although the files do not fit, and the exit code is that of the error."""
    old = tmp_path / "old.sqlite3"
    shutil.copy(paths_of(store)[1], old)
    work(store, 4, floor=8)
    from recovery.storage.lock import lock_holder

    assert lock_holder(store) is None
    text = call("plan", store)
    assert text.count("current") == 3
    paths_of(store)[1].unlink()
    facts = json.loads(call("plan", store, "--json", code=21))
    assert facts["error"] == "MissingPartitionsError"
    assert [each["role"] for each in facts["files"]] == ["current", "missing", "current"]
    shutil.copy(old, store / "part-1.sqlite3")
    text = call("plan", store, code=22)
    assert "older than the backup interval" in text
    assert "part-1.sqlite3: a copy newer than" in text
    facts = json.loads(call("plan", store, "--json", code=22))
    assert [each["role"] for each in facts["files"]] == ["current", "too old", "current"]


def test_how_a_drill_ended_is_shown(store, tmp_path):
    """At the place by the page of copies; after the next backup by status, report and the pages of the directory. The
    newest drill counts, one that failed, too."""
    destination = tmp_path / "dest"
    back_up(store, destination)
    assert ask(served(store), "copies").facts["last_drill"] is None
    call("drill", destination)
    assert ask(served(store), "copies").facts["last_drill"] is None
    at_place = ask(served(store, place=str(destination)), "copies").facts["last_drill"]
    assert (at_place["passed"], at_place["epoch"], at_place["found"]) == (True, 5, "")
    work(store, 1)
    made = back_up(store, destination)
    shown = json.loads(call("status", store, "--json"))["last_drill"]
    assert shown == at_place == ask(served(store), "copies").facts["last_drill"]
    assert f"last drill: passed {moment_text(shown['finished_ms'])}: restored epoch 5 from " in call("status", store)
    (destination / made.manifest.copies[1].object_name).write_bytes(b"junk")
    call("drill", destination, code=62)
    found = ask(served(store, place=str(destination)), "copies").facts["last_drill"]
    assert (found["passed"], found["epoch"]) == (False, 5)
    assert found["text"].startswith("failed ")


def test_a_drill_that_restores_nothing_is_noted(store, tmp_path):
    """The error of a drill ends the command as before, and is in the note."""
    made = back_up(store, tmp_path / "dest").manifest
    for copy in made.copies:
        (tmp_path / "dest" / copy.object_name).write_bytes(b"junk")
    call("drill", tmp_path / "dest", code=62)
    note = last_drill_at(DirectoryPlace(tmp_path / "dest"))
    assert (note.has_passed, note.epoch) == (False, None)
    assert "failed" in drill_text(note, note.finished_ms)


class ReadOnly(DirectoryPlace):
    """A place whose credentials only read."""

    def write(self, name, chunks):
        raise BackupTargetError("access denied", path=self.shown)


def test_credentials_that_only_read(store, tmp_path, monkeypatch):
    """The drill passes, and says that there is no note."""
    back_up(store, tmp_path / "dest")
    before = files(tmp_path / "dest")
    monkeypatch.setattr("recovery.places.opening.open_place", lambda place: ReadOnly(Path(place)))
    result = CliRunner().invoke(main, ["drill", str(tmp_path / "dest"), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["noted"] is False
    assert f"no note of this drill is at {tmp_path / 'dest'}: access denied" in result.stderr
    assert files(tmp_path / "dest") == before


def test_notes_of_drills_are_few_and_those_of_others_hide_none(tmp_path):
    """The oldest are removed; what cannot be read, or is not named like one, does not count."""
    target = DirectoryPlace(tmp_path)
    for number in range(KEPT + 3):
        note_drill(target, LastDrill(1_795_000_000_000 + number, "here", number, 1.5, "", "host"))
    notes = sorted((tmp_path / "drills").iterdir())
    assert len(notes) == KEPT
    assert last_drill_at(target).epoch == KEPT + 2
    notes[-1].write_bytes(b'{"finished_ms":1e99}' + b"[" * 100_000)
    (tmp_path / "drills" / "999-x.json").write_bytes(b"{}")
    assert last_drill_at(target).epoch == KEPT + 1
    assert drill_text(None, 0) == "none is recorded here"


def drilled(target: DirectoryPlace, finished_ms: int, host: str = "host") -> LastDrill:
    """A drill that has left its note at a place."""
    drill = LastDrill(finished_ms, target.shown, 5, 1.5, "", host)
    assert note_drill(target, drill) is None
    return drill


@pytest.mark.parametrize(
    "clocks",
    [
        pytest.param([2_500_000_000_000, 1_795_000_000_000], id="a host is ahead"),
        pytest.param([2_500_000_000_000] * KEPT + [1_795_000_000_000] * 3, id="as many as are kept are ahead"),
        pytest.param([1_795_000_002_000, 1_795_000_001_000, 1_795_000_000_000], id="each is behind the one before"),
        pytest.param([LAST_MOMENT_MS, LAST_MOMENT_MS, 1_795_000_000_000], id="a clock is at its end"),
        pytest.param([1_795_000_000_000, 0, 1], id="a clock is at its beginning"),
    ],
)
def test_the_clocks_of_hosts_do_not_order_drills(store, tmp_path, clocks):
    """The drill that ended last is the last one, at the place and in the directory, and its note stays."""
    back_up(store, tmp_path / "place")
    target = DirectoryPlace(tmp_path / "place")
    for number, clock_ms in enumerate(clocks):
        last = drilled(target, clock_ms, f"host-{number}")
        assert last_drill_at(target) == last
        back_up(store, tmp_path / "place")
        assert last_drill(store) == last
    assert len(target.entries(DRILLS)) == min(len(clocks), KEPT)


def test_a_note_with_the_largest_number_hides_no_later_one(tmp_path):
    """Somebody may have written it; the clock of the store orders those that follow."""
    target = DirectoryPlace(tmp_path)
    first = drilled(target, 1_795_000_000_000)
    [note] = (tmp_path / "drills").iterdir()
    largest = note.rename(note.with_name(f"{LAST}-{'f' * 16}.json"))
    os.utime(largest, (1, 1))
    assert last_drill_at(target) == first
    last = drilled(target, 1_795_000_000_001)
    assert last_drill_at(target) == last


def test_a_drill_of_a_host_that_is_ahead_is_shown_as_one(store, tmp_path):
    """The time in its note is no time of this host: people and programs read that."""
    back_up(store, tmp_path / "place")
    drilled(DirectoryPlace(tmp_path / "place"), SystemClock().wall_ms() + 3600_000, "ahead-7")
    back_up(store, tmp_path / "place")
    for said in (call("status", store), json.loads(call("status", store, "--json"))["last_drill"]["text"]):
        assert "by the clock of ahead-7, which is ahead" in said
    drilled(DirectoryPlace(tmp_path / "place"), SystemClock().wall_ms())
    back_up(store, tmp_path / "place")
    assert "which is ahead" not in call("status", store)


def test_the_last_drill_is_that_of_all_places(store, tmp_path):
    """A backup to a place with an older drill does not hide a newer one elsewhere; a drill of the future does not
    stay."""
    for name, finished_ms in (("old", 1_795_000_000_000), ("new", 1_795_000_001_000)):
        back_up(store, tmp_path / name)
        note_drill(DirectoryPlace(tmp_path / name), LastDrill(finished_ms, name, 5, 1.5, "", "host"))
    for name in ("new", "old"):
        back_up(store, tmp_path / name)
        assert last_drill(store).place == "new"
    note_last_drill(store, LastDrill(200_000_000_000_000, "future", 5, 1.5, "", "host"))
    back_up(store, tmp_path / "old")
    assert last_drill(store).place == "old"


def test_a_note_of_others_floods_no_terminal(store, tmp_path):
    """Whoever writes to the place writes the note: its texts are cut, and control no terminal."""
    back_up(store, tmp_path / "dest")
    drill = LastDrill(1_795_000_000_000, "p" * 20_000, 5, 1.5, "\x1b[31m\nhealth: ok" + "f" * 20_000, "host")
    note_drill(DirectoryPlace(tmp_path / "dest"), drill)
    back_up(store, tmp_path / "dest")
    [line] = [line for line in call("status", store).splitlines() if line.startswith("last drill")]
    assert len(line) < 400
    assert "\x1b" not in line


def test_a_backup_that_continues_without_a_look_asks_for_no_note(store, tmp_path):
    """A run that replicates ships each epoch so; a request more for each would cost more than the note is worth."""
    asked: list[str] = []

    class Asked(DirectoryPlace):
        def entries(self, prefix: str) -> list[PlaceEntry]:
            asked.append(prefix)
            return super().entries(prefix)

    place = Asked(tmp_path / "dest")
    base = back_up(store, place).manifest
    assert DRILLS in asked
    asked.clear()
    work(store, 1)
    back_up(store, place, base=base, incremental=True)
    assert asked == []
