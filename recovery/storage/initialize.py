"""Filling a recovery directory with its partitions, new or restored: all of them, or none."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from recovery.base.addresses import local_path
from recovery.base.clock import Clock, SystemClock
from recovery.base.ids import PartitionIndex
from recovery.base.wording import counted
from recovery.errors import (
    AlreadyInitializedError,
    ConfigurationError,
    DirectoryLockedError,
    ForeignPartitionError,
    RecoveryError,
    StorageError,
)
from recovery.host.durable import PRIVATE, UMASK, Modes, granted, make_directories, sync
from recovery.host.locks import locked_directory
from recovery.planning.resume import check_set
from recovery.storage.lazy.names import SUFFIX as LAZY
from recovery.storage.lazy.names import lazy_path
from recovery.storage.no_partitions import refuse_checkpoint
from recovery.storage.restored import end_restored, mark_restored
from recovery.storage.scan import scan
from recovery.storage.sqlite.columns import MAX_PARTITIONS
from recovery.storage.sqlite.describe import insert_parts
from recovery.storage.sqlite.file.connections import connect, use_log
from recovery.storage.sqlite.file.opening import partition_path
from recovery.storage.sqlite.file.reading import read_partition
from recovery.storage.sqlite.file.statements import rows, transaction, translated
from recovery.storage.sqlite.file.tables import APPLICATION_ID, CREATE_ALL, SCHEMA_VERSION
from recovery.storage.standby import refuse_standby

STAGING = ".init-"
RESTORING = ".restore-"
_STAGING_NAME = re.compile(r"\.(init|restore-\d+)-[0-9a-f]+")
HOME = "part-home.json"
"""In a staging directory: other directories get the rest of the restore; see `recovery.storage.staged`."""


def new_store_id() -> str:
    """Return a random id for a store that is being made."""
    return secrets.token_hex(8)


def init_partitions(
    directory: str | os.PathLike[str],
    count: int,
    *,
    umask: bool = False,
    clock: Clock | None = None,
    random_id: Callable[[], str] = new_store_id,
) -> list[Path]:
    """Create `count` empty recovery partitions in `directory` and return their paths. Creates the directory if needed.

    Only this user may read the partitions. With `umask`, other users may read them too, as far as this process's umask
    allows.

    The files are first written and synced in a staging directory, and linked into place last. If anything fails,
    everything created is removed again. If an attempt is killed before all files are in place, the next one clears up.
    Of several concurrent attempts, one wins. Raises ConfigurationError, AlreadyInitializedError, DirectoryLockedError
    or StorageError.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_PARTITIONS:
        raise ConfigurationError(
            f"{count!r} is not a number of partitions",
            cause=f"A recovery directory has 1 to {MAX_PARTITIONS} partitions.",
            remedy="Take about one per core that will run the flow; the number is fixed afterwards.",
        )
    store_id, clock = random_id(), clock or SystemClock()

    def create(staging: Path) -> int:
        fill_draft(staging, count, clock, store_id)
        return count

    target = local_path(directory)
    try:
        return _place(target, f"{STAGING}{store_id}", create, UMASK if umask else PRIVATE)
    except AlreadyInitializedError as error:
        raise _made_before(target, count) or error from None


def _made_before(directory: Path, count: int) -> AlreadyInitializedError | None:
    """Return the error for a directory that holds all partitions of one store; None if it does not."""
    try:
        there = len(check_set(scan(directory)))
    except RecoveryError:
        return None
    if there == count:
        return AlreadyInitializedError(
            f"it holds {counted(there, 'recovery partition')} already, as many as were asked for; nothing changed",
            path=directory,
            remedy="Use the partitions as they are; for empty ones, choose another directory.",
        )
    return AlreadyInitializedError(
        f"it holds {counted(there, 'recovery partition')} already, and not {count}",
        path=directory,
        remedy="Use the partitions as they are, or change their number: python -m recovery repartition DIR NEW_DIR N",
    )


