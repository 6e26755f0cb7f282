"""The owner's end of the connections: who may come in, and what their calls do.

Limits hold whatever clients do. A connection has to prove itself within `PROOF_S`; until then the owner reads at most
`HELLO_BYTES` of it, and of more than `MOST_UNPROVEN` such connections the oldest is closed. `MOST_CONNECTIONS` are
served, two calls a processor at a time; the others wait. A call that waits for its client holds no lock and no turn.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from recovery.base.ids import Lease, PartitionIndex
from recovery.errors import LeaseLostError, OwnerRefusedError, RecoveryError, StorageError
from recovery.storage.seam import Changes
from recovery.wire import messages
from recovery.wire.frames import (
    HELLO_BYTES,
    MESSAGE_BYTES,
    PROGRESS_S,
    SILENCE_S,
    VALUE_BYTES,
    Channel,
    Kind,
    WireError,
    settle,
    wait_at_most,
)
from recovery.wire.proof import is_proof, new_nonce, proof
from recovery.wire.rows import RowsUnderWay
from recovery.wire.service import Aside, Service

MOST_CONNECTIONS = 2000
MOST_UNPROVEN = 256
PROOF_S = 10.0
CALLS_PER_PROCESSOR = 2
FIRST_KEYS = 256
"""Keys of a step that are read before the size of its states is known."""
MOST_KEYS = 4096
"""Keys that are read at a time."""
TLS_HANDSHAKE = 0x16
"""First byte of a client that speaks TLS."""


class OwnerServer:
    """Serves the connections that come to a listening socket, each on a thread."""

    def __init__(
        self,
        listener: socket.socket,
        service: Service,
        task_key: bytes,
        lease: Lease,
        partition_count: int,
        *,
        tls: ssl.SSLContext | None = None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.incarnation = new_nonce()
        self.lease = lease
        self.task_key = task_key
        self.partition_count = partition_count
        self.service = service
        self.tls = tls
        self.log = log
        self.turns = threading.BoundedSemaphore(CALLS_PER_PROCESSOR * (os.cpu_count() or 1))
        self._listener = listener
        self._lock = threading.Lock()
        self._unproven: dict[Session, None] = {}
        self._proven: dict[str, Session] = {}
        self._open: set[Session] = set()
        self._stopped = threading.Event()
        self.average_bytes: dict[str, float] = {}
        """Size of a state by step, as far as known: how many are read at a time."""

    def start(self) -> None:
        """Begin to serve, on threads of its own."""
        for work, name in ((self._accept, "owner-accept"), (self._tell_progress, "owner-progress")):
            threading.Thread(target=work, name=name, daemon=True).start()

    def stop(self) -> None:
        """End all connections."""
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for session in self._open:
                session.channel.cut()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                sock, peer = self._listener.accept()
            except OSError:
                # Without free file descriptors, connections stay in the queue.
                self._stopped.wait(0.1)
                continue
            session = Session(self, sock, f"{peer[0]}:{peer[1]}")
            with self._lock:
                if len(self._open) >= MOST_CONNECTIONS or len(self._unproven) >= MOST_UNPROVEN:
                    oldest = next(iter(self._unproven), None)
                    if oldest is None:
                        sock.close()
                        continue
                    del self._unproven[oldest]
                    oldest.channel.cut()
                self._unproven[session] = None
                self._open.add(session)
            try:
                threading.Thread(target=session.run, name="owner-connection", daemon=True).start()
            except RuntimeError:  # the process has reached its limit of threads
                self.forget(session)
                sock.close()

    def admit(self, session: Session, line: str) -> Session | None:
        """Count a session as proven. Return the one that it replaces."""
        with self._lock:
            self._unproven.pop(session, None)
            replaced = self._proven.get(line)
            self._proven[line] = session
            return replaced

    def forget(self, session: Session) -> None:
        """A session has ended."""
        with self._lock:
            self._unproven.pop(session, None)
            self._open.discard(session)
            if session.line is not None and self._proven.get(session.line) is session:
                del self._proven[session.line]

    def _tell_progress(self) -> None:
        """Tell the clients of long calls that they are worked on."""
        while not self._stopped.wait(PROGRESS_S):
            with self._lock:
                sessions = list(self._proven.values())
                late = [each for each in self._unproven if each.begun_s + PROOF_S < time.monotonic()]
            for session in sessions:
                session.tell_progress()
            for session in late:
                session.channel.cut()


class Session:
    """One connection."""

    def __init__(self, server: OwnerServer, sock: socket.socket, peer: str) -> None:
        self.channel = Channel(sock)
        self.begun_s = time.monotonic()
        self.line: str | None = None
        self._server = server
        self._peer = peer
        self._sending = threading.Lock()
        self._rows = RowsUnderWay()
        self._works = False
        self._cancelled = False
        self._ended = threading.Event()

    def run(self) -> None:
        """Serve the connection until it ends."""
        try:
            self._begin()
            while True:
                self._serve()
        except (OSError, WireError) as error:
            if isinstance(error, WireError):
                self._server.log(f"{self._peer}: {error}")
                with contextlib.suppress(OSError):
                    self._refuse(OwnerRefusedError(f"the owner of the partitions does not understand: {error}"))
        except Exception as error:
            self._server.log("".join(traceback.format_exception(error)).rstrip())
        finally:
            self._server.forget(self)
            self._rows.end()
            self.channel.close()
            self._ended.set()

    def cancel(self) -> None:
        """End the connection; return when nothing of it works any more. What has not begun never will."""
        self._cancelled = True
        self.channel.cut()
        self._ended.wait()

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

    # The beginning of a connection

    def _begin(self) -> None:
        """Exchange versions and proofs."""
        server, channel = self._server, self.channel
        settle(channel.sock)
        channel.until_s = time.monotonic() + PROOF_S
        self._secure()
        _, body = self._expect(Kind.HELLO)
        hello = messages.read_first(body, messages.Hello)
        if hello.name != messages.NAME or hello.protocol[0] != messages.PROTOCOL[0]:
            self._end_with(
                OwnerRefusedError(
                    f"the owner speaks version {_dotted(messages.PROTOCOL)} of the protocol, and the task"
                    f" {_dotted(hello.protocol)}",
                    cause="Executors and driver have different versions of this package.",
                    remedy="Install the driver's version on all executors.",
                )
            )
        nonce = new_nonce()
        facts = (_dotted(hello.protocol), hello.nonce, server.incarnation, nonce)
        channel.send(
            Kind.CHALLENGE,
            messages.write_first(messages.Challenge(messages.NAME, messages.PROTOCOL, server.incarnation, nonce)),
        )
        _, body = self._expect(Kind.PROOF)
        found = messages.read_first(body, messages.Proof)
        if hello.role != messages.TASK or not is_proof(found.proof, server.task_key, hello.role, *facts):
            server.log(f"{self._peer}: wrong proof")
            self._end_with(
                OwnerRefusedError(
                    "the owner refused the task's proof",
                    cause="Another run listens at this address, or the task belongs to an earlier run.",
                    remedy="Give runs on one host different ports (--serve).",
                )
            )
        lease = server.lease
        if (found.number, found.id) != (lease.number, lease.id):
            self._end_with(
                LeaseLostError(f"execution {found.number} may not write any more: {lease.number} began here")
            )
        channel.until_s = None
        wait_at_most(channel.sock, SILENCE_S)
        self._replace(found.line)
        channel.send(
            Kind.WELCOME, messages.write_first(messages.Welcome(proof(server.task_key, messages.OWNER, *facts)))
        )

    def _secure(self) -> None:
        """Begin TLS if the owner has a certificate. A client that expects otherwise gets an answer that it can name."""
        channel, tls = self.channel, self._server.tls
        wait_at_most(channel.sock, PROOF_S)
        begin = channel.sock.recv(1, socket.MSG_PEEK)
        speaks_tls = begin == bytes([TLS_HANDSHAKE])
        if tls is None and speaks_tls:
            # No TLS: the client reports that this is none.
            self._end_with(OwnerRefusedError("the owner has no certificate"))
        if tls is not None:
            if begin and not speaks_tls:
                self._end_with(
                    OwnerRefusedError(
                        "the owner asks for TLS, and the task does not use it",
                        remedy="Give the run the certificate to check it with: --tls-ca FILE",
                    )
                )
            channel.sock = tls.wrap_socket(channel.sock, server_side=True, do_handshake_on_connect=False)
            channel.sock.do_handshake()

    def _replace(self, line: str) -> None:
        """Become the connection of this name. What an earlier one has not begun never will: a repeated call must not
        be overtaken by its first attempt."""
        replaced = self._server.admit(self, line)
        self.line = line
        if replaced is not None:
            self._set_working(True)
            replaced.cancel()
            self._set_working(False)

    def _expect(self, kind: Kind) -> tuple[int, bytes]:
        found = self.channel.message(HELLO_BYTES)
        if found[0] != kind:
            raise WireError(f"a message of kind {found[0]} instead of {kind.name}")
        return found

    def _end_with(self, error: Exception) -> None:
        self._refuse(error)
        self._linger()
        raise ConnectionAbortedError(str(error))

    def _linger(self) -> None:
        """Let the client read what was sent: closing with unread bytes would take it back."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.channel.sock, socket.SHUT_WR)
            wait_at_most(self.channel.sock, 1.0)
            left = HELLO_BYTES
            while left > 0 and (found := socket.socket.recv(self.channel.sock, left)):
                left -= len(found)

    # Calls

    def _serve(self) -> None:
        kind, body = self.channel.message(MESSAGE_BYTES, idle=True)
        if kind != Kind.CALL:
            raise WireError(f"a message of kind {kind} instead of a call")
        call = messages.read_call(body)
        try:
            if isinstance(call, messages.Apply):
                self._apply(call)
            elif isinstance(call, messages.Read):
                self._read(call)
            elif isinstance(call, messages.Rows | messages.More):
                self._send_rows(call)
            else:
                self._answer(self._simple(call))
        except (OSError, WireError):
            raise
        except Exception as error:
            refusal = messages.as_refusal(error)
            if refusal.error != type(error).__name__:
                self._server.log("".join(traceback.format_exception(error)).rstrip())
            self._refuse(error)

    def _simple(self, call: messages.AnyCall) -> Any:
        with self._turn(), self._server.service.store() as store:
            if isinstance(call, messages.Withdraw):
                return store.withdraw(call.step, call.batch, self._own(call.partitions))
            if isinstance(call, messages.Due):
                return store.due(call.step, call.batch, self._own(call.partitions), call.up_to_ms)
            assert isinstance(call, messages.Gathered)
            return store.gathered(call.step, call.batch, note=call.note)

    def _read(self, call: messages.Read) -> None:
        """Answer in messages of about 8 MiB, so that neither side holds more; no turn is held while one is sent."""
        self._own(call.wanted)
        averages, sent = self._server.average_bytes, 0
        left = [(partition, keys) for partition, keys in call.wanted.items()]
        while left:
            average = averages.get(call.step)
            most = FIRST_KEYS if average is None else max(1, min(MOST_KEYS, int(MESSAGE_BYTES / (average + 1))))
            some = _first_keys(left, most)
            with self._turn(), self._server.service.store() as store:
                found = store.read(call.step, call.batch, some)
                states = [state for partition in some for state in found[partition]]
                body = messages.encode(states)
            if states:
                averages[call.step] = max(average or 0.0, len(body) / len(states))
            if len(body) > VALUE_BYTES:
                raise messages.too_large(len(body))
            sent += len(states)
            with self._sending:
                self.channel.put(Kind.STATES, body)
        self._answer(sent)

    def _send_rows(self, call: messages.Rows | messages.More) -> None:
        """Answer with the next rows. Between two calls they wait in their transaction, without a turn."""
        if isinstance(call, messages.Rows):
            self._own((call.partition,))
            self._rows.begin(self._server.service.rows(call))
        with self._turn():
            body = self._rows.next()
        with self._sending:
            self.channel.send(Kind.ROWS, body)

    def _apply(self, call: messages.Apply) -> None:
        self._own(call.partitions)
        with self._server.service.aside() as aside:
            end = self._put_aside(aside)
            if (
                len(end.messages) != len(call.partitions)
                or sum(end.messages) != aside.messages
                or end.size_bytes != aside.size_bytes
            ):
                raise WireError(
                    f"an apply ends after {aside.messages} messages of {aside.size_bytes} bytes, and says"
                    f" {sum(end.messages)} of {end.size_bytes}"
                )
            changes: dict[PartitionIndex, Iterable[Changes]] = {}
            begin = 0
            for partition, number in zip(call.partitions, end.messages, strict=True):
                changes[partition] = aside.changes(begin, begin + number)
                begin += number
            with self._turn(), self._server.service.store() as store:
                store.apply(call.step, call.batch, changes, call.count)
        self._answer(None)

    def _put_aside(self, aside: Aside) -> messages.End:
        """Receive an apply up to its end, even if there is no room for it: the client reads no answer before."""
        failed: RecoveryError | None = None
        while True:
            kind, more, body = self.channel.part(VALUE_BYTES)
            if kind == Kind.END and not more:
                break
            if kind != Kind.CHANGES:
                raise WireError(f"a message of kind {kind} within an apply")
            if failed is None:
                try:
                    aside.add(body, more)
                except RecoveryError as error:
                    failed = error
        if failed is not None:
            raise failed
        return messages.read_end(body)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for a turn, unless the client has gone meanwhile."""
        self._set_working(True)
        try:
            with self._server.turns:
                if self._cancelled or self.channel.has_ended():
                    raise ConnectionAbortedError("the client has gone")
                try:
                    yield
                except OSError as error:
                    # Not one of the connection.
                    raise StorageError(str(error)) from error
        finally:
            self._set_working(False)

    def _set_working(self, works: bool) -> None:
        with self._sending:
            self._works = works

    def _own(self, partitions: Collection[PartitionIndex] | Mapping[PartitionIndex, Any]) -> Any:
        if not all(0 <= index < self._server.partition_count for index in partitions):
            raise WireError(f"partitions {sorted(partitions)[:3]} … of {self._server.partition_count}")
        return partitions

    def _answer(self, content: Any) -> None:
        self.channel.send(Kind.ANSWER, messages.encode(content))

    def _refuse(self, error: Exception) -> None:
        with self._sending:
            self.channel.send(Kind.REFUSAL, messages.write_first(messages.as_refusal(error)))


def _first_keys(left: list[tuple[PartitionIndex, tuple[str, ...]]], most: int) -> dict[PartitionIndex, tuple[str, ...]]:
    """Take the first `most` keys, at least one, out of `left`; return them by partition."""
    found: dict[PartitionIndex, tuple[str, ...]] = {}
    while left and most > 0:
        partition, keys = left.pop(0)
        found[partition] = keys[:most]
        if len(keys) > most:
            left.insert(0, (partition, keys[most:]))
        most -= len(keys)
    return found


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
