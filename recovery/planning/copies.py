"""Which copy of each partition a run uses, when several locations have one: a pure function of what they describe.

The copy with the newest execution counts; among equals, the one with the newest epoch, then one that is not leaving its
location, then the one whose location was named first. So a file may be copied before the original is removed, and a
host that was away does no harm.

A start that lost an owner may have begun an execution in that owner's copies alone. A later start gives the same number
to an execution of its own. So executions that have closed nothing make no history: such a copy counts by what it knows
besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from recovery.base.ids import ExecutionNumber, PartitionIndex
from recovery.base.wording import counted
from recovery.errors import DuplicatePartitionError, ForeignPartitionError, MissingPartitionsError, NoPartitionsError
from recovery.planning.strays import strays
from recovery.planning.values import FoundFile, PartitionDescription

Age = tuple[int, int]
"""The newest execution that a copy of a partition knows, and its newest epoch: greater is newer."""


def age_of(partition: PartitionDescription) -> Age:
    """Return the age of a copy."""
    return max((each.number for each in partition.executions), default=0), partition.newest_epoch


@dataclass(frozen=True, slots=True)
class Departed:
    """The note that a partition leaves in a directory that it leaves for another owner. execution, epoch: its age then.
    to: the owner's location."""

    index: PartitionIndex
    store_id: str
    execution: int
    epoch: int
    to: str
    left_ms: int

    @property
    def age(self) -> Age:
        """The age of the copy that left."""
        return self.execution, self.epoch


