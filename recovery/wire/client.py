"""The task's end of the connections: `OwnerTaskStore`, and the connections that a worker process keeps.

Every operation of a task may be repeated, so the client repeats a call whose connection breaks on a new one, until it
has not reached the owner for the address's deadline. The client never repeats a call that the owner refused.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from recovery.base.credentials.certificates import client_context, why_not_accepted
from recovery.base.ids import BatchId, PartitionIndex, StepId
from recovery.base.printable import one_line
from recovery.base.version import VERSION
from recovery.errors import OwnerRefusedError, OwnerUnreachableError, StorageError
from recovery.storage.seam import BatchCount, Changes
from recovery.wire import messages
from recovery.wire.address import OwnerAddress
from recovery.wire.frames import (
    HELLO_BYTES,
    MESSAGE_BYTES,
    SILENCE_S,
    VALUE_BYTES,
    Channel,
    Kind,
    WireError,
    settle,
    wait_at_most,
)
from recovery.wire.proof import is_proof, new_nonce, proof

KEY_CHARS = MESSAGE_BYTES // 4 - 4096
"""Limit of the keys in one call, in characters: at most four bytes each."""
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

T = TypeVar("T")


class OwnerTaskStore:
    """A task's view of partitions that an owner on another host has open: a `TaskStore`."""

    def __init__(self, address: OwnerAddress, task_key: bytes) -> None:
        self._address = address
        self._task_key = task_key
        self._looked_up = 0
        self._seam_s = 0.0

    def read(
        self, step: StepId, batch: BatchId, wanted: Mapping[PartitionIndex, tuple[str, ...]]
    ) -> dict[PartitionIndex, list[str | None]]:
        """See `TaskStore.read`."""
        with self._timed():
            found: dict[PartitionIndex, list[str | None]] = {index: [] for index in wanted}
            for some in _in_calls(wanted):
                self._looked_up += sum(map(len, some.values()))
                states = iter(self._lines.call(partial(_read, step, batch, some)))
                for index, keys in some.items():
                    found[index] += islice(states, len(keys))
            return found

    def apply(
        self, step: StepId, batch: BatchId, changes: Mapping[PartitionIndex, Iterable[Changes]], count: BatchCount
    ) -> None:
        """See `TaskStore.apply`."""
        if not changes:
            return
        # Keep what can be read only once: the call may be repeated.
        kept = {index: tuple(chunks) if iter(chunks) is chunks else chunks for index, chunks in changes.items()}
        counted = count._replace(looked_up=count.looked_up + self._looked_up, seam_s=count.seam_s + self._seam_s)
        self._lines.call(partial(_apply, step, batch, kept, counted))
        self._looked_up, self._seam_s = 0, 0.0

    def withdraw(self, step: StepId, batch: BatchId, partitions: Collection[PartitionIndex]) -> None:
        """See `TaskStore.withdraw`."""
        call = messages.Withdraw(step, batch, tuple(partitions))
        self._lines.call(partial(_simple, call, None))

    def due(
        self, step: StepId, batch: BatchId, partitions: Collection[PartitionIndex], up_to_ms: int
    ) -> dict[PartitionIndex, list[str]]:
        """See `TaskStore.due`."""
        call = messages.Due(step, batch, tuple(partitions), up_to_ms)
        with self._timed():
            found: dict[PartitionIndex, list[str]] = self._lines.call(
                partial(_simple, call, dict[PartitionIndex, list[str]])
            )
            return found

    def gathered(self, step: StepId, batch: BatchId, *, note: bool) -> bool:
        """See `TaskStore.gathered`."""
        call = messages.Gathered(step, batch, note)
        found: bool = self._lines.call(partial(_simple, call, bool))
        return found

    def release(self) -> None:
        """See `TaskStore.release`. The process keeps its connection for the next task."""

    def traffic(self) -> tuple[int, int]:
        """Return the bytes on this process's idle connections to the owner, in both directions, and the calls."""
        return self._lines.traffic()

    @property
    def _lines(self) -> Lines:
        # Looked up for every call: the process may be a fork of the one that made this object.
        return _lines_to(self._address, self._task_key)

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        self._seam_s += time.monotonic() - began_s


def connect(address: OwnerAddress, task_key: bytes | None) -> tuple[OwnerTaskStore, int]:
    """Return the store at an owner's address, and the number of partitions. Connects with the first call."""
    if not task_key:
        raise OwnerRefusedError(
            f"the owner at {address.location} asks for the run's task key, and this task has none",
            cause="The step was declared by another version of this package.",
        )
    return OwnerTaskStore(address, task_key), address.partition_count


# The calls


def _read(step: StepId, batch: BatchId, wanted: Mapping[PartitionIndex, tuple[str, ...]], channel: Channel) -> Any:
    channel.send(Kind.CALL, messages.encode(messages.Read(step, batch, dict(wanted))))
    found: list[str | None] = []
    while True:
        kind, body = next_message(channel)
        if kind != Kind.STATES:
            break
        found += messages.read_states(body)
    number = messages.read_answer(body, int)
    if not number == len(found) == sum(map(len, wanted.values())):
        raise WireError(f"{len(found)} states instead of {sum(map(len, wanted.values()))}")
    return found


