"""The progress of long work on standard error: on a terminal a line updated in place, elsewhere an occasional line."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self, TextIO

from recovery.cli.common import tell
from recovery.cli.terminal import is_live

REDRAW_S = 0.2
LINE_S = 10.0


class StatusLine:
    """Shows how far some work has come, and on a terminal leaves nothing when the block ends. Short work ends before
    the first line."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._live = is_live(self._stream)
        self._lock = threading.Lock()
        self._drawn = False
        self._said_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._drawn and self._live:
            tell("", self._stream, end="\r\x1b[K")

    def show(self, text: str) -> None:
        """Show a text, unless the last one was shown a moment ago. May be called by several threads."""
        if self._quiet:
            return
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._said_s < (REDRAW_S if self._live else LINE_S):
                return
            self._said_s, self._drawn = now_s, True
            tell(text, self._stream, start="\r\x1b[K" if self._live else "", end="" if self._live else "\n")
