"""What the commits of a Delta table did, by the operations that they name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from recovery.sinks.tables.commits import Commit, Record

Entry: TypeAlias = Mapping[str, Any]
"""What a commit says of itself: the action commitInfo, empty if it says nothing."""

_HARMLESS = {"OPTIMIZE", "VACUUM START", "VACUUM END", "FSCK", "RESTORE"}
"""Operations that add no row which an older version does not have."""
_REPLACE = ("REPLACE TABLE", "CREATE OR REPLACE", "CLONE")


def is_restore(entry: Entry) -> bool:
    """Whether the commit brought back an older version."""
    return entry.get("operation") == "RESTORE"


def replaces(entry: Entry) -> bool:
    """Whether the commit put other rows in the place of all: an overwrite without a condition."""
    operation, given = str(entry.get("operation", "")), entry.get("operationParameters") or {}
    if operation.startswith(_REPLACE) or given.get("outputMode") == "Complete":
        return True
    if operation not in ("WRITE", "CREATE TABLE AS SELECT") or given.get("mode") != "Overwrite":
        return False
    condition = str(given.get("predicate") or given.get("replaceWhere") or "[]")
    return condition in ("[]", "null") and str(given.get("isDynamicPartitionOverwrite", "false")).lower() != "true"


def commits_of(
    entries: Sequence[tuple[int, Entry]],
    record_of: Callable[[str | None], Record | None],
    field: str,
    removed_by: Callable[[int], frozenset[str] | None],
) -> Iterator[Commit]:
    """Yield the commits of a table, newest first; those that a later restore left out are `undone_by` it.

    entries: by version, newest first. field: that of the record. removed_by: returns the paths of the files that a
    version took out of the table, None if they are not known any more; asked for a restore to a time.
    """
    kept, by = -1, ""
    by_time: list[tuple[str, frozenset[str] | None]] = []
    for version, entry in entries:
        record = record_of(entry.get(field))
        undone_by = by if by and version > kept else None
        if undone_by is None:
            undone_by = next((each for each, removed in by_time if _lost(record, removed)), None)
        operation = str(entry.get("operation", "a commit that does not say what it did"))
        yield Commit(version, record, operation, operation in _HARMLESS, replaces(entry), undone_by)
        if undone_by is not None or not is_restore(entry):
            continue
        target = str((entry.get("operationParameters") or {}).get("version"))
        shown = f"RESTORE in version {version}"
        if target.isdecimal():
            kept, by = int(target), shown
        elif record is None:
            by_time.append((shown, removed_by(version)))


def _lost(record: Record | None, removed: frozenset[str] | None) -> bool:
    """Whether a restore that removed these files took out the rows of an epoch. Merged rows are in any file."""
    if record is None or not record.epoch:
        return False
    return removed is None or not record.files or any(map(record.has, removed))
