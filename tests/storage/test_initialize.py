"""Making partitions: all of them, or none."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import apsw
import pytest

from recovery import StateManager, init_partitions
from recovery.errors import (
    AlreadyInitializedError,
    ConfigurationError,
    DirectoryLockedError,
    MissingPartitionsError,
    NoPartitionsError,
    StorageError,
)
from recovery.planning.resume import plan_resume
from recovery.storage import initialize
from recovery.storage.restored import end_restored
from recovery.storage.scan import scan
from recovery.storage.sqlite.file.tables import APPLICATION_ID, SCHEMA_VERSION
from tests.backup.support import is_marked
from tests.forks import run_code
from tests.stores import ROOT, Driver, problems, state_at


def names(directory: Path) -> list[str]:
    """What lies in the directory, hidden files included."""
    return sorted(path.name for path in directory.iterdir())


def is_complete(directory: Path, count: int) -> bool:
    """Whether the directory holds exactly `count` sound, empty partitions of one store."""
    plan = plan_resume(scan(directory))
    found = {path.name for path in directory.glob("part-*.sqlite3")}
    return len(plan.partitions) == count == len(found) and plan.window == (0,) and problems(directory) == []


@pytest.mark.parametrize("count", [1, 2, 7])
def test_init_makes_n_partitions_and_nothing_else(tmp_path, count):
    """The directory is made when missing, its parents too, and holds N files that resume at epoch 1."""
    directory = tmp_path / "not" / "there" / "yet"
    paths = init_partitions(directory, count)
    assert [path.name for path in paths] == [f"part-{index}.sqlite3" for index in range(count)]
    assert names(directory) == sorted(path.name for path in paths)
    plan = plan_resume(scan(directory))
    assert (plan.resume_epoch, plan.snapshot, plan.flow_id, plan.execution_number) == (1, None, None, 1)
    assert [d.index for d in plan.partitions] == list(range(count))
    assert {d.count for d in plan.partitions} == {count}


def test_files_of_two_stores_can_be_distinguished(tmp_path):
    """Every init draws a store id of its own, the same in all its files."""
    ids = set()
    for name in "ab":
        init_partitions(tmp_path / name, 3)
        found = {file.description.store_id for file in scan(tmp_path / name)}
        assert len(found) == 1
        ids |= found
    assert len(ids) == 2


def test_the_format_is_what_it_says(tmp_path):
    """SQLite of another program, in another process, reads the files: WAL, STRICT tables, our id and version."""
    [path] = init_partitions(tmp_path / "db", 1)
    code = """
import json, sqlite3, sys
c = sqlite3.connect(sys.argv[1])
one = lambda sql: c.execute(sql).fetchone()[0]
print(json.dumps([
    one("PRAGMA journal_mode"), one("PRAGMA application_id"), one("PRAGMA user_version"), one("PRAGMA integrity_check"),
    [list(r) for r in c.execute("SELECT name, strict FROM pragma_table_list WHERE type = 'table' "
                                "AND schema = 'main' AND name NOT LIKE 'sqlite_%' ORDER BY 1")],
    [list(r) for r in c.execute("SELECT part_index, part_count, flow_id FROM parts")],
    [list(r) for r in c.execute("SELECT part_index, commit_epoch FROM commits")],
]))
"""
    result = run_code(code, path)
    assert result.returncode == 0, result.stderr
    tables = [[name, 1] for name in (
        "beginning", "changes", "commits", "epochs", "exs", "logged", "measures", "parts", "sizes", "snaps", "states",
        "superseded", "totals",
    )]  # fmt: skip
    expected = ["wal", APPLICATION_ID, SCHEMA_VERSION, "ok", tables, [[0, 1, None]], [[0, 0]]]
    assert json.loads(result.stdout) == expected
    assert path.read_bytes()[68:72] == b"RCVP", "so that `file` and other tools can name it"


@pytest.mark.parametrize("count", [0, -1, 4097, True, False, "3", 2.0, None])
def test_what_is_no_number_of_partitions_is_refused(tmp_path, count):
    """A wrong count makes nothing, not even the directory."""
    with pytest.raises(ConfigurationError, match="not a number of partitions"):
        init_partitions(tmp_path / "db", count)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "existing", ["part-0.sqlite3", "part-7.sqlite3", "part-0.sqlite3-wal", "part-0.sqlite3.old"], ids=str
)
def test_existing_partitions_are_never_touched(tmp_path, existing):
    """Whatever looks like a partition, or a part of one, stays as it is."""
    (tmp_path / existing).write_bytes(b"precious")
    with pytest.raises(AlreadyInitializedError, match=existing):
        init_partitions(tmp_path, 2)
    assert names(tmp_path) == [existing]
    assert (tmp_path / existing).read_bytes() == b"precious"


def test_initialising_twice_is_refused(store_dir):
    """A second init leaves the first one's files as they are."""
    before = {path.name: path.read_bytes() for path in store_dir.iterdir()}
    with pytest.raises(AlreadyInitializedError):
        init_partitions(store_dir, 2)
    assert {path.name: path.read_bytes() for path in store_dir.iterdir()} == before


