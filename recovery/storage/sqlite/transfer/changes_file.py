"""What changed in a partition between two backups, as an SQLite file: the *changes file*.

A changes file holds one or more links, each from an epoch of one backup to the newest epoch of the next: the rows that
each epoch wrote, the keys that it discarded, its row of `epochs`, and the executions that began. A link is made without
reading the state: what was replaced is at the end of `superseded`, and its keys lead to what is there now. The sums in
`epochs` prove that nothing is left out: an epoch's live rows are those of the epoch before, without what it superseded,
and with what it wrote. Only keys that an epoch made have nothing in `superseded`. If the sums show that some are
missing, the state is scanned for them.

Operational state, measures and the beginning of the input belong to no epoch: they are as of the file's last link.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import apsw

from recovery.base.ids import Epoch
from recovery.errors import CorruptPartitionError, UnsupportedVersionError
from recovery.planning.chains import ChainLink
from recovery.planning.values import ClosedEpoch, Execution, PartitionDescription
from recovery.storage.sqlite.columns import checked_rows, columns_of
from recovery.storage.sqlite.describe import closed_epochs
from recovery.storage.sqlite.digests import (
    MODULUS,
    SNAPS_DIGEST,
    SUM_SQL,
    combine,
    load_digests,
    mismatch_text,
    record_digest,
    row_digest_sql,
)
from recovery.storage.sqlite.file.connections import connect, file_uri
from recovery.storage.sqlite.file.statements import rows, transaction, translated, value
from recovery.storage.sqlite.file.tables import OBJECTS
from recovery.storage.sqlite.snap_rows import live_rows_of

APPLICATION_ID = 0x52435643  # "RCVC"
VERSION = 1
ATTACHED = "link"
"""The name of a changes file that is attached to another file."""

CREATE = """
CREATE TABLE links (
    link         INTEGER PRIMARY KEY,
    after_epoch  INTEGER NOT NULL,
    after_rows   INTEGER NOT NULL,
    after_digest INTEGER NOT NULL,
    collected    INTEGER NOT NULL,
    taken_ms     INTEGER NOT NULL
) STRICT;

CREATE TABLE exs (
    link INTEGER NOT NULL, ex_num INTEGER NOT NULL, ex_id TEXT NOT NULL, flow_id TEXT NOT NULL,
    resume_epoch INTEGER NOT NULL, started_ms INTEGER NOT NULL, snapshot_interval_s REAL NOT NULL,
    backup_interval_s REAL NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, version TEXT NOT NULL,
    digest INTEGER NOT NULL, PRIMARY KEY (link, ex_num)
) STRICT, WITHOUT ROWID;

CREATE TABLE epochs (
    link INTEGER NOT NULL, epoch INTEGER NOT NULL, ex_num INTEGER NOT NULL, ex_id TEXT NOT NULL,
    batch_id INTEGER NOT NULL, closed_ms INTEGER NOT NULL, clock_ms INTEGER NOT NULL, written INTEGER NOT NULL,
    live_rows INTEGER NOT NULL, live_digest INTEGER NOT NULL, superseded_rows INTEGER NOT NULL,
    superseded_digest INTEGER NOT NULL, digest INTEGER NOT NULL, PRIMARY KEY (link, epoch)
) STRICT, WITHOUT ROWID;

CREATE TABLE changed (
    link       INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    step_id    TEXT NOT NULL,
    state_key  TEXT NOT NULL,
    ser_change ANY,
    timeout_ms INTEGER,
    digest     INTEGER,
    made       INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (link, epoch, step_id, state_key)
) STRICT, WITHOUT ROWID;

CREATE TABLE parts (
    part_index INTEGER PRIMARY KEY, part_count INTEGER NOT NULL, store_id TEXT NOT NULL, flow_id TEXT,
    created_ms INTEGER NOT NULL, digest INTEGER NOT NULL
) STRICT;

CREATE TABLE beginning (
    one INTEGER PRIMARY KEY, ex_num INTEGER NOT NULL, ex_id TEXT NOT NULL, content TEXT NOT NULL,
    digest INTEGER NOT NULL
) STRICT;

