"""What a directory is that holds no recovery partition, and what to type instead."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from recovery.base.addresses import has_backups
from recovery.base.wording import counted
from recovery.errors import ConfigurationError, NoPartitionsError, StorageError

MOST = 1000
"""The most names of a directory that are read to say what it is."""
LOCKS = "recovery."
"""How the names of lock files begin, which commands make before they look into a directory."""
BYTEWAX_TABLES = frozenset(("parts", "exs", "fronts", "commits", "snaps"))


def no_partitions(directory: Path) -> NoPartitionsError | StorageError:
    """Return the error for a directory without partitions: it says what the directory is, as far as its names show.
    Reads names only."""
    try:
        return _no_partitions(directory)
    except OSError as error:
        return StorageError(str(error), path=directory)


def _no_partitions(directory: Path) -> NoPartitionsError:
    if not directory.exists():
        return NoPartitionsError("there is no such directory", path=directory)
    if not directory.is_dir():
        return _file(directory)
    if has_backups(directory):
        return NoPartitionsError(
            "it holds no recovery partition, but backups",
            path=directory,
            cause="It is a place of backups.",
            remedy="Restore one of them, and name the new directory: python -m recovery restore SRC DIR",
        )
    if is_checkpoint(directory):
        return NoPartitionsError(
            "it holds no recovery partition, but the checkpoint of a Spark job",
            path=directory,
            cause="checkpointLocation of the job was this directory.",
            remedy=_import_checkpoint(directory),
        )
    names = sorted(path.name for path in islice(directory.iterdir(), MOST) if not path.name.startswith(LOCKS))
    below = next((directory / name for name in names if _has_partitions(directory / name)), None)
    if below is not None:
        return NoPartitionsError(
            f"it holds no recovery partition itself, but {below.name}, a directory in it, does",
            path=directory,
            cause="The path is too short.",
            remedy=f"Name that directory: {shlex.quote(str(below))}",
        )
    if not names:
        return NoPartitionsError("it holds no recovery partition: it is empty", path=directory)
    more = "more than " if len(names) == MOST else ""
    return NoPartitionsError(
        f"it holds no recovery partition, but {more}{counted(len(names), 'other file')}: {_some(names)}",
        path=directory,
        cause="The path is wrong, or the partitions were removed.",
        remedy="Name the recovery directory; or create the partitions in a directory of their own: "
        "python -m recovery init DIR N",
    )


def is_checkpoint(directory: Path) -> bool:
    """Whether a directory is a checkpoint of a Spark job."""
    return (directory / "metadata").is_file() and (directory / "offsets").is_dir()


def refuse_checkpoint(directory: Path) -> None:
    """Raise ConfigurationError if a directory is a checkpoint of a Spark job: partitions do not belong in it."""
    if is_checkpoint(directory):
        raise ConfigurationError(
            "it is the checkpoint of a Spark job",
            path=directory,
            cause="Recovery partitions need a directory of their own; a checkpoint can be imported into one.",
            remedy=_import_checkpoint(directory),
        )


def of_bytewax(path: Path, tables: Iterable[str]) -> tuple[str, str] | None:
    """Return what an SQLite database with these tables is, and what to type, if it is a recovery partition of
    Bytewax; None if it is not."""
    if not BYTEWAX_TABLES.issubset(tables):
        return None
    directory = shlex.quote(str(path.parent))
    return (
        "It is a recovery partition of Bytewax.",
        f"Import Bytewax's directory as a new one: python -m recovery import bytewax {directory} NEW_DIR "
        "--rename-step OLD=NEW. This command with --dry-run writes nothing, and lists the steps.",
    )


def _import_checkpoint(directory: Path) -> str:
    return (
        "Import the checkpoint into new partitions: python -m recovery init NEW_DIR N; then "
        f"python -m recovery checkpoint import {shlex.quote(str(directory))} NEW_DIR --flow NAME"
    )


def _file(path: Path) -> NoPartitionsError:
    parent = shlex.quote(str(path.parent))
    if path.name.startswith("part-"):
        return NoPartitionsError(
            "it is a file, not a directory",
            path=path,
            cause="One partition was named; commands take the directory that holds all of them.",
            remedy=f"Name the directory: {parent}",
        )
    return NoPartitionsError(
        "it is a file, not a directory", path=path, cause="The path is wrong.", remedy="Name the recovery directory."
    )


def _has_partitions(directory: Path) -> bool:
    try:
        return directory.is_dir() and any(directory.glob("part-*.sqlite3"))
    except OSError:
        return False


def _some(names: list[str]) -> str:
    shown = ", ".join(os.fsencode(name).decode(errors="replace")[:60] for name in names[:3])
    return f"{shown}, …" if len(names) > 3 else shown
