"""Frames: how messages travel over one connection.

A frame is a length, a kind and a body of at most `FRAME_BYTES`. A message is one frame, or several of the same kind:
all but the last have the bit `MORE`. So no side ever allocates what its peer only claims to send, and a receiver can
put the parts of a large message aside without holding it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import time
from enum import IntEnum
from typing import NamedTuple

HEADER = struct.Struct(">IB")
"""Bytes of the body; kind, with MORE."""
MORE = 0x80
FRAME_BYTES = 256 << 10
MESSAGE_BYTES = 8 << 20
"""Limit of a message; only a message with a single value may be larger."""
VALUE_BYTES = (1 << 30) + MESSAGE_BYTES
"""Limit of a message with a single value. SQLite's limit of a value is below this limit."""
HELLO_BYTES = 4 << 10
"""Limit of the messages before the proof."""
SILENCE_S = 20.0
"""A side that sends nothing for so long, where it has to send, is dead."""
PROGRESS_S = 2.0
"""How often the owner tells that it still works on a call."""


class Kind(IntEnum):
    """What a message is."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    CALL = 5
    CHANGES = 6
    END = 7
    PROGRESS = 8
    STATES = 9
    ANSWER = 10
    REFUSAL = 11


class WireError(Exception):
    """The other side violates the protocol; the connection is unusable."""


class Frame(NamedTuple):
    """One frame."""

    kind: int
    more: bool
    body: bytes


class Channel:
    """One connected socket. One thread at a time may send, and one may receive.

    Raises OSError if the connection is dead or silent for too long, and WireError for bytes that are no frame.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.until_s: float | None = None
        """Moment (`time.monotonic`) at which receiving ends, whatever arrives; None: receiving has no such end."""
        self.heard_s = time.monotonic()
        """When bytes arrived last."""
        self.sent_bytes = self.received_bytes = 0
        self._received = bytearray()
        self._outgoing: list[bytes | memoryview] = []
        self._outgoing_bytes = 0

    def put(self, kind: Kind, body: bytes) -> None:
        """Send a message; it may wait in a buffer for the next one or for `flush`."""
        parts = memoryview(body)
        for begin in range(0, len(body) or 1, FRAME_BYTES):
            part = parts[begin : begin + FRAME_BYTES]
            more = MORE if begin + FRAME_BYTES < len(body) else 0
            self._outgoing += HEADER.pack(len(part), kind | more), part
            self._outgoing_bytes += HEADER.size + len(part)
            if self._outgoing_bytes >= FRAME_BYTES:
                self.flush()

    def flush(self) -> None:
        """Send what `put` has collected."""
        if self._outgoing:
            together = b"".join(self._outgoing)
            self._outgoing, self._outgoing_bytes = [], 0
            self.sock.sendall(together)
            self.sent_bytes += len(together)

    def send(self, kind: Kind, body: bytes = b"") -> None:
        """Send a message now."""
        self.put(kind, body)
        self.flush()

    def part(self, most: int, *, idle: bool = False) -> Frame:
        """Receive one frame. most: the limit of its body in bytes. idle: wait for its first byte without a limit."""
        if len(self._received) < HEADER.size:
            self._fill(HEADER.size, idle=idle)
        length, kind = HEADER.unpack_from(self._received)
        if length > min(most, FRAME_BYTES):
            raise WireError(f"a frame of {length} bytes, where {min(most, FRAME_BYTES)} are allowed")
        end = HEADER.size + length
        self._fill(end)
        with memoryview(self._received) as view:
            body = bytes(view[HEADER.size : end])
        del self._received[:end]
        return Frame(kind & ~MORE, bool(kind & MORE), body)

    def message(self, most: int, *, idle: bool = False) -> tuple[int, bytes]:
        """Receive one message. most: limit of its body."""
        first = self.part(most, idle=idle)
        if not first.more:
            return first.kind, first.body
        parts, size, more = [first.body], len(first.body), True
        while more:
            kind, more, body = self.part(most - size)
            if kind != first.kind or not body:
                raise WireError(f"a message of kind {first.kind} is cut by one of kind {kind}")
            parts.append(body)
            size += len(body)
        return first.kind, b"".join(parts)

    def _fill(self, wanted: int, *, idle: bool = False) -> None:
        """Receive until `wanted` bytes are there."""
        while len(self._received) < wanted:
            if self.until_s is not None:
                left_s = self.until_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError("the other side took too long")
                wait_at_most(self.sock, min(SILENCE_S, left_s))
            try:
                found = self.sock.recv(max(1 << 16, wanted - len(self._received)))
            except (BlockingIOError, TimeoutError):
                if idle and not self._received and self.until_s is None:
                    continue
                raise TimeoutError("no answer") from None
            if not found:
                raise ConnectionResetError("the other side closed the connection")
            self._received += found
            self.received_bytes += len(found)
            self.heard_s = time.monotonic()

    def has_ended(self) -> bool:
        """Whether the other side is known to have closed the connection. Never waits."""
        try:
            poll = select.poll()
            poll.register(self.sock, select.POLLIN)
            # The socket's own call: a TLS socket cannot look ahead.
            return bool(poll.poll(0)) and not socket.socket.recv(self.sock, 1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def end_reading(self) -> None:
        """End the receiving side, from any thread: once what has come is read, the connection counts as closed."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RD)

    def cut(self) -> None:
        """End the connection, from any thread: threads that send or receive on it get an error."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()


def settle(sock: socket.socket) -> None:
    """Set what every connection needs: small messages leave immediately, and the kernel finds a dead host or client.

    The kernel measures silence: with a timeout of Python, each call would take two system calls.
    """
    wait_at_most(sock, SILENCE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000)):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def wait_at_most(sock: socket.socket, wait_s: float) -> None:
    """Let sending and receiving fail after this time without a byte."""
    if isinstance(sock, ssl.SSLSocket):
        # Python's TLS retries forever after the kernel's timeout.
        sock.settimeout(wait_s)
        return
    sock.settimeout(None)
    whole = int(wait_s)
    value = struct.pack("@ll", whole, max(1, int((wait_s - whole) * 1_000_000)))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, value)
