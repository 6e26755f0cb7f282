"""SQLite's own files beside a database: its log and the log's index, and what they say about who uses the database."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

from recovery.errors import StorageError
from recovery.storage.lazy.names import is_lazy, lazy_path


def has_log(path: Path) -> bool:
    """Return whether a log lies beside the file: a process uses it, or was killed using it."""
    return any(beside(path, suffix).exists() for suffix in ("-wal", "-journal"))


def refuse_odd_logs(path: Path) -> None:
    """Raise StorageError if files beside a database that belong to it are links, pipes or devices: SQLite would write
    where a link leads, and wait for ever for a pipe."""
    suffixes: tuple[Literal["-wal", "-shm", "-journal"], ...] = ("-wal", "-shm", "-journal")
    for log in (lazy_path(path), *(beside(path, suffix) for suffix in suffixes)):
        try:
            mode = log.lstat().st_mode
        except OSError:
            continue
        if not stat.S_ISREG(mode):
            raise StorageError(
                f"{log.name} beside it is {'a link' if stat.S_ISLNK(mode) else 'not a file'}",
                path=path,
                cause="Every file of a partition is a regular one. Somebody put something else there.",
                remedy="Move it away, or take another copy of the partition: without its log, it may lack epochs.",
            )


def is_left_alone(path: Path) -> bool:
    """Return whether nobody uses the file: it has no log, or a log without an index, which every user creates. A file
    whose pages are still being fetched is written to by its readers."""
    used = has_log(path) and any(beside(path, suffix).exists() for suffix in ("-shm", "-journal"))
    return not used and not is_lazy(path)


def reading_mode(path: Path) -> Literal["unshared", "ro"]:
    """Return the mode that reads a file without creating another file beside it. Without a log, the file is
    complete."""
    return "ro" if has_log(path) or is_lazy(path) else "unshared"


def beside(path: Path, suffix: Literal["-wal", "-shm", "-journal"]) -> Path:
    """Return the path of SQLite's own file that belongs to `path`. For a symbolic link, that file lies beside the
    target. While the pages of a partition are being fetched, its log has another name."""
    if suffix != "-shm" and is_lazy(path):
        return Path(f"{lazy_path(path)}{suffix}")
    return Path(f"{os.path.realpath(path)}{suffix}")


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes whenever the file itself is written to, but not by a commit that stays in the log."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
