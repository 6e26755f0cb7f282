"""Backups of what changed: every one restores to what a whole copy would be."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import time
from pathlib import Path

import pytest

from recovery.backup.manifest import OBJECTS, Manifest, encode, manifest_name
from recovery.backup.note import LastBackup, note_backup, reads_made_keys
from recovery.backup.objects import bring
from recovery.backup.progress import ignore
from recovery.backup.repository import list_backups, prune
from recovery.backup.sources import open_source
from recovery.base.clock import SystemClock
from recovery.errors import CorruptPartitionError, EpochNotHeldError
from recovery.places.directory import DirectoryPlace
from recovery.places.protocol import Place
from recovery.planning.backups import KeepRule
from recovery.planning.measures import Measure
from recovery.planning.resume import plan_resume
from recovery.planning.values import StepEdit
from recovery.storage.documents import change_states
from recovery.storage.scan import scan
from recovery.storage.sqlite.transfer import changes_file
from tests.backup.support import assert_sound, back_up, bring_back, states, work
from tests.backup.writer import state_of, wait_until_closed, writing
from tests.faults.minirun import MiniRun
from tests.shares import seeds
from tests.stores import STEP, Driver, State, alter, paths_of, problems, query, state_at

TABLES = (
    "parts", "exs", "epochs", "commits", "snaps", "changes", "logged", "superseded", "beginning", "states", "totals",
    "sizes", "measures",
)  # fmt: skip
WINDOW = 4


def whole(directory: Path) -> dict:
    """Every row of every table of every file."""
    return {
        (path.name, table): query(path, f"SELECT * FROM {table}") for path in paths_of(directory) for table in TABLES
    }


def brought(target: Place, manifest: Manifest, directory: Path) -> dict:
    """The same of a backup's copies, as they are before a restore goes back to a shared epoch."""
    directory.mkdir()
    for copy in manifest.copies:
        bring(target, copy, directory / copy.description.path.name, ignore)
    assert problems(directory) == []
    assert sorted(path.name for path in directory.iterdir()) == [c.description.path.name for c in manifest.copies]
    found = whole(directory)
    shutil.rmtree(directory)
    return found


