"""Creating the partitions of a recovery directory: all of them, or none."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from recovery.clock import Clock, SystemClock
from recovery.errors import AlreadyInitializedError, ConfigurationError, StorageError
from recovery.ids import PartitionIndex
from recovery.storage.partition import insert_parts
from recovery.storage.schema import (
    APPLICATION_ID,
    CREATE_TABLES,
    SCHEMA_VERSION,
    connect,
    partition_path,
    transaction,
    translated,
)

MAX_PARTITIONS = 4096
STAGING = ".init-"


def init_partitions(
    directory: str | os.PathLike[str],
    count: int,
    *,
    clock: Clock | None = None,
    random_id: Callable[[], str] = lambda: secrets.token_hex(8),
) -> list[Path]:
    """Create `count` empty recovery partitions in `directory`, which is made when missing; returns their paths.

    The files are written and synced in a staging directory first and moved into place last. When anything fails,
    what was made is removed again. An attempt that was killed is cleared away by the next.
    Raises ConfigurationError, AlreadyInitializedError or StorageError.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_PARTITIONS:
        raise ConfigurationError(
            f"{count!r} is not a number of partitions",
            cause=f"A recovery directory has 1 to {MAX_PARTITIONS} partitions.",
            remedy="Take about one per core that will run the flow; the number is fixed afterwards.",
        )
    target = Path(directory)
    if target.exists() and not target.is_dir():
        raise StorageError("a file is in the way", path=target, cause="", remedy="Name a directory.")
    made = not target.exists()
    try:
        target.mkdir(parents=True, exist_ok=True)
        _clear_killed_attempt(target)
        _refuse_existing(target)
        return _create(target, count, clock or SystemClock(), random_id())
    except BaseException as error:
        if made:
            with contextlib.suppress(OSError):
                target.rmdir()
        if isinstance(error, OSError):
            raise StorageError(str(error), path=target) from error
        raise


def _create(target: Path, count: int, clock: Clock, store_id: str) -> list[Path]:
    staging = target / f"{STAGING}{store_id}"
    staging.mkdir()
    placed: list[Path] = []
    try:
        for index in range(count):
            _create_partition(partition_path(staging, index), PartitionIndex(index), count, store_id, clock)
        for index in range(count):
            final = partition_path(target, index)
            # Unlike a rename, a link never replaces a file that someone else put there meanwhile.
            final.hardlink_to(partition_path(staging, index))
            placed.append(final)
        _sync_directory(target)
    except BaseException:
        for path in placed:
            path.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    _sync_directory(target)
    return placed


def _create_partition(path: Path, index: PartitionIndex, count: int, store_id: str, clock: Clock) -> None:
    with translated(path):
        connection = connect(path, "rwc")
        try:
            connection.pragma("journal_mode", "WAL")
            connection.pragma("synchronous", "FULL")
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", SCHEMA_VERSION)
            with transaction(connection):
                connection.execute(CREATE_TABLES).fetchall()
                insert_parts(connection, index, count, store_id, clock.wall_ms())
        finally:
            # The last connection moves the log into the file, syncs it and removes the log.
            connection.close()


def _refuse_existing(target: Path) -> None:
    found = sorted(path.name for path in target.glob("part-*.sqlite3*"))
    if found:
        raise AlreadyInitializedError(f"it holds {', '.join(found[:4])}{' …' if len(found) > 4 else ''}", path=target)


def _clear_killed_attempt(target: Path) -> None:
    """Remove what an `init` that was killed left: its staging directory, and links to the files in it."""
    for staging in target.glob(f"{STAGING}*"):
        staged = {path.name: path.stat().st_ino for path in staging.glob("part-*.sqlite3")}
        for name, inode in staged.items():
            placed = target / name
            if placed.exists() and placed.stat().st_ino == inode:
                placed.unlink()
        shutil.rmtree(staging)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


