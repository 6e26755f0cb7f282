"""Temporary directories for copies, which may be as large as the partitions: what a killed process left goes with the
next one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

MARK = ".recovery-scratch"
"""A file in each, by which it is known, and which is locked while it is used."""


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


def _make(root: Path, prefix: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        lock = os.open(path / MARK, os.O_RDWR | os.O_CREAT, 0o600)
        # Until it is locked somebody may take it for left.
        if _lock(lock) and path.exists():
            return path, lock
        os.close(lock)


def _lock(mark: int) -> bool:
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A file system without locks, so nobody can take it for left.
        return True
    return True


def _remove_left(mark: Path) -> None:
    with contextlib.suppress(OSError):
        lock = os.open(mark, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(mark.parent, ignore_errors=True)
        finally:
            os.close(lock)
