"""SQLite's own files beside a database: its log and the log's index, and what they say about who uses the database."""

# Plain strings: these are looked at whenever a partition is opened.
# ruff: noqa: PTH110

from __future__ import annotations

import os
import stat
from os.path import exists
from pathlib import Path
from typing import Literal

from recovery.errors import StorageError
from recovery.storage.lazy.names import SUFFIX, target

ENDS = ("-wal", "-shm", "-journal", SUFFIX, f"{SUFFIX}-wal", f"{SUFFIX}-journal")
"""What the names of the files end with that belong to a partition and lie beside it. Beside another file of the
partition's name they would be taken for that file's own."""


def draft_of(real: Path) -> Path:
    """Return the name under which a whole copy is written beside a partition's file, which it then replaces. real: no
    link."""
    return real.with_name(f".{real.name}.draft")


def has_log(path: Path) -> bool:
    """Return whether a log lies beside the file: a process uses it, or was killed using it."""
    return _has_log(_names(target(path))[0])


def _has_log(of_log: str) -> bool:
    return exists(f"{of_log}-wal") or exists(f"{of_log}-journal")


def refuse_odd_logs(path: Path) -> None:
    """Raise StorageError if files beside a database that belong to it are links, pipes or devices: SQLite would write
    where a link leads, and wait for ever for a pipe."""
    of_log, of_index = _names(target(path))
    for log in (f"{of_index}{SUFFIX}", f"{of_log}-wal", f"{of_index}-shm", f"{of_log}-journal"):
        try:
            mode = os.lstat(log).st_mode
        except OSError:
            continue
        if not stat.S_ISREG(mode):
            raise StorageError(
                f"{Path(log).name} beside it is {'a link' if stat.S_ISLNK(mode) else 'not a file'}",
                path=path,
                cause="Every file of a partition is a regular one. Somebody put something else there.",
                remedy="Move it away, or take another copy of the partition: without its log, it may lack epochs.",
            )


def is_left_alone(path: Path) -> bool:
    """Return whether nobody uses the file: it has no log, or a log without an index, which every user creates. A file
    whose pages are still being fetched is written to by its readers."""
    of_log, of_index = _names(target(path))
    if of_log != of_index:
        return False
    return not _has_log(of_log) or not (exists(f"{of_log}-shm") or exists(f"{of_log}-journal"))


def reading_mode(path: Path) -> Literal["unshared", "ro"]:
    """Return the mode that reads a file without creating another file beside it. Without a log, the file is
    complete."""
    of_log, of_index = _names(target(path))
    return "ro" if of_log != of_index or _has_log(of_log) else "unshared"


def beside(path: Path, suffix: Literal["-wal", "-shm", "-journal"]) -> Path:
    """Return the path of SQLite's own file that belongs to `path`. For a symbolic link, that file lies beside the
    target. While the pages of a partition are being fetched, its log has another name."""
    of_log, of_index = _names(os.path.realpath(path))
    return Path(f"{of_index if suffix == '-shm' else of_log}{suffix}")


def _names(file: str) -> tuple[str, str]:
    """Return what the names of a database's own files begin with: its logs, and the index of its log. They differ while
    its pages are being fetched."""
    lazy = f"{file}{SUFFIX}"
    return lazy if exists(lazy) else file, file


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes whenever the file itself is written to, but not by a commit that stays in the log."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
