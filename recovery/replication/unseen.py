"""What a directory held when it began to replicate to a place, until a run has looked there: `replica-unseen.json`.

A run may begin and close epochs while the place is out of reach. The partitions alone then do not show whether a
directory is an older copy or went back on purpose. So the next run also compares this note with the place.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from recovery.base.untrusted_json import Count, decode_json
from recovery.errors import StorageError
from recovery.host.beside import read_beside, remove_beside, write_beside
from recovery.host.durable import modes_beside

NAME = "replica-unseen.json"
LARGEST = 1 << 16


class Unseen(msgspec.Struct, frozen=True):
    """place: the place's address without credentials. executions: the number begun on the directory. epoch: the
    directory's newest."""

    place: str
    executions: Count
    epoch: Count


def begin_unseen(directory: Path, now: Unseen) -> None:
    """Note what the directory holds, unless an earlier note for the place is there; durable when it returns. Raises
    StorageError."""
    before = read_unseen(directory)
    if before is None or before.place != now.place:
        write_beside(directory / NAME, msgspec.json.encode(now), modes_beside(directory / "part-0.sqlite3"))


def read_unseen(directory: Path) -> Unseen | None:
    """Return the note; None if the place was looked at since. Raises StorageError, also for an unreadable note."""
    path = directory / NAME
    content = read_beside(path, LARGEST)

    def refuse(why: str) -> StorageError:
        return StorageError(
            why,
            path=path,
            cause="The file was edited, or another program wrote it.",
            remedy="Make sure that this directory is not an older copy of another directory, then remove the file.",
        )

    return None if content is None else decode_json(content, refuse, Unseen)


def end_unseen(directory: Path) -> None:
    """Remove the note; durable when it returns. Raises StorageError."""
    remove_beside(directory / NAME)
