"""A socket whose end tells task processes immediately, without polling, that an execution is over.

The driver listens on a Unix socket, which takes no thread: connections wait in the socket's queue until the driver
accepts them. When the execution or the driver's process ends, the connection ends. A thread of the task process waits
for the end of the driver's side, releases what the process held, and then closes its side, for which the driver waits.
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

from recovery.base.clock import Clock
from recovery.host.peers import of_trusted_user

MOST_WAITING = 256
"""How many processes may connect before the driver accepts them."""
MOST_HELD = 256
"""How many connections the driver holds. The driver closes further connections immediately: those processes keep
nothing, and the driver does not run out of file descriptors."""
WAIT_S = 5.0
"""How long the driver waits at most for the task processes to release what they hold."""


class Lifeline:
    """The driver's end, open from construction until `close`."""

    def __init__(self, name: str, clock: Clock) -> None:
        """name: unique to the execution. On Linux the socket has no file, so a killed run leaves none behind and a
        copy of the directory contains none. Elsewhere the socket is a temporary file."""
        self._clock = clock
        self._directory: Path | None = None
        self._listener = None
        self._holders: list[socket.socket] = []
        self.address: str | None = f"\0recovery-{name}"
        """The address for task processes; None if the socket cannot be created, so that nobody connects."""
        if sys.platform == "linux":
            self._listener = _listening(self.address)
        if self._listener is None:
            with contextlib.suppress(OSError):
                self._directory = Path(tempfile.mkdtemp(prefix="recovery-"))
                self.address = str(self._directory / "line")
                self._listener = _listening(self.address)
        if self._listener is None:
            self.address = None

    def admit(self) -> None:
        """Accept waiting connections, so that workers that came and went do not fill the queue. Takes microseconds.
        Looks for connections that have ended only if there are new ones."""
        if self._listener is None:
            return
        came = 0
        # Without free file descriptors, connections stay in the queue. The limit keeps a constant stream of
        # connections from blocking the driver.
        with contextlib.suppress(OSError):
            while came < MOST_WAITING:
                holder = self._listener.accept()[0]
                came += 1
                # If the socket has no file, every user of the machine can connect.
                if not of_trusted_user(holder):
                    holder.close()
                    continue
                self._holders.append(holder)
                if len(self._holders) > MOST_HELD:
                    self._forget_ended()
                    while len(self._holders) > MOST_HELD:
                        self._holders.pop().close()
        if came:
            self._forget_ended()

    def _forget_ended(self) -> None:
        for holder in filter(_has_ended, self._holders.copy()):
            holder.close()
            self._holders.remove(holder)

    def close(self) -> None:
        """Make all task processes release what they hold, and wait until they have, at most `WAIT_S`."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        if self._listener is None:
            return
        self.admit()
        self._listener.close()
        self._listener = None
        for holder in self._holders:
            with contextlib.suppress(OSError):
                holder.shutdown(socket.SHUT_WR)
        until_s = self._clock.elapsed_s() + WAIT_S
        for holder in self._holders:
            with holder, contextlib.suppress(OSError):
                holder.settimeout(max(0.001, until_s - self._clock.elapsed_s()))
                holder.recv(1)
        self._holders.clear()


def _has_ended(holder: socket.socket) -> bool:
    """Return whether the other side has ended. The other side never sends anything before it ends."""
    holder.setblocking(False)
    try:
        holder.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _listening(address: str) -> socket.socket | None:
    def listen(made: socket.socket) -> None:
        made.bind(address)
        made.listen(MOST_WAITING)
        made.setblocking(False)

    return _socket(listen)


def _socket(begin: Callable[[socket.socket], None]) -> socket.socket | None:
    """Return a Unix socket after calling `begin` on it, or None if making the socket or `begin` fails."""
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
    """Call `let_go`, on a separate thread, as soon as the execution at this address is over. Return whether the
    execution is still running and reachable from here; if not, `let_go` is never called."""

    def connect(made: socket.socket) -> None:
        # Do not wait while the queue is full.
        made.setblocking(False)
        made.connect(address)
        made.setblocking(True)

    line = _socket(connect)
    if line is None:
        return False
    try:
        threading.Thread(target=_wait, args=(line, let_go), name="lifeline", daemon=True).start()
    except RuntimeError:  # the process has reached its limit of threads
        line.close()
        return False
    return True


def _wait(line: socket.socket, let_go: Callable[[], None]) -> None:
    with line:
        with contextlib.suppress(OSError):
            line.recv(1)
        let_go()
        # A process forked from this one may have the socket open too.
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)
