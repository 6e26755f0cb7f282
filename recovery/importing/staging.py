"""A directory that appears whole or not at all: it is filled under a name beside it, and renamed last.

A killed attempt leaves the directory beside it, `.NAME.import`; the next attempt removes it.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from recovery.base.clock import Clock
from recovery.errors import AlreadyInitializedError, StorageError
from recovery.host.durable import PRIVATE, files_below, make_directories, sync
from recovery.storage.connect import SCRATCH_NAME
from recovery.storage.lock import LOCK_NAME, DirectoryLock

_OWN = re.compile(rf"part-\d+\.sqlite3(-wal|-shm|-journal)?|recovery[\w.-]*\.lock|{SCRATCH_NAME}|\.init-[0-9a-f]+")


def staging_of(target: Path) -> Path:
    """Return the directory in which `target` is filled."""
    return target.with_name(f".{target.name}.import")


def check_free(target: Path) -> None:
    """Raise AlreadyInitializedError or StorageError if anything but an empty directory has this name."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise StorageError("a file is in the way", path=target, cause="", remedy="Name a new directory.")
    if target.is_dir() and any(target.iterdir()):
        raise AlreadyInitializedError(
            "the directory is not empty", path=target, cause="", remedy="Name a new directory."
        )


@contextlib.contextmanager
def appearing(target: Path, clock: Clock, purpose: str) -> Iterator[Path]:
    """Yield a directory to fill, with its lock held. When the block ends, its files are synced, and it is renamed to
    `target`; after an error it is removed. Raises AlreadyInitializedError, DirectoryLockedError or StorageError."""
    check_free(target)
    staging = staging_of(target)
    try:
        make_directories(target.parent, PRIVATE)
        with contextlib.suppress(FileExistsError):
            staging.mkdir(PRIVATE.directory)
        with DirectoryLock(staging, clock, purpose):
            _clear(staging)
            try:
                yield staging
                for path in files_below(staging, directories=True):
                    # Closing the lock's file here would free it.
                    if path.name != LOCK_NAME:
                        sync(path)
                sync(staging)
                check_free(target)
                # It replaces an empty directory, and nothing else.
                staging.rename(target)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
        sync(target.parent)
    except OSError as error:
        raise StorageError(str(error), path=error.filename or target) from error


def _clear(staging: Path) -> None:
    """Remove what a killed attempt left. Raises StorageError for files that no attempt leaves."""
    every = list(staging.iterdir())
    foreign = [each.name for each in every if not _OWN.fullmatch(each.name)]
    if foreign:
        raise StorageError(
            f"it holds {foreign[0]!r:.80}, which no import leaves", path=staging, cause="", remedy="Move it away."
        )
    for each in every:
        if each.name == LOCK_NAME:
            continue
        shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
