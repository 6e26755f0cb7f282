"""Named locks on one machine, held by the operating system.

Each lock is a file in a directory of locks. Whoever wants a lock also shares a lock on that directory, so that nobody
swaps the recovery directory for another one as long as a lock of a name is held: then two could hold it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from recovery.base.intervals import format_interval
from recovery.errors import StateLockedError, StorageError
from recovery.host.durable import make_directories, modes_beside, open_own
from recovery.host.locks import free, lock_file_within, locked_directory, try_lock_file
from recovery.host.processes import as_holder, describe_holder
from recovery.host.storage_errors import storage_errors
from recovery.storage.lock import FIRST

LOCKS_NAME = "locks"
"""The directory inside a recovery directory that has its locks."""


class FileLock:
    """A lock that one process holds at a time, from entering until it leaves or dies.

    Entering waits at most `wait_s` seconds. Raises StateLockedError naming the holder, or StorageError. The file is
    never removed: otherwise a second process could hold a lock of the same name.
    """

    def __init__(self, directory: Path, name: str, purpose: str, wait_s: float) -> None:
        self.path = directory / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock"
        self._name = name
        self._purpose = purpose
        self._wait_s = wait_s
        self._taken: list[int] = []
        self._pid = 0

    def __enter__(self) -> FileLock:
        until_s = time.monotonic() + self._wait_s
        try:
            while not self._is_taken(until_s):
                self._close()
            text = as_holder(self._purpose, name=self._name)
            # This is for people. A full disk leaves it out; the lock is held anyway.
            with contextlib.suppress(OSError):
                os.ftruncate(self._taken[-1], 0)
                os.pwrite(self._taken[-1], json.dumps(text).encode(), 0)
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise StorageError.opening(error, self.path) from error
            raise
        self._pid = os.getpid()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._taken:
            directory, descriptor = self._taken
            free(descriptor, self._pid)
            free(directory, self._pid, clear=False)
            self._taken.clear()

    def _is_taken(self, until_s: float) -> bool:
        """Take the lock and return True; False if its directory was swapped for another one meanwhile. Raises
        OSError, StateLockedError or StorageError; then the caller closes what was opened."""
        directory = self.path.parent
        modes = modes_beside(directory.parent / FIRST)
        make_directories(directory, modes)
        self._taken.append(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        self._wait(until_s, shared=True)
        try:
            is_there = os.path.samestat(directory.stat(), os.fstat(self._taken[0]))
        except FileNotFoundError:
            is_there = False
        if is_there:
            self._taken.append(open_own(self.path, modes.file))
            self._wait(until_s)
        return is_there

    def _close(self) -> None:
        for descriptor in self._taken:
            free(descriptor, os.getpid(), clear=False)
        self._taken.clear()

    def _wait(self, until_s: float, *, shared: bool = False) -> None:
        descriptor = self._taken[-1]
        try:
            has_lock = lock_file_within(descriptor, until_s - time.monotonic(), shared=shared)
        except OSError as error:
            raise StorageError(f"it cannot be locked: {error}", path=self.path) from error
        if not has_lock:
            holder = "a command that repartitions the directory" if shared else _holder(descriptor)
            raise StateLockedError(
                f"{holder} held the lock {self._name!r:.120} for more than {format_interval(self._wait_s)}",
                path=self.path,
            )


@contextlib.contextmanager
def unheld(directory: Path) -> Iterator[None]:
    """Keep others from taking locks of a recovery directory until the block ends, for a caller that swaps the directory
    for another one. Raises StateLockedError, which names a holder, if a lock is held or waited for; StorageError."""
    locks = directory / LOCKS_NAME
    with contextlib.ExitStack() as held:
        with storage_errors(locks):
            make_directories(locks, modes_beside(directory / FIRST))
            is_free = held.enter_context(locked_directory(locks))
        if not is_free:
            raise StateLockedError(
                f"{_some_holder(locks)} holds a lock of operational state",
                path=directory,
                cause="The lock would not keep others out of the new directory.",
                remedy="Run the same command again when the lock is free.",
            )
        yield


def _some_holder(locks: Path) -> str:
    for path in sorted(locks.glob("*.lock")):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if not try_lock_file(descriptor, shared=True):
                    return _holder(descriptor)
            finally:
                os.close(descriptor)
    return "another process"


def _holder(descriptor: int) -> str:
    try:
        return describe_holder(json.loads(os.pread(descriptor, 65536, 0)))
    except (OSError, ValueError, RecursionError):
        return "another process"
