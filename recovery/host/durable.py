"""Files that are written: safe from a power loss, and from whoever else can write to a directory or read in it.

Every file that this package opens to write is opened here, or by `recovery.base.untrusted_paths` where a file names it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


def files_below(directory: Path, *, directories: bool = False) -> Iterator[Path]:
    """Every file in a directory and in those below it, in no order; none where it is missing. With `directories` those
    too that are below it.

    Raises OSError for a directory that cannot be listed, which `Path.rglob` passes over.
    """

    def refuse(error: OSError) -> None:
        # One that was removed meanwhile holds nothing, and the file system's own directory nothing of ours.
        own = isinstance(error, PermissionError) and Path(error.filename).name == "lost+found"
        if not (own or isinstance(error, FileNotFoundError | NotADirectoryError)):
            raise error

    for parent, below, names in os.walk(directory, onerror=refuse):
        yield from (Path(parent, name) for name in (*names, *(below if directories else ())))


def sync(path: Path) -> None:
    """Force a file's content, or the names in a directory, to the disk. Raises OSError.

    Only for a file that no SQLite connection of this process has open: closing it here would drop SQLite's locks.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Modes(NamedTuple):
    """The permissions that new files and directories ask for; the process's umask takes away from them."""

    file: int
    directory: int


PRIVATE = Modes(0o600, 0o700)
UMASK = Modes(0o666, 0o777)
"""What the user's umask leaves: for what is meant for others."""


def modes_beside(file: Path) -> Modes:
    """Those of a file that is there, for what is made beside it; private ones where it is missing."""
    try:
        mode = file.stat().st_mode & UMASK.file
    except OSError:
        return PRIVATE
    # Who may read a file may look into a directory.
    return Modes(mode | PRIVATE.file, mode | (mode & 0o444) >> 2 | PRIVATE.directory)


def make_directories(path: Path, modes: Modes = PRIVATE) -> None:
    """Make a directory and those above it that are missing. Raises OSError, FileExistsError where a file is."""
    try:
        path.mkdir(modes.directory)
    except FileNotFoundError:
        if path.parent == path:
            raise
        make_directories(path.parent, modes)
        path.mkdir(modes.directory, exist_ok=True)
    except FileExistsError:
        if not path.is_dir():
            raise


def create(path: Path, mode: int = PRIVATE.file) -> int:
    """A descriptor of a new file, to be written. Raises FileExistsError for whatever is there, also a link."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def open_own(path: Path, mode: int = PRIVATE.file, *, append: bool = False) -> int:
    """A descriptor of a file that is written in place, as locks are; made where it is missing, and never emptied.

    Raises OSError for a link, for what is no file, and for a file that has a second name: whoever can write to the
    directory could have had any file of the user's written to.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_APPEND if append else 0)
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed; remove it", str(path)) from None
        raise
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    what = "it has a second name elsewhere (a hard link)" if stat.S_ISREG(found.st_mode) else "it is no file"
    raise OSError(errno.EINVAL, f"{what}, and is not written to; remove it", str(path))


def replace(path: Path, content: bytes, *, mode: int = PRIVATE.file) -> None:
    """Give the name `path` to a new file with this content, atomically; not synced. A link there is replaced itself.

    Raises OSError; what was there stays then.
    """
    draft = path.with_name(f".{path.name[:40]}.{os.getpid()}-{os.urandom(4).hex()}")
    descriptor = create(draft, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def read_regular(path: Path, most_bytes: int) -> bytes:
    """What a file holds that others may have put there. Raises OSError, also for what is no file, as a pipe would be
    waited for, and for one that is larger."""
    # Without O_NONBLOCK a pipe would be waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        if os.fstat(descriptor).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(path))
        return file.read()
