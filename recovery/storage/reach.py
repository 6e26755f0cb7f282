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
from recovery.wire.address import OwnerAddress


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

    partitions, line = parsed["partitions"], parsed["line"] if keep else None
    return FileTaskStore(partitions, parsed["files"], parsed["scratch"], lease, SystemClock(), line), len(partitions)


def _memory(parsed: Mapping[str, Any], lease: Lease, keep: bool, task_key: bytes | None) -> tuple[TaskStore, int]:
    from recovery.storage.memory import task_store

    return task_store(parsed["name"], lease)


def _owner(parsed: Mapping[str, Any], lease: Lease, keep: bool, task_key: bytes | None) -> tuple[TaskStore, int]:
    from recovery.wire.client import connect

    return connect(parsed["owner"], task_key)


_KINDS: dict[str, Callable[[Mapping[str, Any], Lease, bool, bytes | None], tuple[TaskStore, int]]] = {
    "files": _files,
    "memory": _memory,
    "owner": _owner,
}


@lru_cache(maxsize=4)
def _parsed(address: str) -> Mapping[str, Any]:
    """Parse an address. Cached, because all tasks of a run get the same one."""
    found: dict[str, Any] = json.loads(address)
    if found["kind"] == "files":
        found["partitions"] = [Path(path) for path in found["partitions"]]
        found["files"] = [(device, inode) for device, inode in found["files"]]
        found["scratch"] = Path(found["scratch"])
    elif found["kind"] == "owner":
        found["owner"] = OwnerAddress.parsed(found)
    return found
