"""Which copy of each partition a run uses, when several locations have one: a pure function of what they describe.

The copy with the newest execution counts; among equals, the one with the newest epoch, then the one whose location was
named first. So a file may be copied before the original is removed, and a host that was away does no harm.

A start that lost an owner may have begun an execution in that owner's copies alone. A later start gives the same number
to an execution of its own. So executions that have closed nothing make no history: such a copy counts by what it knows
besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from recovery.base.ids import ExecutionNumber, PartitionIndex
from recovery.base.wording import counted
from recovery.errors import DuplicatePartitionError, ForeignPartitionError, MissingPartitionsError, NoPartitionsError
from recovery.planning.strays import strays
from recovery.planning.values import FoundFile, PartitionDescription


@dataclass(frozen=True, slots=True)
class Location:
    """A location of partitions, with their descriptions there. name: as the user gave it."""

    name: str
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """One location's copy of a partition."""

    location: str
    partition: PartitionDescription

    @property
    def age(self) -> tuple[int, int]:
        """The newest execution that the copy knows, and its newest epoch: greater is newer."""
        return max((each.number for each in self.partition.executions), default=0), self.partition.newest_epoch


@dataclass(frozen=True, slots=True)
class ChosenCopies:
    """The copies that a run uses, one for each index in order, and a note on each other one."""

    copies: tuple[Copy, ...]
    notes: tuple[str, ...]


def choose_copies(locations: Sequence[Location]) -> ChosenCopies:
    """Return the copies to use. locations: in the order in which they were named.

    Raises NoPartitionsError, ForeignPartitionError, DuplicatePartitionError or MissingPartitionsError.
    """
    by_index = _by_index(locations)
    asked = ", ".join(location.name for location in locations)
    if not by_index:
        raise NoPartitionsError(f"no recovery partition was found at {asked}")
    count = next(iter(by_index.values()))[0].partition.count
    missing = [index for index in range(count) if index not in by_index]
    if missing:
        names = ", ".join(f"part-{index}.sqlite3" for index in missing)
        raise MissingPartitionsError(
            f"{names} of {counted(count, 'partition')} missing; asked: {asked}",
            cause="A location that has them was not named, or a file was not copied or restored.",
            remedy="Name the location as well, or bring the partitions back from a backup taken within the backup "
            "interval: python -m recovery restore SRC DIR --missing --owner …",
        )
    return _chosen(by_index)


def copies_there(locations: Sequence[Location]) -> ChosenCopies:
    """Return the copies that count among those that are there; some indexes may have none.

    Raises ForeignPartitionError or DuplicatePartitionError.
    """
    return _chosen(_by_index(locations))


def _by_index(locations: Sequence[Location]) -> dict[PartitionIndex, list[Copy]]:
    """Return the copies of each partition, all of one store. Raises ForeignPartitionError or
    DuplicatePartitionError."""
    copies = [Copy(location.name, each) for location in locations for each in location.partitions]
    by_index: dict[PartitionIndex, list[Copy]] = {}
    if copies:
        _check_names(locations)
        _check_one_store(copies)
    for copy in copies:
        by_index.setdefault(copy.partition.index, []).append(copy)
    return by_index


def _chosen(by_index: Mapping[PartitionIndex, Sequence[Copy]]) -> ChosenCopies:
    chosen, notes = [], []
    for _, rivals in sorted(by_index.items()):
        best = _best(rivals)
        chosen.append(best)
        notes += [_note(copy, best) for copy in rivals if copy is not best]
    return ChosenCopies(tuple(chosen), tuple(notes))


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
    return max((copy for copy in rivals if copy not in stale), key=lambda copy: copy.age)


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
