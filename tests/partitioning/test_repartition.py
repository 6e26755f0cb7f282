"""A store with another number of partitions holds what the old one holds, at every epoch; killed anywhere, it is whole
or absent, and the old one untouched."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner
from hypothesis import settings

from recovery import StateManager
from recovery.backup import note as notes
from recovery.backup.lease import NAME as LEASE
from recovery.base.clock import SystemClock
from recovery.base.ids import PartitionIndex
from recovery.cli import main
from recovery.errors import (
    AlreadyInitializedError,
    ConfigurationError,
    CorruptPartitionError,
    DirectoryLockedError,
    ForeignPartitionError,
    LinkedPartitionError,
    NoPartitionsError,
    RecoveryError,
    StateLockedError,
    StorageError,
)
from recovery.idle.note import NAME as LAST_INPUT
from recovery.partitioning import in_place
from recovery.partitioning.in_place import drop_old, kept_directories
from recovery.partitioning.repartition import plan_repartition, repartition
from recovery.planning.resume import plan_resume
from recovery.replication.unseen import NAME as UNSEEN
from recovery.storage.initialize import RESTORING
from recovery.storage.lock import DirectoryLock
from recovery.storage.moving.arriving import STAGING
from recovery.storage.moving.departed import note_path
from recovery.storage.origin import read_origins
from recovery.storage.restored import mark_restored
from recovery.storage.scan import scan
from recovery.storage.sqlite.transfer.draft_partition import DraftPartition
from recovery.storage.staged import REPLACED
from recovery.values.keys import home_of
from tests.forks import run_code
from tests.shares import first, some
from tests.storage.test_model import STEPS, Histories
from tests.stores import ROOT, STEP, Driver, alter, paths_of, problems, query, state_at, window


def filled(directory: Path, epochs: int = 4, *, logged: bool = False) -> Path:
    """A store with some epochs, keys that come and go, timeouts, rows of the run's own, and operational state."""
    with Driver(directory) as run:
        for epoch in range(1, epochs + 1):
            changes = {f"key{n}": (str(epoch * n), n if n % 3 else None) for n in range(epoch, 30, epoch)}
            run.apply(epoch, {**changes, f"key{epoch + 1}": None, "": ("0", None), "Ω😀": (f"{epoch}", 7)})
            run.close(epoch, driver_rows={"$position": {"at": str(epoch)}}, logged=logged and epoch > 2)
    StateManager(directory).set_hwm("orders", 5)
    return directory


def assert_equal(old: Path, new: Path, count: int) -> None:
    """Every held epoch of both, what else they say, and a full check."""
    assert problems(new) == []
    assert len(paths_of(new)) == count
    assert window(new) == window(old)
    for epoch in window(old):
        assert state_at(new, epoch) == state_at(old, epoch), epoch
    plans = [plan_resume(scan(each)) for each in (old, new)]
    assert [each.resume_epoch for each in plans] == [plans[0].resume_epoch] * 2
    assert {each.flow_id for each in plans} == {plans[0].flow_id}
    assert {each.execution_number for each in plans} == {plans[0].execution_number}
    for index, path in enumerate(paths_of(new)):
        keys = query(path, "SELECT step_id, state_key FROM snaps UNION SELECT step_id, state_key FROM superseded")
        assert {home_of(step, count, key) for step, key in keys} <= {index}


