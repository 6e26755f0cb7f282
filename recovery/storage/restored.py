"""The mark of a directory that was restored, or promoted, and that no run has begun on since: `restored.json`.

The user has decided that the directory takes the place of another directory. So the first run may undo output of
executions that the directory's partitions do not know. Later runs may not, nor may other copies: the mark counts for a
day, and in the directory that it was made in. A directory that was restored to look at it, and is run by mistake much
later, takes nothing back.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from recovery.host.beside import read_beside, remove_beside, write_beside
from recovery.host.durable import Modes, modes_beside
from recovery.host.storage_errors import storage_errors

NAME = "restored.json"
LARGEST = 1 << 12
COUNTS_S = 24 * 3600.0


class RestoreMark(NamedTuple):
    """What the mark of a directory says now. counts: whether a run may rely on it. why_not: why it may not, a clause;
    empty if it counts, or if there is no mark."""

    counts: bool
    why_not: str


def mark_restored(directory: Path, modes: Modes | None = None) -> None:
    """Mark a directory; durable when it returns. modes: by default those of its partitions. Raises StorageError."""
    write_beside(directory / NAME, _content(directory), modes or modes_beside(directory / "part-0.sqlite3"))


def read_restored(directory: Path, now_ms: int) -> RestoreMark:
    """Return what the mark of a directory says. now_ms: the time. Raises StorageError."""
    path = directory / NAME
    content = read_beside(path, LARGEST)
    if content is None:
        return RestoreMark(False, "")
    if content != _content(directory):
        return RestoreMark(False, "it is a copy of a directory that was restored or promoted")
    with storage_errors(path):
        age_s = abs(now_ms - path.stat().st_mtime_ns / 1e6) / 1000
    if age_s > COUNTS_S:
        age_h = age_s / 3600
        return RestoreMark(False, f"it was restored or promoted {age_h:.0f} h ago, and no run has begun on it since")
    return RestoreMark(True, "")


def end_restored(directory: Path) -> None:
    """Remove the mark, if it is there; durable when it returns. Raises StorageError."""
    remove_beside(directory / NAME)


def _content(directory: Path) -> bytes:
    """Return the mark: the inode of the directory, which another directory does not have and a moved directory
    keeps."""
    with storage_errors(directory):
        return msgspec.json.encode({"directory": str(directory.stat().st_ino)}) + b"\n"
