"""Temporary directories for copies: none of a killed process stays, and none in use goes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from pathlib import Path

from recovery.host.scratch import MARK, remove_left, scratch_directory
from tests.backup.support import work
from tests.forks import run_code


def left(root: Path) -> set[str]:
    """What there is, by its purpose."""
    return {path.name.split("-")[1] for path in root.iterdir()}


def test_it_is_there_while_it_is_used(tmp_path):
    """Others of the same purpose come and go meanwhile; one in the same process, too."""
    with scratch_directory("backup", tmp_path) as one:
        (one / "copy").write_text("x")
        with scratch_directory("backup", tmp_path) as other:
            assert other != one
        assert (one / "copy").read_text() == "x"
        assert not other.exists()
    assert left(tmp_path) == set()


def test_what_a_killed_backup_left_goes_with_the_next(make_store, tmp_path):
    """And nothing else: neither other purposes, nor what others have named alike."""
    directory = make_store(2)
    work(directory, 2)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from recovery.backup import make\n"
        "from recovery.cli import main\n"
        "make.Storing._store = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "main(['backup', *sys.argv[1:]])\n"
    )
    environ = {**os.environ, "TMPDIR": str(scratch)}
    for _ in range(2):
        killed = run_code(code, directory, tmp_path / "backups", env=environ)
        assert killed.returncode == -signal.SIGKILL
        assert [path.name.startswith("recovery-backup-") for path in scratch.iterdir()] == [True]
    (scratch / "recovery-drill-x").mkdir()
    (scratch / "recovery-drill-x" / MARK).write_text(socket.gethostname())
    (scratch / "recovery-backup-elsewhere").mkdir()
    (scratch / "recovery-backup-elsewhere" / MARK).write_text("another host")
    (scratch / "recovery-backup-file").touch()
    (scratch / "recovery-backup-of-words").mkdir()
    done = run_code("from recovery.cli import main; main()", "backup", directory, tmp_path / "backups", env=environ)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in scratch.iterdir()} == {
        "recovery-drill-x", "recovery-backup-elsewhere", "recovery-backup-file", "recovery-backup-of-words",
    }  # fmt: skip


def test_what_all_killed_processes_left(tmp_path):
    """Of every purpose; and nothing that is in use."""
    for purpose in ("backup", "drill"):
        (tmp_path / f"recovery-{purpose}-x").mkdir()
        (tmp_path / f"recovery-{purpose}-x" / MARK).write_text(socket.gethostname())
    with scratch_directory("copy", tmp_path):
        remove_left(tmp_path)
        assert left(tmp_path) == {"copy"}


def use(root: Path, rounds: int) -> None:
    """Make one after the other, and look that it stays while it is used."""
    for number in range(rounds):
        with scratch_directory("backup", root) as path:
            (path / "copy").write_text(str(number))
            assert (path / "copy").read_text() == str(number)


def test_many_together(tmp_path):
    """Nobody takes away what another has just made."""
    processes = [multiprocessing.get_context("spawn").Process(target=use, args=(tmp_path, 200)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert left(tmp_path) == set()
