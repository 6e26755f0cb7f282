"""pyarrow, which compresses backups and reaches object stores. It is imported when it is first used: directories can be
kept, and restored from plain copies, where it is missing."""

from __future__ import annotations

import sys
from typing import Any

from recovery.errors import ConfigurationError


def arrow() -> Any:
    """Return the package. Raises ConfigurationError if it is not installed."""
    try:
        import pyarrow
        import pyarrow.fs
    except ModuleNotFoundError:
        raise ConfigurationError(
            "pyarrow is not installed",
            cause="Backups are compressed with it, and reach object stores through it.",
            remedy="pip install pyarrow; copies of the files, made with cp, are restored without it.",
        ) from None
    return pyarrow


def or_arrow_error(*kinds: type[Exception]) -> tuple[type[Exception], ...]:
    """Return these kinds of errors, and the package's own once it is used."""
    return (*kinds, arrow().ArrowException) if "pyarrow" in sys.modules else kinds
