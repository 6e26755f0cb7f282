"""A directory of this process alone, for what other users of the machine must neither read, write nor connect to.

It has mode 0700, whatever the umask. The JVM of this process removes it when it ends, or this process does where it has
none. What a kill of both leaves is removed by the next process that makes one: an owner that lives holds a lock on its
directory.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

PREFIX = "recovery-run-"
LONGEST_FOR_SOCKETS = 60
"""Bytes of a directory's path: that of a Unix socket may have 107 (103 on macOS), and Spark's are `.<uuid>.sock`."""
SHORT = Path("/tmp")

_lock = threading.Lock()
_made: dict[Path, _Made] = {}
"""By the directory for temporary files that it is in."""
_jvm: subprocess.Popen[bytes] | None = None


@dataclass(frozen=True, slots=True)
class _Made:
    path: Path
    held: int
    """The open directory, with the lock on it."""
    owner: int
    """The process: one that was forked makes its own."""


def home() -> Path:
    """The directory of this process, made when it is first asked for. Raises OSError."""
    return _directory(Path(tempfile.gettempdir()))


def sockets() -> Path | None:
    """One of this process whose path is short enough for sockets; None where there can be none."""
    for parent in (Path(tempfile.gettempdir()), SHORT):
        # mkdtemp adds eight characters.
        if len(os.fsencode(parent)) + len(PREFIX) + 9 <= LONGEST_FOR_SOCKETS:
            with contextlib.suppress(OSError):
                return _directory(parent)
    return None


def directories() -> list[Path]:
    """Those of this process. Takes no lock, so that a signal handler may call it."""
    return [made.path for made in list(_made.values()) if made.owner == os.getpid()]


def remove() -> None:
    """Remove them: this process ends, or its JVM has. Takes no lock."""
    for path in directories():
        shutil.rmtree(path, ignore_errors=True)


def leave_to(jvm: subprocess.Popen[bytes] | None) -> None:
    """A JVM that removes them when it ends, which is after this process; None: there is none any more."""
    global _jvm
    _jvm = jvm


def _directory(parent: Path) -> Path:
    with _lock:
        known = _made.get(parent)
        if known is not None and known.owner == os.getpid() and known.path.is_dir():
            return known.path
        if not _made:
            atexit.register(_at_exit)
        _remove_abandoned(parent)
        _made[parent] = _make(parent)
        return _made[parent].path


def _at_exit() -> None:
    if _jvm is None or _jvm.poll() is not None:
        remove()


def _make(parent: Path) -> _Made:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(held, fcntl.LOCK_EX)
        # Before it was locked, another process may have taken it for an abandoned one.
        if os.fstat(held).st_nlink and path.is_dir():
            return _Made(path, held, os.getpid())
        os.close(held)


def _remove_abandoned(parent: Path) -> None:
    """Those of this user whose process has ended without removing them."""
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(held)
                if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:
                    continue
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(held)
