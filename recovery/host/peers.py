"""The user of the process at the other end of a connection within this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")
_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_ESTABLISHED = "01"


def is_trusted(user: int) -> bool:
    """Whether a user may do what this process's user may: only that user and root."""
    return user in (os.geteuid(), 0)


def of_trusted_user(connected: socket.socket) -> bool:
    """Whether a process of this process's user, or of root, is at the other end of a Unix socket. Where the system does
    not say (other than Linux), the socket's directory must keep others out."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    try:
        credentials = connected.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    except OSError:
        return False
    return is_trusted(_CREDENTIALS.unpack(credentials)[1])


def tcp_of_trusted_user(connected: socket.socket) -> bool:
    """Return whether a trusted user's process is at the other end of a TCP connection over the loopback interface, for
    a server that cannot ask for a secret."""
    try:
        own, other = connected.getsockname()[1], connected.getpeername()[1]
    except OSError:
        return False
    known, users = False, set()
    for table in _TABLES:
        with contextlib.suppress(OSError):
            lines = Path(table).read_text().splitlines()[1:]
            known = True
            for fields in map(str.split, lines):
                # This is the other end's own row; addresses are hexadecimal, and may be IPv4 within IPv6.
                ports = tuple(int(fields[column].rpartition(":")[2], 16) for column in (1, 2))
                if ports == (other, own) and fields[3] == _ESTABLISHED:
                    users.add(int(fields[7]))
    return not known or (bool(users) and all(map(is_trusted, users)))
