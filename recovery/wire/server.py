"""The owner's end of the connections: whom it accepts, and within which limits.

Limits hold whatever clients do. A connection has to prove itself within `PROOF_S`; until then the owner reads at most
`HELLO_BYTES` from it. If more than `MOST_UNPROVEN` connections have not proved themselves, the owner closes the oldest.
The owner serves at most `MOST_CONNECTIONS`.

Beside a driver, tasks are served from the beginning. A service of its own (`recovery serve`) has a token for runs and
looks, and serves tasks only while a run holds it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from recovery.base.printable import one_line
from recovery.base.version import VERSION
from recovery.errors import (
    CorruptPartitionError,
    FileReplacedError,
    LeaseLostError,
    OwnerRefusedError,
    OwnerUnreachableError,
    RecoveryError,
    StorageError,
    with_path,
)
from recovery.wire import messages
from recovery.wire.answers import Answers
from recovery.wire.frames import HELLO_BYTES, PROGRESS_S, SILENCE_S, Channel, Kind, WireError, settle, wait_at_most
from recovery.wire.proof import is_proof, new_nonce, proof, unmasked
from recovery.wire.run_calls import serve_call
from recovery.wire.service import RunConnection, Runs, Tasks
from recovery.wire.task_calls import TaskConnection, Turns
from recovery.wire.traffic import Repeats, ServerCounts

MOST_CONNECTIONS = 2000
MOST_UNPROVEN = 256
MOST_EARLIER = 8
PROOF_S = 10.0
HOLD_S = 45.0
"""A run that says nothing for so long no longer holds the partitions."""
TLS_HANDSHAKE = 0x16
"""First byte of a client that speaks TLS."""
FILE_ERRORS = (StorageError, FileReplacedError, CorruptPartitionError)
REFUSAL_PAUSE_S = 1.0


class OwnerServer:
    """Serves the connections that come to a listening socket, each on a thread."""

    def __init__(
        self,
        listener: socket.socket,
        tasks: Tasks | None,
        *,
        runs: Runs | None = None,
        tokens: Sequence[bytes] = (),
        tls: ssl.SSLContext | None = None,
        explain: messages.Explain = lambda _: None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        """runs, tokens: the handler of runs and looks, and their secrets, each of which is accepted; None: the server
        answers tasks only. explain: see `messages.as_typed`."""
        self.incarnation = new_nonce()
        self.runs = runs
        self.tokens = tokens
        self.tls = tls
        self.explain = explain
        self.log = log
        self.turns = Turns()
        self.counts = ServerCounts()
        self._logged = {True: Repeats(), False: Repeats()}
        """The refusals of clients that have proved themselves, and of others, which keep no line of the first ones from
        the log."""
        self._tasks = tasks
        self._earlier: deque[Tasks] = deque(maxlen=MOST_EARLIER)
        """What served the tasks of runs that have ended: with those runs' keys, the tasks get an answer that they
        trust."""
        self._listener = listener
        self._lock = threading.Lock()
        self._unproven: dict[Session, None] = {}
        self._proven: dict[str, Session] = {}
        self._open: set[Session] = set()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to serve, on threads of its own."""
        for work, name in ((self._accept, "owner-accept"), (self._send_progress, "owner-progress")):
            threading.Thread(target=work, name=name, daemon=True).start()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    def traffic(self) -> tuple[int, int]:
        """Return the bytes that came in and went out on all connections since the server began."""
        with self._lock:
            channels = [session.channel for session in self._open]
            return (
                self.counts.received_bytes + sum(each.received_bytes for each in channels),
                self.counts.sent_bytes + sum(each.sent_bytes for each in channels),
            )

    def refused(self, error: RecoveryError, peer: str, *, is_proven: bool) -> None:
        """Count an error that is sent to a client, and log it. is_proven: whether the client has proved itself."""
        self.counts.file_errors += isinstance(error, FILE_ERRORS)
        line = self._logged[is_proven](f"refused {peer}: {one_line(with_path(error.found, error.path))}")
        if line is not None:
            self.log(line)

    @property
    def tasks(self) -> Tasks | None:
        """What the server needs to answer tasks; None while no run is active."""
        return self._tasks

    def serve_tasks(self, tasks: Tasks | None) -> None:
        """Serve the tasks of another execution, or of none. Returns when the connections of earlier tasks have
        ended."""
        with self._lock:
            if self._tasks not in (None, tasks):
                self._earlier.append(self._tasks)
            self._tasks = tasks
            others = [each for each in self._proven.values() if each.tasks not in (None, tasks)]
        for session in others:
            session.cancel()

    def key_of(self, found: messages.Proof, role: str, facts: tuple[str, ...]) -> bytes | None:
        """Return the key by which a task has proved itself: this run's, or an earlier one's; None if it has not."""
        with self._lock:
            keys = [each.key for each in (self._tasks, *self._earlier) if each is not None]
        return next((key for key in keys if is_proof(found.proof, key, role, *facts)), None)

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
            session = Session(self, sock, peer[0])
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
        """Count a session as proven. Return the session that the new one replaces."""
        with self._lock:
            if session.tasks is not None and session.tasks is not self._tasks:
                raise ConnectionAbortedError("the run has ended")
            self._unproven.pop(session, None)
            replaced = self._proven.get(line)
            self._proven[line] = session
            return replaced

    def forget(self, session: Session) -> None:
        """Remove a session that has ended."""
        with self._lock:
            self._unproven.pop(session, None)
            if session in self._open:
                self._open.discard(session)
                self.counts.received_bytes += session.channel.received_bytes
                self.counts.sent_bytes += session.channel.sent_bytes
            if session.line is not None and self._proven.get(session.line) is session:
                del self._proven[session.line]

    def _send_progress(self) -> None:
        """Send signs of progress to the clients of long calls."""
        while not self._stopped.wait(PROGRESS_S):
            with self._lock:
                sessions = list(self._proven.values())
                late = [each for each in self._unproven if each.begun_s + PROOF_S < time.monotonic()]
                late += [each for each in sessions if each.is_silent()]
            for session in sessions:
                session.answers.send_progress()
            for session in late:
                session.channel.cut()


