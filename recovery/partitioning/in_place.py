"""Repartitioning in place: two directories swap their names in one rename, and the old one is kept beside it.

The directory `db` of store S is kept as `db.S.old`. At first the new directory gets that name, whole; then both
directories swap names. So a kill before the swap leaves a new directory under the old one's name, which nobody has
used: the next attempt sees by its store id that it is not S, and removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from recovery.base.addresses import local_path
from recovery.base.clock import Clock, SystemClock
from recovery.errors import ConfigurationError, ForeignPartitionError, LinkedPartitionError, RecoveryError, StorageError
from recovery.host.durable import exchange, make_draft, sync
from recovery.host.storage_errors import storage_errors
from recovery.operational.locks import LOCKS_NAME, unheld
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.storage.documents import home, state_totals, unwritten
from recovery.storage.lock import DirectoryLock
from recovery.storage.origin import read_origins
from recovery.storage.others import others_in
from recovery.storage.scan import scan

OLD = ".old"


def kept_path(directory: Path, store_id: str) -> Path:
    """Return the name under which the directory of a store is kept."""
    return directory.with_name(f"{directory.name}.{store_id}{OLD}")


def check_in_place(directory: Path, plan: ResumePlan) -> None:
    """Raise unless a directory can be swapped: ConfigurationError if it holds other files, LinkedPartitionError for
    partitions on other disks, StateLockedError if a lock of its operational state is held."""
    links = [d.path.name for d in plan.partitions if d.path.is_symlink()]
    if links:
        raise LinkedPartitionError(
            f"{links[0]} is a link to a file elsewhere", path=directory, cause="The partitions lie on several disks.",
            remedy="Name a new directory, and lay its partitions out as you like afterwards.",
        )  # fmt: skip
    _refuse_others(directory)
    if directory.is_mount():
        raise ConfigurationError(f"{directory} is a mount point", cause="", remedy="Name a new directory.")
    if (directory / LOCKS_NAME).is_dir():
        with unheld(directory):
            pass


def check_exchange(new: Path, verb: str) -> None:
    """Raise StorageError if the file system beside `new` cannot swap two directories in one rename."""
    # A killed attempt leaves them under names of drafts, which the next one removes.
    made: list[Path] = []
    try:
        made += [make_draft(new, verb)]
        made += [make_draft(new, verb)]
        exchange(*made)
    except OSError as error:
        raise _not_swapped(new, error) from error
    finally:
        for each in made:
            with contextlib.suppress(OSError):
                each.rmdir()


def swap(directory: Path, new: Path, totals: tuple[int, int]) -> None:
    """Swap the names of a store's directory and of the new one, and make that durable.

    totals: the totals of the operational state in the new directory. Raises StorageError if that state was changed
    since, or if the file system cannot swap, and StateLockedError if a lock of operational state is held; then `new` is
    removed.
    """
    first = home(directory)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(unheld(directory))
            # A waiting writer then finds that its file has another name, and writes nothing.
            held.enter_context(unwritten(first))
            if state_totals(first) != totals:
                raise StorageError(
                    "its operational state was changed meanwhile",
                    path=directory,
                    cause="Another process set a mark, or changed other operational state.",
                    remedy="Run the same command again: nothing was changed.",
                )
            try:
                exchange(directory, new)
            except OSError as error:
                raise _not_swapped(directory, error) from error
        except BaseException:
            # Both names are as before: `new` is the new one.
            shutil.rmtree(new, ignore_errors=True)
            raise
        sync(directory.parent)


def _not_swapped(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"two directories cannot swap their names: {error.strerror}",
        path=path.parent,
        cause="The file system cannot do that in one rename, or this user may not rename the directory.",
        remedy="Name a new directory, and rename both yourself while nothing runs.",
    )


def clear_unfinished(directory: Path) -> None:
    """Remove the new directory of an attempt that was killed before the swap. The directory's lock is held."""
    plan = plan_resume(scan(directory))
    left = kept_path(directory, plan.store_id)
    if left.is_dir() and not left.is_symlink() and (store := _store_in(left)) != plan.store_id:
        if store is None and any(left.glob("part-*.sqlite3")):
            raise StorageError(
                "it holds partitions that cannot be read",
                path=left,
                cause="The directory has the name under which this store's old directory is kept.",
                remedy="If this is not the old directory, move it away.",
            )
        _refuse_others(left)
        shutil.rmtree(left)


def kept_directories(directory: Path) -> list[Path]:
    """Return the directories that were kept when this directory was repartitioned, the newest first. Raises the errors
    of `read_origins`."""
    # A link keeps its name; the directories lie beside the one that it leads to.
    real = Path(os.path.realpath(directory))
    found = (kept_path(real, origin.store_id) for origin in read_origins(real) if origin.how == "repartition")
    return [path for path in found if path.is_dir() and not path.is_symlink()]


def drop_old(directory: str | os.PathLike[str], *, clock: Clock | None = None) -> list[Path]:
    """Remove the directories that were kept when this directory was repartitioned in place; return their paths.
    Repeatable.

    Raises ConfigurationError if a directory holds files of others, DirectoryLockedError if one is in use, or
    StorageError.
    """
    kept = kept_directories(local_path(directory))
    for path in kept:
        _refuse_others(path)
        if _store_in(path) not in (None, path.name.removesuffix(OLD).rpartition(".")[2]):
            raise ForeignPartitionError("it holds another store than its name says", path=path)
        with contextlib.ExitStack() as held:
            if any(path.glob("part-*.sqlite3")):
                held.enter_context(DirectoryLock(path, clock or SystemClock(), "repartition --drop-old"))
            with storage_errors(path):
                shutil.rmtree(path)
                sync(path.parent)
    return kept


def _store_in(directory: Path) -> str | None:
    with contextlib.suppress(RecoveryError):
        return next((file.description.store_id for file in scan(directory) if file.description is not None), None)
    return None


def _refuse_others(directory: Path) -> None:
    others = others_in(directory)
    if others:
        raise ConfigurationError(
            f"{directory} holds other files too: {', '.join(others[:5])}{' …' if len(others) > 5 else ''}",
            cause="The directory is used for something else besides.",
            remedy="Move them elsewhere, or name a new directory.",
        )
