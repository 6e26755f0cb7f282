"""How tasks' processes learn that an execution is over, at once and without being asked: by a socket that ends.

The driver listens on a Unix socket, which takes no thread: who connects waits in the socket's queue until the driver
looks there. When the execution ends, or the driver's process does, the connection ends, which a thread of the other
process waits for. It lets go of what it held, and then ends its side, which the driver waits for.
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
"""Who may connect before the driver looks."""
MOST_HELD = 256
"""Who is told of the end. Others are let go of immediately: they keep nothing then, and the driver has files left."""
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
        self._holders: list[socket.socket] = []
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

    def admit(self) -> None:
        """Take who has connected out of the queue, which would fill up with workers that came and went. Takes
        microseconds; only when somebody came, those who have ended are looked for."""
        if self._listener is None:
            return
        came = 0
        # What cannot be accepted, for lack of files, waits in the queue. Who connects all the time must not keep us.
        with contextlib.suppress(OSError):
            while came < MOST_WAITING:
                holder = self._listener.accept()[0]
                came += 1
                # Every user of the machine can connect where the socket has no file.
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
        """Have everyone let go, and wait until they have."""
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
    """Whether the other side has; it never says anything before."""
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
    try:
        threading.Thread(target=_wait, args=(line, let_go), name="lifeline", daemon=True).start()
    except RuntimeError:  # the process may have no more of them
        line.close()
        return False
    return True


def _wait(line: socket.socket, let_go: Callable[[], None]) -> None:
    with line:
        with contextlib.suppress(OSError):
            line.recv(1)
        let_go()
        # A process that this one has forked may have the socket as well.
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)
