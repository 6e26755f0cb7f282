"""The tables of a recovery partition, by schema version, and the check that a file has exactly those.

A partition is an ordinary SQLite database in WAL mode. Its tables:

parts       one row: which partition this is, of how many, of which store, bound to which flow
exs         one row per execution, a copy in every partition
epochs      one row per closed epoch still held, with what is needed to check the snapshot
commits     one row: the epoch up to which this partition has collected
snaps       the newest snapshot of every key: step, key, epoch it was written in, value
changes     changes of epochs that are closed but not folded into `snaps` yet, some thousand keys per row
logged      one row per such epoch, with what is needed to check its changes
superseded  earlier rows of `snaps`: one row per key and epoch that replaced it, append-only and
            ordered by that epoch, so that collecting is a range delete at its front and rewinding reads its end;
            version 3 also has rows without snap_epoch, for keys that the epoch made
states      operational state: documents by id, immediately durable, untouched by rewinds; only part-0 has rows
totals      one row: how many rows `states` has, and the sum of their digests
sizes       one row per step in `snaps`: its rows, and the bytes of their keys and values
measures    measurements of runs, one row per epoch and per start; untouched by rewinds; only part-0 has rows
beginning   one row: the position in the input before the first micro-batch, the same in every partition

Tables of other programs (Litestream keeps two) are tolerated and never touched.

A file that somebody sent could have other objects under the same names: views that never end, triggers that change
written rows, computed columns and indexes. So the SQL text of each object is compared with the text that this package
creates it from. Objects under other names are never used.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import apsw

from recovery.errors import shown

APPLICATION_ID = 0x52435650  # "RCVP"
SCHEMA_VERSION = 6

CREATE_TIMEOUT_INDEX = "CREATE INDEX snaps_timeout ON snaps (step_id, timeout_ms) WHERE timeout_ms IS NOT NULL"

CREATE_TABLES = f"""
CREATE TABLE parts (
    part_index INTEGER PRIMARY KEY,
    part_count INTEGER NOT NULL,
    store_id   TEXT NOT NULL,
    flow_id    TEXT,
    created_ms INTEGER NOT NULL,
    digest     INTEGER NOT NULL
) STRICT;

CREATE TABLE exs (
    ex_num            INTEGER PRIMARY KEY,
    ex_id             TEXT NOT NULL,
    flow_id           TEXT NOT NULL,
    resume_epoch      INTEGER NOT NULL,
    started_ms        INTEGER NOT NULL,
    snapshot_interval_s REAL NOT NULL,
    backup_interval_s REAL NOT NULL,
    host              TEXT NOT NULL,
    pid               INTEGER NOT NULL,
    version           TEXT NOT NULL,
    digest            INTEGER NOT NULL
) STRICT;

CREATE TABLE epochs (
    epoch             INTEGER PRIMARY KEY,
    ex_num            INTEGER NOT NULL,
    ex_id             TEXT NOT NULL,
    batch_id          INTEGER NOT NULL,
    closed_ms         INTEGER NOT NULL,
    clock_ms          INTEGER NOT NULL,
    written           INTEGER NOT NULL,
    live_rows         INTEGER NOT NULL,
    live_digest       INTEGER NOT NULL,
    superseded_rows   INTEGER NOT NULL,
    superseded_digest INTEGER NOT NULL,
    digest            INTEGER NOT NULL
) STRICT;

CREATE TABLE commits (
    part_index   INTEGER PRIMARY KEY,
    commit_epoch INTEGER NOT NULL,
    digest       INTEGER NOT NULL
) STRICT;

CREATE TABLE snaps (
    step_id    TEXT NOT NULL,
    state_key  TEXT NOT NULL,
    snap_epoch INTEGER NOT NULL,
    ser_change ANY NOT NULL,
    timeout_ms INTEGER,
    digest     INTEGER NOT NULL,
    PRIMARY KEY (step_id, state_key)
) STRICT, WITHOUT ROWID;

{CREATE_TIMEOUT_INDEX};

