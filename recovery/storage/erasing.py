"""Where a key that may be erased is found: in a partition, in a stored copy of one, and in a changes file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apsw

from recovery.storage.seam import HeldRows, KeyToErase
from recovery.storage.sqlite.epoch_log import overlaid
from recovery.storage.sqlite.erase import count_rows
from recovery.storage.sqlite.file.reading import read_partition
from recovery.storage.sqlite.file.statements import snapshot, translated
from recovery.storage.sqlite.transfer.changes_file import holds_any


def rows_in(path: Path, keys: Sequence[KeyToErase]) -> list[HeldRows]:
    """Return how many rows a partition holds of keys, at any epoch, by the id under which they are stored. Also during
    a run. Raises CorruptPartitionError or StorageError."""

    def read(connection: apsw.Connection) -> list[HeldRows]:
        with translated(path), snapshot(connection), overlaid(connection, path):
            return count_rows(connection, keys)

    return read_partition(path, read)


def is_in_changes(path: Path, keys: Sequence[KeyToErase]) -> bool:
    """Return whether a changes file has rows of any of these keys. Raises what `read_links` raises."""
    return holds_any(path, keys)
