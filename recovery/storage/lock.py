"""One run at a time: a lock on the recovery directory that the operating system frees when its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from recovery.clock import Clock
from recovery.errors import DirectoryLockedError, StorageError

LOCK_NAME = "recovery.lock"
ATTEMPTS = 400
NAME_ATTEMPTS = 100
ATTEMPT_INTERVAL_S = 0.005


class DirectoryLock:
    """The lock of a recovery directory, held from `acquire` until `release` or the death of the process.

    The file's text says who holds it, for people; what counts is the lock itself.
    """

    def __init__(self, directory: Path, clock: Clock, purpose: str) -> None:
        self.path = directory / LOCK_NAME
        self._clock = clock
        self._purpose = purpose
        self._descriptor: int | None = None
        self._pid = 0

    def acquire(self) -> None:
        """Take the lock at once. Raises DirectoryLockedError naming the holder, or StorageError."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(str(error), path=self.path) from error
        try:
            _lock(descriptor)
        except BlockingIOError:
            holder = _describe(_named_holder(descriptor))
            os.close(descriptor)
            raise DirectoryLockedError(f"the recovery directory is in use by {holder}", path=self.path.parent) from None
        except OSError as error:
            os.close(descriptor)
            raise StorageError(f"it cannot be locked: {error}", path=self.path) from error
        self._descriptor, self._pid = descriptor, os.getpid()
        holder_text = json.dumps(
            {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "purpose": self._purpose,
                "since_ms": self._clock.wall_ms(),
            }
        )
        # On a full disk the text is missing; the lock is held all the same.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder_text.encode(), 0)

    def release(self) -> None:
        """Free the lock; harmless when it is not held."""
        if self._descriptor is not None:
            free(self._descriptor, self._pid)
            self._descriptor = None

    def __enter__(self) -> DirectoryLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def free(descriptor: int, holder_pid: int) -> None:
    """Give a lock on an open file back, also where a process that was forked meanwhile has the file open still. That
    process itself only closes it."""
    with contextlib.suppress(OSError):
        if os.getpid() == holder_pid:
            os.ftruncate(descriptor, 0)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def lock_holder(directory: Path) -> dict[str, Any] | None:
    """Who holds the lock of `directory`, None when nobody does; changes nothing."""
    try:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _named_holder(descriptor) or {"pid": None, "host": None, "purpose": "a run", "since_ms": None}
    except OSError as error:
        raise StorageError(f"its lock cannot be asked for: {error}", path=directory / LOCK_NAME) from error
    finally:
        os.close(descriptor)
    return None


def _lock(descriptor: int) -> None:
    """Take the lock. Whoever asks for its holder shares it for some microseconds: that passes, a run's hold does not.

    Raises BlockingIOError.
    """
    for _ in range(ATTEMPTS):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        # Refused by a run, granted beside those who only ask.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(ATTEMPT_INTERVAL_S)
    raise BlockingIOError


def _named_holder(descriptor: int) -> dict[str, Any] | None:
    """What the holder wrote of itself, None when it does not say.

    Between taking the lock and writing its name, the file is empty or names a predecessor that died.
    """
    for attempt in range(NAME_ATTEMPTS):
        if attempt:
            time.sleep(ATTEMPT_INTERVAL_S)
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            holder = dict(json.loads(os.pread(descriptor, 4096, 0)))
            if not _is_dead(holder):
                return holder
    return None


def _is_dead(holder: dict[str, Any]) -> bool:
    """Whether it is known that the process is no more: those of other hosts are not."""
    pid = holder.get("pid")
    if holder.get("host") != socket.gethostname() or not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _describe(holder: dict[str, Any] | None) -> str:
    try:
        return f"process {holder['pid']} on {holder['host']} ({holder['purpose']})" if holder else "another process"
    except KeyError:
        return "another process"