def test_other_files_in_the_directory_are_left_alone(tmp_path):
    """A directory in use for other things can hold partitions."""
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "other.sqlite3").write_bytes(b"not a database")
    init_partitions(tmp_path, 1)
    assert names(tmp_path) == ["notes.txt", "other.sqlite3", "part-0.sqlite3"]
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", [".init-scripts", ".restore-notes", ".init-1f", ".restore-3-ab"])
def test_directories_of_others_are_left_alone(tmp_path, name):
    """Whatever they are called: an attempt that was killed leaves nothing but partitions."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "boot.sh").touch()
    init_partitions(tmp_path, 2)
    with pytest.raises(AlreadyInitializedError):
        init_partitions(tmp_path, 2)
    assert (tmp_path / name / "boot.sh").exists()


@pytest.mark.parametrize("below", ["", "deeper", "deeper/still"])
def test_a_file_in_the_way_is_an_error_of_storage(tmp_path, below):
    """A path that is a file, or leads through one, is refused with its name."""
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(StorageError) as raised:
        init_partitions(file / below, 1)
    assert raised.value.path == str(file / below)
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["with space", "per%20cent", "what?", "a#b", 'it\'s "quoted"', "ünïcödé 😀", "semi;colon&x=1", "new\nline"]
)
def test_directory_names_may_hold_any_character(tmp_path, name):
    """What is special in a URI, to a shell or to SQL is not special in a path."""
    directory = tmp_path / name
    init_partitions(directory, 2)
    with Driver(directory) as run:
        run.apply(0, {"a": "1"})
        run.close(0)
        assert run.read(1, "a") == {"a": "1"}
    assert state_at(directory, 1) == {("count", "a"): ("1", None)}
    assert names(tmp_path) == [name]


def test_directory_names_need_not_be_unicode(tmp_path):
    """A name that is no UTF-8 works from end to end, as it does in the file system."""
    directory = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        directory.mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    init_partitions(directory, 1)
    with Driver(directory) as run:
        run.apply(0, {"a": "1"})
        run.close(0)
        assert run.read(1, "a") == {"a": "1"}
    assert problems(directory) == []


class Failing:
    """Makes the k-th call of any of the operations that touch the disk fail."""

    def __init__(self, monkeypatch, fail_at: int, error: Exception, lasting: bool) -> None:
        self.calls = 0
        self.failed = False
        self._fail_at, self._error, self._lasting = fail_at, error, lasting
        for owner, name in (
            (initialize, "connect"),
            (initialize, "use_log"),
            (initialize, "insert_parts"),
            (initialize, "sync"),
            (Path, "mkdir"),
            (Path, "hardlink_to"),
        ):
            monkeypatch.setattr(owner, name, self._wrap(getattr(owner, name)))

    def _wrap(self, operation):
        def called(*arguments, **options):
            self.calls += 1
            if self.calls == self._fail_at or (self._lasting and self.calls > self._fail_at):
                self.failed = True
                raise self._error
            return operation(*arguments, **options)

        return called


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("made_before", [False, True], ids=["new directory", "existing directory"])
def test_init_makes_all_or_nothing_wherever_it_fails(tmp_path, monkeypatch, lasting, made_before):
    """The k-th operation fails, for every k until none does: each time nothing is left, and the next try succeeds."""
    errors = [OSError(28, "No space left on device"), apsw.FullError("full"), apsw.IOError("I/O"), KeyboardInterrupt()]
    fail_at = 0
    while True:
        fail_at += 1
        directory = tmp_path / f"db-{fail_at}"
        if made_before:
            directory.mkdir()
        error = errors[fail_at % len(errors)]
        with monkeypatch.context() as patches:
            failing = Failing(patches, fail_at, error, lasting)
            with contextlib.suppress(StorageError, KeyboardInterrupt):
                init_partitions(directory, 3)
        if not failing.failed:
            break
        assert names(directory) == [] if made_before else not directory.exists()
        init_partitions(directory, 3)
        assert is_complete(directory, 3)
    assert fail_at > 12, "there are four operations a partition"
    assert is_complete(directory, 3)


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(tmp_path):
    """With every file limited to k blocks, for all k until init succeeds, nothing is left of what failed."""
    code = """