def contents(directory: Path) -> dict[str, str]:
    """What the partitions' files hold, but not the index of a log, which every reader makes."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.glob("part-*")
        if not path.name.endswith("-shm") and path.stat().st_size
    }


class Repartitions(Histories):
    """Whatever happened to a store: repartitioned N → M → N, each held epoch is as it was, and can be gone back to; so
    are timeouts, the run's own rows, which are bytes where they are files of Spark's, and operational state."""

    def stop(self, killed: bool) -> None:
        super().stop(killed)
        generator = random.Random(len(self.told) * 97 + self.batch)
        try:
            plan = plan_resume(scan(self.directory))
        except RecoveryError:
            return
        self.operate(generator)
        there, back = (self.directory.with_name(f"{self.directory.name}-{n}") for n in range(2))
        # The same number of partitions is refused.
        count = generator.choice([1, 3, 4, 5])
        try:
            repartition(self.directory, there, count)
            assert_equal(self.directory, there, count)
            repartition(there, back, len(plan.partitions))
            assert_equal(self.directory, back, len(plan.partitions))
            assert operational(self.directory) == operational(there) == operational(back)
            epoch = generator.choice(plan.window)
            expected = state_at(self.directory, epoch)
            for place in (there, back):
                with Driver(place, STEPS, resume_epoch=epoch + 1) as run:
                    assert state_at(place, epoch) == expected
                    run.apply(run.epoch + 50, {"after": ("1", 9)}, STEPS[0])
                    run.close(run.epoch + 50)
                assert state_at(place, epoch + 1) == {**expected, (STEPS[0], "after"): ("1", 9)}
                assert problems(place) == []
        finally:
            shutil.rmtree(there, ignore_errors=True)
            shutil.rmtree(back, ignore_errors=True)

    def operate(self, generator: random.Random) -> None:
        """Change some operational state."""
        state = StateManager(self.directory)
        state.set_hwm(generator.choice(["orders", "a/b"]), generator.randrange(10**6), force=True)
        state.process_state("ns", "p").set({"n": generator.random()})
        if generator.random() < 0.3:
            state.remove_hwm("orders")


def operational(directory: Path) -> dict:
    """All operational state of a directory but where it comes from."""
    return {
        each.state_id: each.content for each in StateManager(directory).backend.list("") if each.state_id != "origin"
    }


def run_histories(store_maker, examples: int, steps: int) -> None:
    Repartitions.make_store = staticmethod(store_maker)
    test = Repartitions.TestCase
    test.settings = settings(max_examples=examples, stateful_step_count=steps, print_blob=True, deadline=None)
    test("runTest").runTest()


def test_random_histories_are_equal_at_every_held_epoch(store_maker):
    """Logged and folded, crashed while closing, gone back, collected, copies put back."""
    run_histories(store_maker, 4, 15)


@pytest.mark.long
def test_many_random_histories(store_maker):
    """The same, for longer; RECOVERY_TEST_HISTORIES says how many."""
    run_histories(store_maker, int(os.environ.get("RECOVERY_TEST_HISTORIES", "150")), 40)


@first(("count", "new_count"), [(2, 8), (8, 2), (3, 2), (1, 5), (5, 1), (4, 6)], count=3)
def test_everything_comes_along(make_store, tmp_path, count, new_count):
    """Epochs, timeouts, executions, operational state, measures and the origin."""
    source = filled(make_store(count), logged=count == 3)
    before = contents(source)
    done = repartition(source, tmp_path / "new", new_count)
    assert_equal(source, tmp_path / "new", new_count)
    assert contents(source) == before
    assert StateManager(tmp_path / "new").get_hwm("orders") == 5
    of_old, of_new = (query(paths_of(each)[0], "SELECT * FROM exs") for each in (source, tmp_path / "new"))
    assert of_old == of_new
    [origin] = read_origins(tmp_path / "new")
    assert (origin.execution, origin.newest) == plan_resume(scan(source)).held
    assert (origin.how, origin.store_id, origin.epoch, origin.partitions) == (
        "repartition", plan_resume(scan(source)).store_id, 4, count,
    )  # fmt: skip
    assert plan_resume(scan(tmp_path / "new")).store_id == done.store_id != origin.store_id
    for step in (STEP, "$position"):
        pairs = list(done.of(step))
        assert [old.epoch for old, _ in pairs] == list(window(source))
        assert all(old == new for old, new in pairs)
        assert [old.rows for old, _ in pairs] == [
            sum(name == step for name, _ in state_at(source, old.epoch)) for old, _ in pairs
        ]


def test_a_directory_whose_name_is_not_text(make_store, tmp_path):
    """Processes get its bytes."""
    source = filled(make_store(2))
    new = tmp_path / os.fsdecode(b"new\xff")
    repartition(source, new, 5, processes=2)
    assert_equal(source, new.rename(tmp_path / "new"), 5)


def test_several_processes_make_the_same(make_store, tmp_path):
    """As many as asked for, and each error of theirs is an error here."""
    source = filled(make_store(2))
    seen: list[tuple[int, int]] = []
    repartition(source, tmp_path / "new", 5, processes=3, observe=lambda *counts: seen.append(counts))
    assert_equal(source, tmp_path / "new", 5)
    assert seen[-1][0] == seen[-1][1] > 0
    alter(paths_of(source)[1], "UPDATE snaps SET ser_change = '1' || ser_change WHERE step_id = 'count'")
    with pytest.raises(CorruptPartitionError, match="do not match their digest") as raised:
        repartition(source, tmp_path / "damaged", 5, processes=3)
    assert raised.value.path == str(paths_of(source)[1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("UPDATE snaps SET ser_change = '99' WHERE state_key = 'key8'", "do not match their digest"),
        ("DELETE FROM snaps WHERE state_key IN (SELECT max(state_key) FROM snaps)", "rows where epoch 4 left"),
        ("DELETE FROM superseded WHERE until_epoch = 4", "rows that epoch 4 superseded are missing"),
        ("UPDATE superseded SET timeout_ms = 3 WHERE until_epoch = 3", "do not match their digest"),
    ],
)
def test_a_damaged_partition_is_refused_by_name(make_store, tmp_path, damage, found):
    """A changed or missing row, live or superseded: nothing is made."""
    source = filled(make_store(2))
    for path in paths_of(source):
        alter(path, damage)
    with pytest.raises(CorruptPartitionError, match=found) as raised:
        repartition(source, tmp_path / "new", 3)
    assert raised.value.path in map(str, paths_of(source))
    assert list(tmp_path.iterdir()) == []


def test_what_is_refused(make_store, tmp_path):
    """A directory in use, by its holder's name; a place that is not free; the same number; no number."""
    source = filled(make_store(2))
    with DirectoryLock(source, SystemClock(), "flow words"), pytest.raises(DirectoryLockedError, match="flow words"):
        repartition(source, tmp_path / "new", 3)
    with DirectoryLock(source, SystemClock(), "flow words"), pytest.raises(DirectoryLockedError, match="flow words"):
        plan_repartition(source, tmp_path / "new", 3)
    with pytest.raises(ConfigurationError, match="lies within"):
        repartition(source, source / "new", 3)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").touch()
    with pytest.raises(StorageError, match=r"notes\.txt"):
        repartition(source, tmp_path / "taken", 3)
    with pytest.raises(AlreadyInitializedError):
        repartition(source, source, 3)
    with pytest.raises(ConfigurationError, match="2 partitions already"):
        repartition(source, tmp_path / "new", 2)
    for odd in (0, -1, 5000, True, "3"):
        with pytest.raises(ConfigurationError, match="not a number of partitions"):
            plan_repartition(source, tmp_path / "new", odd)
    assert not (tmp_path / "new").exists()


