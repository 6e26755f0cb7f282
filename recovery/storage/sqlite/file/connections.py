"""Connections to SQLite files: their modes, limits and durability, for files that somebody else may have written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import quote

import apsw

from recovery.errors import StorageError
from recovery.host.durable import create
from recovery.storage.lazy.names import is_lazy, lazy_path
from recovery.storage.sqlite.digests import load_digests
from recovery.storage.sqlite.file.forked import check_process, opened
from recovery.storage.sqlite.file.statements import BUSY_TIMEOUT_MS, translated

# A file may come from somebody else: nothing in its schema runs, and no pragma lifts SQLite's own protection.
DISTRUST = {
    apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA: 0,
    apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER: 0,
    apsw.SQLITE_DBCONFIG_ENABLE_VIEW: 0,
    apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION: 0,
    apsw.SQLITE_DBCONFIG_DQS_DDL: 0,
    apsw.SQLITE_DBCONFIG_DQS_DML: 0,
}
# More than the statements of this package need. The content of a file must not need more.
LIMITS = {
    apsw.SQLITE_LIMIT_SQL_LENGTH: 1_000_000,
    apsw.SQLITE_LIMIT_EXPR_DEPTH: 100,
    apsw.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    apsw.SQLITE_LIMIT_VDBE_OP: 25_000,
    apsw.SQLITE_LIMIT_FUNCTION_ARG: 20,
    apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    apsw.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}

OPENING_ATTEMPTS = 2
T = TypeVar("T")
Mode = Literal["unshared", "aside", "ro", "rw", "rwc"]


def connect(path: Path, mode: Mode) -> apsw.Connection:
    """Return a connection to any SQLite file of this package, with the busy timeout set and without checks. Views and
    triggers are off, except temporary ones. Functions and limits are those for untrusted files.

    "unshared" reads the database file alone, without SQLite's log and without locks. "unshared" is correct only while
    nobody writes to the file. "aside" reads the file with its log, without locks and without an index file of the log.
    Correct only if nobody can create that index, so that no process, in particular not this one, has the database open.
    "rwc" creates the file, which must not exist, readable for this user alone. Raises StorageError if the file cannot
    be opened, or if this process was forked while the file was open.
    """
    flags = {
        "unshared": apsw.SQLITE_OPEN_READONLY,
        "aside": apsw.SQLITE_OPEN_READONLY,
        "ro": apsw.SQLITE_OPEN_READONLY,
        "rw": apsw.SQLITE_OPEN_READWRITE,
        "rwc": apsw.SQLITE_OPEN_READWRITE,
    }[mode]
    with translated(path):
        check_process(path)
        if mode == "rwc":
            # SQLite would create it readable for all. Its log and index get the permissions of the file.
            os.close(create(path))
        query = {"unshared": "?immutable=1", "aside": "?vfs=unix-none"}.get(mode, "")
        connection = open_database(path, query, lambda uri: apsw.Connection(uri, flags=flags | apsw.SQLITE_OPEN_URI))
        opened(connection, path)
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        if mode == "aside":
            # This mode keeps the log's index in memory.
            connection.pragma("locking_mode", "EXCLUSIVE")
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        for option, setting in DISTRUST.items():
            connection.config(option, setting)
        if mode != "rwc":
            # A new file may turn its journal off, which defensive mode forbids.
            connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        for limit, most in LIMITS.items():
            connection.limit(limit, most)
    return connection


def file_uri(path: Path, query: str = "") -> str:
    """Return the URI by which SQLite opens or attaches `path`, whatever characters or bytes its name contains."""
    return f"file://{quote(os.fsencode(path.absolute()))}{query}"


def open_database(path: Path, query: str, open_uri: Callable[[str], T]) -> T:
    """Open or attach a database by its URI with `open_uri`. A partition whose pages are still being fetched is opened
    through the file system that fetches them, by name or for as long as that takes."""
    for _ in range(OPENING_ATTEMPTS):
        if not is_lazy(path):
            break
        from recovery.storage.lazy.vfs import vfs_name

        # Whoever has such a file open uses its log, so it is never read without.
        ways = query.removeprefix("?").replace("immutable=1", "mode=ro")
        if "vfs=" in ways:
            raise StorageError(
                "its pages are still being fetched, and this user may not write to the directory",
                path=path,
                cause="Pages that are read are kept in the file.",
                remedy="Read the directory as the user who restored it.",
            )
        try:
            return open_uri(file_uri(lazy_path(path), "&".join(filter(None, [f"?vfs={vfs_name()}", ways]))))
        except apsw.CantOpenError:
            # All of it may be there by now.
            if is_lazy(path):
                raise
    return open_uri(file_uri(path, query))


def use_log(connection: apsw.Connection, path: Path) -> None:
    """Put the file into WAL mode, so that readers of a closed snapshot do not wait for the writer of the next one.

    A copy made by VACUUM INTO has lost the mode. Raises StorageError if the file system does not support the log.
    """
    mode = connection.pragma("journal_mode", "WAL")
    if mode != "wal":
        raise StorageError(
            f"SQLite cannot keep a write-ahead log here: it stays in journal mode {mode!r}",
            path=path,
            cause="The file system has no shared memory between processes, as network file systems do not.",
            remedy="Keep the recovery directory on a local disk.",
        )


def prepare_writer(connection: apsw.Connection, path: Path, *, cache_bytes: int) -> None:
    """Configure a connection that closes epochs: full durability, and checkpoints only on request."""
    use_log(connection, path)
    connection.pragma("synchronous", "FULL")
    connection.pragma("wal_autocheckpoint", 0)
    connection.pragma("journal_size_limit", 64 << 20)
    connection.pragma("cache_size", -(cache_bytes >> 10))
    load_digests(connection)
