"""Progress of backup, restore, drill and fork: one line per file, and on a terminal a status line updated in place."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

from recovery.backup.progress import FileProgress
from recovery.cli.common import format_size, tell
from recovery.cli.terminal import is_live

DOING = {"copy": "copying", "check": "checking", "store": "storing", "fetch": "fetching", "send": "sending"}
DONE = {
    "stored": "stored",
    "linked": "changes stored",
    "fetched": "fetched and checked",
    "begun": "usable, its pages are fetched when they are read",
    "hydrated": "fetched and checked",
    "copied": "copied",
    "cloned": "cloned",
    "applied": "changes applied",
    "sent": "sent and checked",
}


class CopyProgress:
    """Observes copies going to or coming from a backup; writes to standard error."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self._quiet = quiet
        self._live = is_live(self.stream)
        self._lock = threading.Lock()
        self._drawn_at = 0.0

    def observe(self, event: FileProgress) -> None:
        """Handle one event; it may come from several threads."""
        if self._quiet:
            return
        with self._lock:
            if event.step in DONE:
                self._say(f"{event.name}: {DONE[event.step]}, {format_size(event.bytes_done)}\n")
            elif self._live and time.monotonic() - self._drawn_at > 0.2:
                self._drawn_at = time.monotonic()
                share = event.bytes_done / event.bytes_total if event.bytes_total else 1.0
                self._say(f"{event.name}: {DOING[event.step]} {share:.0%} of {format_size(event.bytes_total)}")

    def say(self, text: str) -> None:
        """Print one line above the status line."""
        if not self._quiet:
            with self._lock:
                self._say(f"{text}\n")

    def _say(self, text: str) -> None:
        tell(text, self.stream, start="\r\x1b[K" if self._live else "", end="")
