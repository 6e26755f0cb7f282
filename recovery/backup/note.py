"""A note beside the partitions that says when the directory was last backed up.

It is not part of the partitions: a backup leaves every byte of them unchanged, and a copy must not claim that it was
backed up. Other programs that copy the files (Litestream, cron) leave no note.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import NamedTuple

from recovery.base.untrusted_json import MOST, is_moment
from recovery.host.durable import modes_beside, read_regular, replace

NAME = "last-backup.json"
LONGEST = 1 << 16


class LastBackup(NamedTuple):
    """The newest backup that `recovery backup` finished: when (wall time), of which epoch, to where; whether the next
    one is to store only what changed; and how many objects a restore of its longest chain reads."""

    finished_ms: int
    epoch: int
    destination: str
    incremental: bool = False
    chain: int = 1


def note_backup(directory: Path, backup: LastBackup) -> None:
    """Replace the note, atomically. A backup counts even if that fails, so this raises nothing."""
    path = directory / NAME
    with contextlib.suppress(OSError):
        replace(path, json.dumps(backup._asdict()).encode(), mode=modes_beside(directory / "part-0.sqlite3").file)


def last_backup(directory: Path) -> LastBackup | None:
    """Return the note; None if it is missing or unreadable."""
    try:
        found = json.loads(read_regular(directory / NAME, LONGEST))
        finished_ms, epoch, destination = found["finished_ms"], found["epoch"], found["destination"]
        numbers = is_moment(finished_ms) and type(epoch) is int and 0 <= epoch <= MOST
        incremental, chain = found.get("incremental", False) is True, found.get("chain", 1)
        numbers = numbers and type(chain) is int and 1 <= chain <= MOST
        if not (numbers and isinstance(destination, str)):
            return None
        return LastBackup(finished_ms, epoch, destination, incremental, chain)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def reads_made_keys(directory: Path, backup_interval_s: float, now_ms: int) -> bool:
    """Return whether an incremental backup will read which keys the epochs make: the last backup was one, and what
    followed it is still kept."""
    if not backup_interval_s:
        return False
    last = last_backup(directory)
    return last is not None and last.incremental and now_ms - last.finished_ms <= backup_interval_s * 1000
