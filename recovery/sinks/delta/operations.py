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
    same_as: Callable[[int], int],
) -> Iterator[Commit]:
    """Yield the commits of a table, newest first; those that a later restore left out are `undone_by` it.

    entries: by version, newest first. field: that of the record. same_as: returns the newest older version that has the
    files of a version, for a restore to a time, which names none.
    """
    kept, by = -1, ""
    for version, entry in entries:
        undone_by = by if by and version > kept else None
        operation = str(entry.get("operation", "a commit that does not say what it did"))
        harmless = operation in _HARMLESS
        yield Commit(version, record_of(entry.get(field)), operation, harmless, replaces(entry), undone_by)
        if undone_by is None and is_restore(entry):
            target = str((entry.get("operationParameters") or {}).get("version"))
            kept = int(target) if target.isdecimal() else same_as(version)
            by = f"RESTORE in version {version}"