CREATE TABLE superseded (
    until_epoch INTEGER NOT NULL,
    step_id     TEXT NOT NULL,
    state_key   TEXT NOT NULL,
    snap_epoch  INTEGER,
    ser_change  ANY,
    timeout_ms  INTEGER,
    digest      INTEGER NOT NULL,
    PRIMARY KEY (until_epoch, step_id, state_key)
) STRICT, WITHOUT ROWID;
"""

CREATE_CHANGES = """
CREATE TABLE changes (
    epoch     INTEGER NOT NULL,
    step_id   TEXT NOT NULL,
    number    INTEGER NOT NULL,
    row_count INTEGER NOT NULL,
    content   TEXT NOT NULL,
    digest    INTEGER NOT NULL,
    PRIMARY KEY (epoch, step_id, number)
) STRICT;

CREATE TABLE logged (
    epoch          INTEGER PRIMARY KEY,
    row_count      INTEGER NOT NULL,
    changes_digest INTEGER NOT NULL,
    digest         INTEGER NOT NULL
) STRICT;
"""

CREATE_STATES = """
CREATE TABLE states (
    state_id   TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    content    TEXT,
    changed_ms INTEGER NOT NULL,
    digest     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE totals (
    one        INTEGER PRIMARY KEY,
    states     INTEGER NOT NULL,
    states_digest INTEGER NOT NULL,
    digest     INTEGER NOT NULL
) STRICT;
"""

CREATE_MEASURES = """
CREATE TABLE sizes (
    step_id    TEXT PRIMARY KEY,
    live_rows  INTEGER NOT NULL,
    live_bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE measures (
    measure_id  INTEGER PRIMARY KEY,
    ex_num      INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    measured_ms INTEGER NOT NULL,
    content     TEXT NOT NULL,
    digest      INTEGER NOT NULL
) STRICT;

"""

CREATE_BEGINNING = """
CREATE TABLE beginning (
    one     INTEGER PRIMARY KEY,
    ex_num  INTEGER NOT NULL,
    ex_id   TEXT NOT NULL,
    content TEXT NOT NULL,
    digest  INTEGER NOT NULL
) STRICT;
"""

CREATE_ALL = CREATE_TABLES + CREATE_CHANGES + CREATE_STATES + CREATE_MEASURES + CREATE_BEGINNING
"""A new file of the present version."""

ROW_BYTES = "octet_length(state_key) + octet_length(ser_change)"
"""The size of a row of `snaps`, as counted in `sizes`: the stored key and value."""

MEASURE_SNAPS = f"""
INSERT INTO sizes SELECT step_id, count(*), sum({ROW_BYTES}) FROM snaps GROUP BY step_id
"""

MIGRATIONS = {1: CREATE_STATES, 2: CREATE_MEASURES + MEASURE_SNAPS, 3: "", 4: CREATE_CHANGES, 5: CREATE_BEGINNING}
"""SQL that turns a file of one version into one of the next. The second migration reads the state once, to count it.
The third changes nothing: version 4 omits new keys from `superseded`, and older programs would miss these rows."""


OBJECTS = "SELECT type, name, tbl_name, sql FROM sqlite_schema"

Objects = Mapping[tuple[str, str], tuple[str, str | None]]
"""The objects of a file by type and name: its table, and its SQL text, or None for an index of SQLite."""


@lru_cache(maxsize=8)
def expected_objects(version: int) -> Objects:
    """Return the objects of a file of a schema version, whether created in that version or migrated to it."""
    made = apsw.Connection(":memory:")
    made.execute(CREATE_TABLES).fetchall()
    for older in range(1, version):
        made.execute(MIGRATIONS[older]).fetchall()
    found: list[tuple[str, str, str, str | None]] = made.execute(OBJECTS).fetchall()  # type: ignore[assignment]
    made.close()
    return {(kind, name): (table, sql) for kind, name, table, sql in found}


def altered_objects(found: list[tuple[str, str, str, str | None]], version: int) -> str | None:
    """Return a sentence about the first wrong or missing object in a file of a version, or None.

    Names are compared as in SQLite, which ignores case.
    """
    expected = expected_objects(version)
    own = {name for _, name in expected_objects(SCHEMA_VERSION)}
    left = dict(expected)
    for kind, name, table, sql in found:
        ours = str(name).lower() in own or str(table).lower() in own
        if ours and left.pop((kind, name), None) != (table, sql):
            return f"its {kind} {shown(name)} on table {shown(table)} is not as this package makes it"
    if left:
        kind, name = next(iter(left))
        return f"its {kind} {name!r} is missing"
    return None
