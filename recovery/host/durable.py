"""Files that are written: safe from a power loss, and from other users who can write to or read a directory.

This module opens every file that the package writes, except those that a file names: `recovery.base.untrusted_paths`
opens those, and whatever is read that others may have made.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


def files_below(directory: Path, *, directories: bool = False) -> Iterator[Path]:
    """Yield every file in a directory and below it, in no order; nothing if it is missing. With `directories` also the
    directories below it.

    Raises OSError for a directory that cannot be listed; `Path.rglob` skips those.
    """

    def refuse(error: OSError) -> None:
        # A directory removed meanwhile is empty, and lost+found holds no files of this package.
        own = isinstance(error, PermissionError) and Path(error.filename).name == "lost+found"
        if not (own or isinstance(error, FileNotFoundError | NotADirectoryError)):
            raise error

    for parent, below, names in os.walk(directory, onerror=refuse):
        yield from (Path(parent, name) for name in (*names, *(below if directories else ())))


def sync(path: Path) -> None:
    """Sync a file's content, or the names in a directory, to the disk. Raises OSError.

    Never use it for a file that a SQLite connection of this process has open: closing it here would drop SQLite's
    locks.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_WORKING_DIRECTORY, _EXCHANGE = -100, 2
"""AT_FDCWD of Linux, and the flag of its renameat2 and of macOS's renamex_np."""


class Modes(NamedTuple):
    """The permissions to request for new files and directories; the process's umask reduces them."""

    file: int
    directory: int


PRIVATE = Modes(0o600, 0o700)
UMASK = Modes(0o666, 0o777)
"""The permissions that the umask allows: for files that others may read."""


def modes_beside(file: Path) -> Modes:
    """Return the modes of an existing file, for new files beside it; private ones if it is missing."""
    try:
        mode = file.stat().st_mode & UMASK.file
    except OSError:
        return PRIVATE
    # A user who may read a file may also list a directory.
    return Modes(mode | PRIVATE.file, mode | (mode & 0o444) >> 2 | PRIVATE.directory)


def make_directories(path: Path, modes: Modes = PRIVATE) -> None:
    """Make a directory and its missing parents. Raises OSError, FileExistsError if a file is in the way."""
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


def beginning_of_drafts(target: Path, verb: str) -> str:
    """Return how the names of the directories begin in which a command prepares `target`."""
    return f".{target.name[:100]}.{verb}-"


def make_draft(target: Path, verb: str) -> Path:
    """Make a directory beside `target`, in which its content is prepared, and return it. Raises OSError.

    Nobody else can enter or replace the draft: its mode is 0700 and its name random, and nothing that is there is used.
    All staging directories beside a target are made here. verb: names the command in the name.
    """
    draft = target.with_name(f"{beginning_of_drafts(target, verb)}{secrets.token_hex(8)}")
    draft.mkdir(PRIVATE.directory)
    return draft


def granted(mode: int, directory: Path) -> int:
    """Return what this process's umask leaves of a mode, by a file made for a moment in a private directory. Raises
    OSError. Python can only ask for the umask by changing it, for all threads."""
    path = directory / f"part-mode-{secrets.token_hex(8)}"
    descriptor = create(path, mode)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
        path.unlink()


def create(path: Path, mode: int = PRIVATE.file) -> int:
    """Return a descriptor of a new file, to write. Raises FileExistsError if anything exists there, also a link."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def open_own(path: Path, mode: int = PRIVATE.file, *, append: bool = False) -> int:
    """Return a descriptor of a file that is written in place, as locks are; creates a missing file, never truncates
    one.

    Raises OSError for a link, for anything but a regular file, and for a file with a second name: otherwise anyone who
    can write to the directory could redirect the write to any of the user's files.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_APPEND if append else 0)
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise OSError(
                errno.ELOOP, "it is a symbolic link, which recovery does not follow; remove it", str(path)
            ) from None
        raise
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    what = "it has a second name elsewhere (a hard link)" if stat.S_ISREG(found.st_mode) else "it is not a file"
    raise OSError(errno.EINVAL, f"{what}, so nothing was written to it; remove it", str(path))


def replace(path: Path, content: bytes | Iterable[bytes], *, mode: int = PRIVATE.file) -> None:
    """Give the name `path` to a new file with this content, atomically; not synced. Replaces a link, not its target.
    content: whole, or in pieces, which need not fit in memory together.

    Raises OSError; then the old file stays.
    """
    _replace(path, content, mode, synced=False)


def replace_durably(path: Path, content: bytes, *, mode: int = PRIVATE.file) -> None:
    """Do what `replace` does, and return when the file is on the disk. After an error either file may be there."""
    _replace(path, content, mode, synced=True)
    sync(path.parent)


def _replace(path: Path, content: bytes | Iterable[bytes], mode: int, *, synced: bool) -> None:
    draft = path.with_name(f".{path.name[:40]}.{os.getpid()}-{os.urandom(4).hex()}")
    descriptor = create(draft, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines((content,) if isinstance(content, bytes) else content)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def exchange(one: Path, other: Path) -> None:
    """Give each of two directories the other's name, in one atomic step; not synced. Raises OSError, with ENOTSUP where
    the system or the file system cannot."""
    # Python has no function for it.
    system = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if hasattr(system, "renameat2"):
        failed = system.renameat2(_WORKING_DIRECTORY, names[0], _WORKING_DIRECTORY, names[1], _EXCHANGE)
    elif hasattr(system, "renamex_np"):
        failed = system.renamex_np(*names, _EXCHANGE)
    else:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), str(one))
    if failed:
        code = ctypes.get_errno()
        cannot = code in (errno.EINVAL, errno.ENOSYS)
        raise OSError(errno.ENOTSUP if cannot else code, os.strerror(code), str(one))
