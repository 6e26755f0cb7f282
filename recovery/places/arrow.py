"""pyarrow, which compresses backups and reaches object stores. pyarrow is imported when it is first used: directories
can be kept, and restored from plain copies, where it is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from recovery.errors import BackupDamagedError, ConfigurationError
from recovery.places.protocol import CHUNK_BYTES


def arrow() -> Any:
    """Return the package. Raises ConfigurationError if pyarrow is not installed."""
    try:
        import pyarrow
        import pyarrow.fs
    except ModuleNotFoundError:
        raise ConfigurationError(
            "pyarrow is not installed",
            cause="Backups are compressed with pyarrow, and reach object stores through it.",
            remedy="pip install pyarrow; copies of the files, made with cp, are restored without it.",
        ) from None
    return pyarrow


def or_arrow_error(*kinds: type[Exception]) -> tuple[type[Exception], ...]:
    """Return these kinds of errors, and the package's own once it is used."""
    return (*kinds, arrow().ArrowException) if "pyarrow" in sys.modules else kinds


def content_of(name: str, read: Callable[[], bytes], shown: str) -> Iterator[bytes]:
    """Yield the chunks from `read`, decompressed if the name says so. Raises BackupDamagedError if the chunks are
    damaged."""
    if not name.endswith(".zst"):
        while chunk := read():
            yield chunk
        return
    try:
        with arrow().CompressedInputStream(arrow().PythonFile(_Chunks(read), "r"), "zstd") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk
    except or_arrow_error(OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise BackupDamagedError(f"{name} differs from what was stored: {error}", path=shown) from error


class _Chunks:
    """A file that is read in large chunks, whatever size is asked for: each chunk may be a request to a service."""

    closed = False

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        self._left = b""

    def read(self, size: int) -> bytes:
        if not self._left:
            self._left = self._read()
        piece, self._left = self._left[:size], self._left[size:]
        return piece

    def close(self) -> None:
        self.closed = True
