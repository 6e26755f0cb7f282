"""Temporary directories for copies, which may be as large as the partitions: what a killed process left goes with the
next one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from recovery.host.durable import create

MARK = ".recovery-scratch"
"""A file in each, by which it is known, and which is locked while it is used. It says on which host: elsewhere its lock
may not be seen."""


@contextlib.contextmanager
def scratch_directory(purpose: str, parent: Path | None = None) -> Iterator[Path]:
    """A directory `recovery-PURPOSE-…` in `parent`, or where temporary files go, until the block ends.

    Those of killed processes, whose locks have ended with them, are removed.
    """
    root = Path(tempfile.gettempdir() if parent is None else parent)
    prefix = f"recovery-{purpose}-"
    for mark in root.glob(f"{prefix}*/{MARK}"):
        _remove_left(mark)
    path, lock = _make(root, prefix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
        with contextlib.suppress(OSError):
            # A network file system keeps a file that is open, and with it its directory, until it is closed.
            path.rmdir()


def _make(root: Path, prefix: str) -> tuple[Path, int]:
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    lock = create(path / MARK)
    # Only what says a host is ever removed by others: nothing that is not locked, or cannot be.
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(lock, _host())
    return path, lock


def _remove_left(mark: Path) -> None:
    with contextlib.suppress(OSError):
        lock = os.open(mark, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if os.pread(lock, len(_host()) + 1, 0) == _host():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(mark.parent, ignore_errors=True)
        finally:
            os.close(lock)
        mark.parent.rmdir()


def _host() -> bytes:
    return socket.gethostname().encode()