import resource, sys
from recovery import init_partitions
from recovery.errors import StorageError
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    init_partitions(sys.argv[1], 2)
except StorageError as error:
    assert error.exit_code == 12 and "What to do" in str(error)
    sys.exit(12)
"""
    codes = []
    for blocks in (0, 1, 2, 5, 9, 12, 40):
        directory = tmp_path / f"db-{blocks}"
        result = run_code(code, directory, blocks * 4096)
        assert result.returncode in (0, 12), result.stderr
        codes.append(result.returncode)
        if result.returncode:
            assert not directory.exists()
        else:
            assert is_complete(directory, 2)
    assert codes[0] == 12
    assert codes[-1] == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user, who may not write")
@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_without_permission_it_is_a_storage_error(mode):
    """A user who may not write there gets StorageError, not a traceback, and nothing is made."""
    # Not below tmp_path, which other users may not enter.
    directory = Path(tempfile.mkdtemp(prefix="recovery-permission-", dir="/tmp"))
    try:
        directory.chmod(mode)
        code = """
import os, sys
from recovery import init_partitions
from recovery.errors import StorageError
os.setgid(65534); os.setuid(65534)
try:
    init_partitions(sys.argv[1], 2)
except StorageError as error:
    print(error.path)
    sys.exit(12)
"""
        for path in (directory, directory / "below"):
            result = run_code(code, path)
            assert (result.returncode, result.stdout.strip()) == (12, str(path)), result.stderr
        directory.chmod(0o755)
        assert names(directory) == []
    finally:
        shutil.rmtree(directory)


KILLED = """
import os, signal, sys
from pathlib import Path
from recovery.storage import initialize
visits = 0
def deadly(operation):
    def called(*arguments, **options):
        global visits
        visits += 1
        if visits == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return operation(*arguments, **options)
    return called
for name in ("connect", "insert_parts", "sync"):
    setattr(initialize, name, deadly(getattr(initialize, name)))
