"""Partitions as files of one machine: finding them, reading them, and what lies around them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
from pathlib import Path

import apsw
import pytest

from recovery import StateManager, init_partitions
from recovery.base import faults
from recovery.errors import (
    CorruptPartitionError,
    ForeignPartitionError,
    LeaseLostError,
    NoPartitionsError,
    RecoveryError,
    StorageError,
    UnsupportedPlanError,
    UnsupportedVersionError,
)
from recovery.planning.resume import plan_resume
from recovery.planning.values import PartitionDescription
from recovery.storage import scan as scan_module
from recovery.storage.connect import left_executions
from recovery.storage.copies import copy_with_log
from recovery.storage.scan import scan, step_names
from recovery.storage.sqlite.file import connections, tables
from recovery.storage.sqlite.file.reading import read_partition
from recovery.storage.sqlite.file.statements import translated, value
from recovery.storage.sqlite.store import FilePartitions
from recovery.storage.store import Store
from recovery.storage.verify import PartitionCheck
from tests.forks import run_code
from tests.stores import (
    STEP,
    Driver,
    SpreadDirectory,
    alter,
    new_execution,
    paths_of,
    problems,
    query,
    state_at,
    window,
)


def fingerprint(directory: Path) -> dict[str, tuple]:
    """Name, content and times of everything in a directory."""
    return {
        path.name: (hashlib.sha1(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in directory.iterdir()
        if path.is_file()
    }


def filled(directory: Path, epochs: int = 2, **settings) -> Path:
    """Close some epochs."""
    with Driver(directory) as run:
        for _ in range(epochs):
            batch = run.epoch - 1
            run.apply(batch, {"a": str(batch), f"k{batch}": "1"})
            run.close(batch, **settings)
    return directory


@pytest.mark.parametrize("looks", [1, 3])
@pytest.mark.parametrize("spread", [None, ((1,), (0,), (2,))], ids=["files", "owners"])
def test_a_look_while_a_run_closes_epochs_finds_one_that_all_hold(make_store, monkeypatch, spread, looks):
    """The run keeps no superseded epochs, and is faster than the look: what was looked at first seems too old."""
    made = make_store(3)
    directory = made if spread is None else SpreadDirectory(made, spread)
    run = Driver(directory)
    describe, left = scan_module.describe_file, [looks]

    def described(path: Path) -> PartitionDescription:
        found = describe(path)
        if left[0] and threading.current_thread() is threading.main_thread():
            left[0] -= 1
            for _ in range(3):
                batch = run.epoch - 1
                run.apply(batch, {f"k{n}": str(batch) for n in range(30)})
                run.close(batch, floor=max(0, run.epoch - 1))
        return found

    monkeypatch.setattr(scan_module, "describe_file", described)
    store = Store(made) if spread is None else directory.locations()
    try:
        assert plan_resume(store.found()).resume_epoch == run.epoch
        assert not left[0]
    finally:
        store.release()
        run.__exit__()
        if spread is not None:
            directory.close()


class TestScan:
    """Finding the partitions of a directory."""

    def test_partitions_are_found_in_the_order_of_their_numbers(self, make_store):
        """part-10 comes after part-9."""
        found = scan(make_store(11))
        assert [file.path.name for file in found] == [f"part-{index}.sqlite3" for index in range(11)]
        assert all(file.error is None for file in found)

    @pytest.mark.parametrize("what", ["missing", "empty", "file"])
    def test_no_partition_at_all_is_an_error_of_its_own(self, tmp_path, what):
        """A directory that was never initialised, says how to make the partitions; a file is no directory."""
        path = tmp_path / "db"
        if what == "empty":
            path.mkdir()
        elif what == "file":
            path.write_text("")
        way_out = "Name the recovery directory" if what == "file" else "recovery init"
        with pytest.raises(NoPartitionsError, match=way_out) as raised:
            scan(path)
        assert raised.value.path == str(path)

    def test_reading_changes_nothing_at_all(self, store_dir):
        """Scanning, planning, naming steps and checking leave no log, no index and no new time beside the files."""
        filled(store_dir)
        before = fingerprint(store_dir)
        plan_resume(scan(store_dir))
        assert step_names(paths_of(store_dir)) == [STEP]
        assert [PartitionCheck(path).run().problems for path in paths_of(store_dir)] == [(), ()]
        assert fingerprint(store_dir) == before

    def test_what_is_only_in_the_log_is_read_as_well(self, store_dir):
        """While a run is going on, or after it crashed, the newest epoch may still be in the log alone."""
        with Driver(store_dir) as run:
            run.apply(0, {"a": "1"})
            run.close(0)
            assert all(path.with_name(f"{path.name}-wal").stat().st_size for path in run.store.paths)
            assert window(store_dir) == (0, 1)
            assert problems(store_dir) == []
            crashed = shutil.copytree(store_dir, store_dir.with_name("crashed"))
        try:
            assert window(crashed) == (0, 1)
            assert problems(crashed) == []
        finally:
            shutil.rmtree(crashed)

    @pytest.mark.parametrize("torn", [False, True])
    def test_a_file_that_changes_while_it_is_read_is_read_again(self, store_dir, torn):
        """A run may begin at the moment somebody looks: what is reported is one state of the file, not a mixture."""
        filled(store_dir)
        [path, _] = paths_of(store_dir)
        reads = []

        def read(connection):
            reads.append(value(connection, "SELECT max(epoch) FROM epochs"))
            if len(reads) == 1:
                filled(store_dir)
                if torn:
                    raise CorruptPartitionError("torn")
            return reads[-1]

        assert read_partition(path, read) == 4
        assert reads == [2, 4]

    def test_an_error_of_a_file_that_did_not_change_is_raised(self, store_dir):
        """It is not read a second time for that."""
        reads = []

        def read(connection):
            reads.append(connection)
            raise CorruptPartitionError("torn")

        with pytest.raises(CorruptPartitionError, match="torn"):
            read_partition(store_dir / "part-0.sqlite3", read)
        assert len(reads) == 1

    @pytest.mark.parametrize("content", [b"", b"x", b"not a database" * 1000, b"SQLite format 3\0" + bytes(84)])
    def test_an_unreadable_partition_is_reported_with_its_name(self, store_dir, content):
        """Empty, short and junk files are errors of that file; the others are described all the same."""
        path = store_dir / "part-0.sqlite3"
        path.write_bytes(content)
        [first, second] = scan(store_dir)
        assert isinstance(first.error, CorruptPartitionError)
        assert str(path) in str(first.error)
        assert second.description is not None

    def test_another_program_s_database(self, store_dir):
        """In a partition's place it is foreign; under another name it is left alone."""
        alter(store_dir / "other.sqlite3", "CREATE TABLE mine (x)")
        assert len(scan(store_dir)) == 2
        shutil.copy(store_dir / "other.sqlite3", store_dir / "part-1.sqlite3")
        with pytest.raises(ForeignPartitionError, match="not a recovery partition"):
            plan_resume(scan(store_dir))

    def test_a_newer_schema_is_not_read(self, store_dir):
        """A file of a later version is refused by version, whatever its name."""
        (store_dir / "part-1.sqlite3").rename(store_dir / "elsewhere.sqlite3")
        alter(store_dir / "elsewhere.sqlite3", f"PRAGMA user_version = {tables.SCHEMA_VERSION + 1}")
        errors = [file.error for file in scan(store_dir) if file.error]
        assert [type(error) for error in errors] == [UnsupportedVersionError]

    def test_a_schema_version_that_never_was_is_damage(self, store_dir):
        """Version 0 was never written."""
        alter(store_dir / "part-0.sqlite3", "PRAGMA user_version = 0")
        assert isinstance(scan(store_dir)[0].error, CorruptPartitionError)

    def test_a_directory_in_a_partition_s_place(self, store_dir):
        """It cannot be opened, which is said of it by name."""
        path = store_dir / "part-1.sqlite3"
        path.unlink()
        path.mkdir()
        [_, second] = scan(store_dir)
        assert isinstance(second.error, StorageError)
        assert second.error.path == str(path)

    def test_a_link_that_leads_nowhere(self, store_dir):
        """It is reported as a missing file, by name."""
        path = store_dir / "part-1.sqlite3"
        path.unlink()
        path.symlink_to(store_dir / "gone")
        [_, second] = scan(store_dir)
        assert isinstance(second.error, StorageError)

    def test_partitions_may_be_links_to_other_disks(self, store_dir, tmp_path):
        """A file can lie elsewhere; it is used through its link."""
        path = store_dir / "part-1.sqlite3"
        shutil.move(path, tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        filled(store_dir)
        assert window(store_dir) == (0, 1, 2)

    def test_the_log_of_a_link_is_where_it_leads(self, store_dir, tmp_path):
        """Epochs that are in the log alone count, while a run goes on, after a kill, and in a copy."""
        for path in paths_of(store_dir):
            shutil.move(path, tmp_path / f"real-{path.name}")
            path.symlink_to(tmp_path / f"real-{path.name}")
        code = """
import os, sys
from pathlib import Path
from tests.stores import Driver
run = Driver(Path(sys.argv[1]))
for batch in (0, 10, 20):
    run.apply(batch, {"a": str(batch), "b": "1"})
    run.close(batch)
os.kill(os.getpid(), 9)
"""
        assert run_code(code, store_dir).returncode == -9
        assert window(store_dir) == (0, 1, 2, 3)
        (tmp_path / "copies").mkdir()
        for path in paths_of(store_dir):
            copy_with_log(path, tmp_path / "copies" / path.name)
        assert window(tmp_path / "copies") == (0, 1, 2, 3)
        StateManager(store_dir).set_hwm("orders", 5)
        with Driver(store_dir) as run:
            assert run.epoch == 4
            StateManager(store_dir).set_hwm("orders", 6)
            assert StateManager(store_dir).get_hwm("orders") == 6
            run.apply(30, {"a": "30"})
            run.close(30)
            assert window(store_dir) == (0, 1, 2, 3, 4)
        assert problems(store_dir) == []

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user, who may not write or read")
    def test_a_directory_that_may_only_be_read_can_be_looked_at(self, make_store):
        """Without the right to write, plan and verify still work, and without the right to read it is said."""
        directory = filled(make_store(2))
        # Not below tmp_path, which other users may not enter.
        public = Path(tempfile.mkdtemp(prefix="recovery-read-only-", dir="/tmp"))
        shutil.copytree(directory, public, dirs_exist_ok=True)
        code = """
import importlib.readers, importlib.resources._adapters, os, sys
from pathlib import Path
from recovery.errors import StorageError
from recovery.planning.resume import plan_resume
from recovery.planning.values import PartitionDescription
from recovery.storage import scan as scan_module
from recovery.storage.scan import scan
from recovery.storage.store import Store
from recovery.storage.verify import PartitionCheck
from recovery.report.facts import gather
from recovery.report.status import status_json
from recovery.storage.store import Store
from recovery.storage.snapshot import snapshot_at
os.setgid(65534); os.setuid(65534)
try:
    plan = plan_resume(scan(Path(sys.argv[1])))
    assert all(PartitionCheck(d.path).run().problems == () for d in plan.partitions)
    found = [state.key for state in snapshot_at(Path(sys.argv[1])).states("count")]
    store = Store(Path(sys.argv[1]))
    problem = status_json(store, gather(store, [], 0))["problem"]
    print(plan.resume_epoch, problem, len(found))
except StorageError as error:
    print(error.path)
"""
        try:
            for path in public.iterdir():
                path.chmod(0o644)
            public.chmod(0o555)
            result = run_code(code, public)
            assert (result.stdout.strip(), result.stderr) == ("3 None 3", "")
            public.chmod(0o711)
            result = run_code(code, public)
            assert (result.stdout.strip(), result.stderr) == (str(public), "")
        finally:
            shutil.rmtree(public)


AS_ANOTHER_USER = """
import importlib.readers, importlib.resources._adapters, os, sys
from click.testing import CliRunner
from recovery.cli import main
there, elsewhere, lines = sys.argv[1], sys.argv[2], sys.stdin.read().splitlines()
for line in lines:
    # The other user may not read Python's own files, so all that is imported on the way is imported before.
    CliRunner().invoke(main, line.replace(there, elsewhere).split())
os.setgid(65534); os.setuid(65534)
for line in lines:
    result = CliRunner().invoke(main, line.split())
    print(line.split()[0], result.exit_code, *filter(None, [result.exception]))
    if result.exit_code or line.startswith(("hwm", "state", "backup")):
        print(result.output.strip())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user, who may not write or read")
class TestCopiesThatMayOnlyBeRead:
    """A copy of a directory that a killed run left, in a place where no index of the log can be made."""

    @pytest.fixture
    def copied(self, store_dir):
        """Copies of the files and their logs, without the logs' indexes; the newest epochs are in the logs alone."""
        public = Path(tempfile.mkdtemp(prefix="recovery-read-only-", dir="/tmp"))
        with Driver(store_dir) as run:
            for batch in range(3):
                run.apply(batch, {"a": str(batch), "b": "1"})
                run.close(batch)
            StateManager(store_dir).set_hwm("orders", 5)
            for path in paths_of(store_dir):
                copy_with_log(path, public / path.name)
        for path in public.iterdir():
            path.chmod(0o644)
        (public / "empty").mkdir()
        yield public
        shutil.rmtree(public)

    def commands(self, public: Path) -> list[str]:
        """Those that only look."""
        return [
            f"plan {public}",
            f"status {public}",
            f"verify {public}",
            f"runs {public}",
            f"report {public} -o {public}.html",
            f"state list {public} --step {STEP}",
            f"hwm list {public}",
            f"restore {public} {public}.restored",
        ]

    def run(self, public: Path, *commands: str):
        """Commands of another user."""
        elsewhere = Path(tempfile.mkdtemp(prefix="recovery-elsewhere-", dir="/tmp"))
        try:
            shutil.copytree(public, elsewhere / "db", dirs_exist_ok=True)
            (elsewhere / "db").chmod(0o755)
            return run_code(AS_ANOTHER_USER, public, elsewhere / "db", input="\n".join(commands))
        finally:
            shutil.rmtree(elsewhere)

    def look(self, public: Path) -> str:
        """What the commands print where they fail, and the states."""
        before = fingerprint(public)
        result = self.run(public, *self.commands(public))
        assert fingerprint(public) == before
        for made in public.parent.glob(f"{public.name}.*"):
            shutil.rmtree(made) if made.is_dir() else made.unlink()
        assert result.stderr == ""
        return result.stdout

    def test_they_are_read_with_their_logs(self, copied):
        """By every command that only looks, and nothing is made beside them."""
        copied.chmod(0o555)
        shown = self.look(copied)
        assert [line for line in shown.splitlines() if line.endswith(" 0")] == [
            f"{command.split()[0]} 0" for command in self.commands(copied)
        ], shown
        assert "orders" in shown

    def test_the_index_of_a_log_may_be_there(self, copied):
        """A copy of everything, at whatever moment."""
        for path in paths_of(copied):
            with contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
                connection.execute("SELECT 1 FROM parts").fetchall()
                shm = path.with_name(f"{path.name}-shm").read_bytes()
            path.with_name(f"{path.name}-shm").write_bytes(shm)
        assert len(list(copied.glob("*-wal"))) == 2
        copied.chmod(0o555)
        shown = self.look(copied)
        assert shown.count(" 0\n") == len(self.commands(copied)), shown

    def test_a_log_that_may_not_be_read_is_named(self, copied):
        """It holds the newest epochs: without it an older moment would be shown."""
        (copied / "part-1.sqlite3-wal").chmod(0o600)
        copied.chmod(0o555)
        result = self.run(copied, f"plan {copied}", f"verify {copied}")
        assert result.stdout.startswith("plan 12 ")
        assert "its log, part-1.sqlite3-wal, may not be read" in result.stdout
        assert f"Let this user read {copied / 'part-1.sqlite3-wal'}" in result.stdout

    def test_a_partition_is_copied_from_there(self, copied):
        """A backup takes what the log holds, too."""
        copied.chmod(0o555)
        try:
            result = self.run(copied, f"backup {copied} {copied}.backups")
            assert "backup 0\n" in result.stdout, result.stdout
            assert "epoch 3" in result.stdout, result.stdout
        finally:
            shutil.rmtree(f"{copied}.backups", ignore_errors=True)


class TestTablesOfOthers:
    """Litestream and people may keep tables of their own in a partition."""

    def test_they_are_tolerated_and_never_touched(self, store_dir):
        """Closing, rewinding, collecting and checking work beside them, and they stay as they are."""
        for path in paths_of(store_dir):
            alter(path, "CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)")
            alter(path, "CREATE TABLE _litestream_lock (id INTEGER)")
            alter(path, "INSERT INTO _litestream_seq VALUES (1, 7)")
            alter(path, "CREATE VIEW counts AS SELECT state_key, ser_change FROM snaps")
        filled(store_dir, 3)
        with Driver(store_dir, resume_epoch=2) as run:
            run.close(0, floor=1)
            run.store.collect(2)
        assert problems(store_dir) == []
        for path in paths_of(store_dir):
            assert query(path, "SELECT * FROM _litestream_seq") == [(1, 7)]
            assert query(path, "SELECT count(*) FROM _litestream_lock") == [(0,)]


class TestCopies:
    """Files that were copied by other tools and put back."""

    @pytest.mark.parametrize("how", ["backup", "vacuum into"])
    def test_a_copy_made_by_sqlite_can_be_used(self, store_dir, tmp_path, how):
        """Also one that lost the journal mode: it is a log again once a run has opened it."""
        filled(store_dir)
        path = store_dir / "part-0.sqlite3"
        copy = tmp_path / "copy"
        source = apsw.Connection(str(path))
        if how == "backup":
            target = apsw.Connection(str(copy))
            with target.backup("main", source, "main") as backup:
                backup.step()
            target.close()
        else:
            source.execute("VACUUM INTO ?", (str(copy),))
        source.close()
        path.unlink()
        shutil.move(copy, path)
        assert problems(store_dir) == []
        filled(store_dir, 1)
        assert query(path, "PRAGMA journal_mode") == [("wal",)]
        assert window(store_dir) == (0, 1, 2, 3)
        assert problems(store_dir) == []

    def test_an_old_file_with_a_newer_log_beside_it_is_never_believed(self, store_dir, monkeypatch):
        """A restore that leaves the log of the file it replaced gives an error or a state that was once closed."""
        monkeypatch.setattr("recovery.storage.sqlite.store.CHECKPOINT_BYTES", 0)
        keys = [f"k{number}" for number in range(400)]
        with Driver(store_dir) as run:
            run.apply(0, dict.fromkeys(keys, "1"))
            run.close(0)
        path = store_dir / "part-0.sqlite3"
        backup = path.read_bytes()
        run = Driver(store_dir)
        run.apply(1, dict.fromkeys(keys[::2], "2"))
        run.close(1)
        run.store.checkpoint()
        run.apply(2, dict.fromkeys(keys[::3], "3"))
        run.close(2)
        crashed = shutil.copytree(store_dir, store_dir.with_name("restored"))
        run.store.release()
        try:
            (crashed / path.name).write_bytes(backup)
            damaged = [path.name for path in paths_of(crashed) if PartitionCheck(path).run().problems]
            assert damaged == [path.name]
        finally:
            shutil.rmtree(crashed)

    @pytest.mark.parametrize("flip_at", [0, 8, 16, 24, 30, 40, 56, 100, 1000, 4200, 9000, -5000, -4100, -30, -1])
    def test_a_damaged_log_gives_an_earlier_state_or_an_error(self, store_dir, flip_at):
        """SQLite reads a log up to its first damage: what is left is an epoch that was closed, and checks out."""
        run = Driver(store_dir)
        expected = {0: {}}
        for batch in range(4):
            run.apply(batch, {"a": str(batch), f"k{batch}": "1"})
            run.close(batch)
            expected[batch + 1] = state_at(store_dir, batch + 1)
        crashed = shutil.copytree(store_dir, store_dir.with_name("crashed"))
        run.store.release()
        try:
            log = crashed / "part-0.sqlite3-wal"
            data = bytearray(log.read_bytes())
            data[flip_at] ^= 4
            log.write_bytes(data)
            (crashed / "part-0.sqlite3-shm").unlink()
            assert problems(crashed) == []
            newest = plan_resume(scan(crashed)).resume_epoch - 1
            with Driver(crashed):
                assert state_at(crashed, newest) == expected[newest]
            assert problems(crashed) == []
        finally:
            shutil.rmtree(crashed)


class TestScratch:
    """Where an execution keeps what need not survive it."""

    def test_it_is_gone_when_the_run_ends(self, store_dir):
        """Neither the deltas nor their directory stay."""
        with Driver(store_dir) as run:
            assert list(run.store.scratch.iterdir()) != []
        assert {path.name for path in store_dir.iterdir()} == {"part-0.sqlite3", "part-1.sqlite3"}

    def test_what_a_killed_run_left_is_removed_by_the_next(self, store_dir):
        """Also when the recovery directory was moved in between."""
        run = Driver(store_dir)
        left = run.store.scratch
        moved = Path(shutil.copytree(store_dir, store_dir.with_name("moved")))
        run.store.release()
        try:
            assert (moved / "scratch" / left.name).is_dir()
            with Driver(moved) as next_run:
                assert [path.name for path in (moved / "scratch").iterdir()] == [next_run.store.scratch.name]
        finally:
            shutil.rmtree(moved)

    def test_two_stores_may_share_a_scratch_directory(self, make_store, tmp_path):
        """A run removes what earlier runs on its own directory left there, and never what another store uses."""
        shared = tmp_path / "scratch"
        one, two = make_store(1), make_store(1)
        with Driver(one, scratch=shared) as first:
            first.apply(0, {"a": "1"})
            with Driver(two, scratch=shared) as second:
                second.apply(0, {"a": "2"})
            first.apply(1, {"b": "1"})
            first.close(1)
        assert state_at(one, 1) == {(STEP, "a"): ("1", None), (STEP, "b"): ("1", None)}
        assert not shared.exists()

    def test_executions_that_left_scratch_files(self, make_store, tmp_path):
        """Those of this directory, also in a scratch directory that others share; not those of a copy's origin."""
        one, two, shared = make_store(1), make_store(1), tmp_path / "scratch"
        with Driver(one, scratch=shared) as first, Driver(two, scratch=shared) as second:
            assert [*left_executions(shared, one)] == [first.lease]
            assert [*left_executions(shared, two)] == [second.lease]
            shutil.copytree(shared, tmp_path / "copy" / "scratch")
            assert left_executions(tmp_path / "copy" / "scratch", tmp_path / "copy") == {}
        assert left_executions(shared, one) == {}

    def test_scratch_that_cannot_be_made_is_a_storage_error(self, store_dir, tmp_path):
        """The error names the directory; the partitions can be used again immediately."""
        (tmp_path / "file").write_text("")
        with pytest.raises(StorageError, match="file"):
            Driver(store_dir, scratch=tmp_path / "file")
        with Driver(store_dir) as run:
            assert run.epoch == 1

    def test_steps_may_have_any_name(self, store_dir):
        """Names that are no file names, or too long for one, each have a delta of their own."""
        steps = ["../up", "a/b", "", "x" * 5_000, "ÿ"]
        with Driver(store_dir, steps) as run:
            for number, step in enumerate(steps):
                run.apply(0, {"a": str(number)}, step)
            run.close(0)
            assert [run.read(1, "a", step) for step in steps] == [{"a": str(number)} for number in range(5)]
        assert problems(store_dir) == []

    def test_more_steps_than_sqlite_attaches_are_refused_clearly(self, make_store):
        """The limit is one of the plan, not damage; nothing was begun."""
        directory = make_store(1)
        with pytest.raises(UnsupportedPlanError, match="stateful steps"):
            Driver(directory, [f"step {number}" for number in range(200)])
        assert plan_resume(scan(directory)).execution_number == 1


class TestConnections:
    """What the driver's connections do to the files."""

    def test_release_moves_the_logs_into_the_files(self, store_dir):
        """After a run the files alone are everything, and can be copied as they are."""
        filled(store_dir)
        assert {path.name for path in store_dir.iterdir()} == {"part-0.sqlite3", "part-1.sqlite3"}
        assert window(store_dir) == (0, 1, 2)

    def test_release_is_repeatable_and_ends_every_connection(self, store_dir):
        """No descriptor of any file of the store stays open."""
        run = Driver(store_dir)
        run.apply(0, {"a": "1"})
        run.store.next_due_ms(run.lease)
        run.store.release()
        run.store.release()
        assert open_files(store_dir) == []

    @pytest.mark.parametrize("steps", [(), (STEP,)], ids=["without steps", "with a step"])
    def test_a_micro_batch_of_a_run_whose_successor_began_is_not_opened(self, store_dir, steps):
        """Nothing of it would count. What that was found by is closed with the store."""
        with Driver(store_dir, steps) as late:
            for batch in (0, 1):
                late.store.open(late.lease, batch)
            with Driver(store_dir, steps) as successor:
                with pytest.raises(LeaseLostError, match="a later one began") as raised:
                    late.store.open(late.lease, 2)
                assert raised.value.path == str(store_dir / "part-0.sqlite3")
                successor.store.open(successor.lease, 2)
        assert open_files(store_dir) == []

    def test_a_store_that_cannot_be_opened_leaves_nothing_open(self, store_dir):
        """One bad file of two: the error names it, and the good one is closed again."""
        bad = store_dir / "part-1.sqlite3"
        bad.write_bytes(b"junk" * 1000)
        with pytest.raises(CorruptPartitionError, match="part-1"):
            FilePartitions(paths_of(store_dir), store_dir / "scratch")
        assert open_files(store_dir) == []

    def test_checkpointing_writes_the_partitions_alone(self, store_dir):
        """Deltas are not worth moving into their files; and no transaction is waited for."""
        with Driver(store_dir) as run:
            run.apply(0, {f"k{number}": "1" for number in range(1_000)})
            run.close(0)
            deltas = [path for path in run.store.scratch.iterdir() if path.suffix == ".delta"]
            before = [(path.stat().st_size, path.stat().st_mtime_ns) for path in deltas]
            run.move_logs()
            assert [(path.stat().st_size, path.stat().st_mtime_ns) for path in deltas] == before
            assert min(path.stat().st_size for path in run.store.paths) > 8 * 4096
            reader = apsw.Connection(str(run.store.paths[0]))
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM snaps").fetchall()
            run.apply(1, {f"k{number}": "2" for number in range(1_000)})
            run.close(1)
            run.move_logs()  # returns although a reader is in the way
            reader.close()

    def test_a_tool_that_holds_a_file_locked_is_named_as_the_cause(self, store_dir, monkeypatch):
        """When the busy timeout has passed, the error says what to do."""
        monkeypatch.setattr(connections, "BUSY_TIMEOUT_MS", 50)
        other = apsw.Connection(str(store_dir / "part-1.sqlite3"))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="kept the file locked") as raised:
            Driver(store_dir)
        assert raised.value.path == str(store_dir / "part-1.sqlite3")
        assert "Close that tool" in raised.value.remedy
        other.close()

    def test_closing_is_durable(self, store_dir):
        """The writers sync every commit, and move the log into the file only when asked."""
        with Driver(store_dir) as run:
            for writer in run.store._writers:
                assert writer.pragma("synchronous", schema="main") == 2
                assert writer.pragma("wal_autocheckpoint") == 0
                assert writer.pragma("journal_mode", schema="main") == "wal"

    def test_all_partitions_close_concurrently(self, make_store, monkeypatch):
        """Closing waits for the slowest disk once, not once per partition."""
        barrier = threading.Barrier(4, timeout=20)
        monkeypatch.setattr(faults, "reach", lambda point: barrier.wait() if point == "close.2.epochs" else None)
        with Driver(make_store(4)) as run:
            run.close(-1)
        assert not barrier.broken


