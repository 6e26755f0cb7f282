"""Files cloned by the file system (btrfs, XFS, ZFS): a copy that shares the blocks of the original."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from recovery.host.durable import create

FICLONE = 0x40049409
"""The request of Linux: https://man7.org/linux/man-pages/man2/ioctl_ficlone.2.html"""


def clone(path: Path, target: Path) -> bool:
    """Clone a file that this process has open to the new file `target`, as of one moment; return whether that was
    possible. If not, there is no new file. Raises OSError if `target` cannot be made.

    `clone` uses a descriptor that is open already: closing another descriptor would drop SQLite's locks on the file.
    """
    found = path.stat()
    source = _descriptor_of(found)
    if source is None:
        return False
    new = create(target)
    try:
        fcntl.ioctl(new, FICLONE, source)
        # Another thread may have closed the descriptor, and a file opened since may have its number.
        if _is_of(source, found):
            return True
    except OSError:
        # The file system cannot, or is full: then a copy says so.
        pass
    finally:
        os.close(new)
    target.unlink()
    return False


def _descriptor_of(found: os.stat_result) -> int | None:
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names, not paths
            if _is_of(int(name), found):
                return int(name)
    return None


def _is_of(descriptor: int, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), found)
    except OSError:
        return False
