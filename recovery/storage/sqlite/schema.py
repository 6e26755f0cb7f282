"""The file format of a recovery partition: tables, versions, and how a file is opened.

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
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import apsw

from recovery.base.threads import is_stopped
from recovery.base.wording import counted
from recovery.errors import (
    CorruptPartitionError,
    ForeignPartitionError,
    RecoveryError,
    StorageError,
    UnsupportedVersionError,
)
from recovery.host.durable import create
from recovery.storage.sqlite.digests import load_digests
from recovery.storage.sqlite.forked import check_process, opened
from recovery.storage.sqlite.tables import APPLICATION_ID, MIGRATIONS, OBJECTS, SCHEMA_VERSION, altered_objects
from recovery.storage.sqlite.watched_files import missing_file, refuse_other_names

BUSY_TIMEOUT_MS = 60_000
SMALLEST_PAGE_BYTES = 512
OPS_PER_LOOK = 2_000_000
"""SQLite instructions between two checks for a signal: some tenths of a second."""

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

Mode = Literal["unshared", "aside", "ro", "rw", "rwc"]

T = TypeVar("T")


def partition_path(directory: Path, index: int) -> Path:
    """Return the path of partition `index`."""
    return directory / f"part-{index}.sqlite3"


def connect(path: Path, mode: Mode) -> apsw.Connection:
    """Return a connection to any SQLite file of this package, with the busy timeout set and without checks. Views and
    triggers are off, except temporary ones. Functions and limits are those for untrusted files.

    "unshared" reads only the file, without its log and without locks. Correct only while nobody writes to it.
    "aside" reads it with its log, without locks and without an index file of the log. Correct only if nobody can
    create that index, so that no process, in particular not this one, has the database open. "rwc" creates the file,
    which must not exist, readable for this user alone.
    Raises StorageError if the file cannot be opened, or if this process was forked while the file was open.
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
        uri = file_uri(path, {"unshared": "?immutable=1", "aside": "?vfs=unix-none"}.get(mode, ""))
        connection = apsw.Connection(uri, flags=flags | apsw.SQLITE_OPEN_URI)
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


def open_partition(path: Path, mode: Literal["unshared", "ro", "rw"]) -> apsw.Connection:
    """Return a connection to a recovery partition, after checking that this version can read it and that it has exactly
    the tables of its version under their names. Ctrl-C interrupts queries on it.

    If the log's index is missing and cannot be created, as in a read-only directory, the log is read without it.
    Raises CorruptPartitionError, ForeignPartitionError, UnsupportedVersionError or StorageError, and, for writing,
    LinkedPartitionError.
    """
    found = _check_header(path)
    if mode == "rw":
        refuse_other_names(path, found)
    try:
        return _open_checked(path, mode)
    except StorageError as error:
        if mode != "ro" or not isinstance(error.__cause__, apsw.CantOpenError) or not is_left_alone(path):
            raise
    _check_log_readable(path)
    return _open_checked(path, "aside")


def _open_checked(path: Path, mode: Mode) -> apsw.Connection:
    connection = connect(path, mode)
    try:
        with translated(path):
            # Python handles signals before it calls this: Ctrl-C raises its error in a statement of the main thread.
            connection.set_progress_handler(is_stopped, OPS_PER_LOOK)
            connection.pragma("cell_size_check", True)
            with snapshot(connection):
                version = _checked_version(connection, path)
        if version < SCHEMA_VERSION and mode == "rw":
            migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_log_readable(path: Path) -> None:
    log = beside(path, "-wal")
    if not os.access(log, os.R_OK):
        raise StorageError(
            f"its log, {log.name}, may not be read, and holds its newest epochs",
            path=path,
            cause="The log's permissions are not those of the file.",
            remedy=f"Let this user read {log}.",
        )


def _checked_version(connection: apsw.Connection, path: Path) -> int:
    application = connection.pragma("application_id")
    version = int(connection.pragma("user_version"))
    if application != APPLICATION_ID:
        raise ForeignPartitionError(
            "an SQLite database, but not a recovery partition", path=path, cause="Another program's file."
        )
    if version > SCHEMA_VERSION:
        raise UnsupportedVersionError(
            f"schema version {version}; this version of recovery reads up to {SCHEMA_VERSION}", path=path
        )
    if version < 1:
        raise CorruptPartitionError(f"schema version {version} never existed", path=path)
    encoding = connection.pragma("encoding")
    if encoding != "UTF-8":
        raise CorruptPartitionError(f"its texts are kept as {encoding}, not as UTF-8", path=path)
    wrong = altered_objects(rows(connection, OBJECTS), version)
    if wrong is not None:
        raise CorruptPartitionError(
            wrong,
            path=path,
            cause="The file was edited from outside. Somebody who sent it could have it do more than it shows.",
            remedy="Restore this file from a backup. Drop an index, a view or a trigger that you made yourself.",
        )
    return version