def test_copies_of_the_old_store_are_refused_by_name(make_store, tmp_path):
    """In the new directory a file of the old one is named for what it is."""
    source = filled(make_store(2))
    repartition(source, tmp_path / "new", 3)
    shutil.copy(paths_of(source)[1], tmp_path / "new" / "part-1.sqlite3")
    with pytest.raises(ForeignPartitionError, match="a copy of the store that this one was repartitioned from"):
        plan_resume(scan(tmp_path / "new"))


@pytest.mark.parametrize("way", ["copy", "pull", "add_live"])
def test_all_ways_of_moving_rows_make_the_same(make_store, tmp_path, monkeypatch, way):
    """Within SQLite, by keys where a group has many partitions, or through Python, where something is logged."""
    source = filled(make_store(3))
    used: set[str] = set()
    for name in ("copy", "pull", "add_live"):
        original = getattr(DraftPartition, name)

        def noted(*given, name=name, original=original):
            used.add(name)
            return original(*given)

        monkeypatch.setattr(DraftPartition, name, noted)
    if way == "pull":
        monkeypatch.setattr("recovery.storage.repartition.MOST_COPIES", 4)
    if way == "add_live":
        monkeypatch.setattr("recovery.storage.repartition.can_attach", lambda *_: False)
    monkeypatch.setattr("recovery.storage.repartition.CHUNK_KEYS", 4)
    repartition(source, tmp_path / "new", 5)
    assert used == {way}
    assert_equal(source, tmp_path / "new", 5)


