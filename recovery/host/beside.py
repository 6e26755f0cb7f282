"""Documents beside the partitions of a directory, which are no part of them."""

from __future__ import annotations

from pathlib import Path

from recovery.base.untrusted_paths import read_received
from recovery.errors import StorageError
from recovery.host.durable import Modes, replace_durably, sync


def read_beside(path: Path, most_bytes: int) -> bytes | None:
    """Return a document; None if there is none. Raises StorageError, also if it is larger than `most_bytes`."""
    try:
        return read_received(path, most_bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(str(error), path=path) from error


def write_beside(path: Path, content: bytes, modes: Modes) -> None:
    """Replace a document, atomically; durable when it returns. Raises StorageError."""
    try:
        replace_durably(path, content, mode=modes.file)
    except OSError as error:
        raise StorageError(str(error), path=path) from error


def remove_beside(path: Path) -> None:
    """Remove a document, if there is one; durable when it returns. Raises StorageError."""
    try:
        path.unlink()
        sync(path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(str(error), path=path) from error
