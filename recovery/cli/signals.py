"""Signals that end a command which goes on until it is told to stop."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from types import FrameType

from recovery.host.signals import STOPPING, again, end_now, handle, handled

LONGEST_WAIT_S = 1e9
"""The system takes no longer time."""


class StopSignals:
    """Whether a signal that ends a command has come since this was made. For the main thread of a command's own
    process.

    A pipe remembers it. A handler that sets a threading.Event hangs when it interrupts a wait for that very event.
    """

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        handle(self._note)

    def came_within(self, seconds: float) -> bool:
        """Wait for one, at most so long; does not wait when one has come before."""
        return bool(select.select([self._reading], [], [], min(seconds, LONGEST_WAIT_S))[0])

    def _note(self, *_: object) -> None:
        # A pipe that is full says enough.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writing, b"!")


@contextlib.contextmanager
def answering(waited_for: str) -> Iterator[None]:
    """While it lasts, a signal is answered on standard error with what the command waits for, and then handled as
    before; a second one ends the process immediately."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    came: list[int] = []

    def answer(number: int, frame: FrameType | None) -> None:
        if came:
            end_now(number)
        came.append(number)
        # Not by a stream: the handler may have interrupted who writes to it.
        with contextlib.suppress(OSError):
            os.write(2, f"stopping: waiting for {waited_for} …; {again(number)} ends immediately\n".encode())
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    with handled(answer):
        yield
