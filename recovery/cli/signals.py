"""Signals that end a command which goes on until it is told to stop."""

from __future__ import annotations

import contextlib
import os
import select
import signal

LONGEST_WAIT_S = 1e9
"""The system takes no longer time."""


class StopSignals:
    """Whether SIGTERM or Ctrl-C has come since this was made. For the main thread of a command's own process.

    A pipe remembers it. A handler that sets a threading.Event hangs when it interrupts a wait for that very event.
    """

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def came_within(self, seconds: float) -> bool:
        """Wait for one, at most so long; at once when one has come before."""
        return bool(select.select([self._reading], [], [], min(seconds, LONGEST_WAIT_S))[0])

    def _note(self, *_: object) -> None:
        # A pipe that is full says enough.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writing, b"!")
