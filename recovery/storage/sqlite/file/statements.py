"""Statements on a connection: transactions, rows, and SQLite's errors as errors of this package."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from recovery.base.threads import is_late
from recovery.errors import CorruptPartitionError, LookLimitError, RecoveryError, StorageError

BUSY_TIMEOUT_MS = 60_000
"""How long a statement waits for a lock of another connection."""


@contextlib.contextmanager
def transaction(connection: apsw.Connection, *, joined: bool = False) -> Iterator[None]:
    """Run one immediate write transaction: commit all of it, or nothing. joined: continue the open transaction, if
    there is one."""
    if not (joined and connection.in_transaction):
        connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            # The original error matters more than one of rolling back.
            with contextlib.suppress(apsw.Error):
                connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def snapshot(connection: apsw.Connection) -> Iterator[None]:
    """Run one read transaction: its statements see each attached file as of the first statement that reads from it.

    Inside another transaction this snapshot is part of that transaction.
    """
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


_CORRUPT: tuple[type[apsw.Error], ...] = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)
_LOCKED: tuple[type[apsw.Error], ...] = (apsw.BusyError, apsw.LockedError, apsw.ProtocolError)
_STORAGE: tuple[type[apsw.Error], ...] = (
    apsw.IOError,
    apsw.FullError,
    apsw.CantOpenError,
    apsw.ReadOnlyError,
    apsw.PermissionsError,
    apsw.AuthError,
    apsw.NoMemError,
    apsw.NoLFSError,
    apsw.TooBigError,
)


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the operating system into errors of this package that name `path`."""
    try:
        yield
    except CorruptPartitionError as error:
        # Code that checks rows does not know their file.
        error.path = error.path or os.fspath(path)
        raise
    except RecoveryError:
        raise
    except apsw.InterruptError as error:
        if is_late():
            raise LookLimitError("it takes longer than one look may", path=path) from error
        raise
    except _CORRUPT as error:
        raise CorruptPartitionError(f"SQLite says: {error}", path=path) from error
    except _LOCKED as error:
        raise StorageError(
            f"another program kept the file locked for {BUSY_TIMEOUT_MS // 1000} s: {error}",
            path=path,
            cause="A tool holds a transaction open on the file.",
            remedy="Close that tool and run the same command again.",
        ) from error
    except _STORAGE as error:
        raise StorageError(f"SQLite says: {error}", path=path) from error
    except apsw.SQLError as error:
        # The statements are fixed, so one that no longer compiles means that the tables were altered.
        raise CorruptPartitionError(f"a table is missing or altered: {error}", path=path) from error
    except (apsw.ConstraintError, apsw.MismatchError) as error:
        raise CorruptPartitionError(f"a row contradicts the schema: {error}", path=path) from error
    except UnicodeDecodeError as error:
        raise CorruptPartitionError(f"a text in it is not text: {error}", path=path) from error
    except OSError as error:
        raise StorageError(str(error), path=path) from error


def rows(connection: apsw.Connection, sql: str, bindings: Any = ()) -> list[tuple[Any, ...]]:
    """Return all rows of a query. The cursor is exhausted, so no snapshot stays open."""
    return connection.execute(sql, bindings).fetchall()


def value(connection: apsw.Connection, sql: str, bindings: Any = ()) -> Any:
    """Return the first value of a query, or None if there is no row."""
    found = rows(connection, sql, bindings)
    return found[0][0] if found else None
