"""Keeps a process that was forked while a database was open from opening that database.

SQLite records its locks once per process. A fork copies the record, but not the locks: the child takes its parent's
locks for its own, and what it writes is lost as soon as the parent closes the file.
https://www.sqlite.org/howtocorrupt.html#_carrying_an_open_database_across_a_fork_
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

import apsw

from recovery.errors import StorageError

Inode = tuple[int, int]

_inodes: WeakKeyDictionary[apsw.Connection, Inode] = WeakKeyDictionary()
_inherited: set[Inode] = set()
_paths: OrderedDict[Path, None] = OrderedDict()
MOST_PATHS = 10_000


def opened(connection: apsw.Connection, path: Path) -> None:
    """Record a connection that was opened to `path`. Raises OSError."""
    _inodes[connection] = _inode(path)
    _paths.pop(path, None)
    _paths[path] = None
    if len(_paths) > MOST_PATHS:
        _paths.popitem(last=False)


def opened_paths() -> Iterator[Path]:
    """Yield the files that this process has opened and that are still there, the last opened one first: at most
    `MOST_PATHS`."""
    return (path for path in reversed([*_paths]) if path.exists())


def is_at(connection: apsw.Connection, path: Path) -> bool:
    """Return whether `path` still leads to the file that the connection opened."""
    with contextlib.suppress(OSError):
        return _inode(path) == _inodes.get(connection)
    return False


def check_process(path: Path) -> None:
    """Raise StorageError if this process was forked while `path` was open."""
    if not _inherited:
        return
    with contextlib.suppress(FileNotFoundError):
        if _inode(path) in _inherited:
            raise StorageError(
                f"process {os.getpid()} was forked while its parent had this file open",
                path=path,
                cause="A run, or another thread, used the recovery directory at that moment. SQLite's locks do not "
                "come along: what is written here would be lost.",
                remedy='Start such processes with multiprocessing.get_context("spawn") or "forkserver".',
            )


def _inode(path: Path) -> Inode:
    found = path.stat()
    return found.st_dev, found.st_ino


def _note_inherited() -> None:
    _inherited.update(_inodes[connection] for connection in apsw.connections() if connection in _inodes)


os.register_at_fork(after_in_child=_note_inherited)
