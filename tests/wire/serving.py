"""An owner's server in this process over a store in memory, and a proxy that cuts connections."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from recovery.base.ids import Lease
from recovery.owner.tasks import TaskService
from recovery.storage.reach import reach
from recovery.storage.seam import TaskStore
from recovery.wire.address import OwnerAddress, owner_address
from recovery.wire.served import ServedDirectory
from recovery.wire.server import OwnerServer
from recovery.wire.service import Tasks


class Serving:
    """A server over the partitions at an address."""

    def __init__(self, address: str, lease: Lease, count: int, scratch: Path, **options) -> None:
        self.key = secrets.token_bytes(32)
        self.lease = lease
        self.count = count
        self.log: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        service = options.pop("service", None) or TaskService(address, scratch)
        tasks = Tasks(service, self.key, lease, frozenset(range(count)))
        tls = options.pop("tls", None)
        self.directory = ServedDirectory(tasks=tasks, log=self.log.append, **options)
        self.server = OwnerServer(self._listener, [self.directory], tls=lambda: tls, log=self.log.append)
        self.server.start()

    def address(self, port: int | None = None, **options) -> str:
        """The address of the server, or of what listens at `port` before it."""
        return owner_address(f"127.0.0.1:{port or self.port}", self.lease, self.count, **options)

    def task(self, port: int | None = None, *, key: bytes | None = None, **options) -> TaskStore:
        """A task's store."""
        return reach(self.address(port, **options), task_key=key or self.key)[0]

    def parsed(self, **options):
        """The address as the client has it."""
        return OwnerAddress.parsed(json.loads(self.address(**options)))

    def close(self) -> None:
        self.server.stop()
        self._listener.close()


class Proxy:
    """Forwards connections to a port. `cut` says after how many bytes of each connection, and in which direction, it
    ends: "up" to the server or "down" from it. Only the first `times` connections are cut."""

    def __init__(self, port: int, cut: tuple[str, int] | None = None, times: int = 1) -> None:
        self._target = port
        self._cut = cut
        self._left = times
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        self.forwarded = {"up": 0, "down": 0}
        """Bytes of the newest connection."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self.connections += 1
            cut = self._cut if self._left > 0 else None
            self._left -= 1
            self.forwarded = {"up": 0, "down": 0}
            for direction, source, sink in (("up", client, server), ("down", server, client)):
                at = cut[1] if cut is not None and cut[0] == direction else None
                threading.Thread(
                    target=self._forward, args=(direction, source, sink, at, self.forwarded), daemon=True
                ).start()

    @staticmethod
    def _forward(direction: str, source: socket.socket, sink: socket.socket, cut: int | None, counts: dict) -> None:
        with contextlib.suppress(OSError):
            while found := source.recv(65536):
                passed = found if cut is None else found[: max(0, cut - counts[direction])]
                if passed:
                    sink.sendall(passed)
                counts[direction] += len(passed)
                if cut is not None and counts[direction] >= cut:
                    break
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextlib.contextmanager
def proxy(port: int, cut: tuple[str, int] | None = None, times: int = 1) -> Iterator[Proxy]:
    """A proxy for a while."""
    made = Proxy(port, cut, times)
    try:
        yield made
    finally:
        made.close()