def migrate(connection: apsw.Connection, path: Path) -> None:
    """Migrate a file of an older version to the present one, in one transaction. A concurrent second call finds it
    done."""
    with translated(path), transaction(connection):
        for version in range(connection.pragma("user_version"), SCHEMA_VERSION):
            connection.execute(MIGRATIONS[version]).fetchall()
            connection.pragma("user_version", version + 1)


def read_partition(path: Path, read: Callable[[apsw.Connection], T]) -> T:
    """Return the result of `read` on a partition, without changing anything or creating a file beside it.

    Ordinarily even a reader creates a log and its index, and leaves them behind. A file without a log is complete by
    itself, so it is read alone. If somebody wrote to it meanwhile, it is read again in the ordinary way. A log without
    an index, as of a copy, gets one, unless the directory is read-only.
    Raises what `open_partition` and `read` raise.
    """
    if not is_left_alone(path):
        return _read(path, "ro", read)
    before = stamp(path)
    try:
        found = _read(path, reading_mode(path), read)
    except RecoveryError:
        if stamp(path) == before:
            raise
    else:
        if stamp(path) == before:
            return found
    return _read(path, "ro", read)


def _read(path: Path, mode: Literal["unshared", "ro"], read: Callable[[apsw.Connection], T]) -> T:
    with contextlib.closing(open_partition(path, mode)) as connection:
        return read(connection)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[apsw.Connection]:
    """Open a connection for reading row by row, without changing anything, as `read_partition` does.

    Rows that were already used cannot be read again, so this raises StorageError if somebody began to write to a file
    that was read alone. Raises what `open_partition` raises.
    """
    alone, before = is_left_alone(path), stamp(path)
    try:
        with contextlib.closing(open_partition(path, reading_mode(path))) as connection:
            yield connection
    except RecoveryError as error:
        if alone and stamp(path) != before:
            raise _written_meanwhile(path) from error
        raise
    if alone and stamp(path) != before:
        raise _written_meanwhile(path)


def _written_meanwhile(path: Path) -> StorageError:
    return StorageError(
        "it was written to while it was read",
        path=path,
        cause="A run began meanwhile.",
        remedy="Run the same command again.",
    )


def has_log(path: Path) -> bool:
    """Return whether a log lies beside the file: a process uses it, or was killed using it."""
    return any(beside(path, suffix).exists() for suffix in ("-wal", "-journal"))


def is_left_alone(path: Path) -> bool:
    """Return whether nobody uses the file: it has no log, or a log without an index, which every user creates."""
    return not has_log(path) or not any(beside(path, suffix).exists() for suffix in ("-shm", "-journal"))


def reading_mode(path: Path) -> Literal["unshared", "ro"]:
    """Return the mode that reads a file without creating another one beside it. Without a log, the file is complete."""
    return "ro" if has_log(path) else "unshared"


def has_states(connection: apsw.Connection) -> bool:
    """Return whether the file has the tables of operational state. An older file may lack them until a writer of this
    version opens it."""
    return bool(connection.pragma("user_version") >= 2)


def has_changes(connection: apsw.Connection) -> bool:
    """Return whether the file can have logged epochs. An older file may lack the tables until a writer of this version
    opens it."""
    return bool(connection.pragma("user_version") >= 5)


def has_beginning(connection: apsw.Connection) -> bool:
    """Return whether the file can record where its input begins. An older file may lack the table until a writer of
    this version opens it."""
    return bool(connection.pragma("user_version") >= 6)


def beside(path: Path, suffix: Literal["-wal", "-shm", "-journal"]) -> Path:
    """Return the path of SQLite's own file that belongs to `path`. For a symbolic link, it lies beside the target."""
    return Path(f"{os.path.realpath(path)}{suffix}")


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes whenever the file itself is written to, but not by a commit that stays in the log."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _check_header(path: Path) -> os.stat_result:
    """Return the file's status. Raises CorruptPartitionError for a file shorter than a page, which SQLite would take
    for an empty database.

    Does not open the file: opening and closing a live file outside SQLite would drop its locks.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        raise missing_file(path) from None
    except OSError as error:
        raise StorageError(str(error), path=path) from error
    if not stat.S_ISREG(found.st_mode):
        raise StorageError("it is not a file", path=path, cause="Something else has a partition's name.", remedy="")
    size = found.st_size
    if size < SMALLEST_PAGE_BYTES:
        what = f"it ends after {counted(size, 'byte')}" if size else "the file is empty"
        raise CorruptPartitionError(what, path=path, cause="It was truncated or half-copied.")
    return found


def use_log(connection: apsw.Connection, path: Path) -> None:
    """Put the file into WAL mode, so that readers of a closed snapshot do not wait for the writer of the next one.

    A copy made by VACUUM INTO has lost the mode. Raises StorageError if the file system does not support it.
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

    Inside another transaction it is part of that one.
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
