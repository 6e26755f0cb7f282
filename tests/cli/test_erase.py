"""`recovery erase` as its users use it."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from recovery.backup.drills import LastDrill, note_drill
from recovery.backup.note import note_last_drill
from recovery.backup.repository import begin
from recovery.backup.standby.follow import Follower
from recovery.base.clock import SystemClock
from recovery.base.printable import one_line
from recovery.base.reserved import CHECKPOINT_STEP
from recovery.cli import main
from recovery.errors import (
    BackupTargetError,
    ConfigurationError,
    DirectoryLockedError,
    DuplicatePartitionError,
    ErasureIncompleteError,
    ForeignPartitionError,
    NoBackupError,
    RecoveryError,
    StandbyDirectoryError,
    StateNotFoundError,
    TakenOverError,
)
from recovery.host.processes import as_holder
from recovery.host.scratch import MARK
from recovery.operational.steps.step_edits import audit
from recovery.places.directory import DirectoryPlace
from recovery.planning.resume import plan_resume
from recovery.storage.lock import DirectoryLock
from recovery.storage.moving.arriving import STAGING
from recovery.storage.scan import scan
from recovery.storage.store import Store
from recovery.values.keys import home_of
from tests.operational.person import OTHER, PERSON, SECRET, WAITING, apply, history, traces
from tests.stores import STEP, Driver, SpreadDirectory, content, problems


def command(*words: Any, given: str | None = None) -> Result:
    """What `recovery` does with these words."""
    return CliRunner().invoke(main, [*map(str, words)], input=given)


def erase(*words: Any, given: str | None = None) -> Result:
    """What `recovery erase` does."""
    return command("erase", *words, given=given)


OTHER_PERSON = "k1"


@pytest.fixture
def store(make_store) -> Path:
    """A directory in which the person occurs in two steps and in quarantine."""
    return make_store(2, history, 1)


def test_a_person_is_erased(store, tmp_path):
    """From the directory, a place and a standby; the answer is in the exit code, and no output has the key."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    assert command("backup", store, place).exit_code == 0
    assert command("follow", place, standby, "--once").exit_code == 0
    copies = ["--place", place, "--standby", standby]
    done = erase(store, "--key", PERSON, *copies, "--yes", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert PERSON not in done.output
    assert {(each["step"], each["quarantine"]) for each in said["found"]} == {
        (STEP, False), (STEP, True), (OTHER, False),
    }  # fmt: skip
    assert said["rows"] == sum(each["rows"] for each in said["found"]) > 0
    assert said["complete"]
    assert said["not_named"] == []
    assert [each["left"] for each in said["copies"]] == [[], []]
    assert said["copies"][0]["removed"]
    assert traces(store, SECRET) == traces(standby, SECRET) == []
    assert problems(store) == problems(standby) == []
    assert command("drill", place).exit_code == 0
    again = erase(store, "--key", PERSON, *copies, "--yes")
    assert again.exit_code == StateNotFoundError.exit_code


def test_what_an_auditor_is_shown(store, tmp_path):
    """As docs/erase.md says: which store, when and by whom, what went at each copy, that the same search finds nothing
    there now, and that the rest is sound and restores."""
    place, replica, standby = (tmp_path / name for name in ("place", "replica", "standby"))
    for at in (place, replica):
        assert command("backup", store, at, "--takeover").exit_code == 0
        assert command("backup", store, at, "--incremental").exit_code == 0
    assert command("follow", replica, standby, "--once").exit_code == 0
    (tmp_path / "key").write_text(PERSON)
    copies = ["--place", place, "--place", replica, "--standby", standby]
    words = ["--key-file", tmp_path / "key", *copies]
    began_ms = SystemClock().wall_ms()
    done = erase(store, *words, "--yes", "--json")
    said = json.loads(done.stdout)
    assert (done.exit_code, said["complete"], said["store_id"]) == (
        0,
        True,
        plan_resume(scan(store)).partitions[0].store_id,
    )
    assert began_ms <= said["finished_ms"] <= SystemClock().wall_ms()
    again = erase(store, *words, "--dry-run")
    assert again.exit_code == StateNotFoundError.exit_code
    assert all(str(at) in again.stderr for at in (store, place, replica, standby))
    listed = command("runs", "list", store)
    assert f"what=erase keys=1 rows={said['rows']} by=" in listed.stdout
    for proof in (["verify", store], ["drill", place], ["drill", replica]):
        shown = command(*proof)
        assert shown.exit_code == 0, shown.output
    assert traces(tmp_path, SECRET) == traces(store, SECRET) == []
    told = erase(store, "--key", OTHER_PERSON, "--yes")
    assert told.exit_code == 0
    assert "not reached" in told.stderr


def test_operational_state_is_erased_by_its_ids(store, tmp_path):
    """With what removed state has left, in every environment and at every copy; the record of it says how many. A glob
    never selects the run history, marks or rewinds."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    for words in (["people/ada"], ["people/gone"], ["people/ada", "--environment", "dev"], ["others/bob"]):
        assert command("state", "set", store, words[0], f'{{"of": "{SECRET}"}}', *words[1:]).exit_code == 0
    assert command("state", "clear", store, "people/gone", "--yes").exit_code == 0
    assert command("hwm", "set", store, "people/mark", "5").exit_code == 0
    for _ in range(2):
        assert command("backup", store, place, "--incremental").exit_code == 0
        assert command("state", "set", store, "people/later", '"x"').exit_code == 0
    assert command("follow", place, standby, "--once").exit_code == 0
    copies = ["--place", place, "--standby", standby]

    looked = json.loads(erase(store, "--state", "people/*", *copies, "--dry-run", "--json").stdout)
    assert looked["state_ids"] == ["@dev/people/ada", "people/ada", "people/gone", "people/later"]
    assert [len(each["held"]) > 0 for each in looked["copies"]] == [True, True]
    done = erase(store, "--state", "people/*", *copies, "--yes", "--json")
    said = json.loads(done.stdout)
    assert (done.exit_code, said["states"], said["state_ids"], said["complete"]) == (0, 4, [], True)
    assert len(json.loads(command("backup", "--list", place, "--json").stdout)["backups"]) == 1
    assert command("restore", place, tmp_path / "restored").exit_code == 0
    for each in (store, standby, tmp_path / "restored"):
        assert traces(each, "people/ada") == traces(each, "people/gone") == traces(each, "people/later") == []
        assert traces(each, "others/bob")
    assert problems(store) == problems(standby) == []
    assert command("drill", place).exit_code == 0

    assert erase(store, "--state", "people/*", *copies, "--yes").exit_code == StateNotFoundError.exit_code
    every = json.loads(erase(store, "--state", "*", "--yes", "--json").stdout)
    assert every["states"] == 1
    assert command("hwm", "get", store, "people/mark").stdout.strip() == "5"
    newest, *_ = json.loads(command("runs", "list", store, "--json").stdout)
    assert newest["details"]["states"] == 1


def test_the_command_shows_what_it_would_erase_and_asks(store):
    """Without an answer, and with a no, nothing changes."""
    before = content(store)
    for answer, code in (("n\n", ConfigurationError.exit_code), (None, ConfigurationError.exit_code)):
        asked = erase(store, "--key", PERSON, given=answer)
        assert asked.exit_code in (1, code)
        assert "rows in quarantine" in asked.stderr
        assert "at every epoch? Nothing brings them back." in asked.stderr
        assert content(store) == before
    agreed = erase(store, "--key", PERSON, given="y\n")
    assert agreed.exit_code == 0
    assert "2 steps" in agreed.stdout
    assert PERSON not in agreed.stdout


def test_a_dry_run_says_the_same_and_changes_nothing(store, tmp_path):
    """A dry run works during a run, and for places; `--step` narrows it."""
    assert command("backup", store, tmp_path / "place").exit_code == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    words = ["--key", PERSON, "--place", tmp_path / "place", "--dry-run"]
    with DirectoryLock(store, SystemClock(), "run"):
        looked = json.loads(erase(store, *words, "--json").stdout)
        said = erase(store, *words)
    assert said.exit_code == 0
    assert "would erase" in said.stdout
    assert "1 backup, which would be removed" in said.stdout
    assert looked["dry_run"]
    assert not looked["complete"]
    assert len(looked["copies"][0]["held"]) == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    narrow = json.loads(erase(store, "--key", PERSON, "--step", OTHER, "--dry-run", "--json").stdout)
    assert [each["step"] for each in narrow["found"]] == [OTHER]
    done = json.loads(erase(store, "--key", PERSON, "--yes", "--json").stdout)
    assert done["found"] == looked["found"]


def test_what_only_copies_hold_is_shown_and_asked_for(store, tmp_path):
    """No backup is removed without an answer, also where the directory has nothing of the key any more."""
    place = tmp_path / "place"
    assert command("backup", store, place).exit_code == 0
    assert erase(store, "--key", PERSON, "--yes").exit_code == 0
    words = ["--key", PERSON, "--place", place]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    asked = erase(store, *words)
    assert asked.exit_code == ConfigurationError.exit_code
    assert "of 1 backup, which would be removed" in asked.stderr
    assert erase(store, *words, given="n\n").exit_code == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert erase(store, *words, given="y\n").exit_code == 0
    assert traces(place, SECRET) == []
    assert erase(store, *words).exit_code == StateNotFoundError.exit_code


def test_records_that_name_the_key_are_shown_and_asked_for(store):
    """A dry run says what the command does, where only the run history has the key; an erasure that was killed is as
    much."""
    records = audit(Store(store), SystemClock())
    records.begin("flow", "flow").end(ValueError("no street for nobody-7"))
    words = ["--key", "nobody-7"]
    looked = erase(store, *words, "--dry-run", "--json")
    assert looked.exit_code == 0, looked.output
    assert json.loads(looked.stdout)["records"] == 1
    assert "names the key in 1 record" in erase(store, *words, "--dry-run").stdout
    before = content(store)
    asked = erase(store, *words)
    assert asked.exit_code == ConfigurationError.exit_code
    assert "names the key in 1 record" in asked.stderr
    assert content(store) == before
    done = erase(store, *words, "--yes", "--json")
    assert json.loads(done.stdout)["records"] == 1
    assert erase(store, *words, "--dry-run").exit_code == StateNotFoundError.exit_code
    records.begin("flow", "edit", {"what": "erase"})
    looked = erase(store, *words, "--dry-run", "--json")
    assert json.loads(looked.stdout)["unfinished"]
    assert "did not come to its end" in erase(store, *words, "--dry-run").stdout
    assert erase(store, *words, given="y\n").exit_code == 0
    assert erase(store, *words, "--yes").exit_code == StateNotFoundError.exit_code


def test_only_the_named_steps_lose_the_key(store):
    """A text may mean something else in another step."""
    assert erase(store, "--key", PERSON, "--step", STEP, "--yes").exit_code == 0
    there = json.loads(erase(store, "--key", PERSON, "--dry-run", "--json").stdout)
    assert [each["step"] for each in there["found"]] == [OTHER]
    assert erase(store, "--key", PERSON, "--step", STEP, "--yes").exit_code == StateNotFoundError.exit_code


def test_keys_come_from_a_file_or_a_pipe(store, tmp_path):
    """So they are in no list of processes; lines of a file that is none are an error."""
    assert erase(store, "--key-file", "-", "--yes", given=f"{PERSON}\nk1\n").exit_code == 0
    (tmp_path / "keys").write_text("k2\nnobody\n\nk3\n")
    done = erase(store, "--key-file", tmp_path / "keys", "--dry-run", "--json")
    assert json.loads(done.stdout)["keys_not_found"] == [2]
    done = erase(store, "--key-file", tmp_path / "keys", "--yes")
    assert done.exit_code == 0
    assert "of 3 keys" in done.stderr
    assert "number 2 in the order given" in done.stderr
    for key in (PERSON, "k1", "k2"):
        assert erase(store, "--key", key, "--dry-run").exit_code == StateNotFoundError.exit_code
    (tmp_path / "keys").write_bytes(b"\xef\xbb\xbfk5\r\nk6\r\n")
    done = erase(store, "--key-file", tmp_path / "keys", "--dry-run", "--json")
    assert json.loads(done.stdout)["keys_not_found"] == []
    assert erase(store, "--key-file", tmp_path, "--yes").exit_code == ConfigurationError.exit_code
    assert erase(store, "--yes").exit_code == 2
    unset = erase(store, "--key", "", "--yes")
    assert unset.exit_code == 2
    assert "--step" in unset.stderr
    assert erase(store, "--key", "", "--step", STEP, "--yes").exit_code == StateNotFoundError.exit_code


def test_half_a_key_is_another_key(store, monkeypatch):
    """Too much on standard input is refused, not cut off."""
    monkeypatch.setattr("recovery.cli.erase.MOST_BYTES", 4)
    before = content(store)
    refused = erase(store, "--key-file", "-", "--yes", given="k1\nk23")
    assert refused.exit_code == ConfigurationError.exit_code
    assert "larger than 4 bytes" in refused.stderr
    assert content(store) == before


def test_no_run_may_be_active(store):
    """The command ends with the code of the lock, and nothing is erased."""
    before = content(store)
    with DirectoryLock(store, SystemClock(), "run"):
        assert erase(store, "--key", PERSON, "--yes").exit_code == DirectoryLockedError.exit_code
    assert content(store) == before


def test_a_standby_is_not_erased_by_itself(store, tmp_path):
    """The place of a standby would bring the key back; with --standby, the place is done first."""
    assert command("backup", store, tmp_path / "place").exit_code == 0
    assert command("follow", tmp_path / "place", tmp_path / "standby", "--once").exit_code == 0
    refused = erase(tmp_path / "standby", "--key", PERSON, "--yes")
    assert refused.exit_code == StandbyDirectoryError.exit_code
    assert erase(store, "--key", PERSON, "--standby", store, "--dry-run").exit_code == StandbyDirectoryError.exit_code


def test_a_backup_that_is_being_made_is_no_success(make_store, tmp_path):
    """That backup may have read the key, and store it when the command has ended: the dry run, the question and
    the exit code say so, although nothing at the place holds the key. The remedy that the output has works."""
    store, place = make_store(2), tmp_path / "place"
    assert command("backup", store, place).exit_code == 0
    history(store, 1)
    identity = "20300101T000000.000Z-00"
    begin(DirectoryPlace(place), identity, lambda: None, 0, as_holder("backup") | {"host": "elsewhere"})
    words = ["--key", PERSON, "--place", place]
    looked = erase(store, *words, "--dry-run")
    assert f"{place}: a backup is being made there, or was killed: running/{identity}" in looked.stdout
    asked = erase(store, *words, given="n\n")
    assert "a backup is being made there" in asked.stderr
    assert traces(store, SECRET)
    done = erase(store, *words, "--yes", "--json")
    assert done.exit_code == ErasureIncompleteError.exit_code, done.output
    said = json.loads(done.stdout)
    assert not said["complete"]
    assert said["copies"][0]["left"] == [f"running/{identity}.json.gz"]
    assert "(backup). Repeat the command" in said["copies"][0]["why"]
    assert erase(store, *words, "--dry-run").exit_code == 0
    again = erase(store, *words, "--yes")
    assert again.exit_code == ErasureIncompleteError.exit_code
    assert "--killed-backups" in again.stderr
    assert erase(store, *words, "--dry-run", "--killed-backups").exit_code == StateNotFoundError.exit_code
    assert list((place / "running").iterdir())
    erase(store, *words, "--yes", "--killed-backups")
    assert not list((place / "running").iterdir())
    assert erase(store, *words, "--yes").exit_code == StateNotFoundError.exit_code


def test_notes_of_another_writer_stay(store, tmp_path):
    """Where another directory backs up to the place, --killed-backups withdraws none of its backups."""
    place, other = tmp_path / "place", tmp_path / "other"
    assert erase(store, "--key", PERSON, "--yes").exit_code == 0
    assert command("backup", store, place).exit_code == 0
    assert command("restore", place, other).exit_code == 0
    assert command("backup", other, place, "--takeover").exit_code == 0
    begin(
        DirectoryPlace(place), "20300101T000000.000Z-00", lambda: None, 0, as_holder("backup") | {"host": "elsewhere"}
    )
    before = bytes_of(place)
    for word in ("--dry-run", "--yes"):
        refused = erase(store, "--key", PERSON, "--place", place, "--killed-backups", word)
        assert refused.exit_code == TakenOverError.exit_code, refused.output
    assert bytes_of(place) == before


class TestBeforeTheFirstRun:
    """A directory in which no run has begun yet can have operational state, such as that of Meltano."""

    def test_operational_state_is_erased(self, make_store, tmp_path):
        """Erased is what the directory, a place and a standby have; what follows is as in any other directory."""
        store, place, standby = make_store(2), tmp_path / "place", tmp_path / "standby"
        for name in ("people/ada", "people/gone", "others/bob"):
            assert command("state", "set", store, name, f'"{SECRET} {name}"').exit_code == 0
            assert command("backup", store, place, "--incremental").exit_code == 0
        assert command("state", "clear", store, "people/gone", "--yes").exit_code == 0
        assert command("follow", place, standby, "--once").exit_code == 0
        words = ["--state", "people/*", "--place", place, "--standby", standby]

        before = bytes_of(tmp_path), content(store)
        looked = json.loads(erase(store, *words, "--dry-run", "--json").stdout)
        assert looked["state_ids"] == ["people/ada", "people/gone"]
        assert [bool(each["held"]) for each in looked["copies"]] == [True, True]
        assert (bytes_of(tmp_path), content(store)) == before
        done = erase(store, *words, "--yes", "--json")
        said = json.loads(done.stdout)
        assert (done.exit_code, said["states"], said["execution"], said["complete"]) == (0, 2, None, True)
        assert "what=erase keys=0 rows=0 states=2 by=" in command("runs", "list", store).stdout
        assert command("drill", place).exit_code == 0
        assert command("restore", place, tmp_path / "restored").exit_code == 0
        for each in (store, standby, tmp_path / "restored"):
            assert traces(each, "people/ada", "people/gone") == []
            assert traces(each, "others/bob")
            assert problems(each) == []
        again = erase(store, *words, "--yes")
        assert again.exit_code == StateNotFoundError.exit_code
        assert "no operational state matches" in again.stderr
        with Driver(store) as run:
            assert run.execution.number == 1

    def test_no_later_backup_brings_it_back(self, make_store, tmp_path):
        """An incremental backup continues no copy from before the first run: the copy has the state in free pages."""
        store, place = make_store(2), tmp_path / "place"
        assert command("state", "set", store, "people/ada", f'"{SECRET}"').exit_code == 0
        assert command("backup", store, place, "--incremental").exit_code == 0
        assert erase(store, "--state", "people/*", "--yes").exit_code == 0
        for number in range(2):
            with Driver(store, backup_interval_s=3600.0) as run:
                apply(run, number + 1, STEP, {"k": f"[{number}]"})
                run.close(number + 1, notes_made=True)
            assert command("backup", store, place, "--incremental").exit_code == 0
        assert command("restore", place, tmp_path / "restored").exit_code == 0
        assert traces(tmp_path / "restored", SECRET, "people/ada") == []

    def test_a_key_is_not_found(self, make_store, tmp_path):
        """Neither by the dry run nor by the command; no place is written to."""
        store, place = make_store(2), tmp_path / "place"
        assert command("backup", store, place).exit_code == 0
        before = bytes_of(tmp_path), place.stat().st_mtime_ns
        for word in ("--dry-run", "--yes"):
            refused = erase(store, "--key", PERSON, "--place", place, word)
            assert refused.exit_code == StateNotFoundError.exit_code, refused.output
        assert (bytes_of(tmp_path), place.stat().st_mtime_ns) == before

    def test_owners_lose_it(self, make_store):
        """The owner of the first partition has the operational state."""
        places = SpreadDirectory(make_store(3), ((), (0, 2), (1,)))
        try:
            words = [each for at in places.services for each in ("--owner", at.at)]
            words += ["--token-file", places.token]
            places.token.chmod(0o600)
            at = places.places[0]
            assert command("state", "set", at, "people/ada", f'"{SECRET}"', *words).exit_code == 0
            done = erase(at, "--state", "people/*", *words, "--yes", "--json")
            assert (done.exit_code, json.loads(done.stdout)["states"]) == (0, 1), done.output
        finally:
            places.close()
        assert [each for place in places.places for each in traces(place, SECRET, "people/ada")] == []


def test_no_place_is_written_to_before_all_are_checked(store, tmp_path, monkeypatch):
    """Whether this user may write is found out by writing, so that comes last: a refusal leaves every place as it
    was, and a bucket no version more."""
    places = [tmp_path / name for name in ("first", "taken")]
    for place in places:
        assert command("backup", store, place, "--takeover").exit_code == 0
    assert command("restore", places[1], tmp_path / "other").exit_code == 0
    assert command("backup", tmp_path / "other", places[1], "--takeover").exit_code == 0
    written = []
    monkeypatch.setattr("recovery.backup.erase.check_access", lambda place: written.append(place.shown))
    named = [word for place in places for word in ("--place", place)]
    assert erase(store, "--key", PERSON, *named, "--yes").exit_code == TakenOverError.exit_code
    assert written == []


def test_an_unknown_key_changes_nothing(store, tmp_path):
    """Nor does it make a backup; the error does not repeat the key."""
    assert command("backup", store, tmp_path / "place").exit_code == 0
    before = content(store), sorted((tmp_path / "place").rglob("*"))
    for copies in ((), ("--place", tmp_path / "place")):
        refused = erase(store, "--key", "nobody-9", *copies, "--yes", "--json")
        assert refused.exit_code == StateNotFoundError.exit_code
        assert "nobody-9" not in refused.output
    assert (content(store), sorted((tmp_path / "place").rglob("*"))) == before


def test_a_copy_that_still_holds_the_key_is_an_error(store, tmp_path):
    """An exit code of its own, with what is left; the directory is done, and the same command completes the rest."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    assert command("backup", store, place).exit_code == 0
    assert command("follow", place, standby, "--once").exit_code == 0
    words = ["--key", PERSON, "--standby", standby, "--yes"]
    failed = erase(store, *words, "--json")
    assert failed.exit_code == ErasureIncompleteError.exit_code
    said = json.loads(failed.stdout)
    assert not said["complete"]
    assert said["not_named"] == [str(place)]
    assert said["copies"][0]["left"]
    told = erase(store, *words)
    assert told.exit_code == ErasureIncompleteError.exit_code
    assert "--place" in told.stderr
    assert traces(store, SECRET) == []
    assert erase(store, *words, "--place", place).exit_code == 0
    assert traces(standby, SECRET) == []


def test_a_dry_run_is_refused_as_the_command_is(store, tmp_path):
    """Where another directory is the writer of a place; neither claims the place."""
    place, other = tmp_path / "place", tmp_path / "other"
    assert command("backup", store, place).exit_code == 0
    assert command("restore", place, other).exit_code == 0
    assert command("backup", other, place, "--takeover").exit_code == 0
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    words = ["--key", PERSON, "--place", place]
    looked = erase(store, *words, "--dry-run")
    assert looked.exit_code == TakenOverError.exit_code, looked.output
    held = content(store)
    done = erase(store, *words, "--yes")
    assert done.exit_code == TakenOverError.exit_code
    assert "store's writer" in done.stderr
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    assert content(store) == held


def test_the_note_of_a_drill_loses_the_key(store, tmp_path):
    """At the place, and in the directory, to which a backup has brought it."""
    place = tmp_path / "place"
    assert command("backup", store, place).exit_code == 0
    drill = LastDrill(1, str(place), None, 0.5, f"a row does not match (step {STEP!r} key {PERSON!r})", "host")
    assert note_drill(DirectoryPlace(place), drill) is None
    assert erase(store, "--key", PERSON, "--place", place, "--yes").exit_code == 0
    assert traces(tmp_path, f"{PERSON}'") == []


def test_a_note_of_a_drill_is_found_where_only_it_names_the_key(store):
    """As after a kill between the erasure and the note: a dry run shows the note, and the command removes it."""
    assert erase(store, "--key", PERSON, "--yes").exit_code == 0
    note_last_drill(store, LastDrill(1, "place", None, 0.5, f"a row does not match (key {PERSON!r})", "host"))
    looked = erase(store, "--key", PERSON, "--dry-run", "--json")
    assert looked.exit_code == 0, looked.output
    assert json.loads(looked.stdout)["last_drill"]
    asked = erase(store, "--key", PERSON, given="n\n")
    assert "the note of the last drill names the key. Erase the rest" in asked.stderr
    assert traces(store, PERSON)
    done = erase(store, "--key", PERSON, "--yes")
    assert done.exit_code == 0, done.output
    assert traces(store, f"{PERSON}'") == []
    assert erase(store, "--key", PERSON, "--yes").exit_code == StateNotFoundError.exit_code


def test_known_copies_that_were_not_named(store, tmp_path, monkeypatch):
    """Are the places before the command makes a backup itself; a place that has another name here was named."""
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (second, first):
        assert command("backup", store, place, "--takeover").exit_code == 0
    looked = json.loads(erase(store, "--key", PERSON, "--place", second, "--dry-run", "--json").stdout)
    done = json.loads(erase(store, "--key", PERSON, "--place", second, "--yes", "--json").stdout)
    assert done["not_named"] == looked["not_named"] == [str(first)]
    monkeypatch.chdir(tmp_path)
    assert command("backup", store, "first").exit_code == 0
    done = json.loads(erase(store, "--key", PERSON, "--place", first, "--yes", "--json").stdout)
    assert done["not_named"] == []
    assert traces(tmp_path, SECRET) == []


def bytes_of(root: Path) -> dict[Path, bytes]:
    """What every file below a directory holds, but for locks and what readers share."""
    beside = (".lock", "-shm", "-wal")
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and not path.name.endswith(beside)}


