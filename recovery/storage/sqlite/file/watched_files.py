"""The check that open files are still the ones at their paths.

The operating system lets anybody remove, move and replace files that are in use. SQLite then writes to the files that
it opened, without an error. So code that closes epochs compares the file at each path with the open one, by device and
inode. The comparison costs one to three microseconds per file.

The check only calls stat: opening a database and closing it outside SQLite would drop SQLite's locks.
"""

from __future__ import annotations

import ctypes
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw

from recovery.errors import FileReplacedError, LinkedPartitionError, StorageError
from recovery.planning.strays import free_name
from recovery.storage.sqlite.file.forked import is_at

Identity = tuple[int, int]
"""Device and inode."""
ATTEMPTS = 3
THROUGH_LINKS = "RECOVERY_THROUGH_LINKS"
"""The variable that allows writing through links into a directory that is a store itself."""
STAGED_IN = (".init-*", ".restore-*")
"""Where `init` and `restore` create partitions. Partitions get their final names by hard links, so a file has two names
for a moment."""


@dataclass(slots=True)
class _WatchedFile:
    """A path and the file that is open there. least_bytes: the least size of the file, 0 if it is not known."""

    path: Path
    device: int
    inode: int
    least_bytes: int = 0
    needs: Callable[[], int] | None = None
    grows: bool = False


class Watch:
    """The files that a process has open in one directory, each from its addition until `forget`."""

    def __init__(self, directory: Path) -> None:
        """Raises FileReplacedError if the directory is gone."""
        self._directory = _watched(directory)
        self._files: list[_WatchedFile] = []
        self._logs: dict[Path, _WatchedFile] = {}

    def add(self, path: Path, *, grows: bool = False) -> None:
        """Watch a file that was just opened. grows: the file never becomes smaller. Raises FileReplacedError."""
        watched = _watched(path)
        if grows:
            watched.grows, watched.least_bytes = True, path.stat().st_size
        self._files.append(watched)

    def add_open(self, path: Path, descriptor: int) -> None:
        """Watch the open file of a descriptor, which is not a database. Raises FileReplacedError if the file is
        gone."""
        watched, held = _watched(path), os.fstat(descriptor)
        watched.device, watched.inode = held.st_dev, held.st_ino
        self._files.append(watched)

    def add_log(self, path: Path, connection: apsw.Connection, needs: Callable[[], int]) -> None:
        """Watch the log of a file that a connection writes to, including the log's size. needs: returns the number of
        frames in the log; called if the log is smaller than the connection left it, because others may have emptied
        it."""
        watched = _watched(path)
        frame_bytes = connection.pragma("page_size") + 24
        watched.needs = lambda: _log_bytes(needs(), frame_bytes)

        def committed(_connection: apsw.Connection, _schema: str, frames: int) -> int:
            watched.least_bytes = _log_bytes(frames, frame_bytes)
            return apsw.SQLITE_OK

        connection.set_wal_hook(committed)
        self._files.append(watched)
        self._logs[watched.path] = watched

    def log_bytes(self, path: Path) -> int:
        """Return how much of a watched log is in use, as of the last commit of its connection; 0: it is not watched."""
        watched = self._logs.get(path.absolute())
        return 0 if watched is None else watched.least_bytes

    def identities(self, paths: Sequence[Path]) -> list[Identity]:
        """Return device and inode of watched files."""
        known = {watched.path: (watched.device, watched.inode) for watched in self._files}
        return [known[path.absolute()] for path in paths]

    def resized(self) -> None:
        """Accept that files that only grow were made smaller on purpose."""
        for watched in self._files:
            if watched.grows:
                watched.least_bytes = 0

    def forget(self) -> None:
        """Stop watching all files."""
        self._files.clear()
        self._logs.clear()

    def check(self) -> None:
        """Raise FileReplacedError naming the first file that is no longer in its place, or was truncated."""
        for watched in self._files:
            problem = _problem(watched)
            if problem is not None:
                if _problem(self._directory) is not None:
                    self._raise(f"and so is {watched.path.name}, which is open")
                raise FileReplacedError(problem, path=watched.path)
        if self._files and _problem(self._directory) is not None:
            self._raise("whatever it holds now")

    def _raise(self, more: str) -> None:
        raise FileReplacedError(f"the directory was removed, moved or replaced, {more}", path=self._directory.path)


