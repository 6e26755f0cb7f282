"""The values that the columns of the small tables may hold.

A digest shows only that a row is as somebody wrote it, and anybody can compute one. A number that no run writes could
overflow, make a loop endless, or lie beyond any date. A file can also hold values of other types than its tables
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

COLUMNS: Mapping[str, Mapping[str, Check]] = {
    "parts": {
        "part_index": whole(0, MAX_PARTITIONS - 1), "part_count": whole(1, MAX_PARTITIONS), "store_id": is_text,
        "flow_id": or_null(is_text), "created_ms": is_moment,
    },
    "commits": {"part_index": whole(0, MAX_PARTITIONS - 1), "commit_epoch": whole()},
    "exs": {
        "ex_num": whole(), "ex_id": is_text, "flow_id": is_text, "resume_epoch": whole(), "started_ms": is_moment,
        "snapshot_interval_s": is_seconds, "backup_interval_s": is_seconds, "host": is_text, "pid": is_clock,
        "version": is_text,
    },
    "epochs": {
        "epoch": whole(), "ex_num": whole(), "ex_id": is_text, "batch_id": is_batch, "closed_ms": is_moment,
        "clock_ms": is_clock, "written": whole(), "live_rows": whole(), "live_digest": is_digest,
        "superseded_rows": whole(), "superseded_digest": is_digest,
    },
    "logged": {"epoch": whole(), "row_count": whole(), "changes_digest": is_digest},
    "changes": {
        "epoch": whole(), "step_id": is_bytes, "number": whole(), "row_count": whole(), "content": is_bytes,
    },
    "sizes": {"step_id": is_text, "live_rows": is_clock, "live_bytes": is_clock},
    "measures": {
        "measure_id": whole(), "ex_num": whole(), "epoch": whole(), "measured_ms": is_moment, "content": is_text,
    },
    "states": {"state_id": is_text, "generation": whole(), "content": or_null(is_text), "changed_ms": is_moment},
    "beginning": {"ex_num": whole(), "ex_id": is_text, "content": is_text},
    "totals": {"one": whole(1, 1), "states": whole(), "states_digest": is_digest},
}  # fmt: skip
"""The columns of each small table in their order, without the row's digest: the last column of all but `sizes`."""


def columns_of(table: str) -> str:
    """Return the columns of a small table for a statement, its digest last."""
    return ", ".join([*COLUMNS[table], "digest"])


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
    for check, value in zip(COLUMNS[table].values(), row, strict=True):
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
