"""Places of backups that `format("recovery")` reads: the driver restores the newest backup, and sources read the copy.

Spark plans a source in a process that ends before the tasks read, so a copy belongs to the session's Spark context.
Each copy is restored once, whole and checked, however many frames read it.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex

from recovery.backup.catalog import Catalog
from recovery.backup.restore import restored_to_read
from recovery.base.clock import SystemClock
from recovery.base.printable import one_line
from recovery.places.opening import open_place

KEPT = 2
"""How many copies of one place are kept: a frame that is being read may be of the backup before."""


class RestoredPlaces:
    """The restored copies of one Spark context. For several threads."""

    def __init__(self, parent: Path, dropped: Callable[[Path], None]) -> None:
        """parent: the directory for the copies. dropped: called before a copy is removed."""
        self._parent = parent
        self._dropped = dropped
        self._lock = threading.Lock()
        self._places: dict[str, _RestoredPlace] = {}

    def restored(self, place: str) -> Path:
        """Return a directory with the newest backup at a place, with all epochs that its chains hold.

        The directory is removed when two newer backups of the place were restored, or by `close`. Copies and backups
        that cannot be used are reported as a RuntimeWarning. Raises NoBackupError, BackupTargetError, and what
        `restore` raises.
        """
        with self._lock:
            if place not in self._places:
                self._places[place] = _RestoredPlace(place)
            found = self._places[place]
        with found.lock:
            return found.restored(self._parent, self._dropped)

    def close(self) -> None:
        """Remove all copies."""
        with self._lock:
            for each in self._places.values():
                with each.lock:
                    each.drop_all_but(0, self._dropped)


class _RestoredPlace:
    """One place, and its restored copies by the id of the newest backup, oldest first. The caller holds the lock."""

    def __init__(self, place: str) -> None:
        self.lock = threading.Lock()
        self._place = place
        self._catalog = Catalog(open_place(place))
        self._copies: dict[str, tuple[Path, ExitStack]] = {}

    def restored(self, parent: Path, dropped: Callable[[Path], None]) -> Path:
        newest = self._catalog.newest()
        # Without a readable manifest, the restore says what is there instead.
        identity = newest.id if newest is not None else ""
        if identity not in self._copies:
            with ExitStack() as stack:
                copy = restored_to_read(self._place, SystemClock(), lambda: token_hex(4), _warn, parent)
                path = stack.enter_context(copy)
                self._copies[identity] = (path, stack.pop_all())
            self.drop_all_but(KEPT, dropped)
        return self._copies[identity][0]

    def drop_all_but(self, count: int, dropped: Callable[[Path], None]) -> None:
        """Remove the oldest copies."""
        while len(self._copies) > count:
            path, stack = self._copies.pop(next(iter(self._copies)))
            dropped(path)
            stack.close()


def _warn(text: str) -> None:
    warnings.warn(one_line(text), RuntimeWarning, stacklevel=1)
