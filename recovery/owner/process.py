"""The driver's side of the owner's process: start it, keep it running, end it.

The driver opens the listening socket and keeps it. So the port stays the same, and nobody else can take it, while the
process is started again; tasks that connect meanwhile wait.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from recovery.base.ids import Lease
from recovery.errors import ConfigurationError, RecoveryError, StorageError, error_named
from recovery.host.children import end, exit_text, own_module
from recovery.metrics.memory import resident_bytes
from recovery.owner.serving import WAITING, Failed, Ready, ShownCertificate, Task, port_of
from recovery.wire.address import DEADLINE_S, location, owner_address

START_S = 60.0
"""How long the process may take to start: importing on a busy host."""
END_S = 5.0
PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
STEADY_S = 30.0
"""A process that ran for this long is started again without a pause."""


class OwnerProcess:
    """The owner's process of one execution, and the thread that starts it again when it dies."""

    def __init__(
        self,
        store: str,
        scratch: Path,
        task_key: bytes,
        lease: Lease,
        partition_count: int,
        *,
        bind: str = "127.0.0.1",
        port: int = 0,
        tls: ShownCertificate | None = None,
        reads: Sequence[Path] | None = None,
        log: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ) -> None:
        """Start the process; return when it serves.

        store: the address of the partitions on this host. scratch: the execution's directory. bind, port: where to
        listen; port 0 is a free one. tls: absolute paths, from which the process reads again what has changed. reads:
        the partitions' files, by index, for a process that only sends rows. Raises ConfigurationError if the process
        cannot listen there.
        """
        if tls is not None:
            tls.files().read()
        self.lease = lease
        self.partition_count = partition_count
        self.starts = 0
        """How often the process was started."""
        self.incarnation = ""
        self._log = log
        self._listener = _listening(bind, port)
        self._listener_number = self._listener.fileno()
        self.bind = bind
        self.port = port_of(self._listener_number)
        self._task = Task(
            task_key=task_key.hex(),
            listener=self._listener_number,
            store=store,
            scratch=str(scratch.absolute()),
            number=lease.number,
            id=lease.id,
            count=partition_count,
            driver=os.getpid(),
            tls=tls,
            reads=None if reads is None else [str(path.absolute()) for path in reads],
        )
        self._stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._first: RecoveryError | None = None
        self._began = threading.Event()
        # Of one thread: a process may end with the thread that started it.
        self._thread = threading.Thread(target=self._supervise, name="owner-process", daemon=True)
        self._thread.start()
        try:
            self._began.wait()
            if self._first is not None:
                raise self._first
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int | None:
        """The number of the process, as long as it runs."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def address(self, host: str, *, deadline_s: float = DEADLINE_S, tls_ca_pem: str | None = None) -> str:
        """Return the address for tasks, which reach this host under the name `host`. The address has no secret."""
        return owner_address(
            location(host, self.port),
            self.lease,
            self.partition_count,
            deadline_s=deadline_s,
            tls_ca_pem=tls_ca_pem,
        )

    def memory_bytes(self) -> int | None:
        """Return the process's resident memory; None if it does not run or the system does not tell."""
        pid = self.pid
        return None if pid is None else resident_bytes(pid)

    def stop(self) -> None:
        """End the process and stop listening. May be called again."""
        self._stopped.set()
        process = self._process
        if process is not None:
            end(process, END_S)
        self._thread.join()
        self._listener.close()

    def _supervise(self) -> None:
        pause_s = PAUSE_S
        while not self._stopped.is_set():
            began_s = time.monotonic()
            try:
                self._start()
            except RecoveryError as error:
                if not self._began.is_set():
                    self._first = error
                    self._began.set()
                    return
                self._log(f"recovery: the owner's process was not started again: {error.found}")
            else:
                self._began.set()
                assert self._process is not None
                code = self._process.wait()
                if not self._stopped.is_set():
                    self._log(f"recovery: the owner's process ended ({exit_text(code)}); it is started again")
            if time.monotonic() - began_s > STEADY_S:
                pause_s = PAUSE_S
            self._stopped.wait(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    def _start(self) -> None:
        """Start the process and wait until it serves. Raises RecoveryError."""
        self.starts += 1
        command, environment = own_module("recovery.owner")
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[self._listener_number],
                env=environment,
            )
        except OSError as error:
            raise StorageError(f"the owner's process cannot be started: {error}") from error
        self._process = process
        if self._stopped.is_set():
            end(process, END_S)
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.write(msgspec.json.encode(self._task) + b"\n")
            process.stdin.flush()
        line = _first_line(process)
        try:
            self.incarnation = msgspec.json.decode(line, type=Ready).incarnation
        except (msgspec.DecodeError, msgspec.ValidationError):
            end(process, END_S)
            raise _start_error(line, process) from None


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    """Return the first line that the process prints; what came until it ended or was too late."""
    assert process.stdout is not None
    until_s = time.monotonic() + START_S
    found = b""
    while b"\n" not in found and (left_s := until_s - time.monotonic()) > 0:
        if select.select([process.stdout], [], [], left_s)[0]:
            read = os.read(process.stdout.fileno(), 1 << 16)
            if not read:
                break
            found += read
    return found


def _start_error(line: bytes, process: subprocess.Popen[bytes]) -> RecoveryError:
    with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
        failed = msgspec.json.decode(line, type=Failed)
        return (error_named(failed.error) or StorageError)(failed.found)
    return StorageError(
        f"the owner's process did not start ({exit_text(process.returncode)})",
        cause="The error of the process is above; or this host is too busy, or has too little memory.",
        remedy="Fix it and run the same command again: nothing was changed.",
    )


def _listening(bind: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    found = socket.socket(family)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((bind, port))
        found.listen(WAITING)
    except OSError as error:
        found.close()
        raise ConfigurationError(
            f"the run cannot listen at {location(bind, port)}: {error.strerror or error}",
            cause="The port is in use, or the address is not one of this host.",
            remedy="Give another address: --serve [HOST]:PORT",
        ) from error
    return found
