"""Deltas that a Python worker keeps open between small tasks, for which opening takes longer than the work.

Open deltas are kept only while their execution is active, and closed before its driver gives up the directory.
Otherwise such deltas would be the last to have partitions open, and the partitions' logs would stay behind. A kept
delta is reused only if its paths still lead to the files it opened: SQLite writes to a removed file without an error.
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
"""Each delta needs seven open files; the default limit of a process is 1,024."""
CACHE_BYTES = 32 << 20
"""The cache of all kept deltas of a step together; the partitions below the deltas get at most as much again."""
MOST_CACHE_BYTES = 4 << 20


class Kept(NamedTuple):
    """A delta, and the address of its execution's lifeline."""

    delta: Delta
    line: str


class KeptDeltas:
    """The deltas that one process keeps, for all executions that have tasks in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: set[str] = set()
        self._deltas: dict[Path, Kept] = {}

    def take(self, path: Path) -> Delta | None:
        """Return the kept delta at this path, for one task alone, or None if there is no usable one."""
        with self._lock:
            found = self._deltas.pop(path, None)
        if found is None:
            return None
        if not found.delta.is_current():
            _close(found.delta)
            return None
        return found.delta

    def give(self, delta: Delta, line: str) -> None:
        """Keep an unused delta for as long as the execution at the other end of `line` continues."""
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
    """Close a delta and ignore errors. The delta's task has finished; an error would fail another task, or leave other
    deltas open."""
    with contextlib.suppress(Exception):
        delta.close()


kept = KeptDeltas()


def cache_bytes(partition_count: int) -> int:
    """Return the cache size of a delta that is to be kept."""
    return min(MOST_CACHE_BYTES, CACHE_BYTES // min(partition_count, MOST_KEPT))
