"""Resident memory of a run's processes: the driver's Python, its JVM, Spark's Python workers below it, and on a cluster
the owner's process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
STARTED_BY_JVM = "PYSPARK_GATEWAY_PORT"
"""Set in the environment of a driver that a JVM has started."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Resident bytes; None: unknown. Workers are forked, so pages that they share count for each of them.

    executors_bytes: on a cluster, of all executors together, the most that each has had so far.
    """

    driver_bytes: int | None = None
    jvm_bytes: int | None = None
    workers_bytes: int | None = None
    owner_bytes: int | None = None
    executors_bytes: int | None = None


def measure_memory(pid: int, proc: Path = PROC) -> ProcessMemory:
    """Return the memory of process `pid` and its descendants, as Linux reports it; unknown on other systems.

    The driver's children are its JVM, whose descendants are Python processes, and on a cluster the owner's process. If
    the JVM has started the driver, as spark-submit does, it is the driver's parent. Executors on other hosts are not
    covered: Spark reports their memory.
    """
    children: dict[int, list[tuple[int, str]]] = {}
    try:
        for entry in os.scandir(proc):
            if entry.name.isdigit():
                found = _parent(Path(entry.path))
                if found is not None:
                    children.setdefault(found[0], []).append((int(entry.name), found[1]))
        driver = _resident(proc / str(pid))
    except OSError:
        return ProcessMemory()
    if driver is None:
        return ProcessMemory()
    jvm: int | None = None
    workers: int | None = None
    owner: int | None = None
    below = list(children.get(pid, ()))
    if STARTED_BY_JVM in os.environ:
        below += _parents_of(pid, children)
    seen = {pid}
    while below:
        child, name = below.pop()
        if child in seen:
            continue
        seen.add(child)
        below += children.get(child, ())
        resident = _resident(proc / str(child))
        if resident is None:
            continue
        if name == "java":
            jvm = (jvm or 0) + resident
        elif name.startswith("python") and _is_owner(proc / str(child)):
            owner = (owner or 0) + resident
        elif name.startswith("python"):
            workers = (workers or 0) + resident
    return ProcessMemory(driver, jvm, workers, owner)


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory of one process; None if it has ended, or the system does not tell."""
    return _resident(PROC / str(pid))


def _parents_of(pid: int, children: Mapping[int, list[tuple[int, str]]]) -> list[tuple[int, str]]:
    """Return the number and the name of a process's parent, in a list; without a known parent, an empty one."""
    above = {child: parent for parent, found in children.items() for child, _ in found}
    return [(above[pid], name) for found in children.values() for other, name in found if other == above.get(pid)]


def _parent(process: Path) -> tuple[int, str] | None:
    """Return the number of a process's parent, and the process's name. None: the process has ended meanwhile."""
    try:
        before, _, after = (process / "stat").read_text(errors="replace").rpartition(")")
    except OSError:
        return None
    return int(after.split()[1]), before.partition("(")[2]


def _is_owner(process: Path) -> bool:
    """Whether a process is one that `recovery.owner.process` starts."""
    try:
        return b"\0-m\0recovery.owner\0" in (process / "cmdline").read_bytes()
    except OSError:
        return False


def _resident(process: Path) -> int | None:
    try:
        return int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None
