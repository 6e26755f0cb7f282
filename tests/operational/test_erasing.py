"""Erasing a key: nothing of it is left in any file, at any epoch, and everything else is as it was."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import apsw
import pytest

from recovery import DirectoryLockedError, StateManager, StateNotFoundError
from recovery.base.clock import SystemClock
from recovery.errors import StorageError
from recovery.operational.runs import EDIT
from recovery.operational.steps.erasing import Found, erase, look
from recovery.operational.steps.step_edits import audit
from recovery.planning.resume import plan_resume
from recovery.storage.initialize import RESTORING
from recovery.storage.lock import DirectoryLock
from recovery.storage.moving.arriving import STAGING
from recovery.storage.scan import scan
from recovery.storage.seam import KeyToErase
from recovery.storage.store import Store
from recovery.values.quarantine import entry_key, note_key
from tests.faults import minirun
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
    is_of_the_person,
    left,
    rest,
    traces,
)
from tests.shares import seeds
from tests.stores import STEP, Driver, SpreadDirectory, paths_of, problems, query, state_at, window

POINTS = ["erase.1", "erase.2", "start.3.partition", "erase.3", "erase.4"]


@pytest.mark.parametrize("seed", seeds(200))
def test_after_any_history_only_the_key_is_gone(make_store, seed):
    """At every held epoch, with sound sums; no file has a byte of it; later runs and rewinds do not bring it back."""
    directory = make_store(3)
    made = history(directory, seed)
    before = left(directory)
    assert any(rest(state) != state for state in before.values())
    found = look(Store(directory), EVERYWHERE)
    assert sum(each.rows for each in found) == _rows(directory)
    done = erased(directory)
    assert done is not None
    assert done.found == found
    assert left(directory) == {epoch: rest(state) for epoch, state in before.items()}
    assert problems(directory) == []
    assert traces(directory, PERSON + '"', SECRET) == []
    assert look(Store(directory), EVERYWHERE) == ()
    held = left(directory)
    for epoch in made.chance.sample(sorted(held), min(2, len(held))):
        again = Path(shutil.copytree(directory, directory.with_name(f"{directory.name}-{epoch}")))
        with Driver(again, (STEP, OTHER, WAITING), resume_epoch=epoch + 1) as run:
            apply(run, 20_000, STEP, {"k2": "[2]"})
            run.close(20_000)
        assert rest(state_at(again, epoch + 1)) == {**held[epoch], (STEP, "k2"): ("[2]", None)}
        assert problems(again) == []
        assert traces(again, SECRET) == []
        shutil.rmtree(again)


def _rows(directory: Path) -> int:
    """Rows of the person, and notes that the person's key did not exist, wherever they are; logged ones are folded in a
    copy first."""
    copy = Path(shutil.copytree(directory, directory.with_name(f"{directory.name}-folded")))
    with Driver(copy, backup_interval_s=3600.0):
        pass
    tables = "SELECT step_id, state_key FROM snaps UNION ALL SELECT step_id, state_key FROM superseded"
    found = [each for path in paths_of(copy) for each in query(path, tables) if is_of_the_person(*each)]
    shutil.rmtree(copy)
    return len(found)


def test_erasing_can_be_limited_to_a_step(make_store):
    """The step's quarantine goes with it; the other step keeps the key."""
    directory = make_store(2, history, 1)
    kept = [each for each in look(Store(directory), EVERYWHERE) if each.step == OTHER]
    done = erased(directory, (KeyToErase(STEP, PERSON),))
    assert done is not None
    assert {each.step for each in done.found} == {STEP}
    assert look(Store(directory), EVERYWHERE) == tuple(kept)
    assert erased(directory, (KeyToErase(OTHER, PERSON), KeyToErase(OTHER, "k1"))) is not None
    assert look(Store(directory), EVERYWHERE) == ()
    assert problems(directory) == []


