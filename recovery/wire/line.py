"""The client's end of one connection: it connects, proves itself, asks, and reads answers and refusals."""

from __future__ import annotations

import secrets
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from recovery.base.credentials.certificates import client_context, why_not_accepted
from recovery.base.printable import one_line
from recovery.base.version import VERSION
from recovery.errors import OwnerRefusedError, OwnerUnreachableError, StorageError
from recovery.wire import messages
from recovery.wire.address import OwnerAddress
from recovery.wire.declared import DeclaredCalls, Verb
from recovery.wire.frames import HELLO_BYTES, SILENCE_S, VALUE_BYTES, Channel, Kind, WireError, settle, wait_at_most
from recovery.wire.proof import is_proof, new_nonce, proof

MOST_SAID = 300
_UNPROVEN = (
    "The owner has another token, another version of this package, other TLS settings, or no run; or something else "
    "listens at this address.",
    "Give the run and all owners one --token-file and one version, and check the address and --tls-ca. Then run "
    "the same command again.",
)
"""Cause and remedy for whatever was said before a proof."""
LONGEST_PAUSE_S = 1.0
"""Between two attempts to reach the owner."""

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class RefusedError(Exception):
    """The owner refused a call; the connection can be used further."""

    def __init__(self, refusal: messages.Refusal) -> None:
        super().__init__(refusal.error)
        self.refusal = refusal


def next_message(channel: Channel, most: int = VALUE_BYTES) -> tuple[int, bytes]:
    """Return the next message that is not a sign of progress. Raises the error with which the owner refuses."""
    while True:
        kind, body = channel.message(most)
        if kind == Kind.REFUSAL:
            raise RefusedError(messages.read_first(body, messages.Refusal))
        if kind != Kind.PROGRESS:
            return kind, body


def put(
    channel: Channel,
    calls: DeclaredCalls[C],
    call: Callable[Concatenate[C, P], R],
    *arguments: P.args,
    **named: P.kwargs,
) -> Verb:
    """Put a call on its way, and return what was called. Raises StorageError for a call that is too large."""
    verb, body = calls.write_call(call, *arguments, **named)
    if len(body) > VALUE_BYTES:
        raise StorageError(
            f"a call of {len(body)} bytes is too large for the owner",
            cause="A single value, or a list in this call, is larger than the wire takes.",
        )
    channel.put(Kind.CALL, body)
    return verb


def ask(
    channel: Channel,
    calls: DeclaredCalls[C],
    call: Callable[Concatenate[C, P], R],
    *arguments: P.args,
    **named: P.kwargs,
) -> R:
    """Make a call, and return its result."""
    verb = put(channel, calls, call, *arguments, **named)
    channel.flush()
    result: R = answer(verb, next_message(channel))
    return result


def answer(verb: Verb, message: tuple[int, bytes]) -> Any:
    """Return the result in an answer."""
    kind, body = message
    if kind != Kind.ANSWER:
        raise WireError(f"a message of kind {kind} instead of an answer")
    return verb.decode(body)


