"""Looking at the partitions of a directory: what each file says of itself. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import apsw

from recovery.base.ids import Epoch, StepId
from recovery.base.reserved import RESERVED_PREFIX
from recovery.errors import (
    ForeignPartitionError,
    NoPartitionsError,
    RecoveryError,
    StorageError,
)
from recovery.planning.measures import Measure, StepSize
from recovery.planning.values import FoundFile, PartitionDescription
from recovery.storage.sqlite import partition as one
from recovery.storage.sqlite.columns import checked_rows
from recovery.storage.sqlite.epoch_log import overlaid
from recovery.storage.sqlite.measures import LARGEST, MEASURES, has_measures, measure_of, read_sizes
from recovery.storage.sqlite.schema import (
    beside,
    read_partition,
    reading,
    rows,
    snapshot,
    translated,
)
from recovery.storage.sqlite.watched_files import refuse_other_names

SUFFIX = ".sqlite3"


def scan(directory: Path) -> list[FoundFile]:
    """Every file of `directory` that is, or by its name should be, a recovery partition. Changes nothing.

    Raises NoPartitionsError when there is none.
    """
    found: list[FoundFile] = []
    try:
        paths = [path for path in directory.iterdir() if path.suffix == SUFFIX]
    except (FileNotFoundError, NotADirectoryError):
        raise NoPartitionsError("there is no such directory", path=directory) from None
    except OSError as error:
        raise StorageError(str(error), path=directory) from error
    for path in sorted(paths, key=lambda path: (len(path.name), path.name)):
        try:
            found.append(FoundFile(path, describe_file(path)))
        except RecoveryError as error:
            # Another program's database may lie beside ours, unless it stands where ours should.
            if path.name.startswith("part-") or not isinstance(error, ForeignPartitionError):
                found.append(FoundFile(path, None, error))
    if not found:
        raise NoPartitionsError("it holds no recovery partition", path=directory)
    return found


def describe_file(path: Path) -> PartitionDescription:
    """What a partition says of itself. Changes nothing. Raises CorruptPartitionError, ForeignPartitionError,
    LinkedPartitionError, UnsupportedVersionError or StorageError."""
    description = read_partition(path, partial(one.describe, path=path))
    with translated(path):
        refuse_other_names(path, path.stat())
    return description


def log_bytes(path: Path) -> int:
    """The size of the log that belongs to a partition; 0 without one."""
    try:
        return beside(path, "-wal").stat().st_size
    except OSError:
        return 0


def step_names(paths: Sequence[Path]) -> list[str]:
    """The steps of the flow that have state in any of the files, sorted; the driver's own are not among them."""
    names: set[str] = set()
    for path in paths:
        names |= read_partition(path, partial(one.known_steps, path=path))
    return sorted(name for name in names if not name.startswith(RESERVED_PREFIX))


def read_step(paths: Sequence[Path], step: str, resume_epoch: Epoch | None = None) -> Iterator[tuple[str, str | bytes]]:
    """State keys and values of a step, in no particular order: as of the newest closed epoch of each file, or as an
    execution from `resume_epoch` would find them."""
    for path in paths:
        with reading(path) as connection:
            yield from one.step_values(connection, path, StepId(step), resume_epoch)


def sizes_in(path: Path) -> dict[str, StepSize] | None:
    """The steps of a partition file; None when it is of an older version, and does not know. Changes nothing."""

    def read(connection: apsw.Connection) -> dict[str, StepSize] | None:
        with translated(path):
            return read_sizes(connection) if has_measures(connection) else None

    return read_partition(path, read)


def read_measures(path: Path) -> list[Measure]:
    """All measures that part-0 holds, oldest first. Changes nothing. Raises CorruptPartitionError."""

    def read(connection: apsw.Connection) -> list[Measure]:
        with translated(path), snapshot(connection):
            if not has_measures(connection):
                return []
            found = rows(connection, MEASURES)
            return [measure_of(*row) for row in checked_rows("measures", found)]

    return read_partition(path, read)


def largest_states(path: Path, limit: int) -> list[tuple[str, str, int]]:
    """The states of a partition that take most bytes: step, key, bytes; the run's own rows are none.
    Reads the whole newest snapshot."""

    def read(connection: apsw.Connection) -> list[tuple[str, str, int]]:
        with translated(path), snapshot(connection), overlaid(connection, path):
            return [(step, key, size) for step, key, size in rows(connection, LARGEST, (limit,))]

    return read_partition(path, read)