@pytest.mark.parametrize("way", ["copy", "pull", "add_live"])
@pytest.mark.parametrize("counts", some([(3, 5), (4, 2), (2, 6)], (3, 5)))
def test_steps_that_only_some_partitions_have(make_store, tmp_path, monkeypatch, way, counts):
    """Each step has keys in other partitions: in one of them, in all but the first, one key there and many elsewhere.
    Keys are moved in parts of four, whose ends are keys of the first partition."""
    count, new_count = counts
    if way == "pull":
        monkeypatch.setattr("recovery.storage.repartition.MOST_COPIES", 0)
    if way == "add_live":
        monkeypatch.setattr("recovery.storage.repartition.can_attach", lambda *_: False)
    monkeypatch.setattr("recovery.storage.repartition.CHUNK_KEYS", 4)
    every = [f"key{n:03}" for n in range(120)]
    homes = {key: home_of("step", count, key) for key in every}
    others = [key for key in every if homes[key]]
    steps = {
        "all": every,
        "few of the first": [*others, next(key for key in reversed(every) if not homes[key])],
        "not of the first": others,
        "of the first": [key for key in every if not homes[key]],
        "of the last": [key for key in every if homes[key] == count - 1],
        "one": ["key007"],
    }
    source = make_store(count)
    with Driver(source, list(steps)) as run:
        for epoch, part in ((1, slice(None, None, 2)), (2, slice(1, None, 2)), (3, slice(None, None, 3))):
            for step, keys in steps.items():
                run.apply(epoch, {key: str(epoch) for key in keys[part] or keys}, step)
            run.close(epoch)
    done = repartition(source, tmp_path / "new", new_count)
    assert_equal(source, tmp_path / "new", new_count)
    rows = {step: [before.rows for before, after in done.of(step) if before == after][-1] for step in steps}
    assert rows == {step: len(keys) for step, keys in steps.items()}


def test_a_row_in_a_partition_that_is_not_its_own(make_store, tmp_path, monkeypatch):
    """Is refused, there twice or only there: a task would not find it."""
    source = filled(make_store(2))
    row = query(paths_of(source)[0], "SELECT * FROM snaps WHERE step_id = 'count' LIMIT 1")[0]
    connection = apsw.Connection(str(paths_of(source)[1]))
    connection.execute("INSERT INTO snaps VALUES (?, ?, ?, ?, ?, ?)", row)
    connection.close()
    with pytest.raises(CorruptPartitionError):
        repartition(source, tmp_path / "new", 4)
    monkeypatch.setattr("recovery.storage.repartition.check_complete", lambda *_: None)
    alter(paths_of(source)[0], f"DELETE FROM snaps WHERE step_id = 'count' AND state_key = '{row[1]}'")
    with pytest.raises(CorruptPartitionError, match="lies in a partition that is not its own") as raised:
        repartition(source, tmp_path / "new", 4)
    assert raised.value.path == str(paths_of(source)[1])
    assert list(tmp_path.iterdir()) == []


def test_backups_begin_a_new_chain(make_store, tmp_path):
    """At a place of their own: one that has backups of the old store is refused, and says why."""
    source = filled(make_store(2))
    backup = ["backup", str(source), str(tmp_path / "place")]
    assert CliRunner().invoke(main, backup).exit_code == 0
    with pytest.raises(NoPartitionsError, match="but backups") as raised:
        repartition(tmp_path / "place", tmp_path / "new", 3)
    assert "recovery restore" in raised.value.remedy
    repartition(source, None, 3)
    refused = CliRunner().invoke(main, [*backup, "--incremental"])
    assert refused.exit_code == ForeignPartitionError.exit_code
    assert "which was repartitioned from it" in refused.stderr
    done = CliRunner().invoke(main, ["backup", str(source), str(tmp_path / "other"), "--incremental"])
    assert done.exit_code == 0, done.output
    assert "3 partitions stored" in done.stdout


