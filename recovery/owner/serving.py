"""The owner's process: `python -m recovery.owner`, as `recovery.owner.process` starts it.

The process gets everything as one line on its standard input, secrets included, so that neither its arguments nor its
environment show any. The process prints a line when it serves, and ends when its standard input ends: when the driver
does.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path

import msgspec

from recovery.base.credentials.server_certificate import CertificateFiles, RenewedCertificate
from recovery.base.ids import ExecutionNumber, Lease, PartitionIndex
from recovery.errors import ConfigurationError, RecoveryError
from recovery.host.children import tell_parent
from recovery.host.open_files import allow_open_files
from recovery.owner.tasks import TaskService
from recovery.wire import server
from recovery.wire.address import location
from recovery.wire.served import ServedDirectory
from recovery.wire.service import Service, Tasks

STACK_BYTES = 1 << 20
"""Of a thread: the default would reserve 8 MiB for each connection."""
FILES_OF_DELTAS = 1024
WAITING = 512
"""Connections that wait to be accepted."""
LOOK_S = 1.0
"""How often the process looks whether its driver still runs, should something else hold its standard input open."""


class ShownCertificate(msgspec.Struct, frozen=True):
    """What an owner's process shows to tasks. certificate, key: paths of PEM files. trusted, host: with what and under
    which name tasks check it; None: a renewed one is not checked before it is shown."""

    certificate: str
    key: str
    trusted: str | None = None
    host: str = ""

    def files(self) -> CertificateFiles:
        """Return the files."""
        return CertificateFiles(Path(self.certificate), Path(self.key))


class Task(msgspec.Struct, frozen=True):
    """What the owner gets on its standard input.

    listener: file descriptor of the listening socket. store: the address of the partitions on this host. reads: the
    partitions' files, by index, for an owner that only sends rows.
    """

    task_key: str
    listener: int
    store: str
    scratch: str
    number: int
    id: str
    count: int
    driver: int
    tls: ShownCertificate | None = None
    reads: list[str] | None = None


class Ready(msgspec.Struct, frozen=True):
    """What an owner's process prints when it serves."""

    port: int
    incarnation: str


class Failed(msgspec.Struct, frozen=True):
    """What an owner's process prints when it cannot serve."""

    error: str
    found: str


def main() -> int:
    """Serve until the standard input ends."""
    # Ctrl-C and a service's stop reach all processes. The driver then finishes its micro-batch, for which it needs the
    # owner, and ends its standard input.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.stack_size(STACK_BYTES)
    given = sys.stdin.buffer.readline()
    if not given:
        return 0
    task = msgspec.json.decode(given, type=Task)
    try:
        serving = _server(task)
        serving.start()
    except RecoveryError as error:
        _print(Failed(type(error).__name__, error.found))
        return error.exit_code
    _print(Ready(port_of(task.listener), serving.named("").incarnation))
    _wait(task.driver)
    # Not stopped one by one: clients see the connection end, and transactions that run are rolled back.
    sys.stderr.flush()
    os._exit(0)


def _server(task: Task) -> server.OwnerServer:
    allow_open_files(server.MOST_CONNECTIONS + server.MOST_UNPROVEN + FILES_OF_DELTAS)
    listener = socket.socket(fileno=os.dup(task.listener))
    listener.settimeout(None)
    tasks = Tasks(
        _service(task),
        bytes.fromhex(task.task_key),
        Lease(ExecutionNumber(task.number), task.id),
        frozenset(map(PartitionIndex, range(task.count))),
    )
    directory = ServedDirectory(tasks=tasks, explain=_damage_behind, log=_log)
    if task.tls is None:
        return server.OwnerServer(listener, [directory], log=_log)
    tls = RenewedCertificate(task.tls.files(), task.tls.trusted, task.tls.host, _log)
    return server.OwnerServer(listener, [directory], tls=tls, log=_log)


def _damage_behind(error: Exception) -> RecoveryError | None:
    # Only a damaged partition needs what checks it.
    from recovery.storage.verify import damage_behind

    return damage_behind(error)


def _service(task: Task) -> Service:
    if task.reads is None:
        return TaskService(task.store, Path(task.scratch))
    # The owner of a run does without Arrow.
    from recovery.owner.reading import ReadingService

    return ReadingService([Path(path) for path in task.reads])


def port_of(listener: int) -> int:
    """Return the port of a listening socket."""
    with socket.socket(fileno=os.dup(listener)) as found:
        port: int = found.getsockname()[1]
        return port


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at a host, as a user wrote it, without its brackets. Raises ConfigurationError."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(place, family=family, backlog=WAITING)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"nothing can listen at {location(host, port)}: {getattr(error, 'strerror', None) or error}",
            cause="The port is in use, or the address is not one of this host.",
            remedy="Give another address: --at HOST:PORT",
        ) from error


def _wait(driver: int) -> None:
    """Return when the driver has ended or closed our standard input."""
    reading = sys.stdin.fileno()
    while os.getppid() == driver:
        if select.select([reading], [], [], LOOK_S)[0] and not os.read(reading, 4096):
            return


def _print(message: Ready | Failed) -> None:
    tell_parent(msgspec.json.encode(message))


def _log(text: str) -> None:
    print(f"recovery owner: {text}", file=sys.stderr, flush=True)