def _log_bytes(frames: int, frame_bytes: int) -> int:
    """Return the size of a log: its header, and frames of one page and one header each."""
    return 32 + frames * frame_bytes if frames else 0


def _watched(path: Path) -> _WatchedFile:
    # The process may change its working directory.
    path = path.absolute()
    try:
        found = path.stat()
    except OSError as error:
        raise FileReplacedError(_missing(error), path=path) from error
    return _WatchedFile(path, found.st_dev, found.st_ino)


def _problem(watched: _WatchedFile) -> str | None:
    for _ in range(ATTEMPTS):
        # Read before the file's size, because it may grow at any moment.
        least_bytes = watched.least_bytes
        try:
            found = watched.path.stat()
        except OSError as error:
            return _missing(error)
        if found.st_ino != watched.inode or found.st_dev != watched.device:
            return not_the_same(watched.path).found
        if found.st_size >= least_bytes:
            if watched.grows:
                watched.least_bytes = found.st_size
            return None
        if watched.needs is not None:
            watched.least_bytes = watched.needs()
    return f"it was cut off while in use: it has {found.st_size:,} of {least_bytes:,} bytes"


def _missing(error: OSError) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "it was removed or moved away while in use"
    return f"it cannot be reached any more while in use: {error.strerror}"


def not_the_same(path: Path) -> FileReplacedError:
    """Return the error for a file that a task finds in place of the one that its run has open."""
    return FileReplacedError("it was replaced by another file while in use", path=path)


def check_opened(connection: apsw.Connection, path: Path) -> None:
    """Raise FileReplacedError if the file that a connection has opened is no longer at its path."""
    moved = ctypes.c_int(0)
    # SQLite's check knows the file, but does not follow a link again.
    connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, ctypes.addressof(moved))
    if moved.value or not is_at(connection, path):
        raise FileReplacedError("it was removed or replaced while it was used", path=path)


def refuse_link_into_store(path: Path) -> None:
    """Raise LinkedPartitionError for a partition that is a link into a directory which has all partitions itself.

    Whoever sent the directory with the link would choose what is written there. Partitions on several disks are not all
    in one directory, and a store that is can be named itself. The variable THROUGH_LINKS allows the link.
    """
    if not path.is_symlink() or os.environ.get(THROUGH_LINKS):
        return
    there = Path(os.path.realpath(path)).parent
    names = [each.name for each in path.parent.glob("part-*.sqlite3")]
    if all((there / name).is_file() and not (there / name).is_symlink() for name in names):
        raise LinkedPartitionError(
            f"it is a link into {there}, which has all partitions itself",
            path=path,
            cause="The directory was copied with its links, or somebody sent it: what is written here would go there.",
            remedy=f"To write there, name {there}, or set {THROUGH_LINKS}=1. For a directory with files of its own, "
            "copy the directory "
            "with cp -rL, or restore it.",
        )


def refuse_other_names(path: Path, found: os.stat_result) -> None:
    """Raise LinkedPartitionError if a file has other hard links. found: its status.

    SQLite keeps a file's log beside the name by which the file was opened, so two names of one file act as two
    databases that overwrite each other.
    """
    if found.st_nlink < 2:
        return
    real = Path(os.path.realpath(path))
    staged = [name for pattern in STAGED_IN for name in real.parent.glob(f"{pattern}/{path.name}")]
    ours = sum(_is(name, found) for name in staged)
    others = found.st_nlink - 1 - ours
    if others > 0:
        copy = free_name(real.name, ".copy", lambda name: os.path.lexists(real.with_name(name)))
        commands = (["cp", real.name, copy], ["mv", copy, real.name])
        raise LinkedPartitionError(
            f"this file has {others} other name{'s' * (others > 1)} (hard link{'s' * (others > 1)}), which another "
            "directory may be using",
            path=path,
            remedy="Give this directory a file of its own while nobody uses either: "
            + " && ".join(map(shlex.join, commands)),
        )


def _is(path: Path, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.lstat(), found)
    except OSError:
        return False


def missing_file(path: Path) -> StorageError:
    """Return the error for a missing partition. For a link, the error names the target."""
    if path.is_symlink():
        return StorageError(
            f"it is a link to {os.path.realpath(path)}, where no file is",
            path=path,
            cause="The disk that it leads to is not mounted, or the file there was moved.",
            remedy="Mount the disk, or let the link lead to where the file is now.",
        )
    return StorageError("no such file", path=path, cause="The file was deleted or moved while in use.")