CREATE TABLE states (
    state_id TEXT PRIMARY KEY, generation INTEGER NOT NULL, content TEXT, changed_ms INTEGER NOT NULL,
    digest INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE totals (
    one INTEGER PRIMARY KEY, states INTEGER NOT NULL, states_digest INTEGER NOT NULL, digest INTEGER NOT NULL
) STRICT;

CREATE TABLE measures (
    measure_id INTEGER PRIMARY KEY, ex_num INTEGER NOT NULL, epoch INTEGER NOT NULL, measured_ms INTEGER NOT NULL,
    content TEXT NOT NULL, digest INTEGER NOT NULL
) STRICT;
"""
"""`changed` has a row for each key that an epoch touched: its new value, or NULL if the key was discarded. made:
`superseded` says that the key did not exist before. `epochs` of a chain's first link also has the epochs before it.
`totals` has no row if operational state did not change. All other tables are those of a partition."""

# What epochs after one wrote: what was replaced again since, and what is there now of the keys that were touched.
WRITTEN = """
SELECT snap_epoch, step_id, state_key, ser_change, timeout_ms, digest FROM superseded
WHERE until_epoch > :after AND snap_epoch > :after
UNION ALL
SELECT s.snap_epoch, s.step_id, s.state_key, s.ser_change, s.timeout_ms, s.digest
FROM (SELECT DISTINCT step_id, state_key FROM superseded WHERE until_epoch > :after) AS t CROSS JOIN snaps AS s
WHERE s.step_id = t.step_id AND s.state_key = t.state_key AND s.snap_epoch > :after
"""
# All of it that is there now: a scan of the state.
WRITTEN_SINCE = """
SELECT snap_epoch, step_id, state_key, ser_change, timeout_ms, digest FROM snaps WHERE snap_epoch > :after
"""
KEEP_WRITTEN = "INSERT OR IGNORE INTO changed VALUES (:link, ?, ?, ?, ?, ?, ?, 0)"
TOUCHED = "SELECT until_epoch, step_id, state_key, snap_epoch IS NULL FROM superseded WHERE until_epoch > :after"
KEEP_TOUCHED = """
INSERT INTO changed (link, epoch, step_id, state_key, made) VALUES (:link, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET made = 1 WHERE excluded.made
"""
REPLACED = """
SELECT until_epoch, {sums} FROM superseded WHERE until_epoch > :after {condition} GROUP BY until_epoch
"""
WROTE = f"SELECT epoch, {SUM_SQL} FROM changed WHERE ser_change IS NOT NULL GROUP BY epoch"
DAMAGED = f"""
SELECT count(*) FROM changed WHERE ser_change IS NOT NULL
AND digest IS NOT {row_digest_sql("step_id", "state_key", "epoch", "ser_change", "timeout_ms")}
"""
DAMAGED_REPLACED = f"SELECT count(*) FROM superseded WHERE until_epoch > :after AND digest IS NOT {SNAPS_DIGEST}"
EXS, EPOCHS = columns_of("exs"), columns_of("epochs")
BY_LINK = ("links", "exs", "epochs", "changed")
OPERATIONAL = ("states", "totals")

Sums = Mapping[int, tuple[int, int]]
"""By epoch, a number of rows and the sum of their digests."""


class Marks(NamedTuple):
    """How far operational state and measures had come at a backup: rows and digest sum; the newest measure's id."""

    operational: tuple[int, int]
    measure: int


NO_MARKS = Marks((0, 0), 0)


def write_link(
    partition: apsw.Connection,
    path: Path,
    description: PartitionDescription,
    target: Path,
    *,
    link: int,
    after: Epoch,
    executions: int,
    taken_ms: int,
    since: Marks,
    operational: tuple[int, int],
) -> None:
    """Write the link from `after`, which the partition still holds, to its newest epoch as the new changes file
    `target`. A transaction is open on `partition`.

    link: its number in the chain, from 1. executions: how many the link's beginning has. since: what it has already.
    operational: what is there now. Raises CorruptPartitionError if the sums do not prove the link complete.
    """
    with translated(path), _created(target) as made, transaction(made):
        start = next((each for each in description.epochs if each.epoch == after), None)
        fields = (link, after, *live_rows_of(start), description.collected, taken_ms)
        made.execute("INSERT INTO links VALUES (?, ?, ?, ?, ?, ?)", fields)
        queries = [
            ("exs", f"SELECT {link}, {EXS} FROM exs ORDER BY ex_num LIMIT -1 OFFSET {executions}"),
            ("epochs", f"SELECT {link}, {EPOCHS} FROM epochs WHERE epoch > {after if link > 1 else 0}"),
            ("parts", "SELECT * FROM parts"),
            ("beginning", "SELECT * FROM beginning"),
            ("measures", f"SELECT * FROM measures WHERE measure_id > {since.measure}"),
        ]
        if operational != since.operational:
            queries += [(table, f"SELECT * FROM {table}") for table in OPERATIONAL]
        for table, sql in queries:
            found = partition.execute(sql)
            marks = ", ".join("?" * len(rows(made, f"PRAGMA table_info({table})")))
            made.executemany(f"INSERT INTO {table} VALUES ({marks})", found)
        if since.operational[0] and not operational[0] and not rows(made, "SELECT 1 FROM totals"):
            # An older copy took the partition's place. Without a row here, the chain's row would stay.
            none = (1, 0, 0)
            made.execute("INSERT INTO totals VALUES (?, ?, ?, ?)", (*none, record_digest(*none)))
        _write_changed(partition, made, path, link, after, description.epochs)


def _write_changed(
    partition: apsw.Connection,
    made: apsw.Connection,
    path: Path,
    link: int,
    after: Epoch,
    epochs: Sequence[ClosedEpoch],
) -> None:
    def keep(found: str, sql: str) -> None:
        bound = sql.replace(":link", str(link))
        made.executemany(bound, partition.execute(found, {"after": after}))

    def sums(condition: str) -> Sums:
        return _sums(partition, REPLACED.format(sums=SUM_SQL, condition=condition), {"after": after})

    replaced, existed = sums(""), sums("AND snap_epoch IS NOT NULL")
    expected: dict[int, tuple[int, int]] = {}
    before = live_rows_of(next((c for c in epochs if c.epoch == after), None))
    for closed in (each for each in epochs if each.epoch > after):
        if replaced.get(closed.epoch, (0, 0)) != (closed.superseded_rows, closed.superseded_digest):
            raise CorruptPartitionError(f"the rows that epoch {closed.epoch} superseded are not all there", path=path)
        gone, live = existed.get(closed.epoch, (0, 0)), live_rows_of(closed)
        written = live[0] - before[0] + gone[0], (live[1] - before[1] + gone[1]) % MODULUS
        if written != (0, 0):
            expected[closed.epoch] = written
        before = live
    keep(WRITTEN, KEEP_WRITTEN)
    if _sums(made, WROTE) != expected:
        keep(WRITTEN_SINCE, KEEP_WRITTEN)
    found = _sums(made, WROTE)
    if found != expected:
        [wrong, *_] = sorted(set(found.items()) ^ set(expected.items()))
        raise CorruptPartitionError(
            f"the rows of epoch {wrong[0]} differ from those that were written when the epoch was closed", path=path
        )
    damaged = value(made, DAMAGED)
    if damaged:
        raise CorruptPartitionError(mismatch_text(damaged, "snaps"), path=path)
    load_digests(partition)
    damaged = value(partition, DAMAGED_REPLACED, {"after": after})
    if damaged:
        raise CorruptPartitionError(mismatch_text(damaged, "superseded"), path=path)
    keep(TOUCHED, KEEP_TOUCHED)


def merge(files: Sequence[Path], target: Path) -> None:
    """Write the links of consecutive changes files, the oldest first, as the new changes file `target`.

    Raises CorruptPartitionError for a file that is not as `write_link` makes it.
    """
    with _created(target) as made:
        for path in files:
            with attached(made, path), translated(path), transaction(made):
                for table in BY_LINK:
                    made.execute(f"INSERT INTO main.{table} SELECT * FROM {ATTACHED}.{table}")
                replace_unlinked(made)


def replace_unlinked(connection: apsw.Connection) -> None:
    """Copy what belongs to no epoch from the attached changes file into the tables of the same name."""
    replaced = ["parts", "beginning"]
    if rows(connection, f"SELECT 1 FROM {ATTACHED}.totals"):
        replaced += OPERATIONAL
    for table in replaced:
        connection.execute(f"DELETE FROM main.{table}")
        connection.execute(f"INSERT INTO main.{table} SELECT * FROM {ATTACHED}.{table}")
    connection.execute(f"INSERT OR REPLACE INTO main.measures SELECT * FROM {ATTACHED}.measures")


@contextlib.contextmanager
def attached(connection: apsw.Connection, path: Path) -> Iterator[None]:
    """Attach a changes file for reading. Raises CorruptPartitionError if the file is not a changes file of this
    version."""
    with translated(path):
        connection.execute("ATTACH ? AS " + ATTACHED, (file_uri(path, "?mode=ro&immutable=1&vfs=unix"),))
    try:
        _check(connection, ATTACHED, path)
        yield
    finally:
        connection.execute("DETACH " + ATTACHED)


def read_links(path: Path) -> list[ChainLink]:
    """Return the descriptions of the links in a changes file. Raises CorruptPartitionError, UnsupportedVersionError
    or StorageError."""
    with contextlib.closing(reading_changes(path)) as connection, translated(path):
        found = []
        for link, after, collected, taken_ms in rows(
            connection, "SELECT link, after_epoch, collected, taken_ms FROM links ORDER BY link"
        ):
            executions = checked_rows("exs", rows(connection, f"SELECT {EXS} FROM exs WHERE link = ?", (link,)))
            epochs = checked_rows("epochs", rows(connection, f"SELECT {EPOCHS} FROM epochs WHERE link = ?", (link,)))
            begun = tuple(Execution(*row) for row in executions)
            found.append(ChainLink(link, after, collected, taken_ms, begun, closed_epochs(epochs, ())))
        return found


def reading_changes(path: Path) -> apsw.Connection:
    """Return a connection that reads a changes file. Raises what `read_links` raises."""
    connection = connect(path, "unshared")
    try:
        _check(connection, "main", path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: apsw.Connection, schema: str, path: Path) -> None:
    """Raises CorruptPartitionError or UnsupportedVersionError if the file is not a changes file of this version."""
    with translated(path):
        application = value(connection, f"PRAGMA {schema}.application_id")
        version = value(connection, f"PRAGMA {schema}.user_version")
        if application != APPLICATION_ID:
            raise CorruptPartitionError("it is not a changes file", path=path)
        if version != VERSION:
            raise UnsupportedVersionError(
                f"changes file of version {version}; this version of recovery reads version {VERSION}", path=path
            )
        if sorted(rows(connection, OBJECTS.replace("sqlite_schema", f"{schema}.sqlite_schema"))) != _objects():
            raise CorruptPartitionError("its tables are not as this package makes them", path=path)


@contextlib.contextmanager
def _created(path: Path) -> Iterator[apsw.Connection]:
    """Create an empty changes file, which needs no protection against a crash: an incomplete one is never used."""
    with translated(path):
        connection = connect(path, "rwc")
    try:
        with translated(path):
            load_digests(connection)
            connection.pragma("journal_mode", "OFF")
            connection.pragma("synchronous", "OFF")
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", VERSION)
            connection.execute(CREATE).fetchall()
        yield connection
    finally:
        connection.close()


@cache
def _objects() -> list[tuple[str, str, str, str | None]]:
    made = apsw.Connection(":memory:")
    made.execute(CREATE).fetchall()
    found: list[tuple[str, str, str, str | None]] = sorted(made.execute(OBJECTS).fetchall())  # type: ignore[arg-type]
    made.close()
    return found


def _sums(connection: apsw.Connection, sql: str, bindings: Mapping[str, int] | None = None) -> Sums:
    return {epoch: (count, combine(high, low)) for epoch, count, high, low in rows(connection, sql, bindings or {})}