def _apply(
    step: StepId,
    batch: BatchId,
    changes: Mapping[PartitionIndex, Iterable[Changes]],
    count: BatchCount,
    channel: Channel,
) -> None:
    channel.put(Kind.CALL, messages.encode(messages.Apply(step, batch, tuple(changes), count)))
    numbers, size_bytes = [], 0
    for chunks in changes.values():
        number = 0
        for body in messages.changes_messages(_from_here(chunks)):
            channel.put(Kind.CHANGES, body)
            number += 1
            size_bytes += len(body)
        numbers.append(number)
    channel.send(Kind.END, messages.encode(messages.End(tuple(numbers), size_bytes)))
    _answer(channel, None)


def _from_here(chunks: Iterable[Changes]) -> Iterator[Changes]:
    """Yield the chunks, and keep errors of this host's disk apart from errors of the connection."""
    try:
        yield from chunks
    except OSError as error:
        raise StorageError(str(error)) from error


def _simple(call: messages.AnyCall, kind: Any, channel: Channel) -> Any:
    channel.send(Kind.CALL, messages.encode(call))
    return _answer(channel, kind)


def _answer(channel: Channel, kind: Any) -> Any:
    found, body = next_message(channel)
    if found != Kind.ANSWER:
        raise WireError(f"a message of kind {found} instead of an answer")
    return messages.read_answer(body, kind)


def next_message(channel: Channel, most: int = VALUE_BYTES) -> tuple[int, bytes]:
    """Return the next message that is not a sign of progress. Raises the error with which the owner refuses."""
    while True:
        kind, body = channel.message(most)
        if kind == Kind.REFUSAL:
            raise RefusedError(messages.read_first(body, messages.Refusal))
        if kind != Kind.PROGRESS:
            return kind, body


class RefusedError(Exception):
    """The owner refused a call; the connection can be used further."""

    def __init__(self, refusal: messages.Refusal) -> None:
        super().__init__(refusal.error)
        self.refusal = refusal


def _in_calls(
    wanted: Mapping[PartitionIndex, tuple[str, ...]],
) -> Iterator[Mapping[PartitionIndex, tuple[str, ...]]]:
    """Yield parts of `wanted` that fit into a message each: normally all of it."""
    if sum(sum(map(len, keys)) for keys in wanted.values()) + 8 * sum(map(len, wanted.values())) <= KEY_CHARS:
        yield wanted
        return
    for index, keys in wanted.items():
        begin = 0
        while begin < len(keys) or not begin:
            if begin < len(keys) and len(keys[begin]) > KEY_CHARS:
                raise messages.too_large(len(keys[begin]), "key")
            end, chars = begin, 0
            while end < len(keys) and (end == begin or chars + len(keys[end]) + 8 <= KEY_CHARS):
                chars += len(keys[end]) + 8
                end += 1
            yield {index: keys[begin:end]}
            begin = end or 1


# The connections


class Lines:
    """This process's connections to one owner, each for one call at a time."""

    def __init__(self, address: OwnerAddress, task_key: bytes) -> None:
        self._address = address
        self._task_key = task_key
        self._lock = threading.Lock()
        self._idle: list[Line] = []

    def call(self, work: Callable[[Channel], T]) -> T:
        """Do `work` on a connection, again and again until it succeeds, is refused, or the deadline has passed."""
        line = self._take()
        try:
            result = line.call(work)
        except RefusedError as refused:
            self._give(line)
            raise messages.as_error(refused.refusal, self._address.location) from None
        except BaseException:
            line.drop()
            raise
        self._give(line)
        return result

    def traffic(self) -> tuple[int, int]:
        """See `OwnerTaskStore.traffic`."""
        with self._lock:
            channels = [line.channel for line in self._idle if line.channel is not None]
        return sum(each.sent_bytes + each.received_bytes for each in channels), sum(line.calls for line in self._idle)

    def _take(self) -> Line:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Line(self._address, self._task_key)

    def _give(self, line: Line) -> None:
        with self._lock:
            self._idle.append(line)


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
                raise messages.as_error(refused.refusal, address.location) from None
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
        hello = messages.Hello(messages.NAME, messages.PROTOCOL, self._role, new_nonce(), package)
        channel.send(Kind.HELLO, messages.write_first(hello))
        challenge = self._expect(channel, Kind.CHALLENGE, messages.Challenge)
        if challenge.name != messages.NAME or challenge.protocol[0] != messages.PROTOCOL[0]:
            raise self._refused("it speaks another version of the protocol", None, None)
        version = ".".join(map(str, hello.protocol))
        facts += [version, hello.nonce, challenge.incarnation, challenge.nonce]
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


_all_lines: dict[tuple[OwnerAddress, bytes], Lines] = {}
_lock = threading.Lock()
MOST_ADDRESSES = 8
"""Owners that a process stays connected to: the owners of its newest runs."""


def _lines_to(address: OwnerAddress, task_key: bytes) -> Lines:
    with _lock:
        found = _all_lines.pop((address, task_key), None) or Lines(address, task_key)
        _all_lines[address, task_key] = found
        # Keep the connections to all owners of this run, and to the newest owners of earlier runs.
        others = [each for each in _all_lines if each[0].lease != address.lease]
        for each in others[: max(0, len(others) - MOST_ADDRESSES)]:
            del _all_lines[each]
        return found


def _forget() -> None:
    """Forget the parent's connections in a forked process: two processes that share one would read each other's
    answers."""
    global _lock
    _lock = threading.Lock()
    _all_lines.clear()


os.register_at_fork(after_in_child=_forget)
