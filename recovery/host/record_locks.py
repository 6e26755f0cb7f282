"""Which process holds a lock on a part of a file, such as SQLite's locks on a database. Linux."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path

_FLOCK = "hhqqi"


def locked_by(path: Path, start: int, length: int) -> int | None:
    """Return the id of a process that holds a lock on these bytes; 0: a process of another PID namespace. None: no
    process, no such file, or the system does not say.

    Not for files that this process has open through SQLite: closing the file here drops its locks.
    """
    if sys.platform != "linux":
        return None
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK else int(pid)
