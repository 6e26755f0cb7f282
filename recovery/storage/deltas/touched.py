"""The tables of a delta, and the statements that read, change and split what was touched."""

from __future__ import annotations

from recovery.base.ids import NO_BATCH

TABLES = ("touched_0", "touched_1")
CREATE_META = """
CREATE TABLE meta (
    ex_num        INTEGER NOT NULL,
    ex_id         TEXT NOT NULL,
    open_batch    INTEGER NOT NULL,
    closed_batch  INTEGER NOT NULL,
    applied_batch INTEGER NOT NULL,
    turn          INTEGER NOT NULL,
    sealed        INTEGER NOT NULL,
    pending       INTEGER NOT NULL,
    attempted     INTEGER NOT NULL,
    attempt       INTEGER NOT NULL
) STRICT;

CREATE TABLE batches (
    batch     INTEGER PRIMARY KEY,
    row_count INTEGER NOT NULL,
    key_count INTEGER NOT NULL,
    row_bytes INTEGER NOT NULL,
    looked_up INTEGER NOT NULL,
    seam_s    REAL NOT NULL,
    waiting   INTEGER NOT NULL
) STRICT;
"""

META = """
SELECT ex_num, ex_id, open_batch, closed_batch, applied_batch, turn, sealed, pending, attempted, attempt FROM meta
"""

CREATE_TOUCHED = """
CREATE TABLE {table} (
    state_key      TEXT PRIMARY KEY,
    batch          INTEGER NOT NULL,
    after          ANY,
    after_timeout  INTEGER,
    had            INTEGER NOT NULL,
    before         ANY,
    before_timeout INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX {table}_timeout ON {table} (after_timeout) WHERE after_timeout IS NOT NULL;
"""

# For a row of the running batch without an earlier touch in its table (had = 0), the value before lies below.
READ = """
SELECT iif(
    t.state_key IS NULL OR (t.batch = :batch AND NOT t.had),
    (SELECT s.ser_change FROM base.snaps AS s WHERE s.step_id = :step AND s.state_key = k.value),
    iif(t.batch = :batch, t.before, t.after)
)
FROM carray(:keys) AS k LEFT JOIN {active} AS t ON t.state_key = k.value
"""

READ_OVER_SEALED = """
SELECT CASE
    WHEN t.state_key IS NOT NULL AND (t.batch <> :batch OR t.had) THEN iif(t.batch = :batch, t.before, t.after)
    WHEN e.state_key IS NOT NULL THEN e.after
    ELSE (SELECT s.ser_change FROM base.snaps AS s WHERE s.step_id = :step AND s.state_key = k.value)
END
FROM carray(:keys) AS k
LEFT JOIN {active} AS t ON t.state_key = k.value
LEFT JOIN {other} AS e ON e.state_key = k.value
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
INSERT INTO {{active}}
SELECT
    substr(value, instr(value, char(31)) + 1),
    :batch,
    nullif(substr(value, 1, instr(value, char(31)) - 1), ''),
    NULL, 0, NULL, NULL
FROM carray(:packed) WHERE true
{UPSERT}
"""

APPLY_OF_ONE_LENGTH = f"""
INSERT INTO {{active}}
SELECT substr(value, 1, :key_chars), :batch, nullif(substr(value, :key_chars + 1), ''), NULL, 0, NULL, NULL
FROM carray(:packed) WHERE true
{UPSERT}
"""

APPLY_WITH_TIMEOUTS = f"""
INSERT INTO {{active}}
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

LOAD = f"""
INSERT INTO {{active}} VALUES (?, {NO_BATCH}, ?, ?, 0, NULL, NULL)
ON CONFLICT (state_key) DO UPDATE SET after = excluded.after, after_timeout = excluded.after_timeout
"""

# The batch that wrote the restored value is not known any more. It only matters that it was earlier.
UNDO = (
    "DELETE FROM {active} WHERE batch = :batch AND NOT had",
    "UPDATE {active} SET batch = batch - 1, after = before, after_timeout = before_timeout WHERE batch = :batch",
)

# Tasks of the next micro-batch may have run already: their values move to the other table, the values before stay.
SPLIT = (
    "INSERT INTO {other} SELECT state_key, batch, after, after_timeout, 0, NULL, NULL FROM {active}"
    " WHERE batch > :batch",
    "DELETE FROM {active} WHERE batch > :batch AND NOT had",
    "UPDATE {active} SET batch = :batch, after = before, after_timeout = before_timeout WHERE batch > :batch",
)

DUE = """
SELECT state_key FROM {active} WHERE after_timeout <= :up_to AND batch <> :batch
UNION ALL
SELECT e.state_key FROM {other} AS e
LEFT JOIN {active} AS t ON t.state_key = e.state_key
WHERE e.after_timeout <= :up_to AND (t.state_key IS NULL OR (t.batch = :batch AND NOT t.had))
UNION ALL
SELECT s.state_key FROM base.snaps AS s
LEFT JOIN {active} AS t ON t.state_key = s.state_key
LEFT JOIN {other} AS e ON e.state_key = s.state_key
WHERE s.step_id = :step AND s.timeout_ms <= :up_to AND e.state_key IS NULL
  AND (t.state_key IS NULL OR (t.batch = :batch AND NOT t.had))
"""

# Timeouts that the batch replaced when it was applied before. They have no index, so this is queried only then.
DUE_BEFORE = "SELECT state_key FROM {active} WHERE batch = :batch AND had AND before_timeout <= :up_to"

NEXT_DUE = """
SELECT min(at) FROM (
    SELECT min(after_timeout) AS at FROM {active} WHERE after_timeout IS NOT NULL
    UNION ALL
    SELECT min(e.after_timeout) FROM {other} AS e
    WHERE e.after_timeout IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM {active} AS t WHERE t.state_key = e.state_key)
    UNION ALL
    SELECT min(s.timeout_ms) FROM base.snaps AS s
    WHERE s.step_id = :step AND s.timeout_ms IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM {active} AS t WHERE t.state_key = s.state_key)
      AND NOT EXISTS (SELECT 1 FROM {other} AS e WHERE e.state_key = s.state_key)
)
"""
