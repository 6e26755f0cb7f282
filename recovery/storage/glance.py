"""What a look reads of a partition file, in one transaction, and remembers until the file changes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from recovery.base.clock import Clock
from recovery.base.reserved import CHECKPOINT_STEP, DECLARATIONS_STEP, RESERVED_PREFIX
from recovery.errors import RecoveryError
from recovery.planning.measures import Measure, StepSize
from recovery.planning.resume import Cut
from recovery.planning.values import FoundFile, PartitionDescription
from recovery.storage.history import KeyState, newest_sizes, newest_states
from recovery.storage.lazy.names import is_lazy
from recovery.storage.reading import FileReader
from recovery.storage.scan import SUFFIX, describe_file, names_in, scan
from recovery.storage.sqlite import describe
from recovery.storage.sqlite.file.reading import read_partition
from recovery.storage.sqlite.file.statements import rows, snapshot, translated
from recovery.storage.sqlite.file.watched_files import refuse_other_names
from recovery.storage.sqlite.measures import MEASURES, checked_measures, has_measures, read_sizes

SETTLED_MS = 2_000
"""A file that was written to less than this before it was read is read again: another write in the same tick of the
file system's clock would leave its times as they were."""

Stamp = tuple[tuple[int, ...] | None, ...]
"""What `stat` says of a partition file, its log and its journal. A commit changes that of the log or of the file."""


@dataclass(frozen=True, slots=True)
class Glance:
    """One partition as of its newest epoch. sizes, steps, measures: as the methods of a `PartitionReader` return them.
    declarations: the states of what the steps declare. checkpoint: the rows of Spark's checkpoint, with their sizes."""

    description: PartitionDescription
    sizes: dict[str, StepSize] | None
    steps: list[str]
    measured: dict[tuple[object, ...], Measure]
    declarations: list[KeyState]
    checkpoint: list[tuple[str, int]]


@dataclass(slots=True)
class _ReadFile:
    """What was read of a file. stamp: from before it was read; None: it may have been written to in that moment."""

    stamp: Stamp | None
    log_bytes: int
    description: PartitionDescription
    glance: Glance | None


@dataclass(frozen=True, slots=True)
class GlanceReader(FileReader):
    """Reads a file of this host, and answers what a look asks of its newest epoch from what a glance has read."""

    glance: Glance = field(repr=False)
    log_size_bytes: int = 0

    def _is_newest(self, cut: Cut) -> bool:
        newest = self.glance.description.newest
        return newest is not None and newest.cut == cut

    def states(self, step: str, cut: Cut, *, in_order: bool = False) -> Iterator[KeyState]:
        if step == DECLARATIONS_STEP and self._is_newest(cut):
            found = self.glance.declarations
            return iter(sorted(found, key=lambda each: each.key) if in_order else found)
        return FileReader.states(self, step, cut, in_order=in_order)

    def few_states(self, step: str, cut: Cut, keys: Sequence[str] | None = None) -> list[KeyState]:
        if step == DECLARATIONS_STEP and self._is_newest(cut):
            return [each for each in self.glance.declarations if keys is None or each.key in keys]
        return FileReader.few_states(self, step, cut, keys)

    def key_sizes(self, step: str, cut: Cut) -> Iterator[tuple[str, int]]:
        if step == CHECKPOINT_STEP and self._is_newest(cut):
            return iter(self.glance.checkpoint)
        return FileReader.key_sizes(self, step, cut)

    def newest_steps(self) -> list[str]:
        return self.glance.steps

    def sizes(self) -> dict[str, StepSize] | None:
        return self.glance.sizes

    def measures(self) -> list[Measure]:
        return list(self.glance.measured.values())

    def log_bytes(self) -> int:
        return self.log_size_bytes


