"""Rows of `snaps`: how an epoch writes and discards them, what it supersedes, and what is counted of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw

from recovery.base.ids import Epoch, StepId
from recovery.base.reserved import RESERVED_PREFIX
from recovery.planning.values import ClosedEpoch
from recovery.storage.sqlite.digests import MODULUS, SUM_SQL, combine, row_digest_sql
from recovery.storage.sqlite.file.statements import rows
from recovery.storage.sqlite.file.tables import ROW_BYTES
from recovery.storage.sqlite.measures import change_sizes

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
# `{table}` holds the keys that the epoch touched, each with its value and timeout after the epoch.
SUPERSEDE = """
INSERT INTO superseded
SELECT :epoch, :step, m.state_key, s.snap_epoch, s.ser_change, s.timeout_ms, s.digest
FROM {table} AS m CROSS JOIN snaps AS s WHERE s.step_id = :step AND s.state_key = m.state_key
"""
# The same with a row, without snap_epoch, for each key that the epoch makes.
ABSENT_DIGEST = row_digest_sql(":step", "m.state_key", "NULL", "NULL", "NULL")
SUPERSEDE_AND_NOTE = f"""
INSERT INTO superseded
SELECT :epoch, :step, m.state_key, s.snap_epoch, s.ser_change, s.timeout_ms, coalesce(s.digest, {ABSENT_DIGEST})
FROM {{table}} AS m LEFT JOIN snaps AS s ON s.step_id = :step AND s.state_key = m.state_key
WHERE s.digest IS NOT NULL OR m.after IS NOT NULL
"""
# The same for a step to which nothing else in the epoch has written, by reading the whole step in order. A row costs a
# quarter of a search, so this is faster once a third of the rows was touched.
WRITTEN_OF_STEP = f"""
SELECT {SUM_SQL}, coalesce(sum({ROW_BYTES}), 0) FROM snaps WHERE step_id = :step AND snap_epoch = :epoch
"""
# Rows that the epoch superseded, by step.
SUPERSEDED = f"""
SELECT step_id, {SUM_SQL}, sum({ROW_BYTES}) FROM superseded WHERE until_epoch = ? GROUP BY step_id
"""
NOTED = "SELECT step_id, count(*) FROM superseded WHERE until_epoch = ? AND snap_epoch IS NULL GROUP BY step_id"
NOTED_DIGESTS = f"SELECT {SUM_SQL} FROM superseded WHERE until_epoch = ? AND snap_epoch IS NULL"
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


def move(
    connection: apsw.Connection, totals: CloseSums, step: StepId, table: str, epoch: Epoch, held: int | None = None
) -> None:
    """Write a table's rows of a step. held: the number of the step's rows before, if this is the epoch's first write to
    the step."""
    bindings = {"epoch": epoch, "step": step}

    def execute(sql: str) -> Any:
        return connection.execute(sql.format(table=table), bindings).fetchall()

    execute(SUPERSEDE_AND_NOTE if totals.notes_made else SUPERSEDE)
    execute(WRITE)
    wrote = connection.changes()
    execute(DISCARD)
    if not wrote:
        return
    most = held is not None and wrote > SCAN_SHARE * held
    [(written, high, low, size_bytes)] = execute(WRITTEN_OF_STEP if most else WRITTEN)
    totals.written += written
    if not step.startswith(RESERVED_PREFIX):
        totals.states += written
    totals.size_bytes += size_bytes
    totals.gain(step, written, size_bytes)
    totals.digest += combine(high, low)


def move_rows(
    connection: apsw.Connection,
    totals: CloseSums,
    step: StepId,
    given: Iterable[tuple[str, str | bytes | None, int | None]],
    epoch: Epoch,
) -> None:
    """Write keys with value and timeout, read one by one from `given`, which need not fit in memory."""
    connection.execute(f"DELETE FROM temp.{DRIVER_TABLE}")
    connection.executemany(f"INSERT INTO temp.{DRIVER_TABLE} VALUES (?, ?, ?)", given)
    move(connection, totals, step, f"temp.{DRIVER_TABLE}", epoch)


def sums_after(
    connection: apsw.Connection, totals: CloseSums, before: ClosedEpoch | None, epoch: Epoch
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return number and digest sum of the live rows after an epoch, and of the rows that it superseded, when all that
    it wrote is in `totals`: the live rows before, minus superseded, plus written ones. Also updates the steps'
    sizes."""
    superseded = digest = 0
    for step, count, high, low, size_bytes in rows(connection, SUPERSEDED, (epoch,)):
        superseded, digest = superseded + count, digest + combine(high, low)
        totals.gain(step, -count, -(size_bytes or 0))
    live_rows, live_digest = live_rows_of(before)
    live_rows, live_digest = live_rows - superseded + totals.written, live_digest - digest + totals.digest
    if totals.notes_made:
        # A noted key was not live before.
        for step, count in rows(connection, NOTED, (epoch,)):
            totals.gain(step, count, 0)
        [(count, high, low)] = rows(connection, NOTED_DIGESTS, (epoch,))
        live_rows, live_digest = live_rows + count, live_digest + combine(high, low)
    change_sizes(connection, totals.changes)
    return (live_rows, live_digest % MODULUS), (superseded, digest % MODULUS)
