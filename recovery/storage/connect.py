"""From a directory or an address to a store: the one place that knows which kinds of stores there are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from recovery.base.clock import SystemClock
from recovery.base.ids import ExecutionNumber, Lease
from recovery.storage.sqlite.store import FilePartitions, FileTaskStore, allow_open_files

__all__ = ["SCRATCH_NAME", "FilePartitions", "allow_open_files", "connect_task"]

SCRATCH_NAME = "scratch"
"""The directory inside a recovery directory that holds what need not survive an execution."""


def connect_task(address: str, keep: bool = False) -> tuple[FileTaskStore, int]:
    """The task's store behind `address` (see `PartitionStore.address`), and the number of partitions.

    keep: hold deltas open for the next task of this process, which pays for many small tasks.
    """
    told = _parsed(address)
    kind = told["kind"]
    assert kind == "files", f"a store of kind {kind!r} is unknown"
    partitions = [Path(path) for path in told["partitions"]]
    files = [(device, inode) for device, inode in told["files"]]
    lease = Lease(ExecutionNumber(told["number"]), told["id"])
    line = told["line"] if keep else None
    return FileTaskStore(partitions, files, Path(told["scratch"]), lease, SystemClock(), line), len(partitions)


@lru_cache(maxsize=4)
def _parsed(address: str) -> Mapping[str, Any]:
    """All tasks of a run are given the same address."""
    found: Mapping[str, Any] = json.loads(address)
    return found