@dataclass(frozen=True, slots=True)
class Location:
    """A location of partitions, with their descriptions there, and the notes of those that left. name: as the user gave
    it."""

    name: str
    partitions: tuple[PartitionDescription, ...]
    departed: tuple[Departed, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """One location's copy of a partition."""

    location: str
    partition: PartitionDescription
    is_leaving: bool = False
    """Whether a note says that this copy, at this age, was to leave its location."""

    @property
    def age(self) -> Age:
        """How new the copy is."""
        return age_of(self.partition)


@dataclass(frozen=True, slots=True)
class ChosenCopies:
    """The copies that a run uses, one for each index in order, and a note on each other one."""

    copies: tuple[Copy, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NewestCopies:
    """The newest copy of each partition of which any location has one, and a note on each other copy."""

    copies: dict[PartitionIndex, Copy]
    notes: tuple[str, ...]


def choose_copies(locations: Sequence[Location]) -> ChosenCopies:
    """Return the copies to use. locations: in the order in which they were named.

    Raises NoPartitionsError, ForeignPartitionError, DuplicatePartitionError or MissingPartitionsError.
    """
    asked = ", ".join(location.name for location in locations)
    by_index = _by_index(locations)
    if not by_index:
        raise NoPartitionsError(
            f"no recovery partition was found at {asked}",
            cause="The locations are not those of the store, all its partitions are lost, or the store was never made.",
            remedy="Name the locations of the store. If its partitions are lost, bring them back: python -m recovery "
            "restore SRC DIR --missing --owner … For a new store: python -m recovery init DIR N --owner …",
        )
    [count] = {copy.partition.count for rivals in by_index.values() for copy in rivals}
    missing = [index for index in range(count) if index not in by_index]
    if missing:
        names = ", ".join(f"part-{index}.sqlite3" for index in missing)
        raise MissingPartitionsError(
            f"{names} of {counted(count, 'partition')} missing; asked: {asked}",
            cause="A location that has them was not named, or a file was not copied or restored.",
            remedy="Name the location as well, or bring the partitions back from a backup taken within the backup "
            "interval: python -m recovery restore SRC DIR --missing --owner …",
        )
    newest = _newest(by_index)
    return ChosenCopies(tuple(newest.copies.values()), newest.notes)


def newest_copies(locations: Sequence[Location]) -> NewestCopies:
    """Return the newest copy of each partition, in the order of the indexes; some may lack one.

    Raises ForeignPartitionError or DuplicatePartitionError.
    """
    return _newest(_by_index(locations))


def _by_index(locations: Sequence[Location]) -> dict[PartitionIndex, list[Copy]]:
    """Return all copies of each partition, of one store, in the order of the indexes."""
    copies = [
        Copy(location.name, each, any(_is_of(note, each) for note in location.departed))
        for location in locations
        for each in location.partitions
    ]
    if copies:
        _check_names(locations)
        _check_one_store(copies)
    found: dict[PartitionIndex, list[Copy]] = {}
    for copy in sorted(copies, key=lambda copy: copy.partition.index):
        found.setdefault(copy.partition.index, []).append(copy)
    return found


def _newest(by_index: Mapping[PartitionIndex, Sequence[Copy]]) -> NewestCopies:
    chosen: dict[PartitionIndex, Copy] = {}
    notes: list[str] = []
    for index, rivals in by_index.items():
        chosen[index] = best = _best(rivals)
        notes += [_note(copy, best) for copy in rivals if copy is not best]
    return NewestCopies(chosen, tuple(notes))


def _is_of(note: Departed, partition: PartitionDescription) -> bool:
    """Whether a note of the partition's own directory is about this copy."""
    return (note.index, note.store_id, note.age) == (partition.index, partition.store_id, age_of(partition))


def _best(rivals: Sequence[Copy]) -> Copy:
    """Return the copy that counts among those of one partition. Raises DuplicatePartitionError if no two of them agree
    on what happened."""
    stale: list[Copy] = []
    for one, other in combinations(rivals, 2):
        parted = _parted(one.partition, other.partition)
        if parted is None:
            continue
        left = [copy for copy in (one, other) if not _has_closed(copy.partition, parted)]
        if not left:
            raise _went_different_ways(one, other, parted)
        if len(left) == 1:
            stale += left
    # The first of equals.
    return max((copy for copy in rivals if copy not in stale), key=lambda copy: (copy.age, not copy.is_leaving))


def _parted(one: PartitionDescription, other: PartitionDescription) -> ExecutionNumber | None:
    """Return the first number under which two copies know different executions; None if there is none."""
    known = {each.number: each.id for each in one.executions}
    return min((e.number for e in other.executions if known.get(e.number, e.id) != e.id), default=None)


def _has_closed(partition: PartitionDescription, since: ExecutionNumber) -> bool:
    """Whether a copy holds an epoch that an execution from this number on has closed."""
    return partition.newest is not None and partition.newest.execution.number >= since


def _check_names(locations: Sequence[Location]) -> None:
    """Check that each file has its partition's name, so that a location has one copy of each at most."""
    for location in locations:
        # The commands are for the host of the location: paths there are not known here.
        named = {each.path.name: each for each in location.partitions}
        astray = strays([FoundFile(Path(name), replace(each, path=Path(name))) for name, each in named.items()])
        for path, error in astray.items():
            if isinstance(error, DuplicatePartitionError):
                raise DuplicatePartitionError(
                    error.found, path=named[path.name].path, cause=error.cause,
                    remedy=f"In the directory of {location.name}: {error.remedy}",
                )  # fmt: skip


def _check_one_store(copies: Sequence[Copy]) -> None:
    """Check that all partitions belong to the store of the first one, and agree on how many there are."""
    first = copies[0]
    count, store_id = first.partition.count, first.partition.store_id
    for copy in copies:
        found = copy.partition
        if found.store_id != store_id:
            raise ForeignPartitionError(
                f"part-{found.index}.sqlite3 at {copy.location} belongs to store {found.store_id}, "
                f"part-{first.partition.index}.sqlite3 at {first.location} to store {store_id}",
                cause="A location of another recovery directory was named.",
                remedy="Name the locations of one store only, or move the foreign file away.",
            )
        if found.count != count or found.index >= count:
            raise ForeignPartitionError(
                f"part-{found.index}.sqlite3 at {copy.location} is one of {counted(found.count, 'partition')}, "
                f"part-{first.partition.index}.sqlite3 at {first.location} one of {count}"
            )


def _went_different_ways(one: Copy, other: Copy, number: ExecutionNumber) -> DuplicatePartitionError:
    name = f"part-{one.partition.index}.sqlite3"
    ids = [next(e.id for e in copy.partition.executions if e.number == number) for copy in (one, other)]
    return DuplicatePartitionError(
        f"the copies of {name} at {one.location} and at {other.location} went different ways: "
        f"execution {number} is {ids[0]} in one and {ids[1]} in the other",
        cause="Runs used both copies, each without the other.",
        remedy="Decide which copy counts, together with all files of its runs; move the other copy away.",
    )


def _note(copy: Copy, best: Copy) -> str:
    kind = "equal copy" if copy.age == best.age else "older copy"
    return f"{copy.location}: {kind} of part-{copy.partition.index}.sqlite3, not used"


def copies_json(asked: Sequence[Location]) -> list[dict[str, Any]]:
    """Return what each location has as plain values."""
    return [
        {
            "location": location.name,
            "file": each.path.name,
            "store_id": each.store_id,
            "execution": max((run.number for run in each.executions), default=0),
            "newest_epoch": each.newest_epoch,
        }
        for location in asked
        for each in location.partitions
    ]