def fill_draft(draft: Path, count: int, clock: Clock, store_id: str) -> None:
    """Create `count` empty recovery partitions in a directory that this process is making. Raises StorageError."""
    for index in range(count):
        _create_partition(partition_path(draft, index), PartitionIndex(index), count, store_id, clock)


def place_restored(
    directory: Path,
    fill: Callable[[Path], int],
    *,
    newest_execution: int,
    random_id: Callable[[], str],
    modes: Modes = PRIVATE,
) -> list[Path]:
    """Fill `directory` with restored partitions, in the same way as new ones: all of them, or none.

    fill: writes and syncs part-0 … part-(N-1) in the staging directory it is given, and returns N.
    newest_execution: the newest execution in any of them; a newer one in a file shows that a run has used the file.
    The first run on the directory takes the place of another directory (`recovery.storage.restored`).
    Raises what `fill` raises, AlreadyInitializedError, DirectoryLockedError or StorageError.
    """
    return _place(directory, f"{RESTORING}{newest_execution}-{random_id()}", fill, modes)


def clear_killed_attempt(directory: Path) -> None:
    """Remove what a killed `init_partitions` or `place_restored` left, if it had not placed all files. Raises
    DirectoryLockedError while another attempt is under way, or StorageError."""
    with translated(directory):
        if directory.is_dir() and any(map(is_staging, directory.iterdir())):
            with alone(directory):
                _clear_killed_attempt(directory)


def _place(target: Path, staging_name: str, fill: Callable[[Path], int], modes: Modes) -> list[Path]:
    with translated(target):
        missing = [each for each in (target, *target.parents) if not each.exists()]
        if not missing and not target.is_dir():
            raise StorageError("a file is in the way", path=target, cause="", remedy="Name a directory.")
        try:
            make_directories(target, modes)
            with alone(target):
                _clear_killed_attempt(target)
                refuse_existing(target)
                # A directory's own name is durable only when its parent was synced.
                durable = [target, *(each.parent for each in missing)]
                return _link(target, target / staging_name, fill, durable, modes)
        except DirectoryLockedError:
            # The other attempt may not have put anything into the directory yet.
            raise
        except BaseException:
            for each in missing:
                with contextlib.suppress(OSError):
                    each.rmdir()
            raise


@contextlib.contextmanager
def alone(target: Path) -> Iterator[None]:
    """Lock the directory itself, so that two attempts do not remove each other's files."""
    with locked_directory(target) as has_lock:
        if not has_lock:
            raise DirectoryLockedError(
                "another process is making partitions here",
                path=target,
                cause="Another init or restore is still going on.",
                remedy="Wait until the other command ends, and use the directory that it made.",
            )
        yield


def _link(
    target: Path, staging: Path, fill: Callable[[Path], int], durable: Sequence[Path], modes: Modes
) -> list[Path]:
    staging.mkdir(PRIVATE.directory)
    placed: list[Path] = []
    try:
        count = fill(staging)
        if staging.name.startswith(RESTORING):
            mark_restored(target, modes)
        placed = link_staged(target, staging, range(count), modes)
        for directory in durable:
            sync(directory)
    except BaseException:
        for path in placed:
            path.unlink(missing_ok=True)
        end_restored(target)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return [path for path in placed if not path.name.endswith(LAZY)]


def link_staged(target: Path, staging: Path, indexes: Sequence[int], modes: Modes) -> list[Path]:
    """Link staged partitions of these indexes into `target`, and return the links: all of them, or none. Not synced."""
    placed: list[Path] = []
    mode = granted(modes.file, staging)
    try:
        # part-0 comes last: it makes operational state writable, and that must never be removed.
        for index in sorted(indexes, reverse=True):
            staged = partition_path(staging, index)
            # The lazy file first: without it, its partition cannot be opened.
            for each in filter(Path.exists, (lazy_path(staged), staged)):
                each.chmod(mode)
                # Unlike a rename, a link never replaces a file that someone else created meanwhile.
                (target / each.name).hardlink_to(each)
                placed.insert(0, target / each.name)
    except BaseException:
        for path in placed:
            path.unlink(missing_ok=True)
        raise
    return placed


