"""How directories and bytes are reached. Everything else takes a `Files` and touches no file system.

`LocalFiles` is for one machine, or for hosts that share a mount. Another way of reaching bytes (an agent on
the host that has them) is another class with the methods of `Files`.
"""

# Paths are plain strings: they are saved and compared, and may hold any bytes.
# ruff: noqa: PTH100, PTH110, PTH112, PTH113, PTH116, PTH120, PTH208

from __future__ import annotations

import fnmatch
import glob
import os
import stat as stat_module
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from recovery.appended.directories import GONE, matching_directories
from recovery.errors import ConfigurationError, StorageError

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".7z", ".lzma", ".br", ".snappy", ".Z")
"""Files with these names are no growing text; a directory or a glob leaves them out."""


@dataclass(frozen=True, slots=True)
class FileStat:
    """A regular file as it was found; `path` is absolute and symbolic links were followed for the rest."""

    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @property
    def name(self) -> str:
        return name_of(self.path)

    @property
    def directory(self) -> str:
        return directory_of(self.path)

    def same_file(self, other: FileStat) -> bool:
        """Whether both were one file on disk, under whatever names."""
        return self.inode == other.inode and self.device == other.device


@dataclass(frozen=True, slots=True)
class PathPattern:
    """What the `path` option names: files called `name` in `directories`; both patterns if `is_glob`."""

    directories: str
    name: str
    is_glob: bool

    def names(self, name: str) -> bool:
        """Whether a file of this name is input."""
        if not self.is_glob:
            return name == self.name
        hidden = name.startswith(".") and not self.name.startswith(".")
        return not hidden and not name.endswith(COMPRESSED_SUFFIXES) and fnmatch.fnmatchcase(name, self.name)


class OpenFile:
    """One open file and its bytes; stays the same file when its name is given to another."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._descriptor = descriptor
        self._path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    def stat(self) -> FileStat:
        """What the file is now."""
        return _file_stat(self._path, os.fstat(self._descriptor))

    def read(self, offset: int, length: int) -> bytes:
        """The bytes at `offset`; fewer than `length` only where the file ends."""
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        missing = length - len(data)
        while missing and (data := os.pread(self._descriptor, missing, offset + length - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)


class Files(Protocol):
    """How the source reaches directories and bytes."""

    def pattern(self, path: str) -> PathPattern:
        """What an absolute path names at this moment. Raises ConfigurationError if it can be no input."""

    def directories(self, pattern: PathPattern) -> Sequence[str]:
        """The directories that the pattern looks in. Raises StorageError if the first is not there."""

    def names(self, directory: str) -> Sequence[str]:
        """The names in a directory, sorted; none if it is gone."""

    def stat(self, path: str) -> FileStat | None:
        """The regular file at this path, or None."""

    def open(self, path: str) -> OpenFile | None:
        """The regular file at this path for reading, or None. Raises PermissionError."""


class LocalFiles:
    """The file system of this machine."""

    def pattern(self, path: str) -> PathPattern:
        if os.path.isdir(path):
            return PathPattern(path, "*", is_glob=True)
        directory, name = os.path.split(path)
        if glob.has_magic(path) and not os.path.lexists(path):
            if name == "**":
                return PathPattern(path, "*", is_glob=True)
            return PathPattern(directory, name, is_glob=True)
        if name.endswith(COMPRESSED_SUFFIXES):
            raise ConfigurationError(
                "The name says that this file is compressed.",
                path=display(path),
                cause="Compressed files cannot be appended to line by line.",
                remedy="Name the file that is being written, or decompress this one first.",
            )
        if os.path.exists(path) and not os.path.isfile(path):
            raise ConfigurationError(
                "This is a pipe, socket or device, which cannot be read twice.",
                path=display(path),
                cause="",
                remedy="Write to an ordinary file and name that.",
            )
        return PathPattern(directory, name, is_glob=False)

    def directories(self, pattern: PathPattern) -> Sequence[str]:
        fixed = pattern.directories
        while pattern.is_glob and glob.has_magic(fixed) and not os.path.isdir(fixed):
            fixed = os.path.dirname(fixed)
        if not os.path.isdir(fixed):
            raise StorageError(
                "This directory is not there.",
                path=display(fixed),
                cause="It was moved or deleted, or its file system is not mounted.",
                remedy="Put it back or mount it, then run again: nothing was skipped.",
            )
        if fixed == pattern.directories:
            return [fixed]
        try:
            return matching_directories(pattern.directories)
        except OSError as error:
            raise StorageError(str(error), path=display(str(error.filename or fixed))) from error

    def names(self, directory: str) -> Sequence[str]:
        try:
            return sorted(os.listdir(directory))
        except OSError as error:
            if error.errno in GONE:
                return []
            raise StorageError(str(error), path=display(directory)) from error

    def stat(self, path: str) -> FileStat | None:
        try:
            found = os.stat(path)
        except OSError as error:
            if error.errno in GONE:
                return None
            raise StorageError(str(error), path=display(path)) from error
        return _file_stat(path, found) if stat_module.S_ISREG(found.st_mode) else None

    def open(self, path: str) -> OpenFile | None:
        try:
            # Without O_NONBLOCK, a pipe that took the name would block for ever.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in GONE:
                return None
            raise
        if not stat_module.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        return OpenFile(path, descriptor)


def absolute(path: str) -> str:
    """A path from the root, without following links."""
    return os.path.abspath(path)


# The next three are what os.path does, several times faster: a look at ten thousand files needs them often.


def name_of(path: str) -> str:
    return path[path.rfind("/") + 1 :]


def directory_of(path: str) -> str:
    return path[: path.rfind("/")] or "/"


def joined(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory != "/" else f"/{name}"


def display(path: str) -> str:
    """A path as text that can be printed and encoded, whatever bytes its name has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _file_stat(path: str, found: os.stat_result) -> FileStat:
    return FileStat(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
