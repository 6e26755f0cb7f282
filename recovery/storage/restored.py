"""The mark of a directory that was restored, or promoted, and that no run has begun on since: `restored.json`.

The user has decided that it takes the place of another directory. So its first run may take back what executions that
its partitions do not know have shown at the targets of its sinks. Later runs may not, nor may other copies.
"""

from __future__ import annotations

import os
from pathlib import Path

from recovery.host.beside import remove_beside, write_beside
from recovery.host.durable import Modes, modes_beside

NAME = "restored.json"


def mark_restored(directory: Path, modes: Modes | None = None) -> None:
    """Mark a directory; durable when it returns. modes: by default those of its partitions. Raises StorageError."""
    write_beside(directory / NAME, b"{}\n", modes or modes_beside(directory / "part-0.sqlite3"))


def is_restored(directory: Path) -> bool:
    """Whether a directory has the mark."""
    return os.path.lexists(directory / NAME)


def end_restored(directory: Path) -> None:
    """Remove the mark, if it is there; durable when it returns. Raises StorageError."""
    remove_beside(directory / NAME)
