"""Signals that end a command which otherwise runs until it is stopped."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from types import FrameType

from recovery.host.signals import STOPPING, again, end_now, handle, handled

LONGEST_WAIT_S = 1e9
"""The system accepts no longer wait."""


class StopSignals:
    """Whether a signal that ends a command has come since this object was made. For the main thread of a command's own
    process.

    A pipe remembers the signal. A handler that sets a threading.Event hangs if it interrupts a wait for that event.
    """

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        handle(self._note)

    def came_within(self, seconds: float) -> bool:
        """Wait for a signal, at most this long; returns immediately if one has come before."""
        return bool(select.select([self._reading], [], [], min(seconds, LONGEST_WAIT_S))[0])

    def _note(self, *_: object) -> None:
        # A full pipe already says enough.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writing, b"!")


@contextlib.contextmanager
def answering(waited_for: str) -> Iterator[None]:
    """Until the block ends, print on standard error what the command waits for when a signal comes, then handle the
    signal as before; a second one ends the process immediately."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    came: list[int] = []

    def answer(number: int, frame: FrameType | None) -> None:
        if came:
            end_now(number)
        came.append(number)
        # Not through a stream: the handler may have interrupted code that writes to it.
        with contextlib.suppress(OSError):
            os.write(2, f"stopping: waiting for {waited_for} …; {again(number)} ends immediately\n".encode())
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    with handled(answer):
        yield