class TestOpenFiles:
    """Every partition and step needs some descriptors."""

    CODE = """
import os, resource, sys
from pathlib import Path
from tests.storage.test_store import open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (40, int(sys.argv[2])))
from recovery.errors import StorageError
from recovery.host import open_files as files
files.FILES_OF_OTHERS = 20
from tests.stores import Driver
try:
    with Driver(Path(sys.argv[1]), ["a", "b", "c"]) as run:
        run.store.next_due_ms(run.lease)
        run.close(-1)
        print(len(open_files(Path(sys.argv[1]))))
except StorageError as error:
    print(error.found)
"""

    def test_a_low_limit_is_raised(self, make_store):
        """A shell's usual limit does not keep a run with many partitions from starting; the count is as computed."""
        result = run_code(self.CODE, make_store(8), 4096)
        assert (result.stdout, result.stderr) == (f"{8 * (3 + 7 * 3)}\n", "")

    def test_a_limit_that_cannot_be_raised_is_reported(self, make_store):
        """With the number that is needed for the partitions alone, before anything was begun."""
        directory = make_store(8)
        result = run_code(self.CODE, directory, 40)
        assert result.stdout == "44 files would be open together, and this process may open 40\n", result.stderr
        assert plan_resume(scan(directory)).execution_number == 1


