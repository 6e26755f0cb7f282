"""Signals that come while a command finishes something first."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from recovery.host.signals import STOPPING, again, end_now, handled


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
