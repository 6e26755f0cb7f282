"""Documents beside the partitions of a directory, which are no part of the partitions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from recovery.base.untrusted_paths import read_received
from recovery.errors import StorageError
from recovery.host.durable import Modes, replace_durably, sync
from recovery.host.locks import locked_directory
from recovery.host.storage_errors import storage_errors


def read_beside(path: Path, most_bytes: int) -> bytes | None:
    """Return a document; None if there is none. Raises StorageError, also if the document is larger than
    `most_bytes`."""
    try:
        return read_received(path, most_bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(str(error), path=path) from error


def write_beside(path: Path, content: bytes, modes: Modes) -> None:
    """Replace a document, atomically; durable when it returns. Raises StorageError."""
    with storage_errors(path):
        replace_durably(path, content, mode=modes.file)


def remove_beside(path: Path) -> None:
    """Remove a document, if there is one; durable when it returns. Raises StorageError."""
    try:
        path.unlink()
        sync(path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(str(error), path=path) from error


@contextlib.contextmanager
def alone_beside(directory: Path, wait_s: float) -> Iterator[None]:
    """Exclude other processes that change documents of the directory in such a block. Raises StorageError if another
    process is in its block for longer than `wait_s`."""
    with contextlib.ExitStack() as held:
        try:
            has_lock = held.enter_context(locked_directory(directory, wait_s))
        except OSError as error:
            raise StorageError(f"it cannot be locked: {error}", path=directory) from error
        if not has_lock:
            raise StorageError(
                f"another process has kept it locked for {wait_s:g} s",
                path=directory,
                cause="The other process claims the lease of a place that does not answer, or restores into the "
                "directory.",
                remedy="Wait until the other process ends, and run the command again.",
            )
        yield
