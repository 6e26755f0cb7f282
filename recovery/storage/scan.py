"""Reads descriptions, steps, sizes and measures of the partitions of a directory. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import apsw

from recovery.base.ids import NO_EPOCH, Epoch, StepId
from recovery.base.reserved import RESERVED_PREFIX
from recovery.errors import (
    ForeignPartitionError,
    RecoveryError,
    StorageError,
)
from recovery.planning.measures import Measure, StepSize
from recovery.planning.resume import too_old
from recovery.planning.strays import ASIDE, free_name, judged
from recovery.planning.values import FoundFile, PartitionDescription
from recovery.storage.no_partitions import no_partitions
from recovery.storage.origin import name_relatives
from recovery.storage.sqlite import describe
from recovery.storage.sqlite.columns import checked_rows
from recovery.storage.sqlite.epoch_log import overlaid
from recovery.storage.sqlite.file.log_files import beside
from recovery.storage.sqlite.file.reading import read_partition, reading
from recovery.storage.sqlite.file.statements import rows, snapshot, translated
from recovery.storage.sqlite.file.watched_files import refuse_other_names
from recovery.storage.sqlite.measures import LARGEST, MEASURES, has_measures, measure_of, read_sizes

SUFFIX = ".sqlite3"
LOOKS = 20
"""How often `scan` looks again for partitions that seem too old: on a host that stops it for seconds each time."""


def scan(directory: Path, described: Callable[[Path], PartitionDescription] | None = None) -> list[FoundFile]:
    """Return every file of `directory` that is, or by its name should be, a recovery partition. Changes nothing.

    described: returns the description of a file, as `describe_file` does, which None means. A file of the store from
    which this store was made has an error that says so. A run may close epochs meanwhile: a partition that then seems
    too old for the others is looked at again. Raises NoPartitionsError when no file is.
    """
    described = described or describe_file
    found: list[FoundFile] = []
    names = names_in(directory)

    def is_taken(name: str) -> bool:
        return not names.isdisjoint({name, f"{name}-wal"})

    paths = [path for name in names if (path := directory / name).suffix == SUFFIX]
    for path in sorted(paths, key=lambda path: (len(path.name), path.name)):
        aside = free_name(path.name, ASIDE, is_taken)
        looked = _look(FoundFile(path, None, aside=aside), described)
        # Another program's database may lie beside ours, unless it has a partition's name.
        if path.name.startswith("part-") or not isinstance(looked.error, ForeignPartitionError):
            found.append(looked)
    if not found:
        raise no_partitions(directory)
    for _ in range(LOOKS):
        old = {each.path for each in too_old(each.description for each in found if each.description is not None)}
        again = [_look(each, described) if each.path in old else each for each in found]
        if again == found:
            break
        found = again
    return judged(name_relatives(found))


def _look(at: FoundFile, described: Callable[[Path], PartitionDescription]) -> FoundFile:
    """Return what there is now of a file."""
    try:
        return replace(at, description=described(at.path), error=None)
    except RecoveryError as error:
        return replace(at, description=None, error=error)


def names_in(directory: Path) -> set[str]:
    """Return the names in a directory. Raises NoPartitionsError if there is no such directory, and StorageError."""
    try:
        return set(os.listdir(directory))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        raise no_partitions(directory) from None
    except OSError as error:
        raise StorageError(str(error), path=directory) from error


def describe_file(path: Path, since: Epoch = NO_EPOCH) -> PartitionDescription:
    """Return the description of a partition. Changes nothing. since: list only the epochs from this one on, and the
    newest. Raises CorruptPartitionError, ForeignPartitionError, LinkedPartitionError, UnsupportedVersionError or
    StorageError."""
    description = read_partition(path, partial(describe.describe, path=path, since=since))
    with translated(path):
        refuse_other_names(path, path.stat())
    return description


def links_of(directory: Path) -> dict[str, str]:
    """Return the partitions of a directory that are symbolic links, by name, and where each leads."""
    return {path.name: os.path.realpath(path) for path in sorted(directory.glob("part-*.sqlite3")) if path.is_symlink()}


def log_bytes(path: Path) -> int:
    """Return the size of a partition's write-ahead log; 0 if it has none."""
    try:
        return beside(path, "-wal").stat().st_size
    except OSError:
        return 0


def step_names(paths: Sequence[Path]) -> list[str]:
    """Return the steps of the flow that have state in any of the files, sorted, without the driver's own steps."""
    names: set[str] = set()
    for path in paths:
        names |= read_partition(path, partial(describe.known_steps, path=path))
    return sorted(name for name in names if not name.startswith(RESERVED_PREFIX))


def read_step(paths: Sequence[Path], step: str, resume_epoch: Epoch | None = None) -> Iterator[tuple[str, str | bytes]]:
    """Yield state keys and values of a step, in no particular order: as of the newest closed epoch of each file, or as
    an execution from `resume_epoch` would find them."""
    for path in paths:
        with reading(path) as connection:
            yield from describe.step_values(connection, path, StepId(step), resume_epoch)


def sizes_in(path: Path) -> dict[str, StepSize] | None:
    """Return the size of each step in a partition file; None if its version is too old to record sizes. Changes
    nothing."""

    def read(connection: apsw.Connection) -> dict[str, StepSize] | None:
        with translated(path):
            return read_sizes(connection) if has_measures(connection) else None

    return read_partition(path, read)


def read_measures(path: Path) -> list[Measure]:
    """Return all measures that part-0 holds, oldest first. Changes nothing. Raises CorruptPartitionError."""

    def read(connection: apsw.Connection) -> list[Measure]:
        with translated(path), snapshot(connection):
            if not has_measures(connection):
                return []
            found = rows(connection, MEASURES)
            return [measure_of(*row) for row in checked_rows("measures", found)]

    return read_partition(path, read)


def largest_states(path: Path, limit: int) -> list[tuple[str, str, int]]:
    """Return the largest states of a partition: step, key, bytes. The run's own rows do not count as states. Reads the
    whole newest snapshot."""

    def read(connection: apsw.Connection) -> list[tuple[str, str, int]]:
        with translated(path), snapshot(connection), overlaid(connection, path):
            return [(step, key, size) for step, key, size in rows(connection, LARGEST, (limit,))]

    return read_partition(path, read)