def test_an_empty_store(make_store, tmp_path):
    """Before the first run."""
    done = repartition(make_store(2), tmp_path / "new", 3)
    assert done.steps() == []
    assert (problems(tmp_path / "new"), window(tmp_path / "new")) == ([], (0,))


class TestInPlace:
    """The directory keeps its name; the old one is kept beside it."""

    def test_the_old_one_is_kept_until_it_is_dropped(self, make_store):
        """And twice in a row, with all origins."""
        source = filled(make_store(2))
        before = contents(source)
        first = repartition(source, None, 3)
        kept = source.with_name(f"{source.name}.{first.plan.store_id}.old")
        assert contents(kept) == before
        assert_equal(kept, source, 3)
        second = repartition(source, None, 4)
        assert_equal(kept, source, 4)
        assert [each.store_id for each in read_origins(source)] == [second.plan.store_id, first.plan.store_id]
        assert kept_directories(source) == drop_old(source)
        assert not kept.exists()
        assert drop_old(source) == []
        with Driver(source) as run:
            run.apply(9, {"key1": "1"})
            run.close(9)

    def test_a_directory_with_other_files_is_refused(self, make_store, tmp_path):
        """They would go with the old one."""
        source = filled(make_store(2))
        (source / "notes.txt").touch()
        with pytest.raises(ConfigurationError, match=r"holds other files too: notes\.txt"):
            repartition(source, None, 3)
        (source / "notes.txt").unlink()
        moved = tmp_path / "elsewhere.sqlite3"
        shutil.move(paths_of(source)[1], moved)
        (source / "part-1.sqlite3").symlink_to(moved)
        with pytest.raises(LinkedPartitionError, match=r"part-1\.sqlite3 is a link"):
            repartition(source, None, 3)

    def test_documents_beside_the_partitions_are_no_other_files(self, make_store):
        """Of a directory that was restored, or that replicates, or whose partitions came from other owners and went to
        others; also when the old directory is dropped. Each kind of note is one."""
        source = filled(make_store(2))
        mark_restored(source)
        put_aside = f"part-1.sqlite3{REPLACED}"
        left = (f"{STAGING}0123456789abcdef", f"{RESTORING}1-ab", put_aside, f"{put_aside}-wal", f"{put_aside}-shm")
        left += ("part-1.sqlite3-lazy-wal", ".part-0.sqlite3.draft")
        moved = note_path(source, PartitionIndex(1)).name
        noted = [name for constant, name in vars(notes).items() if constant.endswith("NAME")]
        assert notes.DRILL_NAME in noted
        documents = (UNSEEN, LEASE, LAST_INPUT, moved, *noted)
        for name in (*documents, *left, *(f".{name}.{os.getpid()}-0123abcd" for name in documents)):
            (source / name).write_text("{}")
        repartition(source, None, 3)
        assert len(scan(source)) == 3
        assert len(drop_old(source)) == 1

    def test_state_that_is_written_meanwhile_is_not_lost(self, make_store, monkeypatch):
        """A mark that another process sets while the rows are moved: nothing is swapped."""
        source = filled(make_store(2))
        original = in_place.swap

        def late(directory, new, totals):
            StateManager(source).set_hwm("orders", 6)
            original(directory, new, totals)

        monkeypatch.setattr("recovery.partitioning.repartition.swap", late)
        with pytest.raises(StorageError, match="operational state was changed meanwhile"):
            repartition(source, None, 3)
        assert kept_directories(source) == []
        assert StateManager(source).get_hwm("orders") == 6
        assert len(list(source.parent.glob(f"{source.name}*"))) == 1

    @pytest.mark.parametrize("when", ["before", "meanwhile"])
    def test_a_lock_of_operational_state_that_is_held(self, make_store, monkeypatch, when):
        """Nothing is swapped: in the new directory, somebody else could take the lock. Afterwards the swap is made."""
        source = filled(make_store(2))
        state, original = StateManager(source), in_place.swap
        with contextlib.ExitStack() as held:

            def late(*arguments):
                held.enter_context(state.lock("orders", "loading orders"))
                original(*arguments)

            if when == "before":
                held.enter_context(state.lock("orders", "loading orders"))
            else:
                monkeypatch.setattr("recovery.partitioning.repartition.swap", late)
            with pytest.raises(StateLockedError, match=r"loading orders.* holds a lock"):
                repartition(source, None, 3)
            assert kept_directories(source) == []
            assert len(list(source.parent.glob(f"{source.name}*"))) == 1
        monkeypatch.undo()
        repartition(source, None, 3)
        with state.lock("orders", "loading orders"):
            locks = source.parent.glob(f"{source.name}*/locks/*.lock")
            assert [path.parent.parent for path in locks if path.stat().st_size] == [source]

    def test_a_lock_that_is_wanted_during_the_swap(self, make_store, monkeypatch):
        """Whoever waits gets the lock of the new directory."""
        source = filled(make_store(2))
        state, original, has_it = StateManager(source), in_place.exchange, threading.Event()

        def want():
            with state.lock("orders", "loading orders"):
                has_it.set()

        waiting = threading.Thread(target=want)

        def late(*arguments):
            if source in arguments:
                waiting.start()
                assert not has_it.wait(0.3)
            original(*arguments)

        monkeypatch.setattr(in_place, "exchange", late)
        repartition(source, None, 3)
        waiting.join(30)
        assert has_it.is_set()
        [kept] = kept_directories(source)
        assert len(list((source / "locks").iterdir())) == 1
        assert list((kept / "locks").iterdir()) == []

    def test_a_file_system_that_cannot_swap(self, make_store, monkeypatch):
        """Is found out before any work."""
        source = filled(make_store(2))

        def refuse(*_):
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(in_place, "exchange", refuse)
        with pytest.raises(StorageError, match="cannot swap their names"):
            repartition(source, None, 3)
        assert list(source.parent.glob(f".{source.name}*")) == []


