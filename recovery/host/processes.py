"""Identities of processes: they distinguish a process from a later one with the same id, and from one in another
container."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recovery.base.clock import boot_id
from recovery.base.printable import one_line

LARGEST_PID = (1 << 31) - 1


def identity(pid: int) -> str | None:
    """Return the identity of a process of this PID namespace: this boot, the namespace, and the process's start time.

    None if the process is gone or the system does not provide these.
    """
    own = pid == os.getpid()
    try:
        fields = Path(f"/proc/{'self' if own else pid}/stat").read_text().rpartition(")")[2].split()
        place = f"{boot_id()}:{_namespace()}"
    except OSError:
        return None
    # A zombie has ended; only its parent has not waited for it yet.
    return None if fields[0] in "ZX" else f"{place}:{fields[19]}"


def is_visible(host: str | None, noted: str | None) -> bool:
    """Whether `identity` can tell here if the process that noted this host and identity still runs: it needs the same
    host, boot and PID namespace. A container has its own namespace, in which the same ids mean other processes."""
    if noted is None or host != socket.gethostname():
        return False
    try:
        # The mounted /proc may be that of another namespace.
        sees_own = os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115 - a path of the kernel
        place = [boot_id(), _namespace()]
    except OSError:
        return False
    parts = noted.split(":")
    # Earlier versions did not note the namespace.
    return sees_own and parts[0] == place[0] and (len(parts) < 3 or parts[1] == place[1])


def is_same(found: str | None, noted: str) -> bool:
    """Whether a process found where `is_visible` holds is the one that noted this identity."""
    return found is not None and found.rpartition(":")[2] == noted.rpartition(":")[2]


def as_holder(purpose: str, **more: Any) -> dict[str, Any]:
    """Return what the holder of a lock writes into it."""
    pid = os.getpid()
    return {"pid": pid, "host": socket.gethostname(), "purpose": purpose, "process": identity(pid), **more}


def describe_holder(holder: Any) -> str:
    """Return a message's description of a lock's holder, which wrote `holder`, or of whom nothing is known."""
    try:
        if holder["pid"] is None:
            return "another process"
        host, noted = holder["host"], holder.get("process")
        elsewhere = noted is not None and host == socket.gethostname() and not is_visible(host, noted)
        where = f"{host}{', in another container' * elsewhere}"
        return one_line(f"process {holder['pid']} on {where} ({holder['purpose']})")
    except (KeyError, TypeError, AttributeError):
        return "another process"


def has_ended(holder: Mapping[str, Any]) -> bool:
    """Whether the holder of a lock has certainly ended; False for a holder that is not visible from here."""
    pid, host, noted = holder.get("pid"), holder.get("host"), holder.get("process")
    if not isinstance(pid, int) or not 0 < pid <= LARGEST_PID or host != socket.gethostname():
        return False
    if isinstance(noted, str):
        found = identity(pid)
        return is_visible(host, noted) and not is_same(found, noted) and not (found is None and _is_hidden(pid))
    # An earlier version wrote it.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _is_hidden(pid: int) -> bool:
    """Whether a process of another user runs that /proc does not show to this one, as with the mount option hidepid."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        # Of a zombie it shows that.
        return not os.access(f"/proc/{pid}/stat", os.R_OK)
    except OSError:
        pass
    return False


def _namespace() -> str:
    """Return the PID namespace of this process; empty if the system has none."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)  # noqa: PTH116 - a path of the kernel
    except OSError:
        return ""
