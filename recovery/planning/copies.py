"""Which copy of each partition a run uses, when several locations have one: a pure function of what they describe.

The copy with the newest execution counts; among equals, the one with the newest epoch, then the one whose location was
named first. So a file may be copied before the original is removed, and a host that was away does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    copies = [Copy(location.name, each) for location in locations for each in location.partitions]
    asked = ", ".join(location.name for location in locations)
    if not copies:
        raise NoPartitionsError(f"no recovery partition was found at {asked}")
    _check_names(locations)
    _check_one_store(copies)
    by_index: dict[PartitionIndex, list[Copy]] = {}
    for copy in copies:
        by_index.setdefault(copy.partition.index, []).append(copy)
    count = copies[0].partition.count
    missing = [index for index in range(count) if index not in by_index]
    if missing:
        names = ", ".join(f"part-{index}.sqlite3" for index in missing)
        raise MissingPartitionsError(
            f"{names} of {counted(count, 'partition')} missing; asked: {asked}",
            cause="A location that has them was not named, or a file was not copied or restored.",
            remedy="Name the location as well, or put the files back from a backup taken within the backup interval.",
        )
    chosen, notes = [], []
    for _, rivals in sorted(by_index.items()):
        _check_one_history(rivals)
        best = max(rivals, key=lambda copy: copy.age)  # the first of equals
        chosen.append(best)
        notes += [_note(copy, best) for copy in rivals if copy is not best]
    return ChosenCopies(tuple(chosen), tuple(notes))


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


def _check_one_history(copies: Sequence[Copy]) -> None:
    """Check that no two copies of a partition know different executions of one number."""
    for one, other in combinations(copies, 2):
        known: dict[ExecutionNumber, str] = {each.number: each.id for each in one.partition.executions}
        for each in other.partition.executions:
            if known.get(each.number, each.id) != each.id:
                name = f"part-{one.partition.index}.sqlite3"
                raise DuplicatePartitionError(
                    f"the copies of {name} at {one.location} and at {other.location} went different ways: "
                    f"execution {each.number} is {known[each.number]} in one and {each.id} in the other",
                    cause="Runs used both copies, each without the other.",
                    remedy="Decide which copy counts, together with all files of its runs; move the other copy away.",
                )


def _note(copy: Copy, best: Copy) -> str:
    kind = "older copy" if copy.age < best.age else "equal copy"
    return f"{copy.location}: {kind} of part-{copy.partition.index}.sqlite3, not used"
