"""Temporary directories for copies, which may be as large as the partitions. The next process removes what a killed
process left."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from recovery.host.durable import create
from recovery.host.locks import try_lock_file

MARK = ".recovery-scratch"
"""The file that marks a scratch directory, locked while the directory is in use. The file holds the host's name,
because another host may not see the lock."""


@contextlib.contextmanager
def scratch_directory(purpose: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a directory `recovery-PURPOSE-…` in `parent`, or in the system's temporary directory, until the block ends.

    Directories of killed processes, whose locks ended with them, are removed.
    """
    remove_left(parent, purpose)
    path, lock = _make(_root(parent), f"recovery-{purpose}-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
        with contextlib.suppress(OSError):
            # A network file system keeps an open file, and so its directory, until it is closed.
            path.rmdir()


def remove_left(parent: Path | None = None, purpose: str = "*") -> None:
    """Remove the directories that killed processes have left in `parent`, or in the system's temporary directory.
    purpose: only those of this purpose."""
    for mark in _root(parent).glob(f"recovery-{purpose}-*/{MARK}"):
        _remove_left(mark)


def _root(parent: Path | None) -> Path:
    return Path(tempfile.gettempdir() if parent is None else parent)


def _make(root: Path, prefix: str) -> tuple[Path, int]:
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    lock = create(path / MARK)
    # Others only remove a directory whose mark names a host, so never one that is not locked or cannot be.
    with contextlib.suppress(OSError):
        if try_lock_file(lock):
            os.write(lock, _host())
    return path, lock


def _remove_left(mark: Path) -> None:
    with contextlib.suppress(OSError):
        lock = os.open(mark, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if os.pread(lock, len(_host()) + 1, 0) == _host() and try_lock_file(lock):
                shutil.rmtree(mark.parent, ignore_errors=True)
        finally:
            os.close(lock)
        mark.parent.rmdir()


def _host() -> bytes:
    return socket.gethostname().encode()
