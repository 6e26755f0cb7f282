"""Opening a partition: the checks of a file before anything in it is used, and its migration to the newest version."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

import apsw

from recovery.base.threads import is_stopped
from recovery.base.wording import counted
from recovery.errors import (
    CorruptPartitionError,
    ForeignPartitionError,
    StorageError,
    UnsupportedVersionError,
)
from recovery.storage.no_partitions import of_bytewax
from recovery.storage.sqlite.file.connections import Mode, connect
from recovery.storage.sqlite.file.log_files import beside, is_left_alone, refuse_odd_logs
from recovery.storage.sqlite.file.statements import rows, snapshot, transaction, translated
from recovery.storage.sqlite.file.tables import APPLICATION_ID, MIGRATIONS, OBJECTS, SCHEMA_VERSION, altered_objects
from recovery.storage.sqlite.file.watched_files import missing_file, refuse_link_into_store, refuse_other_names

SMALLEST_PAGE_BYTES = 512
OPS_PER_LOOK = 2_000_000
"""SQLite instructions between two checks for a signal: some tenths of a second."""

TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' LIMIT 100"


def partition_path(directory: Path, index: int) -> Path:
    """Return the path of partition `index`."""
    return directory / f"part-{index}.sqlite3"


def open_partition(path: Path, mode: Literal["unshared", "ro", "rw"]) -> apsw.Connection:
    """Return a connection to a recovery partition, after checking that this version can read it and that it has exactly
    the tables of its version under their names. Ctrl-C interrupts queries on the connection.

    If the log's index is missing and cannot be created, as in a read-only directory, the log is read without it.
    Raises CorruptPartitionError, ForeignPartitionError, UnsupportedVersionError or StorageError, and, for writing,
    LinkedPartitionError.
    """
    found = _check_header(path)
    if mode == "rw":
        refuse_other_names(path, found)
        refuse_link_into_store(path)
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
        tables = [str(name) for (name,) in connection.execute(TABLES)]
        cause, remedy = of_bytewax(path, tables) or ("Another program's file.", None)
        raise ForeignPartitionError(
            "an SQLite database, but not a recovery partition", path=path, cause=cause, remedy=remedy
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
            cause="The file was edited from outside. Whoever sent it may want it to do more than it shows.",
            remedy="Restore this file from a backup. Drop an index, a view or a trigger that you made yourself.",
        )
    return version


def migrate(connection: apsw.Connection, path: Path) -> None:
    """Migrate a file of an older version to the present one, in one transaction. A concurrent second call finds the
    migration done."""
    with translated(path), transaction(connection):
        for version in range(connection.pragma("user_version"), SCHEMA_VERSION):
            connection.execute(MIGRATIONS[version]).fetchall()
            connection.pragma("user_version", version + 1)


def has_states(connection: apsw.Connection) -> bool:
    """Return whether the file has the tables of operational state. An older file may lack these tables until a writer
    of this version opens it."""
    return bool(connection.pragma("user_version") >= 2)


def has_changes(connection: apsw.Connection) -> bool:
    """Return whether the file can have logged epochs. An older file may lack the tables until a writer of this version
    opens it."""
    return bool(connection.pragma("user_version") >= 5)


def has_beginning(connection: apsw.Connection) -> bool:
    """Return whether the file can record where its input begins. An older file may lack the table until a writer of
    this version opens it."""
    return bool(connection.pragma("user_version") >= 6)


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
        raise CorruptPartitionError(what, path=path, cause="The file was truncated or half-copied.")
    refuse_odd_logs(path)
    return found
