"""Which process somebody was: told from a later one of the same number, and from one of another container."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recovery.base.clock import boot_id
from recovery.base.printable import one_line


def identity(pid: int) -> str | None:
    """What tells a process of this PID namespace from all others: this boot, the namespace, and when it began.

    None: it is gone, or the system does not tell.
    """
    own = pid == os.getpid()
    try:
        fields = Path(f"/proc/{'self' if own else pid}/stat").read_text().rpartition(")")[2].split()
        place = f"{boot_id()}:{_namespace()}"
    except OSError:
        return None
    # A zombie has ended; it is only that nobody asked how.
    return None if fields[0] in "ZX" else f"{place}:{fields[19]}"


def is_visible(host: str | None, noted: str | None) -> bool:
    """Whether `identity` can tell here if the process that noted this host and identity goes on: on the same host,
    since the same boot, in the same PID namespace. A container has a namespace of its own, and its numbers mean other
    processes."""
    if noted is None or host != socket.gethostname():
        return False
    try:
        # The mounted /proc may be that of another namespace.
        sees_own = os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115 - not a file of ours
        place = [boot_id(), _namespace()]
    except OSError:
        return False
    parts = noted.split(":")
    # Earlier versions did not note the namespace.
    return sees_own and parts[0] == place[0] and (len(parts) < 3 or parts[1] == place[1])


def is_same(found: str | None, noted: str) -> bool:
    """Whether a process that was found where `is_visible` is the one that noted this identity."""
    return found is not None and found.rpartition(":")[2] == noted.rpartition(":")[2]


def as_holder(purpose: str, **more: Any) -> dict[str, Any]:
    """What the holder of a lock writes of itself."""
    pid = os.getpid()
    return {"pid": pid, "host": socket.gethostname(), "purpose": purpose, "process": identity(pid), **more}


def describe_holder(holder: Any) -> str:
    """What a message says of the holder of a lock, which wrote `holder`."""
    try:
        host, noted = holder["host"], holder.get("process")
        elsewhere = noted is not None and host == socket.gethostname() and not is_visible(host, noted)
        where = f"{host}{', in another container' * elsewhere}"
        return one_line(f"process {holder['pid']} on {where} ({holder['purpose']})")
    except (KeyError, TypeError, AttributeError):
        return "another process"


def has_ended(holder: Mapping[str, Any]) -> bool:
    """Whether it is known that the holder of a lock is no more: of those elsewhere it is not."""
    pid, host, noted = holder.get("pid"), holder.get("host"), holder.get("process")
    if not isinstance(pid, int) or pid <= 0 or host != socket.gethostname():
        return False
    if isinstance(noted, str):
        return is_visible(host, noted) and not is_same(identity(pid), noted)
    # An earlier version's.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _namespace() -> str:
    """The PID namespace of this process; empty where the system has none."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)  # noqa: PTH116 - not a file of ours
    except OSError:
        return ""
