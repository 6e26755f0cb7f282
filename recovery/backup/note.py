"""When a directory was backed up last: a note beside the partitions.

It is no part of them: a backup leaves every byte of the partitions as it is, and a copy of them must not say that it
was backed up. Whatever else copies the files (Litestream, cron) leaves no note.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from recovery.untrusted_json import FIRST_MOMENT_MS, LAST_MOMENT_MS

NAME = "last-backup.json"


class LastBackup(NamedTuple):
    """The newest backup that `recovery backup` finished: when (wall time), of which epoch, to where."""

    finished_ms: int
    epoch: int
    destination: str


def note_backup(directory: Path, backup: LastBackup) -> None:
    """Replace the note, atomically. A backup counts whether or not that succeeds, so nothing is raised."""
    draft = directory / f".{NAME}.{os.getpid()}"
    with contextlib.suppress(OSError):
        draft.write_text(json.dumps(backup._asdict()))
        draft.replace(directory / NAME)


def last_backup(directory: Path) -> LastBackup | None:
    """What the note says; None when there is none, or none that can be read."""
    try:
        found = json.loads((directory / NAME).read_text())
        finished_ms = int(found["finished_ms"])
        if not FIRST_MOMENT_MS <= finished_ms <= LAST_MOMENT_MS:
            return None
        return LastBackup(finished_ms, int(found["epoch"]), str(found["destination"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
