"""Locks on files and directories, and which process holds one on a part of a file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from recovery.host.durable import create
from recovery.host.locks import (
    free,
    lock_file,
    lock_file_within,
    locked_by,
    locked_directory,
    try_lock_file,
    unlock_file,
)


def test_the_holder_of_a_lock(tmp_path):
    """By another process, of these bytes and not of others; a file that is missing has none."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    code = "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.lockf(f, fcntl.LOCK_SH, 5, 10); "
    code += "print('held', flush=True); "
    holder = subprocess.Popen([sys.executable, "-c", code + "time.sleep(60)", file], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        assert locked_by(file, 0, 20) == holder.pid
        assert locked_by(file, 20, 20) is None
    finally:
        holder.kill()
        holder.wait()
    assert locked_by(file, 0, 20) is None
    assert locked_by(tmp_path / "none", 0, 1) is None


def test_a_lock_that_is_held_is_refused_or_waited_for(tmp_path):
    """Immediately, for a time, or until its holder releases it; those who share it do not exclude each other."""
    create(tmp_path / "file")
    one, other = (os.open(tmp_path / "file", os.O_RDWR) for _ in range(2))
    lock_file(one, shared=True)
    assert try_lock_file(other, shared=True)
    assert not try_lock_file(one)
    assert not lock_file_within(one, 0.01)
    had_lock = []
    waiting = threading.Thread(target=lambda: had_lock.append(lock_file_within(one, 60)))
    waiting.start()
    unlock_file(other)
    waiting.join(60)
    assert had_lock == [True]
    assert not try_lock_file(other)
    free(one, os.getpid())
    assert try_lock_file(other)
    os.close(other)


def test_a_fork_neither_keeps_nor_releases_a_lock(tmp_path):
    """A forked process that has the file open does not hold the lock of its parent, and cannot release it."""
    held, other = create(tmp_path / "file"), os.open(tmp_path / "file", os.O_RDWR)
    parent, forked = os.getpid(), os.dup(held)
    lock_file(held)
    free(os.dup(held), parent + 1)
    assert not try_lock_file(other)
    free(held, parent)
    assert try_lock_file(other)
    os.close(forked)
    os.close(other)


def test_a_directory_is_locked_until_the_block_ends(tmp_path):
    """By one at a time; a link to it is followed only if that is asked for; nothing else is locked so."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with locked_directory(tmp_path / "real") as first, locked_directory(tmp_path / "link") as second:
        assert (first, second) == (True, False)
    with locked_directory(tmp_path / "link") as again:
        assert again
    create(tmp_path / "file")
    for path, follow in (("link", False), ("file", True), ("none", True)):
        with pytest.raises(OSError), locked_directory(tmp_path / path, follow=follow):
            raise AssertionError
