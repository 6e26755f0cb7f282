"""Access to directories and bytes. All other modules take a `InputFiles` and touch no file system.

`LocalFiles` is for one machine, or for hosts that share a mount. Other access, for example through an agent on the
host that has the files, needs another class with the methods of `InputFiles`.
"""

# Paths are plain strings: they are saved and compared, and may contain any bytes.
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
"""Files with these suffixes are not growing text; directories and globs skip them."""


@dataclass(frozen=True, slots=True)
class FileStat:
    """A regular file at the time of a look. `path` is absolute; the other fields follow symbolic links."""

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

    @property
    def identity(self) -> tuple[int, int]:
        return self.device, self.inode

    def same_file(self, other: FileStat) -> bool:
        """Return whether both are the same file on disk, under any names."""
        return self.inode == other.inode and self.device == other.device


@dataclass(frozen=True, slots=True)
class PathPattern:
    """The meaning of the `path` option: files called `name` in `directories`; both are patterns if `is_glob`."""

    directories: str
    name: str
    is_glob: bool

    def names(self, name: str) -> bool:
        """Return whether a file of this name is input."""
        if not self.is_glob:
            return name == self.name
        hidden = name.startswith(".") and not self.name.startswith(".")
        return not hidden and not name.endswith(COMPRESSED_SUFFIXES) and fnmatch.fnmatchcase(name, self.name)


class OpenFile:
    """One open file and its bytes; it stays the same file when another file takes its name."""

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
        """Return the present state of the file."""
        return _file_stat(self._path, os.fstat(self._descriptor))

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes at `offset`; fewer than `length` only at the end of the file."""
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        missing = length - len(data)
        while missing and (data := os.pread(self._descriptor, missing, offset + length - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)


class InputFiles(Protocol):
    """The source's access to directories and bytes."""

    def pattern(self, path: str) -> PathPattern:
        """Return what an absolute path names now. Raises ConfigurationError if the file cannot be input."""

    def directories(self, pattern: PathPattern) -> Sequence[str]:
        """Return the directories of the pattern. Raises StorageError if the part before any wildcard is missing."""

    def names(self, directory: str) -> Sequence[str]:
        """Return the names in a directory, sorted; an empty list if it is gone."""

    def stat(self, path: str) -> FileStat | None:
        """Return the regular file at this path, or None."""

    def target(self, path: str) -> str:
        """Return the path that a symbolic link leads to; the path itself if it is none."""

    def open(self, path: str) -> OpenFile | None:
        """Open the regular file at this path for reading; None if there is none. Raises PermissionError."""


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
                remedy="Name the file that is still written to, or decompress this one first.",
            )
        if os.path.exists(path) and not os.path.isfile(path):
            raise ConfigurationError(
                "This is a pipe, socket or device, which cannot be read twice.",
                path=display(path),
                cause="",
                remedy="Let the program write to an ordinary file, and name that file.",
            )
        return PathPattern(directory, name, is_glob=False)

    def directories(self, pattern: PathPattern) -> Sequence[str]:
        fixed = pattern.directories
        while pattern.is_glob and glob.has_magic(fixed) and not os.path.isdir(fixed):
            fixed = os.path.dirname(fixed)
        if not os.path.isdir(fixed):
            raise StorageError(
                "This directory does not exist.",
                path=display(fixed),
                cause="The file was moved or deleted, or its file system is not mounted.",
                remedy="Put the directory back or mount it, then run again: nothing was skipped.",
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

    def target(self, path: str) -> str:
        if not os.path.islink(path):  # noqa: PTH114
            return path
        directory, name = os.path.split(os.path.realpath(path))
        own = directory_of(path)
        # Directories may be links, too: the input's is spelled as the user did.
        return joined(own if directory == os.path.realpath(own) else directory, name)

    def open(self, path: str) -> OpenFile | None:
        try:
            # Without O_NONBLOCK, opening a pipe that took the name would block forever.
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
    """Return the absolute path, without following links."""
    return os.path.abspath(path)


# The next three replace os.path functions, several times faster: a look at ten thousand files calls them often.


def name_of(path: str) -> str:
    return path[path.rfind("/") + 1 :]


def directory_of(path: str) -> str:
    return path[: path.rfind("/")] or "/"


def joined(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory != "/" else f"/{name}"


def display(path: str) -> str:
    """Return a path as text that can be printed and encoded, whatever bytes it contains."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _file_stat(path: str, found: os.stat_result) -> FileStat:
    return FileStat(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
