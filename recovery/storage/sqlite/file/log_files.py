"""SQLite's own files beside a database: its log and the log's index, and what they say about who uses the database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal


def has_log(path: Path) -> bool:
    """Return whether a log lies beside the file: a process uses it, or was killed using it."""
    return any(beside(path, suffix).exists() for suffix in ("-wal", "-journal"))


def is_left_alone(path: Path) -> bool:
    """Return whether nobody uses the file: it has no log, or a log without an index, which every user creates."""
    return not has_log(path) or not any(beside(path, suffix).exists() for suffix in ("-shm", "-journal"))


def reading_mode(path: Path) -> Literal["unshared", "ro"]:
    """Return the mode that reads a file without creating another one beside it. Without a log, the file is complete."""
    return "ro" if has_log(path) else "unshared"


def beside(path: Path, suffix: Literal["-wal", "-shm", "-journal"]) -> Path:
    """Return the path of SQLite's own file that belongs to `path`. For a symbolic link, it lies beside the target."""
    return Path(f"{os.path.realpath(path)}{suffix}")


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes whenever the file itself is written to, but not by a commit that stays in the log."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