KILLS = """
import shutil, sys
from pathlib import Path
from recovery.errors import RecoveryError
from recovery.partitioning.repartition import repartition
from recovery.storage.scan import scan
from recovery.planning.resume import plan_resume
from tests.partitioning.test_repartition import assert_equal, contents
from tests.syscalls import killed_at
origin, where, first, stride, twice = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
root = Path(str(origin) + "-killed")
before, old = contents(origin), plan_resume(scan(origin)).store_id
number, tried = first, 0
while True:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    source, target = root / "db", root / "new"
    shutil.copytree(origin, source)
    place = target if where == "beside" else None
    work = lambda: repartition(source, place, 3, processes=1)
    hit = killed_at(work, number, changes=True)
    if hit and twice == "twice":
        try:
            killed_at(work, number // 2 + 1, changes=True)
        except AssertionError:
            pass  # the first attempt had finished
    tried += 1
    made = target if place else source
    done = made.exists() and plan_resume(scan(made)).store_id != old
    if not done:
        assert contents(source) == before, number
        repartition(source, place, 3)
    if place is None:
        kept = root / f"db.{old}.old"
        assert contents(kept) == before, number
        assert sorted(path.name for path in root.iterdir()) == ["db", kept.name], (number, sorted(root.iterdir()))
        assert_equal(kept, source, 3)
    else:
        assert contents(source) == before, number
        assert sorted(path.name for path in root.iterdir()) == ["db", "new"], (number, sorted(root.iterdir()))
        assert_equal(source, target, 3)
    if not hit:
        break
    number += stride
shutil.rmtree(root)
print(tried, number)
"""


@pytest.mark.parametrize("where", some(["beside", "in place"], "in place"))
@pytest.mark.parametrize(
    ("stride", "twice"),
    [
        pytest.param(11, "once", id="some"),
        pytest.param(1, "once", id="all", marks=pytest.mark.long),
        pytest.param(1, "twice", id="all-twice", marks=pytest.mark.long),
    ],
)
def test_killed_at_any_file_operation(make_store, where, stride, twice):
    """SIGKILL leaves the old store byte by byte; the next call makes the new one, and nothing of the first is left."""
    source = filled(make_store(2), 2)
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    first = 1 + seed % stride
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    done = run_code(KILLS, source, where, first, stride, twice, timeout_s=3000)
    assert done.returncode == 0, done.stderr
    tried, last = map(int, done.stdout.split())
    print(f"killed at {tried} of {last} system calls that change files")
    assert tried > 3


