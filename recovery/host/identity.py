"""Which host a process is on, so that another process can tell whether it sees the same files."""

from __future__ import annotations

import socket
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_name() -> str:
    """The name of this host, for people."""
    return socket.gethostname()


def this_host() -> str:
    """A text that two processes share only if they run on one host. Containers are hosts of their own."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    return f"{host_name()} {boot}".strip()
