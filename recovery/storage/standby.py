"""The mark of a standby: a directory that follows the backups of another directory, and that nothing else may write to.

The mark is a file beside the partitions. The mark is there before the first partition, and goes when the directory is
promoted. `recovery.backup.standby.document` knows what else the mark holds.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from recovery.base.untrusted_paths import read_received
from recovery.errors import StandbyDirectoryError

NAME = "standby.json"
LARGEST = 64 << 20
"""The largest mark that is read, in bytes. A partition takes some 500."""


class _Mark(msgspec.Struct):
    shown: str


def is_standby(directory: Path) -> bool:
    """Whether a directory follows the backups of another directory."""
    return os.path.lexists(directory / NAME)


def followed_place(directory: Path) -> str | None:
    """Return the place of backups that a directory follows, for people; None if it is no standby, or does not say."""
    try:
        return msgspec.json.decode(read_received(directory / NAME, LARGEST), type=_Mark).shown
    except (OSError, ValueError, RecursionError):
        return None


def refuse_standby(directory: Path) -> None:
    """Raises StandbyDirectoryError if the directory is a standby."""
    if is_standby(directory):
        place = followed_place(directory)
        raise StandbyDirectoryError(f"it follows {place or 'the backups of another directory'}", path=directory)