def test_processes_end_with_the_one_that_started_them(make_store, tmp_path):
    """Killed, it leaves no process and a draft that the next call removes."""
    source = filled(make_store(2))
    code = """
import os, sys, time
from recovery.partitioning import workers
from recovery.partitioning.repartition import repartition
original = workers._Worker.read
def read(worker):
    print(worker._process.pid, flush=True)
    time.sleep(60)
workers._Worker.read = read
repartition(sys.argv[1], sys.argv[2], 5, processes=2)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = subprocess.Popen(
        [sys.executable, "-c", code, source, tmp_path / "new"], stdout=subprocess.PIPE, text=True, env=environment
    )
    worker = int(started.stdout.readline())
    started.send_signal(signal.SIGKILL)
    started.wait()
    started.stdout.close()
    until = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()
    assert [path.name[:17] for path in tmp_path.iterdir()] == [".new.repartition-"]
    repartition(source, tmp_path / "new", 5)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert_equal(source, tmp_path / "new", 5)


class TestCommand:
    """`recovery repartition`, as users call it."""

    def run(self, *arguments: object):
        return CliRunner().invoke(main, ["repartition", *map(str, arguments)])

    def test_dry_run_then_the_same(self, make_store, tmp_path):
        """What would be done, and what was: by epoch, before and after."""
        source = filled(make_store(2))
        shown = self.run(source, tmp_path / "new", 3, "--dry-run")
        assert shown.exit_code == 0
        assert "from 2 to 3 partitions" in shown.stdout
        assert list(tmp_path.iterdir()) == []
        done = self.run(source, tmp_path / "new", 3, "--json")
        facts = json.loads(done.stdout)
        assert facts["partitions"] == {"before": 2, "after": 3}
        epochs = {each["step"]: each["epochs"] for each in facts["steps"]}
        assert [each["epoch"] for each in epochs["count"]] == list(window(source))
        assert all(each["before"] == each["after"] for step in epochs.values() for each in step)
        assert_equal(source, tmp_path / "new", 3)
        refused = self.run(source, tmp_path / "new", 3)
        assert refused.exit_code == AlreadyInitializedError.exit_code

    def test_progress(self, make_store, tmp_path, monkeypatch):
        """The plan, and how many rows were moved, on standard error; nothing with --json."""
        monkeypatch.setattr("recovery.cli.status_line.LINE_S", -1)
        source = filled(make_store(2))
        plan, *lines = self.run(source, tmp_path / "new", 3).stderr.splitlines()
        assert plan.startswith("will repartition")
        assert lines
        assert all(re.fullmatch(r"moved \d+ of \d+ rows", line) for line in lines)
        assert self.run(source, tmp_path / "other", 3, "--json").stderr == ""

    def test_in_place_and_drop(self, make_store):
        """The text says where the old one is."""
        source = filled(make_store(2))
        done = self.run("--in-place", source, 3)
        assert done.exit_code == 0, done.output
        assert "digest before" in done.stdout
        [kept] = kept_directories(source)
        assert f"the old one is kept as {kept}" in done.stdout
        # Through a link the same directories are found.
        link = source.with_name(f"{source.name}-link")
        link.symlink_to(source)
        for name in (source, link):
            assert self.run("--drop-old", name, "--dry-run").stdout == f"would remove {kept}\n"
        link.unlink()
        assert self.run("--drop-old", source).stdout == f"removed {kept}\n"
        assert self.run("--drop-old", source).stdout == "nothing is kept beside it\n"

    @pytest.mark.parametrize("arguments", ["a", "a b x", "--in-place a b 3", "--drop-old a 3"])
    def test_wrong_arguments(self, arguments):
        """Are usage errors."""
        assert self.run(*arguments.split()).exit_code == 2
