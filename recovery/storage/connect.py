"""Open the driver's store of a directory, or an owner's share of one that is spread over hosts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recovery.base.clock import Clock
from recovery.errors import FileReplacedError
from recovery.planning.values import PartitionDescription
from recovery.storage.deltas.scratch import left_executions
from recovery.storage.owned import OwnedPartitions
from recovery.storage.scan import describe_file
from recovery.storage.seam import FencingStore, PartitionStore
from recovery.storage.sqlite.file.opening import partition_path
from recovery.storage.sqlite.store import FilePartitions, PartitionShare

__all__ = ["SCRATCH_NAME", "FilePartitions", "PartitionShare", "connect_driver", "connect_share", "left_executions"]

SCRATCH_NAME = "scratch"
"""The directory inside a recovery directory for files that need not survive an execution."""


def connect_driver(
    partitions: Sequence[PartitionDescription], scratch: Path, clock: Clock | None = None
) -> FencingStore:
    """Return the driver's store of these partitions, which it opens for writing. The caller holds the directory's lock,
    or fences (see `FencingStore.fence`).

    partitions: all of a directory, in the order of their indexes. scratch: a directory that stores may share. clock:
    the system's by default.
    """
    return FilePartitions([each.path for each in partitions], scratch, clock)


def connect_share(store_id: str, share: PartitionShare, scratch: Path, clock: Clock) -> FilePartitions:
    """Return the store of those partitions of a store that lie in one directory, which it opens for writing. The caller
    holds the directory's lock.

    Raises FileReplacedError, before any is opened, for a file that is not the partition of this store.
    """
    paths = [partition_path(share.directory, index) for index in share.indexes]
    for index, path in zip(share.indexes, paths, strict=True):
        found = describe_file(path)
        if (found.store_id, found.index, found.count) != (store_id, index, share.count):
            raise FileReplacedError("it was replaced by a file of another store since the run has planned", path=path)
    return FilePartitions(paths, scratch, clock, share)


_KINDS: tuple[type[PartitionStore], ...] = (FilePartitions, OwnedPartitions)
"""The kinds of stores, so that the type checker compares each with the protocol."""