def test_rows_that_a_condition_puts_aside_have_the_empty_key(store_dir):
    """The rows in quarantine of a key go with the key, and only these."""
    with Driver(store_dir, (STEP, WAITING)) as run:
        apply(run, 1, WAITING, {note_key(""): "1", entry_key("", 1): "2", note_key("k"): "3"})
        apply(run, 1, STEP, {"k": "4"})
        run.close(1)
    done = erased(store_dir, (KeyToErase(None, ""),))
    assert done is not None
    assert done.found == (Found(STEP, True, 2, True, frozenset({0})),)
    assert state_at(store_dir, 1) == {(WAITING, note_key("k")): ("3", None), (STEP, "k"): ("4", None)}


def test_the_record_says_when_and_how_many_and_not_who(make_store):
    """In the run history, and as an execution of each partition; neither goes with a rewind."""
    directory = make_store(2, history, 1)
    rows = sum(each.rows for each in look(Store(directory), EVERYWHERE))
    done = erased(directory)
    assert done is not None
    [run] = audit(Store(directory), SystemClock()).runs()
    assert (run.kind, run.status) == (EDIT, "succeeded")
    assert run.details.items() >= {"what": "erase", "keys": 1, "rows": rows, "execution": done.execution}.items()
    with Driver(directory, resume_epoch=window(directory)[0] + 1):
        pass
    for file in scan(directory):
        assert file.description is not None
        [found] = [each for each in file.description.executions if each.erases]
        assert found.number == done.execution
    assert traces(directory, f'"{PERSON}"', SECRET) == []


def test_errors_in_the_run_history_lose_the_key(make_store):
    """A run that failed at a key recorded it; other records stay as they are."""
    directory = make_store(2, history, 1)
    records = audit(Store(directory), SystemClock())
    records.begin("flow", "flow").end(ValueError(f"step 'count', key {PERSON!r}: their street is {SECRET}"))
    records.begin("flow", "flow").end(ValueError("step 'count', key 'k1': no"))
    done = erased(directory)
    assert done is not None
    assert done.records == 1
    errors = [run.error for run in records.runs() if run.kind == "flow"]
    assert errors == ["ValueError: step 'count', key 'k1': no", "(erased)"]
    assert traces(directory, f"{PERSON}'", SECRET) == []


def test_what_names_nothing_changes_nothing(make_store):
    """A key that only looks like one in quarantine, a step's name as a key, and a reserved step."""
    directory = make_store(2, history, 1)
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    for wanted in (KeyToErase(None, "nobody"), KeyToErase("$checkpoint", PERSON), KeyToErase(None, STEP)):
        with pytest.raises(StateNotFoundError) as refused:
            erased(directory, (wanted,))
        assert wanted.key not in str(refused.value)
        assert erased(directory, (wanted,), required=False) is None
    after = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    assert set(after) - set(before) <= {"recovery.lock"}
    assert {name: after[name] for name in before if name != "recovery.lock"} == before


def test_no_run_may_be_active(make_store):
    """The key is still there then."""
    directory = make_store(2)
    history(directory, 6)
    with DirectoryLock(directory, SystemClock(), "run"), pytest.raises(DirectoryLockedError):
        erased(directory)
    assert look(Store(directory), EVERYWHERE)


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_step_the_key_is_there_or_nowhere_and_the_same_call_completes_it(make_store, point):
    """A run may begin in between, and closes epochs with or without the key as before."""
    directory = make_store(2, history, 1)
    before = left(directory)

    def work() -> None:
        die_at(point)
        erased(directory)

    assert wait(child(work)) < 0
    assert problems(directory) == []
    after = left(directory)
    assert after in (before, {epoch: rest(state) for epoch, state in before.items()})
    with Driver(directory, (STEP, OTHER, WAITING), backup_interval_s=3600.0) as run:
        apply(run, 30_000, STEP, {"k3": "[3]"})
        run.close(30_000)
        newest = run.epoch - 1
    assert state_at(directory, newest) == {**after[newest - 1], (STEP, "k3"): ("[3]", None)}
    assert erased(directory) is not None
    assert traces(directory, SECRET) == []
    assert problems(directory) == []
    assert left(directory).items() >= {epoch: rest(state) for epoch, state in before.items()}.items()
    with pytest.raises(StateNotFoundError):
        erased(directory)