Path.hardlink_to = deadly(Path.hardlink_to)
initialize.shutil.rmtree = deadly(initialize.shutil.rmtree)
initialize.init_partitions(sys.argv[1], 3)
print("done")
"""


def test_an_attempt_that_was_killed_is_cleared_by_the_next(tmp_path):
    """Killed at any step, init leaves no directory that a run would take, and the next init completes it."""
    outcomes = []
    for visit in range(1, 100):
        directory = tmp_path / f"db-{visit}"
        result = run_code(KILLED, directory, visit)
        if result.stdout.strip() == "done":
            break
        assert result.returncode == -signal.SIGKILL, result.stderr
        in_place = len(list(directory.glob("part-*.sqlite3")))
        try:
            init_partitions(directory, 3)
            outcomes.append("anew")
        except AlreadyInitializedError:
            # All were in place: the killed attempt had done its work.
            assert in_place == 3
            outcomes.append("kept")
        assert is_complete(directory, 3)
        assert names(directory) == [f"part-{index}.sqlite3" for index in range(3)]
    assert outcomes == ["anew"] * 9 + ["kept"] * 3, "3 connects, 3 inserts, 3 links, then 2 syncs and clearing up"


@pytest.mark.parametrize("placed", [0, 1, 2])
def test_what_a_killed_attempt_left_is_cleared_without_another_one(tmp_path, placed):
    """So `run --from` restores again, unless all partitions are there."""
    init_partitions(tmp_path / "db", 2)
    staging = tmp_path / "db" / ".restore-0-0a1b"
    staging.mkdir()
    for index in (0, 1):
        path = tmp_path / "db" / f"part-{index}.sqlite3"
        (staging / path.name).hardlink_to(path)
        if index + placed < 2:
            path.unlink()
    initialize.clear_killed_attempt(tmp_path / "db")
    assert names(tmp_path / "db") == (["part-0.sqlite3", "part-1.sqlite3"] if placed == 2 else [])
    initialize.clear_killed_attempt(tmp_path / "db")
    initialize.clear_killed_attempt(tmp_path / "missing")


def test_leftovers_of_a_killed_init_never_cost_a_partition_that_was_used(tmp_path):
    """A run may begin on partitions whose init was killed at its very end; a later init by mistake removes nothing."""
    directory = tmp_path / "db"
    result = run_code(KILLED, directory, 11)
    assert result.returncode == -signal.SIGKILL
    assert any(name.startswith(".init-") for name in names(directory))
    with Driver(directory) as run:
        run.apply(0, {"a": "1"})
        run.close(0)
    (directory / "part-2.sqlite3").unlink()  # lost, which makes somebody run init
    with pytest.raises(AlreadyInitializedError):
        init_partitions(directory, 3)
    assert names(directory) == ["part-0.sqlite3", "part-1.sqlite3"]
    assert state_at(directory, 1) == {("count", "a"): ("1", None)}


@pytest.mark.parametrize("visit", range(1, 13))
def test_facts_that_were_accepted_are_never_cleared_away(tmp_path, visit):
    """Operational state is in part-0: it can be written only when that init had done its work."""
    directory = tmp_path / "db"
    assert run_code(KILLED, directory, visit).returncode == -signal.SIGKILL
    with contextlib.suppress(MissingPartitionsError, NoPartitionsError):
        StateManager(directory).set_hwm("orders", 5)
        with pytest.raises(AlreadyInitializedError):
            init_partitions(directory, 3)
        assert StateManager(directory).get_hwm("orders") == 5
        assert is_complete(directory, 3)


def test_an_attempt_that_is_refused_leaves_the_directory_of_the_other(tmp_path, monkeypatch):
    """Both found no directory; the one that made it has put nothing into it yet."""
    original = initialize._clear_killed_attempt

    def another(target):
        monkeypatch.undo()
        # It looked before the directory was made.
        with monkeypatch.context() as patches:
            exists = Path.exists
            patches.setattr(Path, "exists", lambda self: self != target and exists(self))
            with pytest.raises(DirectoryLockedError):
                init_partitions(target, 2)
        original(target)

    monkeypatch.setattr(initialize, "_clear_killed_attempt", another)
    assert len(init_partitions(tmp_path / "db", 2)) == 2
    assert is_complete(tmp_path / "db", 2)


def test_two_concurrent_attempts_do_not_clear_away_each_other(tmp_path, monkeypatch):
    """While one init is at work another is refused; the first one's partitions stand."""
    reached, go_on = threading.Event(), threading.Event()
    original = Path.hardlink_to

    def slow(self, target):
        reached.set()
        assert go_on.wait(30)
        original(self, target)

    with monkeypatch.context() as patches:
        patches.setattr(Path, "hardlink_to", slow)
        outcome: list[object] = []
        thread = threading.Thread(target=lambda: outcome.append(init_partitions(tmp_path / "db", 2)))
        thread.start()
        assert reached.wait(30)
        with pytest.raises(DirectoryLockedError, match="another process is making partitions here"):
            init_partitions(tmp_path / "db", 2)
        go_on.set()
        thread.join()
    assert len(outcome[0]) == 2
    assert is_complete(tmp_path / "db", 2)


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path, monkeypatch):
    """Somebody else's file with the name of a partition is kept, and init makes none of its own."""
    original = initialize._create_partition

    def and_someone_else(path, index, *rest):
        original(path, index, *rest)
        if index == 1:
            (tmp_path / "part-1.sqlite3").write_bytes(b"precious")

    monkeypatch.setattr(initialize, "_create_partition", and_someone_else)
    with pytest.raises(StorageError):
        init_partitions(tmp_path, 2)
    assert names(tmp_path) == ["part-1.sqlite3"]
    assert (tmp_path / "part-1.sqlite3").read_bytes() == b"precious"


def test_restored_partitions_are_marked_for_their_first_run(tmp_path, monkeypatch):
    """With the permissions of the files. An attempt that fails leaves no mark."""
    init_partitions(tmp_path / "copies", 2)

    def fill(staging: Path) -> int:
        for path in (tmp_path / "copies").iterdir():
            shutil.copy(path, staging)
        return 2

    def restore(directory: Path) -> None:
        initialize.place_restored(directory, fill, newest_execution=0, random_id=lambda: "0a")

    restore(tmp_path / "db")
    assert names(tmp_path / "db") == ["part-0.sqlite3", "part-1.sqlite3", "restored.json"]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "db").iterdir()} == {0o600}
    assert is_marked(tmp_path / "db")
    for _ in range(2):
        end_restored(tmp_path / "db")
        assert not is_marked(tmp_path / "db")
    monkeypatch.setattr(Path, "hardlink_to", lambda *_: os.open("/nowhere", os.O_RDONLY))
    with pytest.raises(StorageError):
        restore(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_partitions_are_ordinary_files_that_their_owner_may_write(tmp_path):
    """The mode follows the umask, as for any file."""
    for path in init_partitions(tmp_path / "db", 2):
        mode = path.stat().st_mode
        assert stat.S_ISREG(mode)
        assert mode & 0o600 == 0o600
        assert path.stat().st_nlink == 1, "no other name of it is left"


def test_the_command_line_script_in_the_root_initialises(tmp_path):
    """python init_partitions.py DIR N does what the library does."""
    script = ROOT / "init_partitions.py"
    result = subprocess.run([sys.executable, script, tmp_path / "db", "2"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert is_complete(tmp_path / "db", 2)
