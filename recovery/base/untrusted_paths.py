"""Untrusted paths: from a partition, a manifest, an export, a checkpoint, a sink's list; and files that others made.

The file's author chose them, so each is checked before it is used. `objection` says what is wrong with a path;
`checked` raises the caller's error; `open_beneath` opens a path without following links. A valid path has only one
form: two different texts never name the same file.

`open_received` opens every file to read that others may have made: one that is no regular file would never end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from recovery.errors import RecoveryError, StorageError, shown

LONGEST_NAME_BYTES = 255
"""The longest part of a path that file systems allow, in bytes."""
LONGEST_PATH_BYTES = 3072
"""The longest path: with the directory before it, it must stay below 4096 bytes."""
MOST_PARTS = 64

READ_BYTES = 1 << 20
NOT_A_FILE = "it is not a file"

Refusal = Callable[[str], RecoveryError]
"""Makes the error for a refused path, from a sentence that says which and why."""


def objection(path: object) -> str | None:
    """Return why `path`, relative and with forward slashes, must not be used below a directory; None if it may.

    Refused are absolute paths, `..` and `.`, empty parts, NUL, backslashes, text that no file system can store, and
    names, paths and depths beyond the limits of file systems. Pure: `open_beneath` checks the disk.
    """
    if not isinstance(path, str):
        return "is not text"
    if not path:
        return "is empty"
    if path.startswith("/"):
        return "is absolute"
    if "\0" in path:
        return "holds a NUL character"
    if "\\" in path:
        return "holds a backslash"
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        return "holds characters that a file name cannot hold"
    parts = encoded.split(b"/")
    if any(part in (b".", b"..") for part in parts):
        return "has . or .. as a part"
    if b"" in parts:
        return "has an empty part"
    if len(encoded) > LONGEST_PATH_BYTES or len(parts) > MOST_PARTS or max(map(len, parts)) > LONGEST_NAME_BYTES:
        return "is longer than file systems allow"
    return None


def name_objection(name: object) -> str | None:
    """Return what is wrong with a single name, which must not contain a slash; None if nothing is."""
    return "has a slash" if isinstance(name, str) and "/" in name else objection(name)


def checked(path: object, refuse: Refusal) -> str:
    """Return `path` if it may be used below a directory; else raises the error that `refuse` makes otherwise."""
    wrong = objection(path)
    if wrong is not None:
        raise refuse(f"the path {shown(path)} {wrong}")
    assert isinstance(path, str)
    return path


def checked_name(name: object, refuse: Refusal) -> str:
    """Return `name` if it is a single file name; else raises the error that `refuse` makes otherwise."""
    wrong = name_objection(name)
    if wrong is not None:
        raise refuse(f"the name {shown(name)} {wrong}")
    assert isinstance(name, str)
    return name


@contextlib.contextmanager
def open_beneath(root: Path, path: object, refuse: Refusal, *, new: bool = False) -> Iterator[BinaryIO]:
    """Open the file at `path` below the directory `root` to read and write; creates it and missing directories.

    No link below `root` is followed, and only a regular file is opened: raises the error that `refuse` makes otherwise.
    new: it must not exist yet. Raises StorageError if the file system refuses.
    """
    with _opened(root, path, refuse, os.O_RDWR | os.O_CREAT | (os.O_EXCL if new else 0), make=True) as handle:
        yield handle


@contextlib.contextmanager
def read_beneath(root: Path, path: object, refuse: Refusal) -> Iterator[BinaryIO]:
    """Open an existing file in the same way, to read; creates nothing. Raises StorageError for a missing file."""
    with _opened(root, path, refuse, os.O_RDONLY, make=False) as handle:
        yield handle


@contextlib.contextmanager
def _opened(root: Path, path: object, refuse: Refusal, flags: int, *, make: bool) -> Iterator[BinaryIO]:
    *parents, name = checked(path, refuse).split("/")
    try:
        with contextlib.ExitStack() as opened:
            directory = _directory(opened, os.fspath(root))
            for parent in parents:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(parent, dir_fd=directory)
                directory = _directory(opened, parent, directory)
            # Without O_NONBLOCK, opening a FIFO would block.
            file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=directory)
    except OSError as error:
        raise _refused(error, path, root.joinpath(*parents, name), refuse) from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise refuse(f"the path {shown(path)} leads to something that is not a file")
    with os.fdopen(file, "rb" if flags == os.O_RDONLY else "r+b") as handle:
        yield handle


def open_received(path: Path, *, through_links: bool = False) -> BufferedReader:
    """Open a file to read that others may have made. Raises OSError, also for anything but a regular file; and for a
    link without `through_links`, which is for a path that the user named or that partitions may have."""
    # Without O_NONBLOCK, opening a pipe would block.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if through_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise OSError(errno.ELOOP, "it is a link, which recovery does not follow", str(path)) from None
        if error.errno == errno.ENXIO:
            raise OSError(errno.EINVAL, NOT_A_FILE, str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, NOT_A_FILE, str(path))
    return os.fdopen(descriptor, "rb")


def read_received(path: Path, most_bytes: int, *, through_links: bool = False) -> bytes:
    """Return the content of a file that others may have made. Raises what `open_received` raises, and OSError if it is
    larger than `most_bytes`."""
    with open_received(path, through_links=through_links) as file:
        return _bounded(file, most_bytes, path)


def read_named(path: Path, most_bytes: int) -> bytes:
    """Return the content of a file that the user named: through links, and from a pipe that the shell gave this process
    as `/dev/fd/N`. Raises what `read_received` raises."""
    given = path.parent in (Path("/dev/fd"), Path("/proc/self/fd")) or path == Path("/dev/stdin")
    with path.open("rb") if given else open_received(path, through_links=True) as file:
        return _bounded(file, most_bytes, path)


def _bounded(file: BufferedReader, most_bytes: int, path: Path) -> bytes:
    content = bytearray()
    while piece := file.read(READ_BYTES):
        content += piece
        if len(content) > most_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(path))
    return bytes(content)


def _directory(opened: contextlib.ExitStack, name: str, below: int | None = None) -> int:
    """Return a descriptor of a directory. Links are followed only on the way to the root, where links are the user's
    own."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | (0 if below is None else os.O_NOFOLLOW)
    found = os.open(name, flags, dir_fd=below)
    opened.callback(os.close, found)
    return found


def _refused(error: OSError, path: object, where: Path, refuse: Refusal) -> RecoveryError:
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
        return refuse(f"the path {shown(path)} leads through a link, or through something that is not a directory")
    if error.errno in (errno.ENXIO, errno.EISDIR):
        return refuse(f"the path {shown(path)} leads to something that is not a file")
    if error.errno == errno.EEXIST:
        return refuse(f"the path {shown(path)} already exists")
    return StorageError(error.strerror or str(error), path=where)