@pytest.mark.parametrize("point", [point for point in POINTS if point != "start.3.partition"])
def test_killed_before_the_first_run_the_same_call_completes_it(make_store, point):
    """Documents of operational state are there or nowhere, and no execution begins."""
    directory = make_store(2)
    state = StateManager(directory)
    state.process_state("people", "ada").set(SECRET)
    state.process_state("others", "bob").set(1)
    wanted = ["process/people/*"]

    def work() -> None:
        die_at(point)
        erased(directory, (), states=wanted)

    assert wait(child(work)) < 0
    assert problems(directory) == []
    done = erased(directory, (), states=wanted)
    assert done is not None
    assert (done.execution, done.states) == (None, 1 if point == "erase.1" else 0)
    assert traces(directory, SECRET) == problems(directory) == []
    assert state.process_state("others", "bob").get() == 1
    with pytest.raises(StateNotFoundError):
        erased(directory, (), states=wanted)
    with Driver(directory) as run:
        assert run.execution.number == 1


def test_scratch_files_and_older_copies_beside_go_too(make_store, tmp_path):
    """What a killed run has left, and what a replacement has set aside; also what killed moves and restores left."""
    directory = make_store(2, history, 1)

    def killed() -> None:
        run = Driver(directory)
        apply(run, 40_000, STEP, {PERSON: f'"{SECRET} again"'})
        os.kill(os.getpid(), signal.SIGKILL)

    assert wait(child(killed)) == -signal.SIGKILL
    shutil.copy(paths_of(directory)[0], directory / "part-0.sqlite3.replaced")
    shutil.copy(paths_of(directory)[1], directory / "part-1.sqlite3.replaced")
    shutil.copy(paths_of(directory)[1], directory / "part-7.sqlite3.replaced-wal")
    for staging in (f"{STAGING}0123456789abcdef", f"{RESTORING}1-ab"):
        (directory / staging).mkdir()
        for path in paths_of(directory):
            shutil.copy(path, directory / staging)
    shutil.copy(paths_of(directory)[0], directory / ".part-0.sqlite3.draft")
    shutil.copy(paths_of(directory)[1], directory / "part-1.sqlite3.replaced-lazy-wal")
    # Set aside where partitions are on other disks; the last link leads to a partition in use.
    disk = tmp_path / "disk"
    disk.mkdir()
    for name in ("part-8.sqlite3", "part-8.sqlite3-wal"):
        shutil.copy(paths_of(directory)[1], disk / name)
    (directory / "part-8.sqlite3.replaced").symlink_to(disk / "part-8.sqlite3")
    (directory / "part-9.sqlite3.replaced").symlink_to(paths_of(directory)[0])
    assert traces(directory / "scratch", SECRET)
    before = left(directory)
    assert erased(directory) is not None
    assert traces(directory, SECRET) == []
    assert left(directory) == {epoch: rest(state) for epoch, state in before.items()}
    assert not [*directory.glob(".*"), *directory.glob("*.replaced"), *disk.iterdir()]


@pytest.mark.parametrize("what", ["text", "another store", "directory"])
def test_a_link_that_leads_to_no_partition_of_the_store(make_store, tmp_path, what):
    """Whoever can write to the directory can make a link to any file: it stays, and the erasure is not complete."""
    directory = make_store(2, history, 1)
    file, link = tmp_path / "letter", directory / "part-7.sqlite3.replaced"
    link.symlink_to(file)
    if what == "directory":
        file.mkdir()
    elif what == "text":
        file.write_text("dear")
    else:
        shutil.copy(make_store(1) / "part-0.sqlite3", file)
    with pytest.raises(StorageError, match=r"part-7.sqlite3.replaced leads to .*letter"):
        erased(directory)
    assert file.exists()
    link.unlink()
    assert erased(directory) is not None
    assert traces(directory, SECRET) == []


