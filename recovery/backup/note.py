"""Notes beside the partitions that say when the directory was last backed up, what its replica holds, what the run that
has it waits for, which partitions came back when an owner was lost, how much input the newest epoch lacks, and how the
last drill of its backups ended.

The notes are not part of the partitions: a backup leaves every byte of them unchanged, and a copy must not claim that
it was backed up. Other programs that copy the files (Litestream, cron) leave no note.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from recovery.backup.drills import LastDrill
from recovery.base.untrusted_json import MOST, Count, Moment
from recovery.base.untrusted_paths import read_received
from recovery.host.durable import modes_beside, replace
from recovery.host.storage_errors import storage_errors
from recovery.planning.lag import InputLag
from recovery.planning.replacement import Replacement

NAME = "last-backup.json"
REPLICA_NAME = "last-replica.json"
WAITING_NAME = "waiting.json"
REPLACED_NAME = "last-replaced.json"
LAG_NAME = "last-lag.json"
DRILL_NAME = "last-drill.json"
LONGEST = 1 << 16


class LastBackup(msgspec.Struct, frozen=True):
    """The newest backup that `recovery backup` finished: when (wall time), of which epoch, to where; whether the next
    one is to store only what changed; and how many objects a restore of its longest chain reads. execution: the number
    of the one that closed the epoch; None: an older version made the backup."""

    finished_ms: Moment
    epoch: Count
    destination: str
    incremental: bool = False
    chain: Annotated[int, msgspec.Meta(ge=1, le=MOST)] = 1
    execution: Count | None = None


class LastReplica(msgspec.Struct, frozen=True):
    """What a run that replicates has shipped: where to, the newest epoch and the number of the execution that closed
    it, when (wall time; 0: never). problem: why newer epochs could not be shipped since `since_ms`; None: they were."""

    destination: str
    epoch: Count
    execution: Count
    shipped_ms: Moment
    problem: str | None = None
    since_ms: Moment | None = None


class Waiting(msgspec.Struct, frozen=True):
    """What the run of this execution has waited for since `since_ms` (wall time). The note says nothing once that run
    has ended."""

    execution: Count
    since_ms: Moment
    what: str


class LastReplaced(msgspec.Struct, frozen=True):
    """The last partitions that a run brought back when an owner was lost: when (wall time), as of which epoch, from
    which place; the owners that were lost, and the owner that got each file. count: the partitions that came back so
    far, at all times together."""

    replaced_ms: Moment
    epoch: Count
    place: str
    lost: list[str]
    owners: dict[str, str]
    count: Count


Note = TypeVar("Note", LastBackup, LastReplica, Waiting, LastReplaced, InputLag, LastDrill)


def note_backup(directory: Path, backup: LastBackup) -> None:
    """Replace the note, atomically. A backup counts even if its note fails, so this raises nothing."""
    _note(directory, NAME, backup)


def note_replica(directory: Path, replica: LastReplica) -> None:
    """Replace the note, atomically. An epoch is shipped even if its note fails, so this raises nothing."""
    _note(directory, REPLICA_NAME, replica)


def note_waiting(directory: Path, waiting: Waiting | None) -> None:
    """Replace the note, or remove it (None). The note only informs, so a failure to write it raises nothing."""
    if waiting is not None:
        _note(directory, WAITING_NAME, waiting)
        return
    with contextlib.suppress(OSError):
        (directory / WAITING_NAME).unlink(missing_ok=True)


def note_replaced(directory: Path, found: Replacement, now_ms: int) -> None:
    """Replace the note, atomically. The note only informs, so a failure to write it raises nothing."""
    before = last_replaced(directory)
    owners = {f"part-{index}.sqlite3": location for index, location in found.owner_of.items()}
    count = len(owners) + (0 if before is None else before.count)
    note = LastReplaced(now_ms, found.epoch, found.place, list(found.lost), owners, min(count, MOST))
    _note(directory, REPLACED_NAME, note)


def last_replaced(directory: Path) -> LastReplaced | None:
    """Return the note; None if it is missing or unreadable."""
    return _read(directory / REPLACED_NAME, LastReplaced)


def note_last_drill(directory: Path, drill: LastDrill) -> None:
    """Replace the note, atomically. The note only informs, so a failure to write it raises nothing."""
    _note(directory, DRILL_NAME, drill)


def last_drill(directory: Path) -> LastDrill | None:
    """Return the note: the newest drill that the place of backups had when a backup was made; None if it is missing or
    unreadable."""
    return _read(directory / DRILL_NAME, LastDrill)


def is_in_last_drill(directory: Path, names: Callable[[str], bool]) -> bool:
    """Whether there is a note, and `names` is true of why the drill failed."""
    drill = last_drill(directory)
    return drill is not None and names(drill.found)


def forget_last_drill(directory: Path, names: Callable[[str], bool]) -> None:
    """Remove the note if `names` is true of why the drill failed. Raises StorageError."""
    if is_in_last_drill(directory, names):
        with storage_errors(directory / DRILL_NAME):
            (directory / DRILL_NAME).unlink(missing_ok=True)


def note_input_lag(directory: Path, lag: InputLag) -> None:
    """Replace the note, atomically. The note only informs, so a failure to write it raises nothing."""
    _note(directory, LAG_NAME, lag)


def last_input_lag(directory: Path) -> InputLag | None:
    """Return the note; None if it is missing or unreadable."""
    return _read(directory / LAG_NAME, InputLag)


def last_waiting(directory: Path) -> Waiting | None:
    """Return the note; None if it is missing or unreadable."""
    return _read(directory / WAITING_NAME, Waiting)


def last_backup(directory: Path) -> LastBackup | None:
    """Return the note; None if it is missing or unreadable."""
    return _read(directory / NAME, LastBackup)


def last_replica(directory: Path) -> LastReplica | None:
    """Return the note; None if it is missing or unreadable."""
    return _read(directory / REPLICA_NAME, LastReplica)


def _note(directory: Path, name: str, value: msgspec.Struct) -> None:
    content = json.dumps(msgspec.to_builtins(value)).encode()
    with contextlib.suppress(OSError):
        replace(directory / name, content, mode=modes_beside(directory / "part-0.sqlite3").file)


def _read(path: Path, kind: type[Note]) -> Note | None:
    try:
        # Not msgspec's own reader: a place whose name is no text has code points that only this one reads.
        return msgspec.convert(json.loads(read_received(path, LONGEST)), kind)
    except (OSError, ValueError, RecursionError):
        return None


def reads_made_keys(directory: Path, backup_interval_s: float, now_ms: int) -> bool:
    """Return whether an incremental backup will read which keys the epochs make: the last backup was one, and what
    followed it is still kept."""
    if not backup_interval_s:
        return False
    last = last_backup(directory)
    return last is not None and last.incremental and now_ms - last.finished_ms <= backup_interval_s * 1000
