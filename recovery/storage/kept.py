"""Deltas that a Python worker keeps open between small tasks, which take longer to open them than to use them.

They are kept only while the execution goes on, and closed before its driver gives the directory up: otherwise they
would be the last to have partitions open, whose logs would stay behind. A kept one is used for files that are still the
ones it opened: SQLite would write to a file that was removed, and say that all is well.
"""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

from recovery.storage.deltas import Delta
from recovery.storage.lifeline import hold

MOST_KEPT = 128
"""Of seven files each, of which a process may have 1,024 open where nothing was set."""
CACHE_BYTES = 32 << 20
"""For all deltas of a step that are kept, and at most as much for the partitions below them."""
MOST_CACHE_BYTES = 4 << 20


class KeptDeltas:
    """What one process keeps, all of one execution."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: str | None = None
        self._deltas: dict[Path, Delta] = {}

    def take(self, path: Path) -> Delta | None:
        """The delta at this path, for one task alone; None if there is none that can be used."""
        with self._lock:
            delta = self._deltas.pop(path, None)
        if delta is not None and not delta.is_current():
            delta.close()
            return None
        return delta

    def give(self, delta: Delta, line: str) -> None:
        """Keep a delta that nobody uses as long as the execution at the other end of `line` goes on."""
        with self._lock:
            if self._line != line:
                self._close()
                self._line = line if hold(line, partial(self._let_go, line)) else None
            if self._line is None:
                delta.close()
                return
            self._deltas[delta.path] = delta
            if len(self._deltas) > MOST_KEPT:
                self._deltas.pop(next(iter(self._deltas))).close()

    def _let_go(self, line: str) -> None:
        with self._lock:
            if self._line == line:
                self._close()

    def _close(self) -> None:
        for delta in self._deltas.values():
            delta.close()
        self._deltas.clear()
        self._line = None


kept = KeptDeltas()


def cache_bytes(partition_count: int) -> int:
    """The cache of a delta that is to be kept."""
    return min(MOST_CACHE_BYTES, CACHE_BYTES // min(partition_count, MOST_KEPT))
