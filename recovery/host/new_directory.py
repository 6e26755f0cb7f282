"""A directory that appears under its name when it is whole: it is filled beside that name, and renamed at the end."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from recovery.errors import (
    AlreadyInitializedError,
    ConfigurationError,
    DirectoryLockedError,
    RecoveryError,
    StorageError,
)
from recovery.host.durable import PRIVATE, Modes, beginning_of_drafts, granted, make_directories, make_draft, sync
from recovery.host.locks import locked_directory

CONTENT = "part-"
"""How the names of partitions begin."""
_LEFT = re.compile(r"part-.*|recovery[\w.-]*\.lock|scratch")
"""What a killed attempt leaves in a draft. A directory with anything else is not removed."""


def check_free(target: Path) -> None:
    """Check that nothing is at `target`, or an empty directory. Raises AlreadyInitializedError or StorageError."""
    try:
        names = sorted(path.name for path in target.iterdir())
    except FileNotFoundError:
        if not target.is_symlink():
            return
        raise StorageError("a link that leads nowhere is in the way", path=target, cause="", remedy="") from None
    except OSError as error:
        raise StorageError(str(error), path=target, cause="", remedy="Name a new directory.") from error
    if any(name.startswith(CONTENT) for name in names):
        raise AlreadyInitializedError(
            f"it holds {', '.join(names[:3])}", path=target, cause="", remedy="Name a new directory."
        )
    if names:
        raise StorageError(f"it holds {', '.join(names[:3])}", path=target, cause="", remedy="Name a new directory.")


def check_outside(target: Path, source: Path) -> None:
    """Raise ConfigurationError if a new directory would lie within the one that it is made from."""
    within = Path(os.path.realpath(source))
    if within in Path(os.path.realpath(target)).parents:
        raise ConfigurationError(
            f"{target} lies within {source}, in which nothing may be changed",
            cause="",
            remedy="Name a directory elsewhere, for example beside it.",
        )


@contextlib.contextmanager
def new_directory(target: Path, verb: str, modes: Modes = PRIVATE) -> Iterator[Path]:
    """Provide a directory to fill with synced files beside `target`, and give it that name at the end.

    `target` is missing or empty. Until the end nobody else can enter the directory. If the block fails, nothing stays;
    what a killed attempt left, the next one removes.
    verb: names the command in the draft's name. Raises AlreadyInitializedError, DirectoryLockedError if another attempt
    is under way, StorageError, and what the block raises.
    """
    check_free(target)
    # A link or a name like `..` leads to the place whose name is to change.
    target = Path(os.path.realpath(target))
    missing = [each for each in target.parents if not each.exists()]
    with _as_storage_errors(target):
        make_directories(target.parent, modes)
        _clear_killed_attempts(target, beginning_of_drafts(target, verb))
        draft = make_draft(target, verb)
        try:
            with _held(draft, target):
                yield draft
                draft.chmod(granted(modes.directory, draft))
                sync(draft)
                # It replaces an empty directory only.
                draft.rename(target)
                for parent in (target.parent, *(each.parent for each in missing)):
                    sync(parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            for each in missing:
                with contextlib.suppress(OSError):
                    each.rmdir()
            raise


@contextlib.contextmanager
def _held(draft: Path, target: Path) -> Iterator[None]:
    """Hold a draft: another attempt removes only drafts that nobody holds."""
    with locked_directory(draft, follow=False) as has_lock:
        if not has_lock:
            raise DirectoryLockedError(
                "another process is making this directory",
                path=target,
                cause="The same command is still going on.",
                remedy="Wait until the other command ends, and use the directory that it made.",
            )
        yield


def _clear_killed_attempts(target: Path, beginning: str) -> None:
    name = re.compile(f"{re.escape(beginning)}[0-9a-f]{{16}}")
    for draft in target.parent.iterdir():
        if name.fullmatch(draft.name) and _is_own(draft):
            with _held(draft, target):
                if all(_LEFT.fullmatch(path.name) and not path.is_symlink() for path in draft.iterdir()):
                    shutil.rmtree(draft)


def _is_own(draft: Path) -> bool:
    """Return whether a directory is one that this user made."""
    found = draft.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


@contextlib.contextmanager
def _as_storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except RecoveryError:
        raise
    except OSError as error:
        raise StorageError(str(error), path=path) from error
