"""What the owner sends on one connection: answers, refusals, and that a call is worked on."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

from recovery.wire import messages
from recovery.wire.frames import HELLO_BYTES, Channel, Kind, wait_at_most


class Answers:
    """The sending side of one connection. One thread answers; another tells the client that its call is worked on."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.cancelled = False
        """Whether a call that has not begun never will."""
        self._sending = threading.Lock()
        self._works = False

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Tell the client meanwhile that its call is worked on."""
        self._set_working(True)
        try:
            yield
        finally:
            self._set_working(False)

    def _set_working(self, works: bool) -> None:
        with self._sending:
            self._works = works

    def tell_progress(self) -> None:
        """Tell the client that its call is worked on, if there is one."""
        # Who is sending already tells it by that.
        if self._sending.acquire(blocking=False):
            try:
                if self._works:
                    with contextlib.suppress(OSError):
                        self.channel.send(Kind.PROGRESS)
            finally:
                self._sending.release()

    def put(self, kind: Kind, body: bytes) -> None:
        """Send a part of an answer, perhaps only with the next one."""
        with self._sending:
            self.channel.put(kind, body)

    def send(self, kind: Kind, body: bytes) -> None:
        """Send a message now."""
        with self._sending:
            self.channel.send(kind, body)

    def answer(self, content: Any) -> None:
        """Send the result of a task's call."""
        self.send(Kind.ANSWER, messages.encode(content))

    def refuse(self, error: Exception) -> None:
        """Send an error."""
        self.send(Kind.REFUSAL, messages.write_first(messages.as_refusal(error)))

    def end_with(self, error: Exception) -> NoReturn:
        """Send an error, wait until the client has read it, and raise ConnectionAbortedError."""
        self.refuse(error)
        # Closing with unread bytes would take back what was sent.
        with contextlib.suppress(OSError):
            sock = self.channel.sock
            socket.socket.shutdown(sock, socket.SHUT_WR)
            wait_at_most(sock, 1.0)
            left = HELLO_BYTES
            while left > 0 and (found := socket.socket.recv(sock, left)):
                left -= len(found)
        raise ConnectionAbortedError(str(error))
