"""Deltas that a Python worker keeps open between small tasks, which take longer to open them than to use them.

They are kept only while their execution goes on, and closed before its driver gives the directory up: otherwise they
would be the last to have partitions open, whose logs would stay behind. A kept one is used for files that are still the
ones it opened: SQLite would write to a file that was removed, and say that all is well.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from pathlib import Path
from typing import NamedTuple

from recovery.storage.deltas.delta import Delta
from recovery.storage.deltas.lifeline import hold

MOST_KEPT = 128
"""Of seven files each, of which a process may have 1,024 open where nothing was set."""
CACHE_BYTES = 32 << 20
"""For all deltas of a step that are kept, and at most as much for the partitions below them."""
MOST_CACHE_BYTES = 4 << 20


class Kept(NamedTuple):
    """A delta, and the line of its execution."""

    delta: Delta
    line: str


class KeptDeltas:
    """What one process keeps, of all executions that have tasks in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: set[str] = set()
        self._deltas: dict[Path, Kept] = {}

    def take(self, path: Path) -> Delta | None:
        """The delta at this path, for one task alone; None if there is none that can be used."""
        with self._lock:
            found = self._deltas.pop(path, None)
        if found is None:
            return None
        if not found.delta.is_current():
            _close(found.delta)
            return None
        return found.delta

    def give(self, delta: Delta, line: str) -> None:
        """Keep a delta that nobody uses as long as the execution at the other end of `line` goes on."""
        with self._lock:
            if line not in self._lines:
                if not hold(line, partial(self._let_go, line)):
                    _close(delta)
                    return
                self._lines.add(line)
            self._deltas[delta.path] = Kept(delta, line)
            if len(self._deltas) > MOST_KEPT:
                _close(self._deltas.pop(next(iter(self._deltas))).delta)

    def _let_go(self, line: str) -> None:
        with self._lock:
            self._lines.discard(line)
            for path in [path for path, each in self._deltas.items() if each.line == line]:
                _close(self._deltas.pop(path).delta)


def _close(delta: Delta) -> None:
    """The task that used it has finished: an error would fail another one, or leave others unclosed."""
    with contextlib.suppress(Exception):
        delta.close()


kept = KeptDeltas()


def cache_bytes(partition_count: int) -> int:
    """The cache of a delta that is to be kept."""
    return min(MOST_CACHE_BYTES, CACHE_BYTES // min(partition_count, MOST_KEPT))
