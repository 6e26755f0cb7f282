"""Hydration: fetching the rest of partitions that a lazy restore has begun, while they are in use.

hydrate.1  Take the role: of several processes that could, one hydrates a directory.
hydrate.2  Fetch what is missing, from the front on, with requests of some megabytes; sync from time to time.
hydrate.3  When all is there, check every digest, as a restore does. Damage is reported, and the partition stays as it
           is.
hydrate.4  Make it an ordinary file: give SQLite's log its usual name besides, write the first bytes of a database into
           the file, and remove the lazy file. Connections that are open continue.

If hydration is killed anywhere, the next hydration begins with what is missing. While the place of backups cannot be
reached, hydration waits.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw

from recovery.base import faults
from recovery.errors import BackupTargetError, CorruptPartitionError, HydratingError, RecoveryError, StorageError
from recovery.host.locks import locked_directory
from recovery.places.frames import FrameIndex
from recovery.storage.lazy.names import is_lazy, lazy_path
from recovery.storage.lazy.pages import HydrationProgress, Pages, PageSource, create_lazy, page_bytes_of, pages_at
from recovery.storage.sqlite.file.connections import use_log
from recovery.storage.sqlite.file.opening import open_partition
from recovery.storage.sqlite.file.statements import rows, translated
from recovery.storage.verify import PartitionCheck

__all__ = [
    "FrameIndex",
    "Hydration",
    "HydrationProgress",
    "PageSource",
    "Stop",
    "create_lazy",
    "hydrate",
    "hydrate_directory",
    "hydrating",
    "is_lazy",
    "page_bytes_of",
    "refuse_hydrating",
]

REQUEST_BYTES = 4 << 20
SYNC_BYTES = 256 << 20
PATIENCE_S = 15.0
"""How long a stream may take for its first micro-batch before the rest is fetched beside the stream."""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
ROLE_WAIT_S = 2.0

Observe = Callable[[HydrationProgress], None]


def ignore(_progress: HydrationProgress) -> None:
    """An observer that does nothing."""


def hydrating(directory: Path) -> list[HydrationProgress]:
    """Return how far each partition of a directory is that is not whole yet, sorted by path. Raises StorageError or
    CorruptPartitionError."""
    found = []
    with translated(directory):
        paths = sorted(path for path in directory.glob("part-*.sqlite3") if is_lazy(path))
    for path in paths:
        with translated(path), contextlib.suppress(FileNotFoundError):
            found.append(pages_at(lazy_path(path)).progress)
    return found


def refuse_hydrating(directory: Path, what: str) -> None:
    """Raise HydratingError, naming `what` needs all, if a partition of the directory is not whole yet."""
    found = hydrating(directory)
    if found:
        there, total = sum(each.there_bytes for each in found), sum(each.total_bytes for each in found)
        raise HydratingError(
            f"{what} needs all of its partitions, and a lazy restore has fetched {there * 100 // max(1, total)} % of "
            f"{', '.join(each.path.name for each in found[:4])}{' …' if len(found) > 4 else ''} so far",
            path=directory,
        )


class Stop:
    """Ends a hydration from another thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._check: PartitionCheck | None = None
        self.is_set = self._event.is_set
        self.wait = self._event.wait

    def set(self) -> None:
        """Let the hydration end soon. Safe to repeat."""
        self._event.set()
        check = self._check
        if check is not None:
            check.cancel()

    def checks(self, path: Path) -> bool:
        """Check a partition fully; return whether that was completed. Raises CorruptPartitionError or StorageError."""
        self._check = PartitionCheck(path)
        if self.is_set():
            return False
        try:
            self._check.run().raise_if_damaged()
        except apsw.InterruptError:
            if not self.is_set():
                raise
            return False
        finally:
            self._check = None
        return True


def hydrate(paths: Sequence[Path], stop: Stop, observe: Observe = ignore) -> None:
    """Fetch all that is missing of these partitions of one directory, check them, and make them ordinary files. Returns
    early if `stop` is set.

    Raises BackupDamagedError, CorruptPartitionError, BackupTargetError or StorageError; a repetition continues.
    """
    for path in paths:
        with translated(path), contextlib.suppress(FileNotFoundError):
            pages = pages_at(lazy_path(path))
            # hydrate.3
            if _fetch_all(pages, stop, observe) and stop.checks(pages.path):
                faults.reach("hydrate.3")
                _complete(pages.path, pages)
                observe(pages.progress._replace(is_whole=True))


def _fetch_all(pages: Pages, stop: Stop, observe: Observe) -> bool:
    # hydrate.2
    unsynced = 0
    while (missing := pages.missing(REQUEST_BYTES)) is not None:
        if stop.is_set():
            return False
        pages.fetch(*missing)
        unsynced += (missing[1] - missing[0]) * pages.index.frame_bytes
        if unsynced >= SYNC_BYTES:
            pages.sync()
            unsynced = 0
        observe(pages.progress)
    pages.sync()
    faults.reach("hydrate.2.synced")
    return not stop.is_set()


def _complete(path: Path, pages: Pages) -> None:
    # hydrate.4
    connection = open_partition(path, "rw")
    try:
        with translated(path):
            use_log(connection, path)
            rows(connection, "SELECT count(*) FROM parts")
            if pages.missing(1) is not None:
                raise CorruptPartitionError("pages were lost while it was checked", path=path)
            pages.finish()
    finally:
        connection.close()


def hydrate_directory(directory: Path, stop: Stop, observe: Observe = ignore) -> None:
    """Hydrate all partitions of a directory; while another process does, wait for it. Raises what `hydrate` raises."""
    while not stop.is_set() and (found := hydrating(directory)):
        # hydrate.1
        with _role(directory) as has_role:
            if has_role:
                hydrate([each.path for each in found], stop, observe)
                return
        stop.wait(ROLE_WAIT_S)


class Hydration:
    """The thread that hydrates the partitions of a directory while its store is open."""

    def __init__(self, directory: Path) -> None:
        """directory: the directory of the partitions; whole partitions are left alone."""
        self._directory = directory
        self._may_begin = threading.Event()
        self._stop = Stop()
        self._problem: RecoveryError | None = None
        self._thread: threading.Thread | None = None
        self._batches = 0
        if hydrating(directory):
            self._thread = threading.Thread(target=self._run, name="hydration", daemon=True)
            self._thread.start()

    def batch(self) -> None:
        """Note that a micro-batch begins: after the first one, fetching begins too. Raises the error that ended the
        hydration: damage."""
        if self._thread is None:
            return
        self._batches += 1
        if self._batches > 1:
            self._may_begin.set()
        if self._problem is not None:
            raise self._problem

    def end(self) -> None:
        """End the hydration; safe to repeat."""
        self._stop.set()
        self._may_begin.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        self._may_begin.wait(PATIENCE_S)
        wait_s = FIRST_WAIT_S
        while not self._stop.is_set():
            try:
                hydrate_directory(self._directory, self._stop)
                return
            except BackupTargetError:
                # The stream continues with what is there; what it needs besides ends it with the same error.
                self._stop.wait(wait_s)
                wait_s = min(LONGEST_WAIT_S, 2 * wait_s)
            except RecoveryError as error:
                self._problem = error
                return
            except Exception as error:
                self._problem = StorageError(f"hydration ended: {error!r}", path=self._directory)
                return


@contextlib.contextmanager
def _role(directory: Path) -> Iterator[bool]:
    """Take the role of the one who hydrates a directory; yields whether that was possible."""
    with contextlib.ExitStack() as held:
        with translated(directory):
            has_role = held.enter_context(locked_directory(directory))
        yield has_role
