"""Rows of `snaps`: how they are written and discarded, and what is counted of them."""

from __future__ import annotations

import apsw

from recovery.planning.values import ClosedEpoch
from recovery.storage.sqlite.digests import SUM_SQL, row_digest_sql
from recovery.storage.sqlite.file.tables import ROW_BYTES

MOVED_DIGEST = row_digest_sql(":step", "state_key", ":epoch", "after", "after_timeout")
WRITE = f"""
INSERT INTO snaps
SELECT :step, state_key, :epoch, after, after_timeout, {MOVED_DIGEST}
FROM {{table}} WHERE after IS NOT NULL
ON CONFLICT (step_id, state_key) DO UPDATE SET
    snap_epoch = excluded.snap_epoch,
    ser_change = excluded.ser_change,
    timeout_ms = excluded.timeout_ms,
    digest     = excluded.digest
"""
DISCARD = """
DELETE FROM snaps WHERE step_id = :step AND state_key IN (SELECT state_key FROM {table} WHERE after IS NULL)
"""
WRITTEN = f"""
SELECT {SUM_SQL}, coalesce(sum(octet_length(m.state_key) + octet_length(s.ser_change)), 0)
FROM {{table}} AS m CROSS JOIN snaps AS s
WHERE s.step_id = :step AND s.state_key = m.state_key AND s.snap_epoch = :epoch
"""
SCAN_SHARE = 1 / 3
# The rows that folding will replace, and all rows of a step: see SCAN_SHARE.
REPLACED = f"""
SELECT {SUM_SQL}, coalesce(sum(octet_length(m.state_key) + octet_length(s.ser_change)), 0)
FROM {{table}} AS m CROSS JOIN snaps AS s WHERE s.step_id = :step AND s.state_key = m.state_key
"""
OF_STEP = f"SELECT {SUM_SQL}, coalesce(sum({ROW_BYTES}), 0) FROM snaps WHERE step_id = :step"
DRIVER_TABLE = "driver_rows"


class CloseSums:
    """Running sums of one closing. notes_made: whether it notes the keys that the epoch makes."""

    def __init__(self, *, notes_made: bool = False) -> None:
        self.notes_made = notes_made
        self.states = self.written = 0
        self.digest = 0
        self.size_bytes = 0
        self.changes: dict[str, tuple[int, int]] = {}

    def gain(self, step: str, count: int, size_bytes: int) -> None:
        """Add the rows and bytes by which a step grows."""
        before = self.changes.get(step, (0, 0))
        self.changes[step] = before[0] + count, before[1] + size_bytes


def create_driver_table(connection: apsw.Connection) -> None:
    """Create a temporary table with a delta's columns, so that the driver's rows are moved like all others."""
    connection.execute(
        f"CREATE TEMP TABLE IF NOT EXISTS {DRIVER_TABLE}"
        " (state_key TEXT PRIMARY KEY, after ANY, after_timeout INTEGER) STRICT, WITHOUT ROWID"
    )


def live_rows_of(closed: ClosedEpoch | None) -> tuple[int, int]:
    """Return number and digest sum of the rows in `snaps` as of an epoch."""
    return (closed.live_rows, closed.live_digest) if closed else (0, 0)
