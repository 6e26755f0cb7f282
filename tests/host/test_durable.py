"""Files that are written: no link is followed, nothing of others is emptied, and who may read what is made."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery.backup.note import NAME, LastBackup, LastReplica, last_backup, last_replica, note_backup, note_replica
from recovery.base.clock import SystemClock
from recovery.base.ids import Epoch, ExecutionNumber, Lease
from recovery.cli import main
from recovery.demo.story import Story
from recovery.errors import OutputMismatchError, StateBackendError, StorageError
from recovery.host import durable
from recovery.operational.locks import FileLock
from recovery.places.directory import DirectoryDocuments
from recovery.sinks.disk import Disk
from recovery.sinks.output import OutputDirectory
from recovery.sinks.protocol import Resume
from recovery.storage.initialize import init_partitions
from recovery.storage.lock import DirectoryLock, lock_holder
from tests.backup.support import back_up, bring_back, work
from tests.stores import Driver

RESUME = Resume(Epoch(1), None, Lease(ExecutionNumber(1), "ab"), "store", "flow", Epoch(0), ())


@pytest.fixture
def precious(tmp_path) -> Path:
    """A file that nothing may touch."""
    path = tmp_path / "precious"
    path.write_text("precious")
    return path


@pytest.fixture
def store(tmp_path) -> Path:
    """A recovery directory, on the file system that the precious file is on."""
    init_partitions(tmp_path / "db", 2)
    return tmp_path / "db"


@pytest.fixture(params=["link", "hard link", "pipe", "dangling"])
def trap(request, precious):
    """Puts something in the place of a file, by which another one would be written to, or nothing for ever."""

    def lay(path: Path) -> None:
        path.unlink(missing_ok=True)
        if request.param == "link":
            path.symlink_to(precious)
        elif request.param == "dangling":
            path.symlink_to(precious.with_name("made"))
        elif request.param == "pipe":
            os.mkfifo(path)
        else:
            path.hardlink_to(precious)

    yield lay
    assert precious.read_text() == "precious"
    assert not precious.with_name("made").exists()


def test_a_file_that_is_written_in_place(trap, tmp_path):
    """It is refused, with a word on why."""
    trap(tmp_path / "file")
    with pytest.raises(OSError, match=r"link|not a file") as refused:
        durable.open_own(tmp_path / "file")
    assert refused.value.errno in (errno.ELOOP, errno.EINVAL, errno.ENXIO)


def test_a_file_that_is_replaced(trap, tmp_path):
    """What is in its place goes, and what it leads to stays."""
    trap(tmp_path / "file")
    durable.replace(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert not (tmp_path / "file").is_symlink()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_new_file(trap, tmp_path):
    """Nothing may stand in its place."""
    trap(tmp_path / "file")
    with pytest.raises(FileExistsError):
        durable.create(tmp_path / "file")


@pytest.mark.parametrize(
    "words", [["gc"], ["state", "set", "@", "--step", "count", "--key", "a", "2", "--yes", "--force"]]
)
def test_the_lock_of_a_directory(trap, store, words):
    """A command that takes it ends with an error that names it."""
    with Driver(store) as run:
        run.apply(0, {"a": "1"})
        run.close(0)
    trap(store / "recovery.lock")
    given = [str(store) if word == "@" else word for word in words]
    found = CliRunner().invoke(main, given if "@" in words else [*given, str(store)])
    assert found.exit_code == 12
    assert "recovery.lock" in found.output
    assert "Traceback" not in found.output


def test_asking_for_the_holder(trap, store):
    """Waits for nobody who might write to a pipe."""
    trap(store / "recovery.lock")
    assert lock_holder(store) is None
    with pytest.raises(StorageError):
        DirectoryLock(store, SystemClock(), "a test").acquire()


def test_locks_of_operational_state(trap, tmp_path):
    """The same for those by name."""
    lock = FileLock(tmp_path / "locks", "name", "a test", 1.0)
    with lock:
        pass
    trap(lock.path)
    with pytest.raises(StorageError, match=r"link|not a file"), lock:
        pass


def test_the_note_of_the_last_backup(trap, store):
    """It replaces what is in its place, and reads nothing from there but a note."""
    trap(store / NAME)
    assert last_backup(store) is None
    note_backup(store, LastBackup(1, 2, "there"))
    assert last_backup(store) == LastBackup(1, 2, "there")


def test_notes_of_a_place_whose_name_is_no_text(store):
    """They are read as they were written."""
    backup, replica = LastBackup(1, 2, "/there/\udcff", True, 3), LastReplica("/there/\udcff", 2, 1, 5)
    note_backup(store, backup)
    note_replica(store, replica)
    assert (last_backup(store), last_replica(store)) == (backup, replica)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[" * 200_000, '{"finished_ms": 1e400, "epoch": 1, "destination": ""}', "9" * 100_000,
     '{"finished_ms": 99999999999999999999, "epoch": 1, "destination": ""}',
     '{"finished_ms": "5", "epoch": 1, "destination": ""}', '{"finished_ms": 5, "epoch": true, "destination": ""}',
     '{"finished_ms": 5, "epoch": 1, "destination": []}', " " * 70_000],
)  # fmt: skip
def test_an_invalid_note(store, text):
    """It is as if there were none; status and report do their work."""
    (store / NAME).write_text(text)
    assert last_backup(store) is None
    assert CliRunner().invoke(main, ["status", str(store)]).exit_code == 0


def test_documents_of_a_file_backend(trap, tmp_path):
    """Reading one that is none is refused or finds it; writing goes through no draft of others."""
    objects = DirectoryDocuments(tmp_path, 1.0)
    objects.put("a/state.json", b"{}", None)
    trap(tmp_path / "a" / ".state.json.draft")
    token = objects.get("a/state.json").token
    objects.put("a/state.json", b"[]", token)
    trap(tmp_path / ".writing")
    with pytest.raises(StateBackendError):
        objects.put("a/state.json", b"{}", objects.get("a/state.json").token)
    (tmp_path / "a" / "state.json").unlink()
    os.mkfifo(tmp_path / "a" / "state.json")
    with pytest.raises(StateBackendError, match="not a file"):
        objects.get("a/state.json")


@pytest.mark.parametrize("name", [".manifest.jsonl.new", ".owner.json.new"])
def test_files_of_a_sink(trap, tmp_path, name):
    """Its drafts replace what is in their places."""
    (tmp_path / "out" / "_recovery").mkdir(parents=True)
    trap(tmp_path / "out" / "_recovery" / name)
    output = OutputDirectory(tmp_path / "out", "json", fresh=False, check_all=True, disk=Disk())
    output.rollback(RESUME)
    assert json.loads((tmp_path / "out" / "_recovery" / "owner.json").read_text())["flow"] == "flow"


@pytest.mark.parametrize("name", ["_recovery", "_recovery/prepared", "_recovery/staged"])
def test_directories_of_a_sink(tmp_path, name):
    """None of them may be another directory, whose files would go."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "epoch-00000001-ab-00000001-00001.json").write_text("{}")
    link = tmp_path / "out" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(other)
    output = OutputDirectory(tmp_path / "out", "json", fresh=False, check_all=True, disk=Disk())
    for call in (output.plan, output.rollback):
        with pytest.raises(OutputMismatchError, match="symbolic link"):
            call(RESUME)
    assert len(list(other.iterdir())) == 1