class Line:
    """One connection to an owner, made on first use. A connection that replaces this one has the same name."""

    def __init__(self, address: OwnerAddress, key: bytes, role: str = messages.TASK) -> None:
        """key: the task key; the token for another role."""
        self._address = address
        self.key = key
        self._role = role
        self.facts: tuple[str, ...] = ()
        """What both sides know of the connection, with a nonce of each."""
        self.calls = 0
        self._name = secrets.token_hex(16)
        self._again = False
        self.channel: Channel | None = None

    @property
    def incarnation(self) -> str:
        """The text that names the owner's process and directory; empty before the connection."""
        return self.facts[2] if self.facts else ""

    def call(self, work: Callable[[Channel], T]) -> T:
        """See `Lines.call`."""
        deadline_s = self._address.deadline_s
        unheard_s = time.monotonic()
        attempts, pause_s = 0, 0.0
        self.calls += 1
        while True:
            try:
                if self.channel is None:
                    self.channel = self.connect(unheard_s + deadline_s)
                return work(self.channel)
            except (OSError, WireError) as error:
                reason = reason_of(error)
                if attempts == 0 and self.channel is not None:
                    unheard_s = max(unheard_s, self.channel.heard_s)
                self.drop()
            attempts += 1
            now_s = time.monotonic()
            if now_s + pause_s >= unheard_s + deadline_s:
                raise OwnerUnreachableError(
                    f"the owner of the partitions at {self._address.location} was not reached for"
                    f" {now_s - unheard_s:.0f} s, in {attempts} attempts from {socket.gethostname()}: {reason}"
                )
            # The first failure may only mean that the owner was started again since the last call.
            time.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s or 0.05)

    def drop(self) -> None:
        """Close the connection, if there is one."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def connect(self, until_s: float) -> Channel:
        """Make a connection that has proved itself. Raises OSError and WireError, and what the owner refuses with."""
        address = self._address
        left_s = max(0.1, min(SILENCE_S, until_s - time.monotonic()))
        facts: list[str] = []
        sock = socket.create_connection((address.host, address.port), timeout=left_s)
        channel = Channel(sock)
        try:
            settle(sock)
            wait_at_most(sock, left_s)
            if address.tls_ca_pem is not None:
                channel.sock = self._secured(sock, address.tls_ca_pem)
            channel.until_s = time.monotonic() + left_s
            self._prove(channel, facts)
            channel.until_s = None
            wait_at_most(channel.sock, SILENCE_S)
        except RefusedError as refused:
            channel.close()
            if messages.is_proven(refused.refusal, self.key, facts):
                error = messages.as_error(refused.refusal, address.location)
                error.path = error.path or address.location
                raise error from None
            # Whoever listens there may say anything: neither the error's class nor its advice is taken from it.
            said = one_line(refused.refusal.found)[:MOST_SAID]
            raise self._refused(f"it refused before it had proved itself, and said: {said}", *_UNPROVEN) from None
        except BaseException:
            channel.close()
            raise
        return channel

    def _secured(self, sock: socket.socket, tls_ca_pem: str) -> ssl.SSLSocket:
        try:
            return client_context(tls_ca_pem).wrap_socket(sock, server_hostname=self._address.host)
        except ssl.SSLCertVerificationError as error:
            raise self._refused(
                f"its certificate is not accepted: {error.verify_message}",
                *why_not_accepted(error),
            ) from None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            raise
        except ssl.SSLError as error:
            raise self._refused(
                f"the TLS handshake failed: {error.reason or error}",
                "The owner has no certificate, or something else listens there.",
                "Give the owner a certificate (--tls-cert, --tls-key), or leave out --tls-ca.",
            ) from None

    def _prove(self, channel: Channel, facts: list[str]) -> None:
        """Exchange versions and proofs. facts: gets the facts that both sides know, once they know them."""
        package = VERSION if self._role == messages.RUN else ""
        hello = messages.Hello(
            messages.NAME, messages.PROTOCOL, self._role, new_nonce(), package, self._address.directory
        )
        channel.send(Kind.HELLO, messages.write_first(hello))
        challenge = self._expect(channel, Kind.CHALLENGE, messages.Challenge)
        if challenge.name != messages.NAME or challenge.protocol[0] != messages.PROTOCOL[0]:
            raise self._refused("it speaks another version of the protocol", None, None)
        version = ".".join(map(str, hello.protocol))
        facts += [version, hello.nonce, challenge.incarnation, challenge.nonce, hello.directory]
        lease = self._address.lease
        own = proof(self.key, self._role, *facts)
        proved = messages.Proof(own, lease.number, lease.id, self._name, self._again)
        channel.send(Kind.PROOF, messages.write_first(proved))
        welcome = self._expect(channel, Kind.WELCOME, messages.Welcome)
        if not is_proof(welcome.proof, self.key, messages.OWNER, *facts):
            raise self._refused("it cannot prove that it belongs to this run", None, None)
        self.facts = tuple(facts)
        self._again = True

    def _expect(self, channel: Channel, kind: Kind, content: Any) -> Any:
        """Return the content of the next message. Anything but a message of the protocol comes from another program."""
        try:
            found, body = next_message(channel, HELLO_BYTES)
            if found != kind:
                raise WireError(f"a message of kind {found} instead of {kind.name}")
            return messages.read_first(body, content)
        except WireError as error:
            raise self._refused(f"its answer is not understood: {error}", None, None) from None

    def _refused(self, found: str, cause: str | None, remedy: str | None) -> OwnerRefusedError:
        where = f"the owner of the partitions at {self._address.location}"
        return OwnerRefusedError(f"{where}, from {socket.gethostname()}: {found}", cause=cause, remedy=remedy)


def reason_of(error: Exception) -> str:
    """Return the reason for a connection's error, for people."""
    if isinstance(error, BlockingIOError):
        return "no answer"
    return str(error) or type(error).__name__
