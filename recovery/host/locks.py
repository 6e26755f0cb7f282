"""Locks on files and directories: whole ones (`flock`), which end with their process, and who holds one on a part."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

POLL_S = 0.002
LONGEST_POLL_S = 0.05
_FLOCK = "hhqqi"


def lock_file(descriptor: int, *, shared: bool = False) -> None:
    """Lock an open file or directory, however long another process holds it. Raises OSError."""
    fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def try_lock_file(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file or directory and return True, or False if another process holds it. Raises OSError."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_file_within(descriptor: int, wait_s: float, *, shared: bool = False) -> bool:
    """Lock an open file or directory and return True, or False if others hold it for `wait_s`. Raises OSError."""
    until_s, pause_s = time.monotonic() + wait_s, POLL_S
    while not try_lock_file(descriptor, shared=shared):
        if time.monotonic() >= until_s:
            return False
        time.sleep(pause_s)
        pause_s = min(LONGEST_POLL_S, pause_s * 1.5)
    return True


def unlock_file(descriptor: int) -> None:
    """Release the lock on an open file or directory, also in processes that were forked while it was held."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def free(descriptor: int, holder_pid: int, *, clear: bool = True) -> None:
    """Release the lock on an open file, even if a process that was forked meanwhile still has the file open, and close
    the file. In such a process, only close the file. clear: also remove the holder's name from the file."""
    with contextlib.suppress(OSError):
        if os.getpid() == holder_pid:
            if clear:
                os.ftruncate(descriptor, 0)
            unlock_file(descriptor)
    os.close(descriptor)


@contextlib.contextmanager
def locked_directory(path: Path, wait_s: float = 0.0, *, follow: bool = True) -> Iterator[bool]:
    """Lock a directory itself until the block ends; yields False, without the lock, if others hold it for `wait_s`.

    follow: a link leads to the directory; otherwise it is refused. Raises OSError, also for what is no directory.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor, holder_pid = os.open(path, flags), os.getpid()
    try:
        yield lock_file_within(descriptor, wait_s)
    finally:
        free(descriptor, holder_pid, clear=False)


def locked_by(path: Path, start: int, length: int) -> int | None:
    """Return the id of a process that holds a lock on these bytes; 0: a process of another PID namespace. None: no
    process, no such file, or the system does not say.

    Not for files that this process has open through SQLite: closing the file here drops its locks.
    """
    if sys.platform != "linux":
        return None
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK else int(pid)