class Session:
    """One connection."""

    def __init__(self, server: OwnerServer, sock: socket.socket, peer: str) -> None:
        self.channel = Channel(sock)
        self.answers = Answers(self.channel, lambda error: server.refused(error, peer, is_proven=self.line is not None))
        self.begun_s = time.monotonic()
        self.line: str | None = None
        self._calls: TaskConnection | None = None
        self._run: RunConnection | None = None
        self._server = server
        self._peer = peer
        self._ended = threading.Event()

    @property
    def tasks(self) -> Tasks | None:
        """What the server needs to answer a task's connection."""
        return None if self._calls is None else self._calls.tasks

    def run(self) -> None:
        """Serve the connection until it ends."""
        log = self._server.log
        try:
            serve = self._begin()
            self._server.counts.proven += 1
            while True:
                serve()
                self._server.counts.calls += 1
        except (OSError, WireError) as error:
            if isinstance(error, WireError):
                with contextlib.suppress(OSError):
                    self.answers.refuse(OwnerRefusedError(f"the owner of the partitions does not understand: {error}"))
        except Exception as error:
            log("".join(traceback.format_exception(error)).rstrip())
        finally:
            self._server.forget(self)
            if self._calls is not None:
                self._calls.end()
            self.channel.close()
            self._ended.set()
            if self._run is not None:
                self._run.ended()

    def cancel(self) -> None:
        """End the connection, and wait until its running call has ended. A call that has not begun never will."""
        self.answers.cancelled = True
        self.channel.cut()
        self._ended.wait()

    def is_silent(self) -> bool:
        """Whether this connection holds the directory for a run that no longer confirms that it continues."""
        return self._run is not None and self._run.holds and self.channel.heard_s + HOLD_S < time.monotonic()

    # The beginning of a connection

    def _begin(self) -> Callable[[], None]:
        """Exchange versions and proofs. Return what serves a call."""
        server, channel = self._server, self.channel
        settle(channel.sock)
        channel.until_s = time.monotonic() + PROOF_S
        self._secure()
        _, body = self._expect(Kind.HELLO)
        hello = messages.read_first(body, messages.Hello)
        if hello.name != messages.NAME or hello.protocol[0] != messages.PROTOCOL[0]:
            self.answers.end_with(
                OwnerRefusedError(
                    f"the owner speaks version {_dotted(messages.PROTOCOL)} of the protocol, and the {hello.role:.10}"
                    f" {_dotted(hello.protocol)}",
                    cause="Executors, driver and owners have different versions of this package.",
                    remedy="Install one version on all hosts.",
                )
            )
        if hello.role == messages.RUN and hello.package != VERSION:
            self.answers.end_with(
                OwnerRefusedError(
                    f"the owner has version {VERSION} of this package, and this host {hello.package[:40]}",
                    cause="Some hosts were upgraded, and others not yet.",
                    remedy="Install one version on all hosts.",
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
        key = self._accept(hello.role, found, facts)
        server.counts.reconnections += found.again
        channel.until_s = None
        wait_at_most(channel.sock, SILENCE_S)
        self._replace(found.line)
        channel.send(Kind.WELCOME, messages.write_first(messages.Welcome(proof(key, messages.OWNER, *facts))))
        if self._calls is not None:
            return self._calls.serve_call
        assert self._run is not None
        return partial(serve_call, self.answers, self._run, server.explain, server.log)

    def _refuse(self, error: RecoveryError) -> NoReturn:
        """Refuse a client that cannot prove itself, after a pause: who guesses gets few answers."""
        self._server.counts.refused += 1
        time.sleep(REFUSAL_PAUSE_S)
        self.answers.end_with(error)

    def _accept(self, role: str, found: messages.Proof, facts: tuple[str, ...]) -> bytes:
        """Return the key by which the client has proved itself. Refuses it otherwise."""
        server = self._server
        if role == messages.RUN and server.runs is not None:
            tokens = server.tokens
            token = next((each for each in tokens if is_proof(found.proof, each, role, *facts)), None)
            if token is None:
                self._refuse(
                    OwnerRefusedError(
                        "the owner refused the token",
                        cause="The owner has another token, or has not read its new one yet.",
                        remedy="Give the run and all owners the same file (--token-file FILE), and have owners read "
                        "it: kill -HUP. Then run the same command again.",
                    )
                )
            server.counts.second_token += token != tokens[0]
            self._run = server.runs.connected(lambda text: unmasked(text, token, *facts), self.channel.cut)
            return token
        tasks = server.tasks
        key = server.key_of(found, role, facts) if role == messages.TASK else None
        if role == messages.TASK and tasks is None:
            self.answers.end_with(
                OwnerUnreachableError(
                    "no run holds the partitions here",
                    cause="The owner was restarted, or has released the task's run.",
                    remedy="Run the same command again: it continues from the last closed epoch.",
                ),
                key,
                facts,
            )
        if key is None or tasks is None:
            self._refuse(
                OwnerRefusedError(
                    f"the owner refused the {role:.10}'s proof",
                    cause="Another run listens at this address, or the task belongs to an earlier run.",
                    remedy="Give runs on one host different ports (--serve).",
                )
            )
        if key != tasks.key or (found.number, found.id) != (tasks.lease.number, tasks.lease.id):
            self._server.counts.refused += 1
            lost = LeaseLostError(f"execution {found.number} may not write any more: {tasks.lease.number} began here")
            self.answers.end_with(lost, key, facts)
        self._calls = TaskConnection(self.answers, tasks, server.turns, server.explain, server.log)
        return tasks.key

    def _secure(self) -> None:
        """Begin TLS if the owner has a certificate. A client that expects the opposite gets an answer from which it can
        report the reason."""
        channel, tls = self.channel, self._server.tls
        wait_at_most(channel.sock, PROOF_S)
        begin = channel.sock.recv(1, socket.MSG_PEEK)
        speaks_tls = begin == bytes([TLS_HANDSHAKE])
        if tls is None and speaks_tls:
            # Sent without TLS: the client reports that the owner does not use it.
            self.answers.end_with(OwnerRefusedError("the owner has no certificate"))
        if tls is not None:
            if begin and not speaks_tls:
                self.answers.end_with(
                    OwnerRefusedError(
                        "the owner asks for TLS, and the client does not use it",
                        remedy="Give the run, or the command, the certificate to check it with: --tls-ca FILE",
                    )
                )
            channel.sock = tls.wrap_socket(channel.sock, server_side=True, do_handshake_on_connect=False)
            try:
                channel.sock.do_handshake()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                raise
            except ssl.SSLError as error:
                self._server.refused(
                    OwnerRefusedError(f"the TLS handshake failed: {error.reason or error}"),
                    self._peer,
                    is_proven=False,
                )
                raise

    def _replace(self, line: str) -> None:
        """Replace the earlier connection of this name. Calls of the earlier connection that have not begun never will:
        the first attempt of a call must not run after its repetition."""
        replaced = self._server.admit(self, line)
        self.line = line
        if replaced is not None:
            with self.answers.working():
                replaced.cancel()

    def _expect(self, kind: Kind) -> tuple[int, bytes]:
        found = self.channel.message(HELLO_BYTES)
        if found[0] != kind:
            raise WireError(f"a message of kind {found[0]} instead of {kind.name}")
        return found


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
