"""Making what was written survive a power loss."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Force a file's content, or the names in a directory, to the disk. Raises OSError.

    Only for a file that no SQLite connection of this process has open: closing it here would drop SQLite's locks.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