class Glances:
    """What looks have read of the partitions of one directory. The next look reads the files that have changed since,
    and of these the epochs that are new. Calls come from one thread at a time; any thread may ask for the progress.

    done, count: how many files the look has read, and how many there are. moved_s: when it last came further, by the
    clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[Path, _ReadFile] = {}
        self._at_owners: dict[str, dict[str, PartitionDescription]] = {}
        self.done = 0
        self.count = 0
        self.moved_s = clock.elapsed_s()

    def scan(self, directory: Path) -> list[FoundFile]:
        """Return what `recovery.storage.scan.scan` does, and raise what that does."""
        names = names_in(directory)
        self.done, self.count = 0, sum(name.endswith(SUFFIX) for name in names)
        self._known = {path: known for path, known in self._known.items() if path.name in names}
        return scan(directory, self._described)

    def reader(self, partition: PartitionDescription) -> FileReader:
        """Return the reader of a partition that `scan` has found."""
        known = self._known.get(partition.path)
        if known is None or known.glance is None or known.description is not partition:
            return FileReader.of(partition)
        return GlanceReader(partition.path, known.glance, known.log_bytes)

    def at_owner(self, location: str) -> dict[str, PartitionDescription]:
        """Return what the last look has read of an owner's files, by name, for the next look to change."""
        return self._at_owners.setdefault(location, {})

    def _described(self, path: Path) -> PartitionDescription:
        try:
            return self._look(path).description
        finally:
            # A partition that seems too old is looked at again.
            self.done = min(self.done + 1, self.count)
            self.moved_s = self._clock.elapsed_s()

    def _look(self, path: Path) -> _ReadFile:
        known = self._known.pop(path, None)
        if is_lazy(path):
            # Reading such a file writes to it.
            return _ReadFile(None, 0, describe_file(path), None)
        found, now_ms = stamp_of(path), self._clock.wall_ms()
        if known is None or known.stamp is None or known.stamp != found:
            is_settled = found is not None and _changed_ms(found) < now_ms - SETTLED_MS
            made = _read(path, None if known is None else known.glance)
            log = None if found is None else found[1]
            known = _ReadFile(found if is_settled else None, 0 if log is None else log[_SIZE], *made)
        self._known[path] = known
        return known


_SIZE = 3


def stamp_of(path: Path) -> Stamp | None:
    """Return a value that each commit to a partition changes, but for two within one tick of the file system's clock;
    None: there is no such file."""
    try:
        real = os.path.realpath(path) if stat.S_ISLNK(os.lstat(path).st_mode) else os.fspath(path)
        file = _status(real)
    except OSError:
        return None
    return None if file is None else (file, _status(f"{real}-wal"), _status(f"{real}-journal"))


def _status(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return None
    # The time of the last change of the status: also of a new name, of another owner, and of times that were set back.
    changed = found.st_mtime_ns, found.st_ctime_ns
    return found.st_dev, found.st_ino, found.st_nlink, found.st_size, *changed


def _changed_ms(found: Stamp) -> int:
    return max(max(each[-2:]) for each in found if each is not None) // 1_000_000


def _read(path: Path, before: Glance | None) -> tuple[PartitionDescription, Glance | None]:
    """Return the description, and the rest; None: the rest cannot be read, and whoever asks for it gets the error."""

    def read(connection: apsw.Connection) -> tuple[PartitionDescription, Glance | None]:
        with translated(path), snapshot(connection):
            if before is None:
                described = describe.describe(connection, path)
            else:
                described = describe.describe_again(connection, path, before.description)
            try:
                return described, _glance(connection, path, described, before)
            except (RecoveryError, ValueError):
                return described, None

    found = read_partition(path, read)
    with translated(path):
        refuse_other_names(path, path.stat())
    return found


def _glance(
    connection: apsw.Connection, path: Path, described: PartitionDescription, before: Glance | None
) -> Glance | None:
    if described.newest is None or not has_measures(connection):
        return None
    measured: dict[tuple[object, ...], Measure] = {}
    if described.index == 0:
        known = {} if before is None else before.measured
        measured = checked_measures(rows(connection, MEASURES), known)
    return Glance(
        described,
        read_sizes(connection),
        sorted(s for s in describe.newest_steps(connection, path) if not s.startswith(RESERVED_PREFIX)),
        measured,
        newest_states(connection, path, DECLARATIONS_STEP),
        newest_sizes(connection, path, CHECKPOINT_STEP),
    )
