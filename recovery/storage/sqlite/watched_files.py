"""Whether the files that are open are still the ones in their places.

The operating system lets anybody remove, move and replace files that are in use. SQLite goes on writing to those that
it opened, and says that all is well. So whoever closes epochs compares what has a name with what is open: device and
inode of each file. It costs one to three microseconds a file.

Only names are asked: opening a database and closing it outside SQLite would drop SQLite's locks.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw

from recovery.errors import FileReplacedError, LinkedPartitionError, StorageError
from recovery.storage.sqlite.forked import is_at

Identity = tuple[int, int]
"""Device and inode."""
ATTEMPTS = 3
STAGED_IN = (".init-*", ".restore-*")
"""Where `init` and `restore` make partitions, which get their own names by links that exist for a moment."""


@dataclass(slots=True)
class _Place:
    """A path and what is open there. least_bytes: what the file has at least, 0 if that is not known."""

    path: Path
    device: int
    inode: int
    least_bytes: int = 0
    needs: Callable[[], int] | None = None
    grows: bool = False


class Watch:
    """The files that a process has open in one directory, from when they are added until `forget`."""

    def __init__(self, directory: Path) -> None:
        """Raises FileReplacedError when the directory is gone."""
        self._directory = _place(directory)
        self._places: list[_Place] = []

    def add(self, path: Path, *, grows: bool = False) -> None:
        """Watch a file that was just opened. grows: it never becomes smaller. Raises FileReplacedError."""
        place = _place(path)
        if grows:
            place.grows, place.least_bytes = True, path.stat().st_size
        self._places.append(place)

    def add_open(self, path: Path, descriptor: int) -> None:
        """Watch a file that has this descriptor, and is no database. Raises FileReplacedError when it is gone."""
        place, held = _place(path), os.fstat(descriptor)
        place.device, place.inode = held.st_dev, held.st_ino
        self._places.append(place)

    def add_log(self, path: Path, connection: apsw.Connection, needs: Callable[[], int]) -> None:
        """Watch the log of a file that a connection writes to: its size, too. needs: tells the frames that it has when
        it turns out smaller than the connection left it, since others may have emptied it by then."""
        place = _place(path)
        frame_bytes = connection.pragma("page_size") + 24
        place.needs = lambda: _log_bytes(needs(), frame_bytes)

        def committed(_connection: apsw.Connection, _schema: str, frames: int) -> int:
            place.least_bytes = _log_bytes(frames, frame_bytes)
            return apsw.SQLITE_OK

        connection.set_wal_hook(committed)
        self._places.append(place)

    def identities(self, paths: Sequence[Path]) -> list[Identity]:
        """Device and inode of files that are watched."""
        known = {place.path: (place.device, place.inode) for place in self._places}
        return [known[path.absolute()] for path in paths]

    def resized(self) -> None:
        """What was added as growing was made smaller on purpose."""
        for place in self._places:
            if place.grows:
                place.least_bytes = 0

    def forget(self) -> None:
        """Watch nothing any more."""
        self._places.clear()

    def check(self) -> None:
        """Raises FileReplacedError naming the first file that is not in its place any more, or was cut off."""
        for place in self._places:
            problem = _problem(place)
            if problem is not None:
                if _problem(self._directory) is not None:
                    self._raise(f"and so is {place.path.name}, which is open")
                raise FileReplacedError(problem, path=place.path)
        if self._places and _problem(self._directory) is not None:
            self._raise("whatever it holds now")

    def _raise(self, more: str) -> None:
        raise FileReplacedError(f"the directory was removed, moved or replaced, {more}", path=self._directory.path)


def _log_bytes(frames: int, frame_bytes: int) -> int:
    """The size of a log: its header, and frames of a page and a header each."""
    return 32 + frames * frame_bytes if frames else 0


def _place(path: Path) -> _Place:
    # The process may go to another directory.
    path = path.absolute()
    try:
        found = path.stat()
    except OSError as error:
        raise FileReplacedError(_missing(error), path=path) from error
    return _Place(path, found.st_dev, found.st_ino)


def _problem(place: _Place) -> str | None:
    for _ in range(ATTEMPTS):
        # Before the size is asked for: it may grow at any moment.
        least_bytes = place.least_bytes
        try:
            found = place.path.stat()
        except OSError as error:
            return _missing(error)
        if found.st_ino != place.inode or found.st_dev != place.device:
            return not_the_same(place.path).found
        if found.st_size >= least_bytes:
            if place.grows:
                place.least_bytes = found.st_size
            return None
        if place.needs is not None:
            place.least_bytes = place.needs()
    return f"it was cut off while in use: it has {found.st_size:,} of {least_bytes:,} bytes"


def _missing(error: OSError) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "it was removed or moved away while in use"
    return f"it cannot be reached any more while in use: {error.strerror}"


def not_the_same(path: Path) -> FileReplacedError:
    """What is said of a file that a task finds in the place of the one that its run has open."""
    return FileReplacedError("it was replaced by another file while in use", path=path)


def check_opened(connection: apsw.Connection, path: Path) -> None:
    """Raises FileReplacedError when what a connection has opened is not at its path any more."""
    moved = ctypes.c_int(0)
    # It knows the file, but follows no link again.
    connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, ctypes.addressof(moved))
    if moved.value or not is_at(connection, path):
        raise FileReplacedError("it was removed or replaced while it was used", path=path)


def refuse_other_names(path: Path, found: os.stat_result) -> None:
    """Raises LinkedPartitionError when a file, of which this was found, has hard links.

    SQLite keeps the log of a file beside the name by which it was opened, so two names of one file are two databases
    that write over each other.
    """
    if found.st_nlink < 2:
        return
    real = Path(os.path.realpath(path))
    staged = [name for pattern in STAGED_IN for name in real.parent.glob(f"{pattern}/{path.name}")]
    ours = sum(_is(name, found) for name in staged)
    others = found.st_nlink - 1 - ours
    if others > 0:
        raise LinkedPartitionError(
            f"this file has {others} other name{'s' * (others > 1)} (hard link{'s' * (others > 1)}), which another "
            "directory may be using",
            path=path,
            remedy="Give this directory a file of its own while nobody uses either: "
            f"cp {real.name} {real.name}.copy && mv {real.name}.copy {real.name}",
        )


def _is(path: Path, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.lstat(), found)
    except OSError:
        return False


def missing_file(path: Path) -> StorageError:
    """What is said of a partition that is not there: of a link, where it leads."""
    if path.is_symlink():
        return StorageError(
            f"it is a link to {os.path.realpath(path)}, where no file is",
            path=path,
            cause="The disk that it leads to is not mounted, or the file there was moved.",
            remedy="Mount the disk, or let the link lead to where the file is now.",
        )
    return StorageError("no such file", path=path, cause="It was deleted or moved while in use.")