class Bad(NamedTuple):
    """A copy that cannot be erased, what makes it so in the directory of a test, and the error."""

    option: str
    name: str
    error: type[RecoveryError]
    make: Callable[[Path, Path], object] = lambda _root, _store: None


def of_another_store(root: Path, _: Path) -> None:
    assert command("init", root / "other", 2).exit_code == 0
    assert command("backup", root / "other", root / "foreign").exit_code == 0


def of_another_writer(root: Path, store: Path) -> None:
    assert command("backup", store, root / "taken").exit_code == 0
    assert command("restore", root / "taken", root / "other").exit_code == 0
    assert command("backup", root / "other", root / "taken", "--takeover").exit_code == 0


def whose_place_is_gone(root: Path, store: Path) -> None:
    assert command("backup", store, root / "moved").exit_code == 0
    assert command("follow", root / "moved", root / "alone", "--once").exit_code == 0
    shutil.rmtree(root / "moved")


BAD = {
    "a misspelt place": Bad("--place", "plase", NoBackupError),
    "a file": Bad("--place", "file", NoBackupError, lambda root, _: (root / "file").write_text("")),
    "a place of another store": Bad("--place", "foreign", ForeignPartitionError, of_another_store),
    "a place of another writer": Bad("--place", "taken", TakenOverError, of_another_writer),
    "an address of nothing": Bad("--place", "s4://bucket/x", ConfigurationError),
    "a misspelt standby": Bad("--standby", "stanby", StandbyDirectoryError),
    "a directory in use": Bad("--standby", "store", StandbyDirectoryError),
    "a standby without its place": Bad("--standby", "alone", NoBackupError, whose_place_is_gone),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_copy_that_cannot_be_erased_is_refused_before_anything_changes(store, tmp_path, monkeypatch, bad):
    """A bad copy behind good ones, too: not a byte of the directory, a place or a standby differs. A dry run says the
    same."""
    monkeypatch.chdir(tmp_path)
    store = Path(shutil.copytree(store, tmp_path / "store"))
    assert command("backup", store, tmp_path / "place").exit_code == 0
    assert command("follow", tmp_path / "place", tmp_path / "standby", "--once").exit_code == 0
    bad.make(tmp_path, store)
    before = bytes_of(tmp_path)
    words = ["--key", PERSON, "--place", tmp_path / "place", "--standby", tmp_path / "standby", bad.option, bad.name]
    for how in ("--dry-run", "--yes"):
        refused = erase(store, *words, how, "--json")
        assert refused.exit_code == bad.error.exit_code, refused.output
        assert bad.name.partition("/")[0] in refused.output
        assert "Traceback" not in refused.output
        assert bytes_of(tmp_path) == before
    assert erase(store, *words[:-2], "--yes").exit_code == 0
    assert traces(tmp_path / "place", SECRET) == traces(tmp_path / "standby", SECRET) == traces(store, SECRET) == []


def test_a_standby_in_use_is_refused_before_anything_changes(store, tmp_path):
    """Its follow has the lock; a dry run says so too."""
    assert command("backup", store, tmp_path / "place").exit_code == 0
    assert command("follow", tmp_path / "place", tmp_path / "standby", "--once").exit_code == 0
    before = bytes_of(tmp_path)
    words = ["--key", PERSON, "--place", tmp_path / "place", "--standby", tmp_path / "standby"]
    with Follower(tmp_path / "standby", None, SystemClock()):
        for how in ("--dry-run", "--yes"):
            assert erase(store, *words, how).exit_code == DirectoryLockedError.exit_code
    assert bytes_of(tmp_path) == before


def test_the_note_of_a_backup_that_was_killed_elsewhere(store, tmp_path):
    """The error names its process and the option that says that it is gone; with the option, the erasure completes."""
    place = tmp_path / "place"
    assert command("backup", store, place).exit_code == 0
    maker = as_holder("backup") | {"host": "elsewhere"}
    begin(DirectoryPlace(place), "20300101T000000.000Z-00", lambda: None, SystemClock().wall_ms(), maker)
    words = ["--key", PERSON, "--place", place, "--yes"]
    blocked = erase(store, *words)
    assert blocked.exit_code == ErasureIncompleteError.exit_code
    assert "on elsewhere (backup)" in blocked.stderr
    assert "--killed-backups" in blocked.stderr
    done = erase(store, *words, "--killed-backups")
    assert done.exit_code == 0, done.output
    assert traces(tmp_path, SECRET) == []
    assert list((place / "running").iterdir()) == []


def test_a_place_that_may_only_be_read_is_refused_before_anything_changes(store, tmp_path, monkeypatch):
    """Erasing writes there: that is tried with an object that nothing reads."""

    class ReadOnly(DirectoryPlace):
        def write(self, name: str, chunks: Iterable[bytes]) -> int:
            raise BackupTargetError("access denied", path=self.shown)

    assert command("backup", store, tmp_path / "place").exit_code == 0
    before = bytes_of(tmp_path)
    monkeypatch.setattr("recovery.places.opening.open_place", lambda place: ReadOnly(Path(place)))
    refused = erase(store, "--key", PERSON, "--place", tmp_path / "place", "--yes")
    assert refused.exit_code == BackupTargetError.exit_code
    assert bytes_of(tmp_path) == before
    # A place in which the key is not need not be written to.
    monkeypatch.undo()
    assert erase(store, "--key", PERSON, "--place", tmp_path / "place", "--yes").exit_code == 0


def test_state_of_sparks_own_operators_is_reported(make_store):
    """Nobody looks for keys in it."""
    directory = make_store(2)
    with Driver(directory, (STEP, WAITING)) as run:
        run.apply(1, {PERSON: "1"})
        run.close(1, driver_rows={CHECKPOINT_STEP: {"state/0/0/1.delta": "x"}})
    looked = erase(directory, "--key", PERSON, "--dry-run", "--json")
    assert json.loads(looked.stdout)["spark_state"]
    assert "Spark's own operators" in erase(directory, "--key", PERSON, "--yes").stderr


def test_owners_lose_the_key(make_store):
    """With --owner; each rewrites its own files."""
    places = SpreadDirectory(make_store(3), ((), (0, 2), (1,)))
    try:
        history(places, 2, executions=1)
        words = _at(places)
        looked = erase(places.places[0], "--key", PERSON, *words, "--dry-run", "--json")
        assert looked.exit_code == 0, looked.output
        done = erase(places.places[0], "--key", PERSON, *words, "--yes", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["found"] == json.loads(looked.stdout)["found"]
        assert erase(places.places[0], "--key", PERSON, *words, "--dry-run").exit_code == 44
    finally:
        places.close()
    assert [each for place in places.places for each in traces(place, SECRET)] == []


def test_what_killed_processes_left_is_removed_at_owners_too(make_store, tmp_path, monkeypatch):
    """Copies beside partitions, also at an owner that has none any more, and in scratch and temporary directories."""
    places = SpreadDirectory(make_store(3), ((), (0, 2), (1,), ()))
    try:
        history(places, 2, executions=1)
        for path in places.paths():
            shutil.copy(path, places.places[3] / f"{path.name}.replaced")
            rooms = (places.places[1] / "scratch" / "recovery-copy-x", tmp_path / "temporary" / "recovery-backup-x")
            for room in (places.places[3] / f"{STAGING}0123456789abcdef", *rooms):
                room.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, room)
            for room in rooms:
                (room / MARK).write_text(socket.gethostname())
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
        done = erase(places.places[0], "--key", PERSON, *_at(places), "--yes", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["complete"]
    finally:
        places.close()
    assert [each for place in (*places.places, tmp_path) for each in traces(place, SECRET)] == []


def test_what_nobody_rewrites_at_owners_is_named(make_store, tmp_path):
    """A copy that no run uses, since an owner came back with it, and a file that another program has put beside. As
    long as they are there, the erasure is not complete."""
    made = make_store(3)
    places = SpreadDirectory(made, ((), (0, 2), (1,)))
    try:
        history(places, 2, executions=1)
        [path] = [path for path in places.paths() if path.stem == f"part-{home_of(STEP, 3, PERSON)}"]
        shutil.copy(path, tmp_path)
        with Driver(places, (STEP, OTHER, WAITING)) as run:
            apply(run, 20_000, STEP, {"k1": '"v"'})
            run.close(20_000)
        unused = Path(shutil.copy(tmp_path / path.name, places.places[0]))
        (tmp_path / path.name).unlink()
        # A name need not be UTF-8.
        beside = Path(shutil.copy(path, path.with_name(f"{path.name}\udcff.bak")))
        assert len(traces(made.parent, SECRET)) > 1
        words = ["--key", PERSON, *_at(places)]
        names = {str(unused), one_line(f"{beside} at {places.services[places.places.index(path.parent) - 1].at}")}
        looked = json.loads(erase(places.places[0], *words, "--dry-run", "--json").stdout)
        assert {each["location"] for each in looked["copies"]} == names
        done = erase(places.places[0], *words, "--yes", "--json")
        assert done.exit_code == ErasureIncompleteError.exit_code
        said = json.loads(done.stdout)
        assert not said["complete"]
        assert {(each["location"], *each["left"]) for each in said["copies"]} == {
            (name, Path(name.partition(" ")[0]).name) for name in names
        }
        assert erase(places.places[0], *words, "--yes").exit_code == ErasureIncompleteError.exit_code
        unused.unlink()
        beside.unlink()
        assert erase(places.places[0], *words, "--yes").exit_code == StateNotFoundError.exit_code
    finally:
        places.close()
    assert [each for place in places.places for each in traces(place, SECRET)] == []


def test_a_comparison_with_a_copy_that_has_the_key(store, tmp_path):
    """The history that both share does not hide it: the erasure has changed that history in one of them."""
    fork = tmp_path / "fork"
    assert command("fork", store, fork).exit_code == 0
    assert erase(store, "--key", PERSON, "--yes").exit_code == 0
    found = command("diff", store, fork, "--json")
    assert (found.exit_code, json.loads(found.stdout)["compared_since_epoch"]) == (1, None)
    assert {(each["key"], each["what"]) for each in json.loads(found.stdout)["differences"]} == {(PERSON, "only in B")}
    again = tmp_path / "again"
    assert command("fork", store, again).exit_code == 0
    found = command("diff", store, again, "--json")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["compared_since_epoch"] is not None


def test_what_others_put_beside_is_named(store, tmp_path):
    """In the directory and in a standby. As long as it is there, the erasure is not complete."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    assert command("backup", store, place).exit_code == 0
    assert command("follow", place, standby, "--once").exit_code == 0
    beside = [Path(shutil.copy(each / "part-0.sqlite3", each / "part-0.sqlite3.bak")) for each in (store, standby)]
    words = ["--key", PERSON, "--place", place, "--standby", standby]
    assert all(str(each) in erase(store, *words, "--dry-run").stdout for each in beside)
    done = erase(store, *words, "--yes", "--json")
    assert done.exit_code == ErasureIncompleteError.exit_code, done.output
    assert [each["location"] for each in json.loads(done.stdout)["copies"][2:]] == list(map(str, beside))
    for each in beside:
        each.unlink()
    assert erase(store, *words, "--yes").exit_code == StateNotFoundError.exit_code
    assert traces(store, SECRET) == traces(standby, SECRET) == []


def test_a_copy_that_was_put_aside_is_named(store):
    """As the error of a second copy says how. The question does not speak of copies that the command names."""
    copy = Path(shutil.copy(store / "part-0.sqlite3", store / "part-0 copy.sqlite3"))
    refused = erase(store, "--key", PERSON, "--yes")
    assert refused.exit_code == DuplicatePartitionError.exit_code
    aside = copy.with_name(f"{copy.name}.aside")
    assert str(aside) in refused.stderr
    copy.rename(aside)
    asked = erase(store, "--key", PERSON, given="n\n")
    assert f"{aside}: an older copy of the partition, which no run uses" in asked.stderr
    assert "named copies" not in asked.output
    assert erase(store, "--key", PERSON, "--yes").exit_code == ErasureIncompleteError.exit_code
    aside.unlink()
    assert erase(store, "--key", PERSON, "--yes").exit_code == StateNotFoundError.exit_code
    assert traces(store, SECRET) == []


def _at(places: SpreadDirectory) -> list[str]:
    """How the command reaches the owners."""
    places.token.chmod(0o600)
    return [*(each for at in places.services for each in ("--owner", at.at)), "--token-file", str(places.token)]


def test_the_old_directory_of_a_repartition_is_named(store):
    """The old directory is another store, with the key in it."""
    assert command("repartition", store, 3, "--in-place").exit_code == 0
    said = json.loads(erase(store, "--key", PERSON, "--yes", "--json").stdout)
    [old] = said["not_named"]
    assert Path(old).is_dir()
    assert erase(old, "--key", PERSON, "--yes").exit_code == 0
    assert traces(Path(old), SECRET) == traces(store, SECRET) == []