def _create_partition(path: Path, index: PartitionIndex, count: int, store_id: str, clock: Clock) -> None:
    with translated(path):
        connection = connect(path, "rwc")
        try:
            use_log(connection, path)
            connection.pragma("synchronous", "FULL")
            with transaction(connection):
                connection.pragma("application_id", APPLICATION_ID)
                connection.pragma("user_version", SCHEMA_VERSION)
                connection.execute(CREATE_ALL).fetchall()
                insert_parts(connection, index, count, store_id, clock.wall_ms())
        finally:
            # Closing the last connection moves the log into the file, syncs it and removes the log.
            connection.close()


def refuse_existing(directory: Path) -> None:
    """Raise AlreadyInitializedError if `directory` holds partitions, or logs of partitions; StandbyDirectoryError.

    An old log must not lie beside a new file: SQLite would use it as the file's own log.
    """
    refuse_standby(directory)
    found = sorted(path.name for path in directory.glob("part-*.sqlite3*"))
    if found:
        raise AlreadyInitializedError(
            f"it holds {', '.join(found[:4])}{' …' if len(found) > 4 else ''}", path=directory, **_of_others(directory)
        )
    refuse_checkpoint(directory)


def _of_others(directory: Path) -> dict[str, str]:
    """Return cause and remedy for a directory whose files another program made."""
    for path in sorted(directory.glob("part-*.sqlite3")):
        try:
            read_partition(path, lambda _: None)
        except ForeignPartitionError as error:
            return {"cause": error.cause, "remedy": error.remedy}
        except RecoveryError:
            continue
    return {}


def _clear_killed_attempt(target: Path) -> None:
    """Remove what a killed `init` or `restore` left: its staging directory, and links to the files in it.

    If every staged file is in place, the attempt had succeeded, and its partitions stay. For a restore to several
    directories, this directory does not show that; then all files stay.
    """
    for staging in filter(is_staging, target.iterdir()):
        executions = restored_executions(staging.name)
        staged, lazy = list(staging.glob("part-*.sqlite3")), list(staging.glob(f"part-*.sqlite3{LAZY}"))
        placed = [target / path.name for path in staged if same_file(path, target / path.name)]
        if staged and len(placed) == len(staged) and (staging / HOME).exists():
            continue
        if len(placed) < len(staged) and not any(was_used(path, executions) for path in placed):
            for path in (*placed, *(target / path.name for path in lazy if same_file(path, target / path.name))):
                path.unlink()
            end_restored(target)
        shutil.rmtree(staging)


def is_staging(path: Path) -> bool:
    """Return whether `path` is a staging directory: by its name, and by holding only partitions. Others are kept."""
    if not _STAGING_NAME.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
        return False
    return all(each.name.startswith("part-") for each in path.iterdir())


def is_restoring(name: str) -> bool:
    """Return whether this is the name of a restore's staging directory."""
    return name.startswith(RESTORING) and _STAGING_NAME.fullmatch(name) is not None


def same_file(staged: Path, placed: Path) -> bool:
    """Return whether a staged file is the one in place."""
    return placed.exists() and placed.samefile(staged)


def restored_executions(staging_name: str) -> int:
    """Return the newest execution that the files had when they were staged; 0 for new ones."""
    number = staging_name.removeprefix(RESTORING).partition("-")[0]
    return int(number) if staging_name.startswith(RESTORING) and number.isdecimal() else 0


def was_used(path: Path, executions: int) -> bool:
    """Return whether a run has begun on the partition since. Such a partition is never removed."""
    newer = "SELECT 1 FROM exs WHERE ex_num > ? LIMIT 1"
    with translated(path):
        return read_partition(path, lambda connection: bool(rows(connection, newer, (executions,))))
