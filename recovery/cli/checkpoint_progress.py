"""Progress of export and import: a status line updated in place on a terminal, an occasional line elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

from recovery.checkpoint.places import Progressed
from recovery.cli.common import format_size, tell

REDRAW_S = 0.2
LINE_S = 10.0


class CheckpointProgress:
    """Observes a checkpoint being read or written; writes to standard error. Small checkpoints finish before the first
    line."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._live = self._stream.isatty()
        self._lock = threading.Lock()
        self._drawn = False
        self._said_s = time.monotonic()

    def __enter__(self) -> CheckpointProgress:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._drawn and self._live:
            tell("", self._stream, end="\r\x1b[K")

    def observe(self, event: Progressed) -> None:
        """Handle one event; it may come from several threads."""
        if self._quiet:
            return
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._said_s < (REDRAW_S if self._live else LINE_S):
                return
            self._said_s, self._drawn = now_s, True
            share = event.bytes_done / event.bytes_total if event.bytes_total else 1.0
            text = f"{event.what} {share:.0%} of {format_size(event.bytes_total)}"
            tell(text, self._stream, start="\r\x1b[K" if self._live else "", end="" if self._live else "\n")
