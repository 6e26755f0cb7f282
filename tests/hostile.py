"""Partitions that somebody forged: any value in any column, with digests and sums that are right for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec

from recovery.storage.documents import DIGEST as STATE_DIGEST
from recovery.storage.sqlite.digests import MODULUS, SNAPS_DIGEST, load_digests, record_digest
from recovery.storage.sqlite.epoch_log import CHUNKS, _chunk_digest

RECORDS = {
    "parts": 5, "commits": 2, "exs": 10, "epochs": 11, "logged": 3, "measures": 5, "totals": 3,
}  # fmt: skip
"""Tables whose rows have a digest of all columns before it, and how many those are."""


@contextlib.contextmanager
def lenient(path: Path) -> Iterator[apsw.Connection]:
    """A connection that takes any value for any column: the tables are not STRICT, and nothing is NOT NULL. The text of
    the schema comes back afterwards."""
    strict = _texts(path)
    _rewrite(path, {name: _without_types(sql) for name, sql in strict.items()})
    connection = apsw.Connection(str(path))
    load_digests(connection)
    try:
        with connection:
            yield connection
        connection.wal_checkpoint("main", mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        connection.close()
        _rewrite(path, strict)


def forge(path: Path, table: str, column: str, value: Any, where: str = "true") -> None:
    """Put a value into a column of the first row, and make every digest and sum right again.

    A value that begins with `sql:` is an expression.
    """
    expression, bindings = (value[4:], ()) if isinstance(value, str) and value.startswith("sql:") else ("?", (value,))
    with lenient(path) as connection:
        keys = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5]]
        first = connection.execute(f"SELECT {', '.join(keys)} FROM {table} WHERE {where} LIMIT 1").fetchall()
        if not first:
            return
        matching = " AND ".join(f"{key} IS ?" for key in keys)
        with contextlib.suppress(apsw.ConstraintError, apsw.MismatchError):
            connection.execute(f"UPDATE {table} SET {column} = {expression} WHERE {matching}", (*bindings, *first[0]))
        make_right(connection)


def put(path: Path, step: str, key: str, content: Any) -> None:
    """Add a row to the newest snapshot, as a forger does."""
    with lenient(path) as connection:
        epoch = "SELECT max(epoch) FROM epochs WHERE epoch NOT IN (SELECT epoch FROM logged)"
        connection.execute(f"INSERT OR REPLACE INTO snaps VALUES (?, ?, ({epoch}), ?, NULL, 0)", (step, key, content))
        make_right(connection)


def make_right(connection: apsw.Connection) -> None:
    """Digests and sums, as somebody who knows the file format makes them."""
    connection.execute(f"UPDATE snaps SET digest = {SNAPS_DIGEST}")
    connection.execute(f"UPDATE superseded SET digest = {SNAPS_DIGEST}")
    connection.execute(f"UPDATE states SET digest = {STATE_DIGEST}")
    connection.execute("DELETE FROM sizes")
    connection.execute(
        "INSERT INTO sizes SELECT step_id, count(*), sum(octet_length(state_key) + octet_length(ser_change)) FROM snaps"
        " GROUP BY step_id"
    )
    count, total = _sum(connection, "SELECT digest FROM snaps")
    newest = "SELECT max(epoch) FROM epochs WHERE epoch NOT IN (SELECT epoch FROM logged)"
    connection.execute(f"UPDATE epochs SET live_rows = ?, live_digest = ? WHERE epoch >= ({newest})", (count, total))
    for (epoch,) in connection.execute("SELECT epoch FROM epochs").fetchall():
        sums = _sum(connection, "SELECT digest FROM superseded WHERE until_epoch = ?", (epoch,))
        connection.execute("UPDATE epochs SET superseded_rows = ?, superseded_digest = ? WHERE epoch = ?",
                           (*sums, epoch))  # fmt: skip
    _make_log_right(connection)
    found = _sum(connection, "SELECT digest FROM states")
    connection.execute("UPDATE totals SET states = ?, states_digest = ?", found)
    for table, width in RECORDS.items():
        for row in connection.execute(f"SELECT rowid, * FROM {table}").fetchall():
            with contextlib.suppress(msgspec.MsgspecError, TypeError):
                digest = record_digest(*row[1 : width + 1])
                connection.execute(f"UPDATE {table} SET digest = ? WHERE rowid = ?", (digest, row[0]))


def _make_log_right(connection: apsw.Connection) -> None:
    for rowid, chunk in zip(
        [row[0] for row in connection.execute("SELECT rowid FROM changes ORDER BY rowid").fetchall()],
        connection.execute(f"{CHUNKS} ORDER BY rowid").fetchall(),
        strict=True,
    ):
        with contextlib.suppress(Exception):
            connection.execute("UPDATE changes SET digest = ? WHERE rowid = ?", (_chunk_digest(*chunk[:-1]), rowid))
    for (epoch,) in connection.execute("SELECT epoch FROM logged").fetchall():
        _, total = _sum(connection, "SELECT digest FROM changes WHERE epoch = ?", (epoch,))
        rows = connection.execute("SELECT sum(row_count) FROM changes WHERE epoch = ?", (epoch,)).fetchall()[0][0]
        with contextlib.suppress(apsw.Error):
            connection.execute("UPDATE logged SET row_count = ?, changes_digest = ? WHERE epoch = ?",
                               (rows, total, epoch))  # fmt: skip


def _sum(connection: apsw.Connection, sql: str, bindings: tuple[Any, ...] = ()) -> tuple[int, int]:
    digests = [row[0] for row in connection.execute(sql, bindings) if isinstance(row[0], int)]
    return len(digests), sum(digests) % MODULUS


def _without_types(sql: str) -> str:
    for old, new in ((" STRICT, ", " "), (" STRICT", ""), (" NOT NULL", ""), (" ANY", " BLOB")):
        sql = sql.replace(old, new)
    return sql


def _texts(path: Path) -> dict[str, str]:
    connection = apsw.Connection(str(path))
    found = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall()
    connection.close()
    return dict(found)


def _rewrite(path: Path, texts: dict[str, str]) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("writable_schema", True)
    with connection:
        for name, sql in texts.items():
            connection.execute("UPDATE sqlite_schema SET sql = ? WHERE type = 'table' AND name = ?", (sql, name))
    version = connection.pragma("schema_version")
    connection.pragma("schema_version", version + 1)
    connection.wal_checkpoint("main", mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()
