"""Where a key that may be erased is found: in a partition, in a stored copy of one, and in a changes file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from recovery.base.ids import PartitionIndex
from recovery.base.untrusted_paths import read_received
from recovery.planning.redaction import NamedAs, is_selected, named_as, redacted
from recovery.storage.seam import HeldRows, KeyToErase
from recovery.storage.sqlite.epoch_log import overlaid
from recovery.storage.sqlite.erase import ErasedKeys, count_rows, scrub
from recovery.storage.sqlite.file.connections import connect
from recovery.storage.sqlite.file.opening import has_states
from recovery.storage.sqlite.file.reading import read_partition
from recovery.storage.sqlite.file.statements import snapshot, translated
from recovery.storage.sqlite.transfer.changes_file import reading_changes
from recovery.values.keys import partition_of

RECORDS = "SELECT content FROM states WHERE content IS NOT NULL AND instr(state_id, 'runs/')"
MOST_NOTE_BYTES = 1 << 16
DOCUMENTS = "SELECT state_id FROM states"
CHANGED = "SELECT DISTINCT step_id, state_key FROM changed"


@dataclass(frozen=True, slots=True)
class SoughtKeys:
    """What to search for in copies of a store: keys, and documents of operational state by the globs in `states`.
    count: the number of the store's partitions."""

    keys: tuple[KeyToErase, ...]
    store_id: str
    count: int
    states: tuple[str, ...] = ()

    @property
    def partitions(self) -> list[PartitionIndex]:
        """The partitions whose copies can hold something: those of the keys, and that of the operational state."""
        return sorted({PartitionIndex(0), *(partition_of(each.key, self.count) for each in self.keys)})

    def are_named_in(self, text: str) -> bool:
        """Whether a text for people names a key."""
        return any(word.is_in(text) for word in self.words)

    @property
    def words(self) -> list[NamedAs]:
        """How records of the run history name the keys."""
        return [word for text in dict.fromkeys(each.key for each in self.keys) for word in named_as(text)]


def rows_in(path: Path, keys: Sequence[KeyToErase]) -> list[HeldRows]:
    """Return how many rows a partition holds of keys, at any epoch, by the id under which they are stored. Also during
    a run. Raises CorruptPartitionError or StorageError."""

    def read(connection: apsw.Connection) -> list[HeldRows]:
        with translated(path), snapshot(connection), overlaid(connection, path):
            return count_rows(connection, keys)

    return read_partition(path, read)


def partition_holds(path: Path, wanted: SoughtKeys) -> bool:
    """Return whether a partition holds any of the keys or documents, or a record of a run names a key. Raises
    CorruptPartitionError or StorageError."""

    def names(connection: apsw.Connection) -> bool:
        with translated(path):
            return has_states(connection) and _names(connection, wanted)

    return bool(rows_in(path, wanted.keys)) or read_partition(path, names)


def rewrite(path: Path) -> None:
    """Rewrite a partition without what rows that were deleted before have left in its free pages, and empty its log.
    Nobody else may write to the file. Raises StorageError if a reader keeps the log from being emptied."""
    with contextlib.closing(connect(path, "rw")) as connection:
        scrub(connection, path)


def changes_hold(path: Path, wanted: SoughtKeys) -> bool:
    """Return whether a changes file has rows of any of the keys, one of the documents, or a record of a run that names
    a key. Raises what `read_links` raises."""
    with contextlib.closing(reading_changes(path)) as connection, translated(path):
        keys = ErasedKeys(wanted.keys)
        return any(keys.has(*row) for row in connection.execute(CHANGED)) or _names(connection, wanted)


def text_holds(path: Path, wanted: SoughtKeys) -> bool:
    """Return whether a note names any of the keys, or is none that this package has written."""
    try:
        found = json.loads(read_received(path, MOST_NOTE_BYTES))
    except (OSError, ValueError, RecursionError):
        return True
    return bool(redacted(found, wanted.words) != found)


def _names(connection: apsw.Connection, wanted: SoughtKeys) -> bool:
    if any(is_selected(state_id, wanted.states) for (state_id,) in connection.execute(DOCUMENTS)):
        return True
    contents = (_parsed(content) for (content,) in connection.execute(RECORDS))
    return any(redacted(content, wanted.words) != content for content in contents)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # Only a forger writes that; then it is looked at as it is.
        return text