class TestGivingSpaceBack:
    """`collect` also makes the files small."""

    def test_the_file_is_near_its_live_rows_afterwards(self, make_store):
        """After collection the file is within 1.3 times what its rows need, its ids and settings are kept."""
        directory = make_store(1)
        with Driver(directory) as run:
            for batch in range(8):
                run.apply(batch, {f"key-{number}": f'"{batch}{"v" * 80}"' for number in range(4_000)})
                run.close(batch)
            [grown] = run.store.describe()
            [collected] = run.store.collect(run.epoch - 1)
            assert collected.rows == 7 * 4_000  # the first epoch replaced nothing
            [shrunk] = run.store.describe()
        [path] = paths_of(directory)
        [(live,)] = query(path, "SELECT sum(length(step_id) + length(state_key) + length(ser_change) + 22) FROM snaps")
        assert grown.size_bytes > 4 * shrunk.size_bytes
        assert path.stat().st_size <= 1.3 * live
        assert problems(directory) == []
        assert window(directory) == (8,)
        assert query(path, "PRAGMA journal_mode") == [("wal",)]


def open_files(directory: Path) -> list[str]:
    """The files below a directory that this process has open."""
    targets = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists them
            targets.append(str(link.readlink()))
    return [target for target in targets if target.startswith(str(directory))]


