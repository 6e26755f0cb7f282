"""Positions in Iceberg tables, as Iceberg's source for Spark has them: how many files of which snapshot were read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from recovery.base.ids import BatchId
from recovery.checkpoint.position import source_lines


class TableOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position. Snapshots are numbered at random: no comparison tells which one is earlier."""

    version: int
    snapshot_id: int
    position: int
    scan_all_files: bool

    @property
    def begun(self) -> bool:
        """Whether the position is in a snapshot, and not before all of them."""
        return self.snapshot_id >= 0

    def at_beginning_of(self, snapshot: int) -> TableOffset:
        """Return the position before all files that a snapshot adds."""
        return msgspec.structs.replace(self, snapshot_id=snapshot, position=0, scan_all_files=False)


def table_offset(offset: str) -> TableOffset | None:
    """Return a source's offset as a position in an Iceberg table; None if it is another source's."""
    try:
        return msgspec.json.decode(offset, type=TableOffset)
    except (ValueError, RecursionError):
        return None


def begin_at_position(checkpoint: Path, batch: BatchId, sources: Sequence[int] | None) -> None:
    """Let the sources of Iceberg tables begin where a restored checkpoint is. sources: see `position_files`.

    Such a source keeps where it first began in a file. With Trigger.AvailableNow it goes through all snapshots from
    there to find the end of the input: it fails if the first has expired since, and over rows that were removed long
    ago.
    """
    for source, offset in source_lines(checkpoint, batch, sources):
        at, kept = table_offset(offset), checkpoint / "sources" / source / "offsets" / "0"
        if at is not None and at.begun and kept.exists():
            # Before all files of the snapshot: the source fails if it finds nothing behind the place that it kept.
            kept.write_bytes(msgspec.json.encode(msgspec.structs.replace(at, position=-1)))
