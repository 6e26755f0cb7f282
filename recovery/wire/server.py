"""The owner's end of the connections: whom it accepts, and within which limits.

Limits hold whatever clients do. A connection has to prove itself within `PROOF_S`; until then the owner reads at most
`HELLO_BYTES` from it. If more than `MOST_UNPROVEN` connections have not proved themselves, the owner closes the oldest.
The owner serves at most `MOST_CONNECTIONS` that have. Of these, `RESERVED_CONNECTIONS` are reserved for each
directory, so that no directory can take them all.

Beside a driver, tasks are served from the beginning. A service of its own (`recovery serve`) has a token for runs and
looks, and serves the tasks of a directory only while a run holds that. A client names a directory in its first message,
and proves itself for that directory.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from recovery.base.printable import one_line
from recovery.base.version import VERSION
from recovery.errors import (
    LeaseLostError,
    OwnerRefusedError,
    OwnerUnreachableError,
    RecoveryError,
)
from recovery.wire import messages
from recovery.wire.answers import Answers
from recovery.wire.frames import HELLO_BYTES, PROGRESS_S, SILENCE_S, Channel, Kind, WireError, settle, wait_at_most
from recovery.wire.proof import is_proof, new_nonce, proof, unmasked
from recovery.wire.run_calls import serve_call
from recovery.wire.served import ProvenSession, ServedDirectory
from recovery.wire.service import RunConnection, Tasks
from recovery.wire.task_calls import TaskConnection

MOST_CONNECTIONS = 2000
RESERVED_CONNECTIONS = 100
"""Of each directory; fewer, where not so many are left for each."""
MOST_UNPROVEN = 256
ANSWERING_S = 1.0
"""How long a service that ends lets calls that are under way send their answers."""
PROOF_S = 10.0
HOLD_S = 45.0
"""A run that says nothing for so long no longer holds the partitions."""
TLS_HANDSHAKE = 0x16
"""First byte of a client that speaks TLS."""
REFUSAL_PAUSE_S = 1.0


class OwnerServer:
    """Serves the connections that come to a listening socket, each on a thread."""

    def __init__(
        self,
        listener: socket.socket,
        directories: Sequence[ServedDirectory],
        *,
        tokens: Callable[[], Sequence[bytes]] = tuple,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        """tokens: returns the secrets of runs and looks, each of which is accepted. tls: returns what a new connection
        is to be encrypted with; None: nothing. log: of what belongs to no directory."""
        self.directories = {each.name: each for each in directories}
        self.nowhere = ServedDirectory(log=log)
        """What a client reaches that names no directory of this server."""
        self.tokens = tokens
        self.tls = tls
        self.log = log
        self._only = directories[0] if len(directories) == 1 else None
        self._listener = listener
        self._lock = threading.Lock()
        self._unproven: dict[Session, None] = {}
        self._open: set[Session] = set()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to serve, on threads of its own."""
        for work, name in ((self._accept, "owner-accept"), (self._send_progress, "owner-progress")):
            threading.Thread(target=work, name=name, daemon=True).start()

    def named(self, name: str) -> ServedDirectory:
        """Return the directory of this name. An empty name means the only directory."""
        found = self._only if not name else self.directories.get(name)
        return self.nowhere if found is None else found

    def connections(self, directory: ServedDirectory) -> list[Session]:
        """Return the open connections to a directory. If that is the only one, those that have named none yet are among
        them."""
        with self._lock:
            return [each for each in self._open if each.directory is directory]

    def traffic(self, directory: ServedDirectory) -> tuple[int, int]:
        """Return the bytes that came in and went out on the connections to a directory since the server began."""
        with self._lock:
            channels = [each.channel for each in self._open if each.directory is directory]
            return (
                directory.counts.received_bytes + sum(each.received_bytes for each in channels),
                directory.counts.sent_bytes + sum(each.sent_bytes for each in channels),
            )

    def stop(self) -> None:
        """End all connections. A call that has been executed gets its answer first."""
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for session in self._open:
                session.channel.end_reading()
        until_s = time.monotonic() + ANSWERING_S
        while self._open and time.monotonic() < until_s:
            time.sleep(0.005)
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
                if len(self._unproven) >= MOST_UNPROVEN:
                    oldest = next(iter(self._unproven))
                    del self._unproven[oldest]
                    oldest.channel.cut()
                self._unproven[session] = None
                self._open.add(session)
            try:
                threading.Thread(target=session.run, name="owner-connection", daemon=True).start()
            except RuntimeError:  # the process has reached its limit of threads
                self.forget(session)
                sock.close()

    def admit(self, session: Session, line: str) -> ProvenSession | None:
        """Count a session as proven. Return the session that the new one replaces. Raises ConnectionAbortedError if the
        session may not stay; its client tries again."""
        directory = session.directory
        with self._lock:
            most = self._most(directory)
            if line not in directory.proven and len(directory.proven) >= most:
                directory.say_refused(f"{most} connections are open already", session.peer, is_proven=True)
                raise ConnectionAbortedError("too many connections")
            replaced = directory.admit(session, line)
            self._unproven.pop(session, None)
            return replaced

    def _most(self, directory: ServedDirectory) -> int:
        """Return how many connections a directory may have now. Those that are reserved for another one stay free."""
        others = [each for each in self.directories.values() if each is not directory]
        reserved = min(RESERVED_CONNECTIONS, MOST_CONNECTIONS // (len(others) + 1))
        return MOST_CONNECTIONS - sum(max(reserved, len(each.proven)) for each in others)

    def forget(self, session: Session) -> None:
        """Remove a session that has ended."""
        directory = session.directory
        with self._lock:
            self._unproven.pop(session, None)
            if session in self._open:
                self._open.discard(session)
                directory.counts.received_bytes += session.channel.received_bytes
                directory.counts.sent_bytes += session.channel.sent_bytes
            directory.forget(session, session.line)

    def _send_progress(self) -> None:
        """Send signs of progress to the clients of long calls."""
        while not self._stopped.wait(PROGRESS_S):
            with self._lock:
                sessions = [each for each in self._open if each not in self._unproven]
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
        self.answers = Answers(
            self.channel, lambda error: self.directory.refused(error, peer, is_proven=self.line is not None)
        )
        self.directory = server.named("")
        self.peer = peer
        self.begun_s = time.monotonic()
        self.line: str | None = None
        self._calls: TaskConnection | None = None
        self._run: RunConnection | None = None
        self._server = server
        self._ended = threading.Event()

    @property
    def tasks(self) -> Tasks | None:
        """What the server needs to answer a task's connection."""
        return None if self._calls is None else self._calls.tasks

    def run(self) -> None:
        """Serve the connection until it ends."""
        try:
            serve = self._begin()
            counts = self.directory.counts
            counts.proven += 1
            while True:
                serve()
                counts.calls += 1
        except (OSError, WireError) as error:
            if isinstance(error, WireError):
                with contextlib.suppress(OSError):
                    self.answers.refuse(OwnerRefusedError(f"the owner of the partitions does not understand: {error}"))
        except Exception as error:
            self.directory.log("".join(traceback.format_exception(error)).rstrip())
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
        directory = self.directory = server.named(hello.directory)
        nonce = new_nonce()
        facts = (_dotted(hello.protocol), hello.nonce, directory.incarnation, nonce, hello.directory)
        channel.send(
            Kind.CHALLENGE,
            messages.write_first(messages.Challenge(messages.NAME, messages.PROTOCOL, directory.incarnation, nonce)),
        )
        _, body = self._expect(Kind.PROOF)
        found = messages.read_first(body, messages.Proof)
        if hello.role == messages.RUN and server.tokens():
            key = self._accept_run(found, hello, facts)
        else:
            key = self._accept_task(found, hello.role, facts)
        directory.counts.reconnections += found.again
        channel.until_s = None
        wait_at_most(channel.sock, SILENCE_S)
        self._replace(found.line)
        channel.send(Kind.WELCOME, messages.write_first(messages.Welcome(proof(key, messages.OWNER, *facts))))
        if self._calls is not None:
            return self._calls.serve_call
        assert self._run is not None
        return partial(serve_call, self.answers, self._run, directory.explain, directory.log)

    def _refuse(self, error: RecoveryError) -> NoReturn:
        """Refuse a client that cannot prove itself, after a pause: who guesses gets few answers."""
        self.directory.counts.refused += 1
        time.sleep(REFUSAL_PAUSE_S)
        self.answers.end_with(error)

    def _accept_run(self, found: messages.Proof, hello: messages.Hello, facts: tuple[str, ...]) -> bytes:
        """Return the token by which a run or look has proved itself. Refuses it otherwise."""
        directory, tokens = self.directory, self._server.tokens()
        token = next((each for each in tokens if is_proof(found.proof, each, messages.RUN, *facts)), None)
        if token is None:
            self._refuse(
                OwnerRefusedError(
                    "the owner refused the token",
                    cause="The owner has another token, or has not read its new one yet.",
                    remedy="Give the run and all owners the same file (--token-file FILE), and have owners read "
                    "it: kill -HUP. Then run the same command again.",
                )
            )
        if directory.runs is None:
            # Only who has the token learns the names.
            self.answers.end_with(_not_served(hello.directory, sorted(self._server.directories)), token, facts)
        directory.counts.second_token += token != tokens[0]
        self._run = directory.runs.connected(lambda text: unmasked(text, token, *facts), self.channel.cut)
        return token

    def _accept_task(self, found: messages.Proof, role: str, facts: tuple[str, ...]) -> bytes:
        """Return the key by which a task has proved itself. Refuses it otherwise."""
        directory = self.directory
        tasks = directory.tasks
        key = directory.key_of(found, role, facts) if role == messages.TASK else None
        if role == messages.TASK and tasks is None and directory is not self._server.nowhere:
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
            directory.counts.refused += 1
            lost = LeaseLostError(f"execution {found.number} may not write any more: {tasks.lease.number} began here")
            self.answers.end_with(lost, key, facts)
        self._calls = TaskConnection(self.answers, tasks, directory.turns, directory.explain, directory.log)
        return tasks.key

    def _secure(self) -> None:
        """Begin TLS if the owner has a certificate. A client that expects the opposite gets an answer from which it can
        report the reason."""
        channel, tls = self.channel, self._server.tls()
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
                why = f"the TLS handshake failed: {error.reason or error}"
                self.directory.say_refused(why, self.peer, is_proven=False)
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


def _not_served(name: str, names: Sequence[str]) -> OwnerRefusedError:
    return OwnerRefusedError(
        f"the owner serves no directory named {one_line(name)[:80]!r}"
        if name
        else "the owner serves several directories",
        cause="The address names none of its directories.",
        remedy=f"Add one of its names to the address, as in HOST:PORT/{names[0]}: it serves {', '.join(names)}.",
    )