def test_the_demo(trap, tmp_path):
    """Its input is not a file of others."""
    directory = tmp_path / "demo"
    directory.mkdir()
    trap(directory / "flights.csv")
    with pytest.raises(OSError, match=r"link|not a file"):
        Story(directory, lambda _: None)._append([("a", "b", "1")])


# ---- who may read


def modes(directory: Path) -> dict[str, int]:
    """The permissions of a directory and of everything below it."""
    found = [directory, *directory.rglob("*")]
    return {path.relative_to(directory.parent).as_posix(): stat.S_IMODE(path.lstat().st_mode) for path in found}


def open_to_others(directory: Path) -> list[str]:
    """What others may read, write or enter."""
    return [name for name, mode in modes(directory).items() if mode & 0o077]


@pytest.fixture
def lax():
    """A umask that lets everybody do everything."""
    before = os.umask(0)
    yield
    os.umask(before)


def ran(directory: Path) -> None:
    """A run that is going on, and what it leaves."""
    with DirectoryLock(directory, SystemClock(), "a test"), Driver(directory) as run:
        run.apply(0, {"a": "1"})
        assert open_to_others(directory) == []
        assert {path.name for path in directory.iterdir()} >= {"scratch", "recovery.lock", "part-0.sqlite3-wal"}
        run.close(0)


