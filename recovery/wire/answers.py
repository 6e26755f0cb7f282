"""The owner's sending end of one connection: answers, refusals, and signs of progress."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from recovery.errors import RecoveryError
from recovery.wire import messages
from recovery.wire.frames import HELLO_BYTES, Channel, Kind, wait_at_most


class Answers:
    """The sending side of one connection. One thread answers; another sends signs of progress."""

    def __init__(self, channel: Channel, refused: Callable[[RecoveryError], None] = lambda _: None) -> None:
        """refused: is called with each error that is sent."""
        self.channel = channel
        self._refused = refused
        self.cancelled = False
        """Whether a call that has not begun never will."""
        self._sending = threading.Lock()
        self._works = False

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Until the block ends, let `send_progress` send signs of progress."""
        self._set_working(True)
        try:
            yield
        finally:
            self._set_working(False)

    def _set_working(self, works: bool) -> None:
        with self._sending:
            self._works = works

    def send_progress(self) -> None:
        """Send a sign of progress, if a call is being executed."""
        # A message that is being sent is a sign of progress itself.
        if self._sending.acquire(blocking=False):
            try:
                if self._works:
                    with contextlib.suppress(OSError):
                        self.channel.send(Kind.PROGRESS)
            finally:
                self._sending.release()

    def put(self, kind: Kind, body: bytes) -> None:
        """Send a part of an answer; it may wait in a buffer for the next one."""
        with self._sending:
            self.channel.put(kind, body)

    def send(self, kind: Kind, body: bytes) -> None:
        """Send a message now."""
        with self._sending:
            self.channel.send(kind, body)

    def answer(self, content: Any) -> None:
        """Send the result of a task's call."""
        self.send(Kind.ANSWER, messages.encode(content))

    def refuse(self, error: RecoveryError, key: bytes | None = None, facts: Sequence[str] = ()) -> None:
        """Send an error. key, facts: for a client that waits for the owner's proof, to prove who sends it."""
        self._refused(error)
        refusal = messages.as_refusal(error)
        proved = refusal if key is None else messages.proven(refusal, key, facts)
        self.send(Kind.REFUSAL, messages.write_first(proved))

    def end_with(self, error: RecoveryError, key: bytes | None = None, facts: Sequence[str] = ()) -> NoReturn:
        """Send an error, wait until the client has read it, and raise ConnectionAbortedError. See `refuse`."""
        self.refuse(error, key, facts)
        # If bytes were unread, closing would make the kernel discard the error just sent.
        with contextlib.suppress(OSError):
            sock = self.channel.sock
            socket.socket.shutdown(sock, socket.SHUT_WR)
            wait_at_most(sock, 1.0)
            left = HELLO_BYTES
            while left > 0 and (found := socket.socket.recv(sock, left)):
                left -= len(found)
        raise ConnectionAbortedError(str(error))
