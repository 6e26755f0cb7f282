"""The values that the columns of the small tables may hold.

A digest shows only that a row is as somebody wrote it, and anybody can compute one. A number that no run writes could
overflow, make a loop endless, or lie beyond any date. And a file can hold values of other types than its tables
declare. So each value is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recovery.base.untrusted_json import FIRST_MOMENT_MS, LAST_MOMENT_MS, MOST, is_moment
from recovery.errors import CorruptPartitionError, shown
from recovery.storage.sqlite.digests import MODULUS, record_digest

MAX_PARTITIONS = 4096
LONGEST_S = 1e18

Check = Callable[[Any], bool]


def whole(least: int = 0, most: int = MOST) -> Check:
    """Return a check for an integer within a range."""
    return lambda value: type(value) is int and least <= value <= most


def or_null(check: Check) -> Check:
    """Return a check that also accepts NULL."""
    return lambda value: value is None or check(value)


def is_text(value: Any) -> bool:
    """Return whether `value` is text."""
    return type(value) is str


def is_bytes(value: Any) -> bool:
    """Return whether `value` is text that was read as bytes, because damaged text may not be valid UTF-8."""
    return type(value) is bytes


def is_seconds(value: Any) -> bool:
    """Return whether `value` is a finite duration."""
    return type(value) in (int, float) and 0 <= value <= LONGEST_S


is_digest = whole(0, MODULUS - 1)
is_clock = whole(-MOST, MOST)
is_batch = whole(-1, MOST)

# By table, in the order of the columns, without the row's digest.
COLUMNS: Mapping[str, Sequence[Check]] = {
    "parts": (whole(0, MAX_PARTITIONS - 1), whole(1, MAX_PARTITIONS), is_text, or_null(is_text), is_moment),
    "commits": (whole(0, MAX_PARTITIONS - 1), whole()),
    "exs": (whole(), is_text, is_text, whole(), is_moment, is_seconds, is_seconds, is_text, is_clock, is_text),
    "epochs": (
        whole(), whole(), is_text, is_batch, is_moment, is_clock, whole(), whole(), is_digest, whole(), is_digest,
    ),
    "logged": (whole(), whole(), is_digest),
    "changes": (whole(), is_bytes, whole(), whole(), is_bytes),
    "sizes": (is_text, is_clock, is_clock),
    "measures": (whole(), whole(), whole(), is_moment, is_text),
    "states": (is_text, whole(), or_null(is_text), is_moment),
    "beginning": (whole(), is_text, is_text),
    "totals": (whole(1, 1), whole(), is_digest),
}  # fmt: skip


# For the large tables: SQL conditions that are true for a row that no run writes.
ODD_STATE = f"""
typeof(step_id) <> 'text' OR typeof(state_key) <> 'text' OR typeof(ser_change) NOT IN ('text', 'blob')
OR typeof(timeout_ms) NOT IN ('integer', 'null') OR typeof(snap_epoch) <> 'integer'
OR snap_epoch NOT BETWEEN 0 AND {MOST}
"""
ODD_DOCUMENT = f"""
typeof(state_id) <> 'text' OR typeof(generation) <> 'integer' OR typeof(content) NOT IN ('text', 'null')
OR typeof(changed_ms) <> 'integer' OR changed_ms NOT BETWEEN {FIRST_MOMENT_MS} AND {LAST_MOMENT_MS}
OR generation NOT BETWEEN 0 AND {MOST}
"""


def check_columns(table: str, row: Sequence[Any]) -> None:
    """Raise CorruptPartitionError if a row, given without its digest, has a value that no run writes."""
    for check, value in zip(COLUMNS[table], row, strict=True):
        if not check(value):
            raise CorruptPartitionError(f"a row of table {table} holds {shown(value)}, which no run writes there")


def checked_rows(table: str, found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the rows without the last column, their digest. Raises CorruptPartitionError for a row that does not
    match its digest or holds a value that no run writes."""
    for row in found:
        if record_digest(*row[:-1]) != row[-1]:
            raise CorruptPartitionError(f"a row of table {table} does not match its digest: {shown(row)}")
        check_columns(table, row[:-1])
    return [row[:-1] for row in found]
