"""Deltas: the state touched since the last closed epoch, one scratch file per step and partition.

A delta need not survive a crash: the recovery partitions do. So it is never synced, but it is journalled, because a
task that is killed in the middle of its transaction must leave nothing of it behind. Every row keeps the value before
the newest batch that touched it beside the value after, so a task that runs again sees what the first attempt saw,
and closing an epoch as of batch b is possible while b+1 is already under way.

A delta belongs to one execution. `meta` says to which, and refuses zombies inside their own transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import apsw

from recovery.errors import LeaseLostError
from recovery.ids import BatchId, Lease, StepId
from recovery.storage.schema import connect, file_uri, rows, snapshot, transaction, translated, use_log, value
from recovery.storage.seam import BatchCount, Changes

CREATE_TABLES = """
CREATE TABLE meta (
    ex_num        INTEGER NOT NULL,
    ex_id         TEXT NOT NULL,
    open_batch    INTEGER NOT NULL,
    closed_batch  INTEGER NOT NULL,
    applied_batch INTEGER NOT NULL
) STRICT;

CREATE TABLE touched (
    state_key      TEXT PRIMARY KEY,
    batch          INTEGER NOT NULL,
    after          ANY,
    after_timeout  INTEGER,
    had            INTEGER NOT NULL,
    before         ANY,
    before_timeout INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX touched_timeout ON touched (after_timeout) WHERE after_timeout IS NOT NULL;

CREATE TABLE batches (
    batch     INTEGER PRIMARY KEY,
    row_count INTEGER NOT NULL,
    key_count INTEGER NOT NULL
) STRICT;
"""

# A row of the running batch that has no earlier touch (had = 0) stands for the closed snapshot before it.
READ = """
SELECT iif(
    t.state_key IS NULL OR (t.batch = :batch AND NOT t.had),
    (SELECT s.ser_change FROM base.snaps AS s WHERE s.step_id = :step AND s.state_key = k.value),
    iif(t.batch = :batch, t.before, t.after)
)
FROM carray(:keys) AS k LEFT JOIN touched AS t ON t.state_key = k.value
"""

UPSERT = """
ON CONFLICT (state_key) DO UPDATE SET
    had            = iif(batch = excluded.batch, had, 1),
    before         = iif(batch = excluded.batch, before, after),
    before_timeout = iif(batch = excluded.batch, before_timeout, after_timeout),
    batch          = excluded.batch,
    after          = excluded.after,
    after_timeout  = excluded.after_timeout
"""

APPLY_PLAIN = f"""
INSERT INTO touched
SELECT
    substr(value, instr(value, char(31)) + 1),
    :batch,
    nullif(substr(value, 1, instr(value, char(31)) - 1), ''),
    NULL, 0, NULL, NULL
FROM carray(:packed) WHERE true
{UPSERT}
"""

APPLY_WITH_TIMEOUTS = f"""
INSERT INTO touched
SELECT
    substr(rest, instr(rest, char(31)) + 1),
    :batch,
    state,
    CAST(nullif(substr(rest, 1, instr(rest, char(31)) - 1), '') AS INTEGER),
    0, NULL, NULL
FROM (
    SELECT
        nullif(substr(value, 1, instr(value, char(31)) - 1), '') AS state,
        substr(value, instr(value, char(31)) + 1) AS rest
    FROM carray(:packed)
) WHERE true
{UPSERT}
"""

# The batch before the undone one is not known any more, only that it was earlier: which is all that matters.
UNDO = (
    "DELETE FROM touched WHERE batch = :batch AND NOT had",
    "UPDATE touched SET batch = batch - 1, after = before, after_timeout = before_timeout WHERE batch = :batch",
)

DUE = """
SELECT state_key FROM touched WHERE after_timeout <= :up_to AND batch <> :batch
UNION ALL
SELECT s.state_key FROM base.snaps AS s
LEFT JOIN touched AS t ON t.state_key = s.state_key
WHERE s.step_id = :step AND s.timeout_ms <= :up_to
  AND (t.state_key IS NULL OR (t.batch = :batch AND NOT t.had))
"""

# What the batch overrode when it was applied before: it has no index, and is asked for only then.
DUE_BEFORE = "SELECT state_key FROM touched WHERE batch = :batch AND had AND before_timeout <= :up_to"

NEXT_DUE = """
SELECT min(at) FROM (
    SELECT min(after_timeout) AS at FROM touched WHERE after_timeout IS NOT NULL
    UNION ALL
    SELECT min(s.timeout_ms) FROM base.snaps AS s
    WHERE s.step_id = :step AND s.timeout_ms IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM touched AS t WHERE t.state_key = s.state_key)
)
"""


def create_delta(path: Path, lease: Lease) -> None:
    """Make the empty delta of an execution."""
    with translated(path), contextlib.closing(connect(path, "rwc")) as connection:
        connection.pragma("synchronous", "OFF")
        use_log(connection, path)
        connection.execute(CREATE_TABLES).fetchall()
        connection.execute("INSERT INTO meta VALUES (?, ?, -1, -1, -1)", (lease.number, lease.id))


class Delta:
    """One delta, with the partition it lies over attached as `base`, read-only."""

    def __init__(self, path: Path, partition: Path, lease: Lease, step: StepId) -> None:
        self.path = path
        self._partition = partition
        self._lease = lease
        self._step = step
        if not path.exists():
            raise LeaseLostError(f"the scratch file of execution {lease.number} is gone", path=path)
        self._connection = connect(path, "rw")
        try:
            with translated(path):
                self._connection.pragma("synchronous", "OFF")
                self._connection.pragma("cache_size", -16384)
                self._connection.pragma("wal_autocheckpoint", 8192)
            with translated(partition):
                self._connection.execute("ATTACH ? AS base", (file_uri(partition, "?mode=ro"),))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def read(self, batch: BatchId, keys: tuple[str, ...]) -> list[str | None]:
        """States of `keys` before `batch`.

        The delta's snapshot is taken before the partition's (the check reads from the delta first): the closer
        commits to the partition before it clears the delta, so a value is seen in one of them at least.
        """
        with translated(self._partition), snapshot(self._connection):
            self._check(batch)
            if not keys:
                return []
            bindings = {"batch": batch, "step": self._step, "keys": apsw.carray(keys)}
            return [row[0] for row in rows(self._connection, READ, bindings)]

    def apply(self, batch: BatchId, changes: Iterable[Changes], count: BatchCount) -> None:
        """See `TaskStore.apply`."""
        with translated(self.path), transaction(self._connection):
            applied = self._check(batch)
            if applied == batch:
                for statement in UNDO:
                    self._connection.execute(statement, {"batch": batch})
            for chunk in changes:
                if chunk.packed:
                    statement = APPLY_WITH_TIMEOUTS if chunk.timeouts else APPLY_PLAIN
                    self._connection.execute(statement, {"batch": batch, "packed": apsw.carray(chunk.packed)})
            self._connection.execute("UPDATE meta SET applied_batch = ?", (batch,))
            self._connection.execute("INSERT OR REPLACE INTO batches VALUES (?, ?, ?)", (batch, *count))

    def due(self, batch: BatchId, up_to_ms: int) -> list[str]:
        """See `TaskStore.due`."""
        with translated(self._partition), snapshot(self._connection):
            applied = self._check(batch)
            statement = f"{DUE} UNION ALL {DUE_BEFORE}" if applied == batch else DUE
            bindings = {"batch": batch, "step": self._step, "up_to": up_to_ms}
            # Sorted here: an order asked of SQLite makes it scan by key instead of searching by time.
            return sorted(row[0] for row in rows(self._connection, statement, bindings))

    def next_due_ms(self) -> int | None:
        """The earliest timeout of this step in this partition."""
        with translated(self._partition), snapshot(self._connection):
            # The delta's snapshot before the partition's, as in `read`.
            rows(self._connection, "SELECT 1 FROM meta")
            due: int | None = value(self._connection, NEXT_DUE, {"step": self._step})
            return due

    def open(self, batch: BatchId) -> None:
        """Refuse earlier batches from now on, and forget the counts of those."""
        with translated(self.path), transaction(self._connection):
            self._connection.execute("UPDATE meta SET open_batch = ? WHERE open_batch < ?", (batch, batch))
            self._connection.execute("DELETE FROM batches WHERE batch < ?", (batch,))

    def fence(self, batch: BatchId) -> None:
        """Refuse `batch` and earlier ones from now on: the closer is about to read what they left."""
        with translated(self.path), transaction(self._connection):
            applied = value(self._connection, "SELECT applied_batch FROM meta")
            assert applied <= batch + 1, f"{applied} was applied: what {batch} left is not known any more"
            self._connection.execute("UPDATE meta SET closed_batch = ? WHERE closed_batch < ?", (batch, batch))

    def clear(self, batch: BatchId) -> None:
        """Forget what is in the partition now: every touch up to `batch`."""
        with translated(self.path), transaction(self._connection):
            if value(self._connection, "SELECT applied_batch FROM meta") <= batch:
                # Without a condition SQLite drops whole pages instead of rows.
                self._connection.execute("DELETE FROM touched")
            else:
                self._connection.execute("DELETE FROM touched WHERE batch <= ?", (batch,))
                self._connection.execute("UPDATE touched SET had = 0, before = NULL, before_timeout = NULL")

    def count(self, batch: BatchId) -> BatchCount:
        """What was applied of `batch`."""
        with translated(self.path):
            found = rows(self._connection, "SELECT row_count, key_count FROM batches WHERE batch = ?", (batch,))
        return BatchCount(*found[0]) if found else BatchCount(0, 0)

    def _check(self, batch: BatchId) -> int:
        """Refuse a task of another execution or of a batch that is over; returns the newest applied batch."""
        [(ex_num, ex_id, open_batch, closed_batch, applied)] = rows(
            self._connection, "SELECT ex_num, ex_id, open_batch, closed_batch, applied_batch FROM meta"
        )
        if (ex_num, ex_id) != (self._lease.number, self._lease.id):
            raise LeaseLostError(
                f"execution {self._lease.number} may not write any more: {ex_num} began", path=self.path
            )
        if batch < open_batch or batch <= closed_batch or batch < applied:
            raise LeaseLostError(
                f"micro-batch {batch} is over (open: {open_batch}, closed: {closed_batch}, applied: {applied})",
                path=self.path,
                cause="A task was still running after its micro-batch had ended.",
                remedy="Nothing: the late task was refused and its work is already accounted for.",
            )
        return int(applied)
