"""Reading a partition without changing anything, and without leaving a file beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import apsw

from recovery.errors import RecoveryError, StorageError
from recovery.storage.sqlite.file.log_files import is_left_alone, reading_mode, stamp
from recovery.storage.sqlite.file.opening import open_partition

T = TypeVar("T")


def read_partition(path: Path, read: Callable[[apsw.Connection], T]) -> T:
    """Return the result of `read` on a partition, without changing anything or creating a file beside it.

    Ordinarily even a reader creates a log and its index, and leaves them behind. A file without a log is complete by
    itself, so it is read alone. If somebody wrote to the file meanwhile, the file is read again in the ordinary way. A
    log without an index, as of a copy, gets one, unless the directory is read-only. Raises what `open_partition` and
    `read` raise.
    """
    if not is_left_alone(path):
        return _read(path, "ro", read)
    before = stamp(path)
    try:
        found = _read(path, reading_mode(path), read)
    except RecoveryError:
        if stamp(path) == before:
            raise
    else:
        if stamp(path) == before:
            return found
    return _read(path, "ro", read)


def _read(path: Path, mode: Literal["unshared", "ro"], read: Callable[[apsw.Connection], T]) -> T:
    with contextlib.closing(open_partition(path, mode)) as connection:
        return read(connection)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[apsw.Connection]:
    """Open a connection for reading row by row, without changing anything, as `read_partition` does.

    Rows that were already used cannot be read again, so this raises StorageError if somebody began to write to a file
    that was read alone. Raises what `open_partition` raises.
    """
    alone, before = is_left_alone(path), stamp(path)
    try:
        with contextlib.closing(open_partition(path, reading_mode(path))) as connection:
            yield connection
    except RecoveryError as error:
        if alone and stamp(path) != before:
            raise _written_meanwhile(path) from error
        raise
    if alone and stamp(path) != before:
        raise _written_meanwhile(path)


def _written_meanwhile(path: Path) -> StorageError:
    return StorageError(
        "it was written to while it was read",
        path=path,
        cause="A run began meanwhile.",
        remedy="Run the same command again.",
    )