@pytest.mark.parametrize("name", ["part-1.sqlite3", "orders"])
def test_what_a_killed_standby_left_on_another_disk_goes_too(make_store, tmp_path, name):
    """A whole copy is written beside the file that it replaces, where a link leads."""
    directory = make_store(2, history, 1)
    disk = tmp_path / "disk"
    disk.mkdir()
    shutil.move(directory / "part-1.sqlite3", disk / name)
    (directory / "part-1.sqlite3").symlink_to(disk / name)
    for each, end in ((directory / "part-0.sqlite3", ""), (disk / name, ".bak")):
        shutil.copy(each, disk / f".{name}.draft{end}")
    assert traces(disk, SECRET)
    assert erased(directory) is not None
    assert {path.name for path in disk.iterdir() if "draft" in path.name} == {f".{name}.draft.bak"}


def test_a_reader_that_keeps_the_log_is_named(make_store, monkeypatch):
    """The rows are gone already; once the reader has ended, the same call empties the log."""
    monkeypatch.setattr("recovery.storage.sqlite.file.connections.BUSY_TIMEOUT_MS", 50)
    directory = make_store(2, history, 1)
    readers = [apsw.Connection(str(path)) for path in paths_of(directory)]
    for reader in readers:
        reader.execute("BEGIN; SELECT count(*) FROM snaps").fetchall()
    with pytest.raises(StorageError, match="log still holds"):
        erased(directory)
    assert look(Store(directory), EVERYWHERE) == ()
    for reader in readers:
        reader.close()
    done = erased(directory)
    assert done is not None
    assert done.found == ()
    assert traces(directory, SECRET) == []


def test_partitions_at_owners_lose_the_key_too(make_store):
    """The calls cross the network, and each owner rewrites its own files."""
    places = SpreadDirectory(make_store(3), ((), (0, 2), (1,)))
    try:
        history(places, 10, executions=2)
        store = places.locations()
        found = look(store, EVERYWHERE)
        assert {each.step for each in found} >= {STEP}
        done = erase(store, EVERYWHERE, SystemClock())
        store.release()
        assert done is not None
        assert done.found == found
        again = places.locations()
        assert look(again, EVERYWHERE) == ()
        again.release()
        assert [each for place in places.places for each in problems(place)] == []
    finally:
        places.close()
    assert [each for place in places.places for each in traces(place, SECRET)] == []


def test_the_plan_of_a_resume_is_as_before(make_store):
    """The epochs and their cuts stay; only an execution was added, and the next one follows it."""
    directory = make_store(2, history, 1)
    before = plan_resume(scan(directory))
    assert erased(directory) is not None
    after = plan_resume(scan(directory))
    assert after.resume_epoch == before.resume_epoch
    assert after.window == before.window
    assert after.execution_number == before.execution_number + 1


@pytest.mark.parametrize("seed", seeds(12))
def test_runs_resume_and_go_back_after_an_erasure(make_store, seed):
    """A run counts each record of every other key once; of the key only later input counts."""
    directory = make_store(3)
    minirun.run(directory, seed, 6, seed, backup_interval=3600)
    key = max(minirun.states(directory))
    done = erased(directory, (KeyToErase(None, key),))
    assert done is not None
    assert key not in minirun.states(directory)
    minirun.run(directory, seed, 10, seed, backup_interval=3600)
    truth, found = minirun.totals(seed, 10), minirun.states(directory)
    assert {**found, key: truth.get(key)} == {**truth, key: truth.get(key)}
    since = dict[str, int]()
    for batch in range(6, 10):
        value = minirun.input_of(seed, batch).get(key)
        if value:
            since[key] = since.get(key, 0) * 3 % 1_000_003 + value
        elif value is not None:
            since.pop(key, None)
    assert found.get(key) == (str(since[key]) if since else None)
    assert problems(directory) == []
