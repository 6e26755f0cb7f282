"""Making what was written survive a power loss, and finding all of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(directory: Path) -> Iterator[Path]:
    """Every file in a directory and in those below it, in no order; none where it is missing.

    Raises OSError for a directory that cannot be listed, which `Path.rglob` passes over.
    """

    def refuse(error: OSError) -> None:
        # One that was removed meanwhile holds nothing, and the file system's own directory nothing of ours.
        own = isinstance(error, PermissionError) and Path(error.filename).name == "lost+found"
        if not (own or isinstance(error, FileNotFoundError | NotADirectoryError)):
            raise error

    for parent, _, names in os.walk(directory, onerror=refuse):
        yield from (Path(parent, name) for name in names)


def sync(path: Path) -> None:
    """Force a file's content, or the names in a directory, to the disk. Raises OSError.

    Only for a file that no SQLite connection of this process has open: closing it here would drop SQLite's locks.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