def test_everything_of_a_new_store_is_private(lax, tmp_path):
    """Partitions, logs, lock, scratch, state, backups, restored partitions, exports, whatever the umask."""
    init_partitions(tmp_path / "a" / "db", 2)
    assert open_to_others(tmp_path / "a") == []
    ran(tmp_path / "a" / "db")
    run = CliRunner().invoke
    assert run(main, ["hwm", "set", str(tmp_path / "a" / "db"), "key", "1"]).exit_code == 0
    with FileLock(tmp_path / "a" / "db" / "locks", "name", "a test", 1.0):
        pass
    assert run(main, ["backup", "--verify", str(tmp_path / "a" / "db"), str(tmp_path / "b" / "copies")]).exit_code == 0
    assert run(main, ["backup", str(tmp_path / "a" / "db"), str(tmp_path / "b" / "copies")]).exit_code == 0
    assert run(main, ["restore", str(tmp_path / "b" / "copies"), str(tmp_path / "c" / "db")]).exit_code == 0
    assert run(main, ["restore", str(tmp_path / "c" / "db"), str(tmp_path / "d" / "db")]).exit_code == 0
    export = ["state", "export", str(tmp_path / "d" / "db"), "--step", "count", "--output-file"]
    assert run(main, [*export, str(tmp_path / "d" / "states.jsonl")]).exit_code == 0
    ran(tmp_path / "d" / "db")
    for name in "abcd":
        assert open_to_others(tmp_path / name) == []


def test_new_partitions_in_a_directory_of_the_users_own(lax, tmp_path):
    """Its permissions stay, and the partitions are private."""
    (tmp_path / "db").mkdir(0o755)
    init_partitions(tmp_path / "db", 1)
    assert modes(tmp_path / "db") == {"db": 0o755, "db/part-0.sqlite3": 0o600}


def test_the_umask_on_request(tmp_path):
    """With --umask others may read what the umask lets them; what comes beside it later, too."""
    run = CliRunner().invoke
    before = os.umask(0o022)
    try:
        at, copies, new = (str(tmp_path / name) for name in ("db", "copies", "new"))
        assert run(main, ["init", at, "2", "--umask"]).exit_code == 0
        assert run(main, ["gc", at]).exit_code == 0
        assert run(main, ["backup", at, copies, "--umask"]).exit_code == 0
        assert run(main, ["restore", copies, new, "--umask"]).exit_code == 0
        for path in (at, copies, new):
            found = modes(Path(path))
            assert {mode for name, mode in found.items() if "." in Path(name).name} == {0o644}
            assert {mode for name, mode in found.items() if "." not in Path(name).name} == {0o755}
        assert init_partitions(tmp_path / "group", 1, umask=True)[0].stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_existing_files_keep_their_permissions(tmp_path):
    """A store, and a place of backups, from before."""
    before = os.umask(0o022)
    try:
        init_partitions(tmp_path / "db", 2, umask=True)
        work(tmp_path / "db", 1)
        (tmp_path / "copies" / "manifests").mkdir(parents=True)
        back_up(tmp_path / "db", tmp_path / "copies")
        found = modes(tmp_path / "copies")
        assert {mode for name, mode in found.items() if name.endswith(".json.gz")} == {0o644}
        assert {mode for name, mode in found.items() if name.endswith(".zst")} == {0o600}
        assert modes(tmp_path / "db")["db/part-0.sqlite3"] == 0o644
        assert modes(tmp_path / "db")["db/last-backup.json"] == 0o644
        bring_back(tmp_path / "copies", tmp_path / "new", tmp_path)
        assert open_to_others(tmp_path / "new") == []
        page = tmp_path / "page.html"
        page.write_text("")
        page.chmod(0o640)
        assert CliRunner().invoke(main, ["report", str(tmp_path / "db"), "-o", str(page), "--force"]).exit_code == 0
        assert stat.S_IMODE(page.stat().st_mode) == 0o640
    finally:
        os.umask(before)


WRITING = re.compile(r"""O_CREAT|O_TRUNC|\.write_(?:text|bytes)\(|open\([^)\n]*"(?:[wax]b?|r\+b)"|parents=True""")


def test_files_are_opened_in_one_module():
    """What opens a file to write does it by `durable`, or where a file names it by `untrusted_paths`."""
    package = Path(durable.__file__).parent
    allowed = {
        "durable.py",
        "untrusted_paths.py",
        # A device that the user named.
        "cli/common.py",
        # Into directories of mode 0700 that this process made.
        *("checkpoint/restore.py", "checkpoint/sources.py", "spark/java.py", "spark/training.py"),
    }
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if WRITING.search(path.read_text())}
    assert found - allowed == set()


def test_a_draft_is_private_and_new(tmp_path):
    """Whatever the umask, and whatever lies beside the target; and its files can get what the umask leaves."""
    before = os.umask(0)
    try:
        drafts = {durable.make_draft(tmp_path / "db", "import") for _ in range(3)}
        assert {stat.S_IMODE(draft.stat().st_mode) for draft in drafts} == {0o700}
        assert len(drafts) == 3
        [draft, *_] = drafts
        assert (durable.granted(0o666, draft), durable.granted(0o777, draft)) == (0o666, 0o777)
        os.umask(0o027)
        assert (durable.granted(0o666, draft), durable.granted(0o777, draft), list(draft.iterdir())) == (
            0o640,
            0o750,
            [],
        )
    finally:
        os.umask(before)
