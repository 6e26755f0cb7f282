"""Documents beside the partitions of a directory: no part of them, and with their permissions."""

from __future__ import annotations

from pathlib import Path

from recovery.errors import StorageError
from recovery.host.durable import modes_beside, read_regular, replace_durably


def read_beside(path: Path, most_bytes: int) -> bytes | None:
    """Return a document; None if there is none. Raises StorageError, also if it is larger than `most_bytes`."""
    try:
        return read_regular(path, most_bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(str(error), path=path) from error


def write_beside(path: Path, content: bytes, like: Path) -> None:
    """Replace a document, atomically; durable when it returns. like: the file whose permissions it gets. Raises
    StorageError."""
    try:
        replace_durably(path, content, mode=modes_beside(like).file)
    except OSError as error:
        raise StorageError(str(error), path=path) from error
