"""A directory of a process alone: out of others' reach, gone with the process, found after a kill."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from recovery.host import private
from tests.stores import ROOT

OWNER = """
import os, sys
os.umask(0)
from recovery.host import private
(private.home() / "file").touch()
print(private.home(), flush=True)
sys.stdin.read()
"""


def owner(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process with a directory, and that."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, env={**os.environ, "TMPDIR": str(temporary)}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_it_is_of_this_user_alone_and_goes_with_the_process(tmp_path):
    """Whatever the umask."""
    process, home = owner(tmp_path)
    assert home.parent == tmp_path
    assert home.stat().st_mode & 0o777 == 0o700
    process.communicate("")
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_what_a_kill_leaves_is_removed_by_the_next(tmp_path):
    """But not that of a process which lives, nor what looks like one."""
    killed, left = owner(tmp_path)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert (left / "file").exists()
    precious = tmp_path / "precious"
    precious.mkdir(0o700)
    (precious / "file").touch()
    (tmp_path / f"{private.PREFIX}link").symlink_to(precious)
    (tmp_path / f"{private.PREFIX}open").mkdir()
    (tmp_path / f"{private.PREFIX}open").chmod(0o755)
    first, its = owner(tmp_path)
    second, _ = owner(tmp_path)
    assert not left.exists()
    assert its.exists()
    assert (precious / "file").exists()
    assert (tmp_path / f"{private.PREFIX}open").exists()
    for each in (first, second):
        each.communicate("")


def test_sockets_have_a_short_path(monkeypatch, tmp_path):
    """Elsewhere, where the directory for temporary files has a long one; nowhere, where there is no other."""
    monkeypatch.setattr(private, "_made", {})
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    home, sockets = private.home(), private.sockets()
    try:
        assert home.parent == long
        assert sockets is not None
        assert len(os.fsencode(sockets)) <= private.LONGEST_FOR_SOCKETS
        assert sockets.stat().st_mode & 0o777 == 0o700
        assert private.home() == home
        assert private.directories() == [home, sockets]
    finally:
        private.remove()
    assert not sockets.exists()
    monkeypatch.setattr(private, "SHORT", tmp_path / "none")
    assert private.sockets() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_its_own(monkeypatch, tmp_path):
    """And leaves that of its parent."""
    monkeypatch.setattr(private, "_made", {})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    home = private.home()
    child = os.fork()
    if not child:
        other = private.home()
        private.remove()
        os._exit(0 if other != home and home.exists() and not other.exists() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert home.exists()
    shutil.rmtree(home)
