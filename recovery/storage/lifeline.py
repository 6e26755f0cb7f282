"""How tasks' processes learn that an execution is over, at once and without being asked: by a socket that ends.

The driver listens on a Unix socket, which takes no thread: who connects waits in the socket's queue for as long as the
execution lasts. When it ends, or the driver's process does, the connection ends, which a thread of the other process
waits for. It lets go of what it held, and then ends its side, which the driver waits for.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from recovery.clock import Clock

MOST_HOLDERS = 256
WAIT_S = 5.0
"""How long the driver waits, at most, for the others to let go."""


class Lifeline:
    """The driver's end, from its making until `close`."""

    def __init__(self, name: str, clock: Clock) -> None:
        """`name` is the execution's own. On Linux the socket has no file, so that none is left of a killed run and who
        copies directories meets none; elsewhere it stands among the temporary files."""
        self._clock = clock
        self._directory: Path | None = None
        self._listener = None
        self.address: str | None = f"\0recovery-{name}"
        """Where others reach it; None where there can be no such socket, so that nobody does."""
        if sys.platform == "linux":
            self._listener = _listening(self.address)
        if self._listener is None:
            with contextlib.suppress(OSError):
                self._directory = Path(tempfile.mkdtemp(prefix="recovery-"))
                self.address = str(self._directory / "line")
                self._listener = _listening(self.address)
        if self._listener is None:
            self.address = None

    def close(self) -> None:
        """Have everyone let go, and wait until they have."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        if self._listener is None:
            return
        holders: list[socket.socket] = []
        with self._listener as listener, contextlib.suppress(OSError):
            listener.setblocking(False)
            while True:
                holders.append(listener.accept()[0])
        self._listener = None
        for holder in holders:
            with contextlib.suppress(OSError):
                holder.shutdown(socket.SHUT_WR)
        until_s = self._clock.elapsed_s() + WAIT_S
        for holder in holders:
            with holder, contextlib.suppress(OSError):
                holder.settimeout(max(0.001, until_s - self._clock.elapsed_s()))
                holder.recv(1)


def _listening(address: str) -> socket.socket | None:
    def listen(made: socket.socket) -> None:
        made.bind(address)
        made.listen(MOST_HOLDERS)

    return _socket(listen)


def _socket(begin: Callable[[socket.socket], None]) -> socket.socket | None:
    """A Unix socket that has begun so; None where it cannot."""
    try:
        made = socket.socket(socket.AF_UNIX)
    except (OSError, AttributeError):
        return None
    try:
        begin(made)
    except OSError:
        made.close()
        return None
    return made


def hold(address: str, let_go: Callable[[], None]) -> bool:
    """Call `let_go`, on a thread of its own, as soon as the execution at this address is over. Returns whether it goes
    on, and can be reached from here; if not, nothing is called."""

    def connect(made: socket.socket) -> None:
        # A full queue is not waited for.
        made.setblocking(False)
        made.connect(address)
        made.setblocking(True)

    line = _socket(connect)
    if line is None:
        return False
    threading.Thread(target=_wait, args=(line, let_go), name="lifeline", daemon=True).start()
    return True


def _wait(line: socket.socket, let_go: Callable[[], None]) -> None:
    with line:
        with contextlib.suppress(OSError):
            line.recv(1)
        let_go()
        # A process that this one has forked may have the socket as well.
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)
