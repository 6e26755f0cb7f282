"""The last record of each key that a sink has produced, and what each epoch replaced, in one SQLite file.

A sink whose target cannot take records back uses the file to find what its target has to get instead: `values` says,
for each key that the epochs after one have touched, which record it had as of an epoch. An epoch enters the file before
its first record is produced, so the file is never behind the target. Records are bytes here, and None where a key has
none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import apsw

from recovery.errors import CorruptPartitionError, LeaseLostError
from recovery.host.durable import sync
from recovery.storage.sqlite.file.connections import connect
from recovery.storage.sqlite.file.statements import rows, transaction, translated, value

CACHE_KIB = 64 << 10
Record: TypeAlias = "tuple[bytes, bytes | None]"
"""A key with its record."""

TABLES = """
CREATE TABLE about (id TEXT NOT NULL, owner TEXT NOT NULL);
CREATE TABLE epochs (epoch INTEGER PRIMARY KEY, execution TEXT NOT NULL, keys INTEGER NOT NULL);
CREATE TABLE latest (key BLOB PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE replaced (epoch INTEGER, key BLOB, record BLOB, PRIMARY KEY (epoch, key)) WITHOUT ROWID;
"""
INCOMING = """
CREATE TEMP TABLE IF NOT EXISTS incoming (key BLOB PRIMARY KEY, record BLOB) WITHOUT ROWID;
DELETE FROM incoming;
"""
SET_LATEST = """
INSERT OR REPLACE INTO latest SELECT key, record FROM incoming WHERE record IS NOT NULL;
DELETE FROM latest WHERE key IN (SELECT key FROM incoming WHERE record IS NULL);
DELETE FROM incoming;
"""
REPLACE = """
INSERT INTO replaced
SELECT ?, incoming.key, latest.record FROM incoming LEFT JOIN latest ON latest.key = incoming.key
"""
FIRST_REPLACED = """
SELECT replaced.key, replaced.record
FROM (SELECT key, min(epoch) AS first FROM replaced WHERE epoch > ? GROUP BY key) AS touched
JOIN replaced ON replaced.epoch = touched.first AND replaced.key = touched.key
"""
VALUES = """
WITH touched AS (
    SELECT key, min(CASE WHEN epoch > :to THEN epoch END) AS first FROM replaced WHERE epoch > :low GROUP BY key
)
SELECT touched.key, CASE WHEN touched.first IS NULL THEN latest.record ELSE replaced.record END
FROM touched
LEFT JOIN replaced ON replaced.epoch = touched.first AND replaced.key = touched.key
LEFT JOIN latest ON latest.key = touched.key
ORDER BY touched.key LIMIT -1 OFFSET :skip
"""
DAMAGED = """
SELECT epoch FROM epochs
WHERE epoch > (SELECT min(epoch) FROM epochs)
    AND keys <> (SELECT count(*) FROM replaced WHERE replaced.epoch = epochs.epoch)
"""


OLDER = "epoch < (SELECT max(epoch) FROM epochs WHERE epoch <= ?)"
"""Epochs in whose place a later one counts, for whoever goes back to an epoch that is not below the given one. Epochs
without records are not in the file, so the one that counts may be below the given one."""


class KeptRecords:
    """The records of one sink. A file that is not there has no epochs. Raises CorruptPartitionError or StorageError.

    `owner` is the execution that may write: see `claim`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: apsw.Connection | None = None

    @property
    def id(self) -> str:
        """The id that the file was begun with; "" if there is no file."""
        with translated(self.path):
            return "" if self._opened() is None else value(self._connection, "SELECT id FROM about")

    @property
    def newest(self) -> tuple[int, str]:
        """The newest epoch, and the execution that closed it."""
        with translated(self.path):
            [found] = rows(self._connection, "SELECT epoch, execution FROM epochs ORDER BY epoch DESC LIMIT 1")
            return found

    @property
    def oldest(self) -> int:
        """The oldest epoch whose records are known."""
        with translated(self.path):
            return int(value(self._connection, "SELECT min(epoch) FROM epochs"))

    def has(self, epoch: int, execution: str) -> bool:
        """Whether it is known which records the keys had as of this epoch, if this execution closed it."""
        with translated(self.path):
            return self._opened() is not None and bool(
                rows(self._connection, "SELECT 1 FROM epochs WHERE epoch = ? AND execution = ?", (epoch, execution))
            )

    def begin(self, id: str, owner: str, epoch: int, execution: str, records: Iterable[Record]) -> None:
        """Replace the file by one that begins with these records, as of an epoch. Later records of a key count. Atomic:
        a crash leaves the former file."""
        self.close()
        new = self.path.with_suffix(".new")
        with translated(self.path):
            for path in (new, new.with_name(f"{new.name}-journal")):
                path.unlink(missing_ok=True)
            connection = connect(new, "rwc")
            try:
                with transaction(connection):
                    connection.execute(TABLES)
                    connection.execute("INSERT INTO about VALUES (?, ?)", (id, owner))
                    connection.execute("INSERT INTO epochs VALUES (?, ?, 0)", (epoch, execution))
                    connection.executemany("INSERT OR REPLACE INTO latest VALUES (?, coalesce(?, x''))", records)
                    connection.execute("DELETE FROM latest WHERE record = x''")
            finally:
                connection.close()
            # Its name would lead SQLite from the new file to a journal of the former one.
            self.path.with_name(f"{self.path.name}-journal").unlink(missing_ok=True)
            new.replace(self.path)
            sync(self.path.parent)

    def claim(self, owner: str) -> None:
        """Let this execution be the owner. No other execution can add epochs from now on."""
        with translated(self.path), transaction(self._connection):
            self._connection.execute("UPDATE about SET owner = ?", (owner,))

    def keep(self, owner: str, epoch: int, execution: str, records: Iterable[Record]) -> None:
        """Add an epoch with the records that it produces; later records of a key count. Durable when it returns. Raises
        LeaseLostError if another execution is the owner now."""
        connection = self._connection
        with translated(self.path), transaction(connection):
            if value(connection, "SELECT owner FROM about") != owner:
                raise LeaseLostError("another run keeps the records of the topic now", path=self.path)
            connection.execute(INCOMING)
            connection.executemany("INSERT OR REPLACE INTO incoming VALUES (?, ?)", records)
            connection.execute(REPLACE, (epoch,))
            connection.execute("INSERT INTO epochs VALUES (?, ?, ?)", (epoch, execution, connection.changes()))
            connection.execute(SET_LATEST)

    def count(self, low: int) -> int:
        """Return how many keys the epochs after `low` have touched. Raises CorruptPartitionError for missing rows."""
        with translated(self.path):
            if rows(self._connection, DAMAGED):
                raise CorruptPartitionError("an epoch does not have the number of rows that it had", path=self.path)
            return int(value(self._connection, "SELECT count(DISTINCT key) FROM replaced WHERE epoch > ?", (low,)))

    def values(self, low: int, to: int, skip: int) -> Iterator[Record]:
        """Yield each key that epochs after `low` have touched, with its record as of epoch `to`, which is not below
        `low`. In the order of the keys, without the first `skip` ones."""
        with translated(self.path):
            yield from self._connection.execute(VALUES, {"low": low, "to": to, "skip": skip})

    def go_back(self, epoch: int) -> None:
        """Forget the epochs after this one: the keys have the records that they had then."""
        connection = self._connection
        if self.newest[0] == epoch:
            return
        with translated(self.path), transaction(connection):
            connection.execute(INCOMING)
            connection.execute(f"INSERT INTO incoming {FIRST_REPLACED}", (epoch,))
            connection.execute(SET_LATEST)
            connection.execute("DELETE FROM replaced WHERE epoch > ?", (epoch,))
            connection.execute("DELETE FROM epochs WHERE epoch > ?", (epoch,))

    def collect(self, floor: int) -> None:
        """Forget what is needed only to go back to an epoch below `floor`."""
        connection = self._connection
        if not rows(connection, f"SELECT 1 FROM epochs WHERE {OLDER} LIMIT 1", (floor,)):
            return
        with translated(self.path), transaction(connection):
            connection.execute("DELETE FROM replaced WHERE epoch <= ?", (floor,))
            connection.execute(f"DELETE FROM epochs WHERE {OLDER}", (floor,))

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        if self._open is not None:
            self._open.close()
            self._open = None

    @property
    def _connection(self) -> apsw.Connection:
        connection = self._opened()
        assert connection is not None, "the file was begun"
        return connection

    def _opened(self) -> apsw.Connection | None:
        if self._open is None and self.path.exists():
            self._open = connect(self.path, "rw")
            self._open.pragma("synchronous", "FULL")
            self._open.pragma("cache_size", -CACHE_KIB)
        return self._open
