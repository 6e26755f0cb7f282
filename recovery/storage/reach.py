"""Reach the store of a task at its address, wherever it is. Imports only what the address needs: executors of a cluster
have no SQLite library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from recovery.base.clock import SystemClock
from recovery.base.ids import ExecutionNumber, Lease, PartitionIndex
from recovery.storage.seam import TaskStore
from recovery.wire.address import OwnerAddress

Kind: TypeAlias = "Callable[[Mapping[str, Any], Lease, bool, bytes | None, int], tuple[TaskStore, int]]"


def reach(address: str, keep: bool = False, task_key: bytes | None = None, attempt: int = 0) -> tuple[TaskStore, int]:
    """Return the task's store at `address` (see `PartitionStore.address`) and the number of partitions.

    keep: hold deltas open for the next task of this process, which pays off with many small tasks. task_key: what the
    task proves itself with, where its store is not on this host. attempt: the number of the task's attempt, which grows
    with each attempt: once it has written, what an earlier one still writes for the micro-batch is refused
    (LeaseLostError). 0: any attempt writes the same, so nothing is refused.
    """
    parsed = _parsed(address)
    lease = Lease(ExecutionNumber(parsed["number"]), parsed["id"])
    return KINDS[parsed["kind"]](parsed, lease, keep, task_key, attempt)


def _files(
    parsed: Mapping[str, Any], lease: Lease, keep: bool, task_key: bytes | None, attempt: int
) -> tuple[TaskStore, int]:
    from recovery.storage.sqlite.task_store import FileTaskStore

    line = parsed["line"] if keep else None
    places = parsed["partitions"], parsed["files"], parsed["scratch"]
    store = FileTaskStore(*places, lease, SystemClock(), line, attempt)
    return store, parsed["count"]


def _owner(
    parsed: Mapping[str, Any], lease: Lease, keep: bool, task_key: bytes | None, attempt: int
) -> tuple[TaskStore, int]:
    from recovery.wire.client import connect

    return connect(parsed["owner"], task_key, attempt)


def _spread(
    parsed: Mapping[str, Any], lease: Lease, keep: bool, task_key: bytes | None, attempt: int
) -> tuple[TaskStore, int]:
    from recovery.storage.spread import SpreadTaskStore

    stores = [(indexes, reach(address, keep, task_key, attempt)[0]) for address, indexes in parsed["shares"]]
    return SpreadTaskStore(stores), parsed["count"]


KINDS: dict[str, Kind] = {
    "files": _files,
    "owner": _owner,
    "spread": _spread,
}
"""How a store is opened, by the kind that its address names."""


def spread_address(lease: Lease, count: int, shares: Sequence[tuple[str, Sequence[PartitionIndex]]]) -> str:
    """Return the address of partitions that lie at several addresses, each with the indexes of those there."""
    facts = {"kind": "spread", "number": lease.number, "id": lease.id, "count": count}
    return json.dumps({**facts, "shares": [(address, list(indexes)) for address, indexes in shares]})


def files_in(address: str) -> str | None:
    """Return the part of an address that is files of this host; None if there are none."""
    parsed = json.loads(address)
    each = [share for share, _ in parsed["shares"]] if parsed["kind"] == "spread" else [address]
    return next((share for share in each if json.loads(share)["kind"] == "files"), None)


def with_files_at(address: str, other: str) -> str:
    """Return an address with `other` in place of files of this host."""
    files, parsed = files_in(address), json.loads(address)
    if parsed["kind"] != "spread":
        return address if files is None else other
    parsed["shares"] = [(other if share == files else share, indexes) for share, indexes in parsed["shares"]]
    return json.dumps(parsed)


@lru_cache(maxsize=64)
def _parsed(address: str) -> Mapping[str, Any]:
    """Parse an address. Cached, because all tasks of a run get the same address."""
    found: dict[str, Any] = json.loads(address)
    if found["kind"] == "files":
        places = {PartitionIndex(int(index)): place for index, place in found["partitions"].items()}
        found["partitions"] = {index: Path(path) for index, (path, _, _) in places.items()}
        found["files"] = {index: (device, inode) for index, (_, device, inode) in places.items()}
        found["scratch"] = Path(found["scratch"])
    elif found["kind"] == "owner":
        found["owner"] = OwnerAddress.parsed(found)
    return found
