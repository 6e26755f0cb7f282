"""Errors of this machine's disks as errors of the package."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from recovery.errors import StorageError


@contextlib.contextmanager
def storage_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise the operating system's errors of a block as StorageError of this path."""
    try:
        yield
    except OSError as error:
        raise StorageError(str(error), path=path) from error
