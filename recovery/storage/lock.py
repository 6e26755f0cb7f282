"""The lock that allows one run at a time on a recovery directory; the operating system frees it if the holder dies."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from recovery.base.clock import Clock
from recovery.errors import CorruptPartitionError, DirectoryLockedError, StorageError, UnsupportedVersionError
from recovery.host.durable import modes_beside, open_own
from recovery.host.locks import free, try_lock_file, unlock_file
from recovery.host.processes import as_holder, describe_holder, has_ended
from recovery.storage.no_partitions import is_checkpoint, no_partitions
from recovery.storage.sqlite.file.reading import read_partition
from recovery.storage.sqlite.file.watched_files import Watch, refuse_link_into_store
from recovery.storage.standby import refuse_standby

LOCK_NAME = "recovery.lock"
FILE_LOCKS = "recovery-*.lock"
FIRST = "part-0.sqlite3"
"""The partition whose permissions the lock file gets."""
ATTEMPTS = 400
NAME_ATTEMPTS = 100
ATTEMPT_INTERVAL_S = 0.005

_held: dict[str, DirectoryLock] = {}
"""The locks that this process holds, keyed by the real path of their directory."""


def held_lock(directory: Path) -> DirectoryLock | None:
    """Return this process's lock on a directory, or None if it holds none."""
    found = _held.get(os.path.realpath(directory))
    return found if found is not None and found.pid == os.getpid() else None


def _refuse_others(directory: Path) -> None:
    first = directory / FIRST
    if is_checkpoint(directory) and not first.exists():
        raise no_partitions(directory)
    # What else is wrong with the file is the error of those who read it.
    with contextlib.suppress(CorruptPartitionError, UnsupportedVersionError, StorageError):
        if first.is_file():
            read_partition(first, lambda _: None)


class DirectoryLock:
    """The lock of a recovery directory, held from `acquire` until `release` or the death of the process.

    The file's text names the holder for people; only the lock itself counts. If a partition is a symbolic link, the
    link's target is locked too. The link's lock excludes other links to the same file, in any directory, and a run on
    the directory that contains the file.
    """

    def __init__(self, directory: Path, clock: Clock, purpose: str, *, follows: bool = False) -> None:
        """follows: the lock is taken to keep a standby current; other locks of a standby are refused."""
        self.path = directory / LOCK_NAME
        self.pid = 0
        self._clock = clock
        self._purpose = purpose
        self._follows = follows
        self._taken: list[tuple[int, bool]] = []
        self._files: Watch | None = None

    def acquire(self) -> None:
        """Take the lock immediately. Raises DirectoryLockedError naming the holder, StandbyDirectoryError or
        StorageError; for a directory of another program ForeignPartitionError or NoPartitionsError, before a lock file
        is made in it."""
        self.pid = os.getpid()
        directory = self.path.parent
        if not self._follows:
            refuse_standby(directory)
        if not self.path.exists():
            _refuse_others(directory)
        try:
            self._take(self.path)
            if not self._follows:
                # It may have become one before the lock was free.
                refuse_standby(directory)
            self._files = Watch(directory)
            self._files.add_open(self.path, self._taken[0][0])
            links = _links(directory)
            for link in links:
                refuse_link_into_store(link.path)
            for link in links:
                self._take(link.lock, link)
                self._files.add_open(link.lock, self._taken[-1][0])
                if link.other_directory is not None:
                    self._take(link.other_directory / LOCK_NAME, link, shared=True)
                    self._files.add_open(link.other_directory / LOCK_NAME, self._taken[-1][0])
        except BaseException:
            self.release()
            raise
        _held[os.path.realpath(directory)] = self

    def check(self) -> None:
        """Check that the lock's files are still in place.

        Raises FileReplacedError when one is not: another process may hold the lock of that name by now.
        """
        if self._files is not None:
            self._files.check()

    def release(self) -> None:
        """Free the lock. Harmless when the lock is not held."""
        for descriptor, shared in reversed(self._taken):
            free(descriptor, self.pid, clear=not shared)
        self._taken.clear()
        self._files = None
        for directory in [directory for directory, lock in _held.items() if lock is self]:
            del _held[directory]

    def _take(self, path: Path, link: _Link | None = None, *, shared: bool = False) -> None:
        try:
            descriptor = open_own(path, modes_beside(self.path.with_name(FIRST)).file)
        except OSError as error:
            raise StorageError.opening(error, path) from error
        try:
            has_lock = _lock(descriptor, shared=shared)
        except OSError as error:
            os.close(descriptor)
            raise StorageError(f"it cannot be locked: {error}", path=path) from error
        if not has_lock:
            holder = _named_holder(descriptor)
            os.close(descriptor)
            self._refuse(holder or _holder_of_files(path.parent), link)
        self._taken.append((descriptor, shared))
        if not shared:
            self._sign(descriptor)

    def _refuse(self, holder: dict[str, Any] | None, link: _Link | None) -> NoReturn:
        if link is None:
            found = f"the recovery directory is in use by {describe_holder(holder)}"
        else:
            found = f"{link.path.name} leads to {link.real}, which is in use by {describe_holder(holder)}"
        raise DirectoryLockedError(found, path=self.path.parent)

    def _sign(self, descriptor: int) -> None:
        holder_text = json.dumps(as_holder(self._purpose, since_ms=self._clock.wall_ms()))
        # On a full disk the text is missing, but the lock is still held.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder_text.encode(), 0)

    def __enter__(self) -> DirectoryLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Link(NamedTuple):
    """A partition that is a symbolic link, its target, and the target's locks: a file beside the target, and the lock
    of the target's directory if that is another directory."""

    path: Path
    real: Path
    lock: Path
    other_directory: Path | None


