"""What standard output and standard error may get: colours, lines that are redrawn, tables of a limited width."""

from __future__ import annotations

import os
import shutil
from typing import TextIO


def has_colours(stream: TextIO | None) -> bool:
    """Whether a stream gets colours: a terminal does, unless NO_COLOR or TERM=dumb says no. FORCE_COLOR says yes for
    pipes and files too, unless NO_COLOR is set."""
    if _is_refused():
        return False
    forced = os.environ.get("FORCE_COLOR")
    if forced:
        return forced.lower() not in ("0", "false")
    return is_terminal(stream)


def is_live(stream: TextIO | None) -> bool:
    """Whether a line of a stream may be cleared and written again: on a terminal that moves its cursor, unless NO_COLOR
    asks for plain text."""
    return is_terminal(stream) and not _is_refused()


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal. The stream is None if the process was started without it."""
    return stream is not None and not stream.closed and stream.isatty()


def width(stream: TextIO) -> int:
    """Return the number of columns of a stream that is a terminal: as it says, or the variable COLUMNS, or 80."""
    try:
        found = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        found = 0
    return found or shutil.get_terminal_size().columns


def _is_refused() -> bool:
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
