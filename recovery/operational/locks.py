"""Named locks on one machine, held by the operating system."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from types import TracebackType

from recovery.base.intervals import format_interval
from recovery.errors import StateLockedError, StorageError
from recovery.host.durable import make_directories, modes_beside, open_own
from recovery.host.locks import free, lock_file_within
from recovery.host.processes import as_holder, describe_holder
from recovery.storage.lock import FIRST


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
        self._descriptor: int | None = None
        self._pid = 0

    def __enter__(self) -> FileLock:
        try:
            modes = modes_beside(self.path.parent.parent / FIRST)
            make_directories(self.path.parent, modes)
            descriptor = open_own(self.path, modes.file)
        except OSError as error:
            raise StorageError.opening(error, self.path) from error
        try:
            self._wait(descriptor)
            text = as_holder(self._purpose, name=self._name)
            # This is for people. A full disk leaves it out; the lock is held anyway.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(text).encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor, self._pid = descriptor, os.getpid()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._descriptor is not None:
            free(self._descriptor, self._pid)
            self._descriptor = None

    def _wait(self, descriptor: int) -> None:
        try:
            has_lock = lock_file_within(descriptor, self._wait_s)
        except OSError as error:
            raise StorageError(f"it cannot be locked: {error}", path=self.path) from error
        if not has_lock:
            raise StateLockedError(
                f"{_holder(descriptor)} held the lock {self._name!r:.120} for more than "
                f"{format_interval(self._wait_s)}",
                path=self.path,
            )


def _holder(descriptor: int) -> str:
    try:
        return describe_holder(json.loads(os.pread(descriptor, 65536, 0)))
    except (OSError, ValueError, RecursionError):
        return "another process"