def _links(directory: Path) -> list[_Link]:
    """Return the partitions of a directory that are links, one per target. Dangling links are left out."""
    own = os.path.realpath(directory)
    found: dict[Path, _Link] = {}
    directories = {own}
    for path in sorted(directory.glob("part-*.sqlite3")):
        real = Path(os.path.realpath(path))
        if path.is_symlink() and real.exists() and real not in found:
            other = None if str(real.parent) in directories else real.parent
            directories.add(str(real.parent))
            found[real] = _Link(path, real, real.with_name(f"recovery-{real.name}.lock"), other)
    return list(found.values())


def lock_holder(directory: Path) -> dict[str, Any] | None:
    """Return the holder of the lock of `directory`, or of a partition in it that is a link or a link's target.

    None when nobody holds the lock. Changes nothing.
    """
    links = _links(directory)
    paths = [directory / LOCK_NAME, *(link.lock for link in links)]
    paths += [link.other_directory / LOCK_NAME for link in links if link.other_directory is not None]
    return _first_holder(paths) or _holder_of_files(directory)


def check_unlocked(directory: Path) -> None:
    """Raise DirectoryLockedError, which names the holder, if somebody holds the lock of `directory`."""
    holder = lock_holder(directory)
    if holder is not None:
        raise DirectoryLockedError(f"the recovery directory is in use by {describe_holder(holder)}", path=directory)


def _holder_of_files(directory: Path) -> dict[str, Any] | None:
    """Return the holder that uses files of a directory through links to them, or None."""
    return _first_holder(sorted(directory.glob(FILE_LOCKS)))


def _first_holder(paths: Iterable[Path]) -> dict[str, Any] | None:
    return next((holder for path in paths if (holder := _holder(path)) is not None), None)


def _holder(path: Path) -> dict[str, Any] | None:
    try:
        # Without O_NONBLOCK, opening a pipe would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not try_lock_file(descriptor, shared=True):
            return _named_holder(descriptor) or {"pid": None, "host": None, "purpose": "a run", "since_ms": None}
    except OSError as error:
        raise StorageError(f"its lock cannot be asked for: {error}", path=path) from error
    finally:
        os.close(descriptor)
    return None


def _lock(descriptor: int, *, shared: bool) -> bool:
    """Take the lock and return True, or False if a run holds it.

    A process that asks for the holder shares the lock for some microseconds, so attempts are repeated.
    """
    if shared:
        return try_lock_file(descriptor, shared=True)
    for _ in range(ATTEMPTS):
        if try_lock_file(descriptor):
            return True
        # A run's lock refuses this; the shared lock of a process that only asks does not.
        if not try_lock_file(descriptor, shared=True):
            return False
        unlock_file(descriptor)
        time.sleep(ATTEMPT_INTERVAL_S)
    return False


def _named_holder(descriptor: int) -> dict[str, Any] | None:
    """Return what the holder wrote about itself, or None if it wrote nothing.

    After a holder takes the lock and before it writes its name, the file is empty or names a dead predecessor.
    """
    for attempt in range(NAME_ATTEMPTS):
        if attempt:
            time.sleep(ATTEMPT_INTERVAL_S)
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            holder = dict(json.loads(os.pread(descriptor, 4096, 0)))
            if not has_ended(holder):
                return holder
    return None
