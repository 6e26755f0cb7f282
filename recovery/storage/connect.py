"""Open the store at a directory or an address. The only module that knows the kinds of stores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from recovery.base.clock import Clock, SystemClock
from recovery.base.ids import ExecutionNumber, Lease
from recovery.planning.values import PartitionDescription
from recovery.storage.memory import MemoryPartitions, task_store
from recovery.storage.seam import PartitionStore, TaskStore
from recovery.storage.sqlite.store import FilePartitions, allow_open_files
from recovery.storage.sqlite.task_store import FileTaskStore

__all__ = ["SCRATCH_NAME", "allow_open_files", "connect_driver", "connect_task"]

SCRATCH_NAME = "scratch"
"""The directory inside a recovery directory for files that need not survive an execution."""


def connect_driver(
    partitions: Sequence[PartitionDescription], scratch: Path, clock: Clock | None = None
) -> PartitionStore:
    """Return the driver's store of these partitions, which it opens for writing. The caller holds the directory's lock,
    or fences (see `PartitionStore.fence`).

    partitions: all of a directory, in the order of their indexes. scratch: a directory that stores may share. clock:
    the system's by default.
    """
    return FilePartitions([each.path for each in partitions], scratch, clock)


_KINDS: tuple[type[PartitionStore], ...] = (FilePartitions, MemoryPartitions)
"""All kinds of stores, so that the type checker compares each with the protocol."""


def connect_task(address: str, keep: bool = False) -> tuple[TaskStore, int]:
    """Return the task's store at `address` (see `PartitionStore.address`) and the number of partitions.

    keep: hold deltas open for the next task of this process, which pays off with many small tasks.
    """
    parsed = _parsed(address)
    kind = parsed["kind"]
    lease = Lease(ExecutionNumber(parsed["number"]), parsed["id"])
    if kind == "memory":
        return task_store(parsed["name"], lease)
    assert kind == "files", f"a store of kind {kind!r} is unknown"
    partitions = [Path(path) for path in parsed["partitions"]]
    files = [(device, inode) for device, inode in parsed["files"]]
    line = parsed["line"] if keep else None
    return FileTaskStore(partitions, files, Path(parsed["scratch"]), lease, SystemClock(), line), len(partitions)


@lru_cache(maxsize=4)
def _parsed(address: str) -> Mapping[str, Any]:
    """Parse an address. Cached, because all tasks of a run get the same one."""
    found: Mapping[str, Any] = json.loads(address)
    return found
