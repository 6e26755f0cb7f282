"""Notes beside the partitions that say when the directory was last backed up, and what its replica holds.

They are not part of the partitions: a backup leaves every byte of them unchanged, and a copy must not claim that it was
backed up. Other programs that copy the files (Litestream, cron) leave no note.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from recovery.base.untrusted_json import MOST, Count, Moment, is_moment
from recovery.host.durable import modes_beside, read_regular, replace

NAME = "last-backup.json"
REPLICA_NAME = "last-replica.json"
LONGEST = 1 << 16


class LastBackup(NamedTuple):
    """The newest backup that `recovery backup` finished: when (wall time), of which epoch, to where; whether the next
    one is to store only what changed; and how many objects a restore of its longest chain reads."""

    finished_ms: int
    epoch: int
    destination: str
    incremental: bool = False
    chain: int = 1


class LastReplica(NamedTuple):
    """What a run that replicates has shipped: where to, the newest epoch and the number of the execution that closed
    it, when (wall time; 0: never). problem: why newer epochs could not be shipped since `since_ms`; None: they were."""

    destination: str
    epoch: int
    execution: int
    shipped_ms: int
    problem: str | None = None
    since_ms: int | None = None


def note_backup(directory: Path, backup: LastBackup) -> None:
    """Replace the note, atomically. A backup counts even if that fails, so this raises nothing."""
    _note(directory, NAME, backup._asdict())


def note_replica(directory: Path, replica: LastReplica) -> None:
    """Replace the note, atomically. An epoch is shipped even if that fails, so this raises nothing."""
    _note(directory, REPLICA_NAME, replica._asdict())


def _note(directory: Path, name: str, value: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        replace(directory / name, json.dumps(value).encode(), mode=modes_beside(directory / "part-0.sqlite3").file)


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


class _Replica(msgspec.Struct):
    """The form of that note: it is a file that others may have written."""

    destination: str
    epoch: Count
    execution: Count
    shipped_ms: Moment
    problem: str | None = None
    since_ms: Moment | None = None


def last_replica(directory: Path) -> LastReplica | None:
    """Return the note; None if it is missing or unreadable."""
    try:
        found = msgspec.json.decode(read_regular(directory / REPLICA_NAME, LONGEST), type=_Replica)
    except (OSError, ValueError, RecursionError):
        return None
    return LastReplica(*msgspec.structs.astuple(found))


def reads_made_keys(directory: Path, backup_interval_s: float, now_ms: int) -> bool:
    """Return whether an incremental backup will read which keys the epochs make: the last backup was one, and what
    followed it is still kept."""
    if not backup_interval_s:
        return False
    last = last_backup(directory)
    return last is not None and last.incremental and now_ms - last.finished_ms <= backup_interval_s * 1000