def test_every_error_of_storage_is_a_recovery_error(store_dir):
    """Whichever SQLite error comes up, it is translated, with the path."""
    path = store_dir / "part-0.sqlite3"
    for kind in TRANSLATED:
        with pytest.raises(RecoveryError) as raised, translated(path):
            raise kind("something")
        assert raised.value.path == str(path)
        assert raised.value.exit_code in (12, 23)


TRANSLATED = (
    apsw.BusyError, apsw.LockedError, apsw.ProtocolError, apsw.IOError, apsw.FullError, apsw.CantOpenError,
    apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError, apsw.NoMemError, apsw.NoLFSError, apsw.TooBigError,
    apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.SQLError, apsw.ConstraintError, apsw.MismatchError,
)  # fmt: skip


def test_init_and_run_on_a_store_with_a_name_of_two_slashes(tmp_path):
    """A path that begins with // names a file, not a host."""
    directory = Path("/" + str(tmp_path / "db"))
    init_partitions(directory, 1)
    with Driver(directory) as run:
        run.apply(0, {"a": "1"})
        run.close(0)
        assert run.read(1, "a") == {"a": "1"}


def test_the_plan_of_a_started_store_is_the_next_execution(store_dir):
    """What start wrote is what the next plan reads."""
    with Driver(store_dir) as run:
        plan = plan_resume(scan(store_dir))
        assert plan.execution_number == run.execution.number + 1
        assert plan.flow_id == "flow"
        assert new_execution(plan).resume_epoch == run.epoch
