"""A private directory of this process: other users of the machine can neither read, write nor connect to its content.

The directory has mode 0700, whatever the umask. The process's JVM removes it when the JVM ends; without a JVM this
process does. If both are killed, the next process that makes such a directory removes it: a live owner holds a lock on
its directory.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from recovery.host.locks import lock_file, try_lock_file

PREFIX = "recovery-run-"
LONGEST_FOR_SOCKETS = 60
"""The longest path of a directory, in bytes: a Unix socket's path may have 107 (103 on macOS), and Spark's sockets are
named `.<uuid>.sock`."""
SHORT = Path("/tmp")

_lock = threading.Lock()
_made: dict[Path, _Made] = {}
"""The directories by the temporary directory that contains them."""
_jvm: subprocess.Popen[bytes] | None = None


@dataclass(frozen=True, slots=True)
class _Made:
    path: Path
    held: int
    """The open directory, with the lock on it."""
    owner: int
    """The process id: a forked process makes its own directory."""


def home() -> Path:
    """Return the directory of this process, made on first use. Raises OSError."""
    return _directory(Path(tempfile.gettempdir()))


def sockets() -> Path | None:
    """Return a directory of this process whose path is short enough for sockets; None if there is none."""
    for parent in (Path(tempfile.gettempdir()), SHORT):
        # mkdtemp adds eight characters.
        if len(os.fsencode(parent)) + len(PREFIX) + 9 <= LONGEST_FOR_SOCKETS:
            with contextlib.suppress(OSError):
                return _directory(parent)
    return None


def directories() -> list[Path]:
    """Return the directories of this process. Takes no lock, so a signal handler may call it."""
    return [made.path for made in list(_made.values()) if made.owner == os.getpid()]


def remove() -> None:
    """Remove the directories, because this process or its JVM ends. Takes no lock."""
    for path in directories():
        shutil.rmtree(path, ignore_errors=True)


def leave_to(jvm: subprocess.Popen[bytes] | None) -> None:
    """Let a JVM, which ends after this process, remove the directories when it ends; None: no JVM is left."""
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
        lock_file(held)
        # Before the lock, another process may have removed it as abandoned.
        if os.fstat(held).st_nlink and path.is_dir():
            return _Made(path, held, os.getpid())
        os.close(held)


def _remove_abandoned(parent: Path) -> None:
    """Remove directories of this user whose process ended without removing them."""
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(held)
                if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:
                    continue
                if try_lock_file(held):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(held)