class History:
    """Runs that do anything that runs do, in random order; by epoch and execution, what each epoch left."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.directory = directory
        self._chance = chance
        self.left: dict[tuple[int, str], State] = {}
        self._batch = 0
        self._documents = 0

    def go_on(self) -> None:
        """One execution: it may go back, log, edit, be killed between two partitions."""
        chance = self._chance
        window = states_window(self.directory)
        resume = chance.choice(window) + 1 if window and chance.random() < 0.25 else None
        logged, notes = chance.random() < 0.3, chance.random() < 0.5
        kept_s, keeps = chance.choice([0.0, 3600.0]), logged and chance.random() < 0.5
        with Driver(self.directory, resume_epoch=resume, backup_interval_s=kept_s, keeps_log=keeps) as run:
            if not keeps and chance.random() < 0.2:
                self._batch += 1
                run.close(self._batch, edits=[self._edit()], floor=self._floor(run), notes_made=notes)
                self._note(run)
            for _ in range(chance.randint(0, 4)):
                self._batch += 1
                run.apply(self._batch, self._changes())
                if chance.random() < 0.1:
                    requests = run.requests(self._batch, floor=self._floor(run), logged=keeps, notes_made=notes)
                    run.store.close_partition(0, run.lease, requests[0])
                    return
                run.close(
                    self._batch,
                    floor=self._floor(run),
                    logged=logged,
                    notes_made=notes,
                    driver_rows={"$at": {"b": str(self._batch)}},
                )
                self._note(run)
                if chance.random() < 0.5:
                    at = {"measured_ms": 1000 * self._batch, "resume_s": 0.0}
                    run.store.record(Measure(execution=run.execution.number, epoch=run.epoch - 1, **at))
            if logged and chance.random() < 0.7 and run.epoch > run.execution.resume_epoch:
                run.fold(chance.choice([None, self._floor(run)]))
            if not logged and chance.random() < 0.1:
                run.store.collect(max(0, run.epoch - 1))
            run.store.checkpoint()
        if chance.random() < 0.3:
            self._documents += 1
            changes = {f"doc{self._documents % 3}": lambda _: f'{{"n":{self._documents}}}'}
            change_states(paths_of(self.directory)[0], changes, 10, busy_ms=1000)

    def _note(self, run: Driver) -> None:
        epoch = run.epoch - 1
        self.left[epoch, run.execution.id] = state_at(self.directory, epoch)

    def _edit(self) -> StepEdit:
        """Convert the step, or rename it; drop it under the other name, which the next tasks do not use."""
        held = any(
            query(path, "SELECT 1 FROM snaps WHERE step_id = 'aside' LIMIT 1") for path in paths_of(self.directory)
        )
        converted = StepEdit(STEP, STEP, lambda _key, text: f"{text}+")
        return self._chance.choice([converted, StepEdit("aside", None) if held else StepEdit(STEP, "aside")])

    def _floor(self, run: Driver) -> int:
        return max(0, run.epoch - WINDOW) if self._chance.random() < 0.8 else 0

    def _changes(self) -> dict[str, str | tuple[str, int] | None]:
        chance = self._chance
        keys = [f"k{chance.randrange(40)}" for _ in range(chance.randint(0, 12))]
        keys += [f"new{self._batch}"] * (chance.random() < 0.3)
        texts = [None, f"v{self._batch}", ("t", self._batch), "x" * chance.randrange(3000)]
        return {key: chance.choice(texts) or None for key in keys}


def states_window(directory: Path) -> list[int]:
    """The epochs that can be resumed after."""
    return list(plan_resume(scan(directory)).window)


@pytest.mark.parametrize("seed", seeds(30))
def test_every_backup_of_a_random_history_is_what_a_whole_copy_would_be(make_store, tmp_path, monkeypatch, seed):
    """Runs, crashes, rewinds, folding, collecting, edits and operational state; chains are merged and begin again."""
    monkeypatch.setattr("recovery.planning.chains.FANOUT", 3)
    chance = random.Random(seed)
    directory = make_store(2, fill)
    history = History(directory, chance)
    target = DirectoryPlace(tmp_path / "dest")
    expected = {}
    linked = merged = 0
    for _ in range(30):
        history.go_on()
        if chance.random() < 0.7:
            made = back_up(directory, target, incremental=True, check=chance.random() < 0.1)
            linked += made.linked
            merged += any(each.links > 1 for copy in made.manifest.copies for each in copy.changes)
            expected[made.manifest.id] = whole(directory)
    assert linked > 10
    assert merged > 0 or seed > 0
    manifests = list_backups(target).manifests
    assert [manifest.id for manifest in manifests] == sorted(expected)
    for manifest in manifests:
        found = brought(target, manifest, tmp_path / "copy")
        wanted = expected[manifest.id]
        # Backups ignore measures when nothing else has changed.
        measures = "part-0.sqlite3", "measures"
        assert set(found.pop(measures)) <= set(wanted.pop(measures))
        assert found == wanted

    in_full = tmp_path / "in full"
    in_full.mkdir()
    for copy in manifests[-1].copies:
        bring(target, copy, in_full / copy.description.path.name, ignore, collects=False)
    assert problems(in_full) == []
    assert_every_epoch_is_there(target, history, tmp_path, chance)


def assert_every_epoch_is_there(target: Place, history: History, tmp_path: Path, chance: random.Random) -> None:
    """What the chains of some backups hold, each epoch of it, is what the run left, whatever else was pruned."""
    prune(target, [KeepRule(count=chance.randint(1, 3))], int(time.time() * 1000) + 3 * 86_400_000)
    source = open_source(target, tmp_path, SystemClock())
    source.describe_chains()
    held = [{e.epoch for copy in source.copies if copy.index == n for e in copy.description.epochs} for n in (0, 1)]
    epochs = sorted(set.intersection(*held))
    assert epochs
    for epoch in chance.sample(epochs, min(6, len(epochs))):
        try:
            done = bring_back(target, tmp_path / "new", tmp_path, epoch=epoch)
        except EpochNotHeldError:
            # The partitions hold it of two executions: one was killed before the other partition had it.
            continue
        assert_sound(tmp_path / "new")
        assert state_at(tmp_path / "new", epoch) == history.left[epoch, done.plan.snapshot.execution.id]
        shutil.rmtree(tmp_path / "new")


def fill(directory: Path) -> None:
    """An epoch of so much state that changes are little beside it."""
    chance = random.Random(0)
    with Driver(directory) as run:
        run.apply(0, {f"old{n}": f"{chance.random()}" for n in range(3000)})
        run.close(0)


@pytest.fixture
def store(make_store) -> Path:
    """Two partitions with state, and their first backup would be whole."""
    return make_store(2, fill)


class TestWhatIsStored:
    """Only what changed, and why not."""

    def test_only_the_changes(self, store, tmp_path):
        """A hundredth of a whole copy, for a hundredth of the keys; and nothing if nothing changed."""
        first = back_up(store, tmp_path / "dest", incremental=True)
        assert set(first.whole_because.values()) == {"there is no earlier copy to continue"}
        with Driver(store) as run:
            run.apply(1, {f"old{n}": "1" for n in range(30)})
            run.close(1)
        second = back_up(store, tmp_path / "dest", incremental=True)
        assert (second.stored, second.linked, second.reused) == (0, 2, 0)
        assert second.stored_bytes < first.stored_bytes / 10
        third = back_up(store, tmp_path / "dest", incremental=True)
        assert (third.stored, third.linked, third.reused) == (0, 0, 2)
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
        assert_sound(tmp_path / "new")
        assert states(tmp_path / "new") == states(store)

    def test_no_scan_of_the_state_if_epochs_note_the_keys_that_they_make(self, store, tmp_path, monkeypatch):
        """Without notes a scan finds them; what neither finds is reported as damage."""
        back_up(store, tmp_path / "dest", incremental=True)
        with Driver(store) as run:
            for batch in (1, 2, 3):
                run.apply(
                    batch, {f"new{batch}.{n}": "1" for n in range(20)} | {"old1": None, f"new{batch - 1}.1": None}
                )
                run.close(batch, notes_made=True)
        monkeypatch.setattr(changes_file, "WRITTEN_SINCE", "SELECT a scan")
        assert back_up(store, tmp_path / "dest", incremental=True).linked == 2
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == states(store)
        work(store, 1, keys=60)
        with pytest.raises(CorruptPartitionError, match="no such column: a"):
            back_up(store, tmp_path / "dest", incremental=True)
        monkeypatch.undo()
        assert back_up(store, tmp_path / "dest", incremental=True).linked == 2

    @pytest.mark.parametrize(
        "sql",
        [
            "UPDATE snaps SET ser_change = 'x' WHERE snap_epoch = 3",
            "DELETE FROM snaps WHERE snap_epoch = 3 AND state_key = 'old7'",
            "DELETE FROM superseded WHERE until_epoch = 3 AND state_key = 'old7'",
            "UPDATE superseded SET until_epoch = 2 WHERE until_epoch = 3 AND state_key = 'old7'",
        ],
    )
    def test_a_link_proves_itself_complete(self, store, tmp_path, sql):
        """What was altered, is missing or belongs to another epoch stops the backup: else a restore finds it."""
        back_up(store, tmp_path / "dest", incremental=True)
        with Driver(store) as run:
            for batch in (1, 2):
                run.apply(batch, {f"old{n}": f"{batch}" for n in range(4 * batch, 4 * batch + 4)})
                run.close(batch)
        for path in paths_of(store):
            alter(path, sql.replace("old7", "old8"))
        with pytest.raises(CorruptPartitionError):
            back_up(store, tmp_path / "dest", incremental=True)

    def test_a_whole_copy_where_the_window_does_not_reach_back(self, store, tmp_path):
        """The output says so."""
        back_up(store, tmp_path / "dest", incremental=True)
        with Driver(store) as run:
            for batch in (1, 2, 3):
                run.apply(batch, {"old1": str(batch)})
                run.close(batch, floor=run.epoch - 1)
        made = back_up(store, tmp_path / "dest", incremental=True)
        assert made.stored == 2
        assert set(made.whole_because.values()) == {
            "what epochs up to 3 replaced was collected since the backup before"
        }


def test_every_epoch_of_a_chain_can_be_restored(store, tmp_path, monkeypatch):
    """Also those that the partitions collected long ago, through any changes file that holds them."""
    monkeypatch.setattr("recovery.planning.chains.FANOUT", 3)
    expected = {}
    for _ in range(12):
        with Driver(store) as run:
            for _ in range(2):
                run.apply(
                    run.epoch, {f"old{run.epoch}": None, f"old{run.epoch + 50}": str(run.epoch), "k": f"{run.epoch}"}
                )
                run.close(run.epoch, floor=max(0, run.epoch - 3))
                expected[run.epoch - 1] = state_at(store, run.epoch - 1)
        back_up(store, tmp_path / "dest", incremental=True)
    assert states_window(store)[0] > 20
    for epoch in [2, *expected][::3]:
        done = bring_back(tmp_path / "dest", tmp_path / "new", tmp_path, epoch=epoch)
        assert done.plan.epoch == epoch
        assert_sound(tmp_path / "new")
        assert state_at(tmp_path / "new", epoch) == expected[epoch]
        shutil.rmtree(tmp_path / "new")


@pytest.mark.long
def test_epochs_of_backups_that_were_pruned(store, tmp_path, monkeypatch):
    """The chain of the one that is left still holds them, by number and by time; also those that were abandoned."""
    monkeypatch.setattr("recovery.planning.chains.FANOUT", 3)
    expected = {}
    for number in range(9):
        resume = states_window(store)[-1] - 1 if number in (4, 7) else None
        with Driver(store, resume_epoch=resume, started_ms=100 * (number + 2)) as run:
            for _ in range(2):
                batch = run.execution.number * 100 + run.epoch
                run.apply(batch, {f"old{run.epoch}": None, f"old{run.epoch + 50}": f"{batch}", "k": f"{batch}"})
                run.close(batch, floor=max(0, run.epoch - 3), closed_ms=batch, clock_ms=batch)
                expected[run.epoch - 1, batch] = state_at(store, run.epoch - 1)
        made = back_up(store, tmp_path / "dest", incremental=True)
    target = DirectoryPlace(tmp_path / "dest")
    assert len(prune(target, [KeepRule(count=1)], int(time.time() * 1000) + 3 * 86_400_000).kept) == 1
    assert {entry.name for entry in target.entries(OBJECTS)} == set(made.manifest.objects)
    first = states_window(store)[0]
    for (epoch, batch), state in expected.items():
        standing = max(each for number, each in expected if number == epoch)
        for wanted in [{"at_ms": batch}, *([{"epoch": epoch}] if batch == standing else [])]:
            done = bring_back(target, tmp_path / "new", tmp_path, **wanted)
            assert done.plan.epoch == epoch
            assert_sound(tmp_path / "new")
            assert state_at(tmp_path / "new", epoch) == state
            shutil.rmtree(tmp_path / "new")
    assert first > 5
    # The manifest that is left lists the epochs since the backup before: no more is read to restore one of them.
    monkeypatch.setattr("recovery.backup.sources.links_of", None)
    listed = made.manifest.copies[0].description.epochs[0].epoch
    assert first < listed < made.manifest.epoch
    bring_back(target, tmp_path / "new", tmp_path, epoch=listed)
    bring_back(target, tmp_path / "newest", tmp_path)


def test_links_of_a_live_run(make_store, tmp_path):
    """All partitions as of one moment, while epochs are closed: each backup restores to what its epoch held."""
    directory = make_store(3)
    made = []
    with writing(directory) as process:
        for _ in range(6):
            wait_until_closed(process, 3 * len(made) + 2)
            made.append(back_up(directory, tmp_path / "dest", incremental=True))
    assert sum(each.linked for each in made) > 3
    for number in (0, 3, 5):
        epoch = min(copy.description.newest_epoch for copy in made[number].manifest.copies)
        bring_back(tmp_path / "dest", tmp_path / "new", tmp_path, epoch=epoch)
        assert_sound(tmp_path / "new")
        assert state_at(tmp_path / "new", epoch) == state_of(epoch)
        shutil.rmtree(tmp_path / "new")


def test_a_backup_of_an_older_version_continues_as_a_chain(store, tmp_path):
    """The older manifest lacks what chains need, and has another fingerprint. A manifest of whole copies has the
    format that older versions read."""
    made = back_up(store, tmp_path / "dest").manifest
    path = tmp_path / "dest" / manifest_name(made.id)
    value = json.loads(gzip.decompress(path.read_bytes()))
    assert value["format"] == 1
    for part in value["partitions"]:
        for name in ("changes", "partition_bytes", "states", "states_digest", "measure", "unlisted"):
            del part[name]
        part["fingerprint"] += 1
    path.write_bytes(gzip.compress(json.dumps(value).encode()))
    work(store, 2)
    assert back_up(store, tmp_path / "dest", incremental=True).linked == 2
    bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
    assert states(tmp_path / "new") == states(store)
    newest = list_backups(DirectoryPlace(tmp_path / "dest")).manifests[-1]
    assert json.loads(gzip.decompress(encode(newest)))["format"] == 3


class TestNotes:
    """Runs note the keys that epochs make while incremental backups are made, and only then."""

    @pytest.mark.parametrize(
        ("incremental", "interval", "noted"), [(True, "1h", True), (True, 0, False), (False, "1h", False)]
    )
    def test_a_run_notes_them_if_a_backup_will_read_them(self, make_store, tmp_path, incremental, interval, noted):
        """The note of the last backup says so. Without a backup interval, nothing could be read."""
        directory = make_store(2)
        work(directory, 1)
        back_up(directory, tmp_path / "dest", incremental=incremental)
        run = MiniRun(directory, 3, backup_interval=interval)
        for _ in range(3):
            run.batch()
        run.finish()
        found = sum(
            len(query(path, "SELECT 1 FROM superseded WHERE snap_epoch IS NULL")) for path in paths_of(directory)
        )
        assert (found > 0) is noted

    def test_only_while_the_note_is_young(self, tmp_path):
        """An older backup cannot be continued."""
        (tmp_path / "part-0.sqlite3").touch()
        note_backup(tmp_path, LastBackup(1_000_000, 1, "dest", incremental=True))
        assert reads_made_keys(tmp_path, 60, 1_060_000)
        assert not reads_made_keys(tmp_path, 60, 1_060_001)
        assert not reads_made_keys(tmp_path, 0, 1_000_000)
        note_backup(tmp_path, LastBackup(1_000_000, 1, "dest"))
        assert not reads_made_keys(tmp_path, 60, 1_000_000)


class TestAfterAnOlderCopyTookThePlace:
    """A directory that was restored, and that backups of the same place go on from."""

    def test_of_one_that_goes_back_further(self, store, tmp_path):
        """What a newer base has collected cannot come back, so copies are whole, and restore."""
        with Driver(store) as run:
            for _ in range(30):
                run.apply(run.epoch * 10, {"key": f"A{run.epoch}"})
                run.close(run.epoch * 10, floor=max(0, run.epoch - 10))
                if run.epoch - 1 in (20, 25, 30):
                    back_up(store, tmp_path / "dest", incremental=True)
        bring_back(tmp_path / "dest", tmp_path / "new", scratch(tmp_path), epoch=22)
        with Driver(tmp_path / "new") as run:
            for _ in range(3):
                run.apply(run.epoch * 10, {"key": f"B{run.epoch}"})
                run.close(run.epoch * 10, floor=max(0, run.epoch - 12))
        back_up(tmp_path / "new", tmp_path / "dest", incremental=True)
        found = bring_back(tmp_path / "dest", tmp_path / "again", scratch(tmp_path))
        assert not found.left_out
        assert states(tmp_path / "again") == states(tmp_path / "new")

    def test_state_of_the_abandoned_timeline_is_gone(self, store, tmp_path):
        """Operational state and measures are those of the directory, also where it has none."""

        def close(run: Driver, count: int, late_ms: int) -> None:
            for _ in range(count):
                run.apply(run.epoch * 10, {"key": str(run.epoch)})
                run.close(run.epoch * 10)
                measured_ms = run.epoch + late_ms
                run.store.record(
                    Measure(execution=run.execution.number, epoch=run.epoch - 1, measured_ms=measured_ms, resume_s=0.0)
                )

        with Driver(store) as run:
            close(run, 5, 0)
            back_up(store, tmp_path / "dest", incremental=True)
            bring_back(tmp_path / "dest", tmp_path / "new", scratch(tmp_path))
            close(run, 5, 0)
            change_states(paths_of(store)[0], {"doc": lambda _: '{"n":1}'}, 10, busy_ms=1000)
            back_up(store, tmp_path / "dest", incremental=True)
        with Driver(tmp_path / "new") as run:
            close(run, 8, 1_000_000)
        back_up(tmp_path / "new", tmp_path / "dest", incremental=True)
        bring_back(tmp_path / "dest", tmp_path / "again", scratch(tmp_path))
        for table in ("states", "measures"):
            new, again = (query(paths_of(tmp_path / name)[0], f"SELECT * FROM {table}") for name in ("new", "again"))
            assert again == new


def test_a_damaged_row_does_not_become_a_change(store, tmp_path):
    """The backup is refused, and not each restore of the chain."""
    back_up(store, tmp_path / "dest", incremental=True)
    with Driver(store) as run:
        run.apply(run.epoch * 10, {"gone": "x"})
        run.close(run.epoch * 10)
        run.apply(run.epoch * 10, {"gone": None})
        run.close(run.epoch * 10)
    for path in paths_of(store):
        alter(path, "UPDATE superseded SET state_key = 'other' WHERE state_key = 'gone'")
    with pytest.raises(CorruptPartitionError):
        back_up(store, tmp_path / "dest", incremental=True)


def scratch(tmp_path: Path) -> Path:
    """A scratch directory for restores."""
    made = tmp_path / "scratch"
    made.mkdir(exist_ok=True)
    return made
