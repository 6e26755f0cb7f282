"""Reach the store of a task at its address, wherever it is. Imports only what the address needs: executors of a cluster
have no SQLite library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from recovery.base.clock import SystemClock
from recovery.base.ids import ExecutionNumber, Lease
from recovery.storage.seam import TaskStore


def reach(address: str, keep: bool = False, task_key: bytes | None = None) -> tuple[TaskStore, int]:
    """Return the task's store at `address` (see `PartitionStore.address`) and the number of partitions.

    keep: hold deltas open for the next task of this process, which pays off with many small tasks. task_key: what the
    task proves itself with, where its store is not on this host.
    """
    parsed = _parsed(address)
    lease = Lease(ExecutionNumber(parsed["number"]), parsed["id"])
    return _KINDS[parsed["kind"]](parsed, lease, keep, task_key)


def _files(parsed: Mapping[str, Any], lease: Lease, keep: bool, task_key: bytes | None) -> tuple[TaskStore, int]:
    from recovery.storage.sqlite.task_store import FileTaskStore

    partitions = [Path(path) for path in parsed["partitions"]]
    files = [(device, inode) for device, inode in parsed["files"]]
    line = parsed["line"] if keep else None
    return FileTaskStore(partitions, files, Path(parsed["scratch"]), lease, SystemClock(), line), len(partitions)


def _memory(parsed: Mapping[str, Any], lease: Lease, keep: bool, task_key: bytes | None) -> tuple[TaskStore, int]:
    from recovery.storage.memory import task_store

    return task_store(parsed["name"], lease)


_KINDS: dict[str, Callable[[Mapping[str, Any], Lease, bool, bytes | None], tuple[TaskStore, int]]] = {
    "files": _files,
    "memory": _memory,
}


@lru_cache(maxsize=4)
def _parsed(address: str) -> Mapping[str, Any]:
    """Parse an address. Cached, because all tasks of a run get the same one."""
    found: Mapping[str, Any] = json.loads(address)
    return found
