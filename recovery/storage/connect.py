"""Open the driver's store of a directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recovery.base.clock import Clock
from recovery.planning.values import PartitionDescription
from recovery.storage.memory import MemoryPartitions
from recovery.storage.seam import PartitionStore
from recovery.storage.sqlite.store import FilePartitions, allow_open_files

__all__ = ["SCRATCH_NAME", "allow_open_files", "connect_driver"]

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
