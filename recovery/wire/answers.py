"""The owner's end of one connection: it reads calls, and sends answers, refusals, and signs of progress."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from recovery.errors import RecoveryError, StorageError
from recovery.wire import messages
from recovery.wire.declared import DeclaredCalls, Verb
from recovery.wire.frames import HELLO_BYTES, Channel, Kind, WireError, wait_at_most


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

    def serve_call(
        self,
        calls: DeclaredCalls[Any],
        most_bytes: int,
        execute: Callable[[Verb, tuple[Any, ...]], Any],
        explain: messages.Explain,
        log: Callable[[str], None],
    ) -> None:
        """Wait for a call, execute it, and answer with its result or its error. Raises OSError and WireError.

        most_bytes: limit of the message. execute: raises these two only for the connection, which then ends; see
        `disk_errors`. explain, log: see `messages.as_typed`.
        """
        kind, body = self.channel.message(most_bytes, idle=True)
        if kind != Kind.CALL:
            raise WireError(f"a message of kind {kind} instead of a call")
        verb, arguments = calls.read_call(body)
        try:
            result = execute(verb, arguments)
        except (OSError, WireError):
            raise
        except Exception as error:
            with self.working():
                typed = messages.as_typed(error, explain, log)
            self.refuse(typed)
            return
        self.send(Kind.ANSWER, verb.encode(result))

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


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Raise StorageError for an OSError of the block, so that none is taken for an error of the connection."""
    try:
        yield
    except OSError as error:
        raise StorageError(str(error), path=error.filename) from error
