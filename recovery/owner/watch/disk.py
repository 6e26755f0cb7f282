"""Free space of a disk, for those who must not wait for a disk that hangs."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from recovery.base.threads import bounded

DISK_S = 1.0
"""How long a disk may take to answer."""


class FreeDisk:
    """The free space where a directory is. Any thread may call it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._asking = threading.Lock()

    def __call__(self) -> int | None:
        """Return the free bytes; None: the disk does not answer, or refuses."""
        # Of a disk that hangs, only one thread waits.
        if not self._asking.acquire(timeout=DISK_S):
            return None
        try:
            return bounded(self._ask, DISK_S)
        except OSError:  # a TimeoutError is one, too
            return None

    def _ask(self) -> int:
        try:
            return shutil.disk_usage(self._directory).free
        finally:
            self._asking.release()
