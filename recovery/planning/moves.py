"""Which partitions change their owner: plans as pure functions of what each location has.

A partition that has left a directory leaves a note there, which names the owner that has it now. A note counts as long
as no newer copy is known: so a run that was not given that owner asks it nevertheless.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from recovery.base.ids import PartitionIndex
from recovery.base.wording import counted
from recovery.errors import ConfigurationError, DuplicatePartitionError, MissingPartitionsError, StorageError
from recovery.planning.copies import Copy, Departed, Location, age_of, newest_copies
from recovery.planning.health import format_bytes
from recovery.planning.values import PartitionDescription

BY_HAND = (
    "Stop the run, move the file, and its -wal file if there is one, into the directory of an owner (a copy that stays "
    "would count), and start the run again with that owner."
)
"""How a partition of the directory of a run gets to an owner."""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition that is to change its owner. source, target: locations."""

    index: PartitionIndex
    source: str
    target: str
    size_bytes: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"part-{self.index}.sqlite3"

    def __str__(self) -> str:
        return f"part-{self.index} from {self.source} to {self.target}"


def plan_moves(locations: Sequence[Location], indexes: Collection[PartitionIndex], target: str) -> tuple[Move, ...]:
    """Return the moves that bring these partitions to `target`, without those that are there. locations: of all owners,
    the target among them. Raises MissingPartitionsError if no location has one of them, and what `newest_copies`
    raises."""
    newest = newest_copies(locations).copies
    lacking = [f"part-{index}.sqlite3" for index in sorted(indexes) if index not in newest]
    if lacking:
        raise MissingPartitionsError(
            f"none of the owners that were asked has {', '.join(lacking)}; asked: "
            f"{', '.join(location.name for location in locations)}",
            cause="The owner that has it was not named, or it is in the directory of the run, which is no owner.",
            remedy=f"Name all owners. If it is in the directory of the run: {BY_HAND}",
        )
    return tuple(_move(newest[index], target) for index in sorted(indexes) if newest[index].location != target)


def plan_drain(
    locations: Sequence[Location],
    drained: Collection[str],
    *,
    weights: Mapping[str, float],
    free_bytes: Mapping[str, int | None],
) -> tuple[Move, ...]:
    """Return the moves after which none of `drained` has a partition: the largest first, each to the location that then
    has the fewest bytes for its weight. weights: of locations, 1 without one; one of weight 0 gets nothing. free_bytes:
    the room of each; None: not known. Raises ConfigurationError without another location, StorageError if none has
    room."""
    newest = newest_copies(locations).copies
    others = [each.name for each in locations if each.name not in drained and _weight(weights, each.name) > 0]
    leaving = sorted(
        (copy for copy in newest.values() if copy.location in drained), key=lambda each: -each.partition.size_bytes
    )
    if leaving and not others:
        raise ConfigurationError(
            f"there is no owner to which the {counted(len(leaving), 'partition')} of {', '.join(drained)} could go",
            remedy="Name another owner: --owner HOST:PORT",
        )
    loads, room = _loads(newest.values(), others), dict(free_bytes)
    moves = []
    for copy in leaving:
        size = copy.partition.size_bytes
        fitting = [each for each in others if _fits(room.get(each), size)]
        if not fitting:
            raise StorageError(
                f"no owner has room for part-{copy.partition.index}.sqlite3, which has {format_bytes(size)}",
                path=copy.location,
                cause=", ".join(f"{each} has {_room(room.get(each))} free" for each in others),
                remedy="Name another owner, or make room.",
            )
        target = min(fitting, key=lambda each: ((loads[each] + size) / _weight(weights, each), others.index(each)))
        loads[target] += size
        _take(room, target, size)
        moves.append(_move(copy, target))
    return tuple(moves)


def plan_balance(
    locations: Sequence[Location], *, weights: Mapping[str, float], free_bytes: Mapping[str, int | None]
) -> tuple[Move, ...]:
    """Return moves after which no location has many more bytes for its weight than another. Each move makes the larger
    of its two ends smaller, and no partition moves twice. Arguments as for `plan_drain`; a weight of 0 drains."""
    newest = newest_copies(locations).copies
    drained = [each.name for each in locations if _weight(weights, each.name) == 0]
    moves = [*plan_drain(locations, drained, weights=weights, free_bytes=free_bytes)]
    target_of = {move.index: move.target for move in moves}
    names = [each.name for each in locations if _weight(weights, each.name) > 0]
    loads, room = dict.fromkeys(names, 0), dict(free_bytes)
    for leaving in moves:
        _take(room, leaving.target, leaving.size_bytes)
    for copy in newest.values():
        loads[target_of.get(copy.partition.index, copy.location)] += copy.partition.size_bytes
    moved = set(target_of)
    while (move := _evening(newest, loads, room, weights, moved)) is not None:
        moved.add(move.index)
        loads[move.source] -= move.size_bytes
        loads[move.target] += move.size_bytes
        _take(room, move.target, move.size_bytes)
        moves.append(move)
    return tuple(moves)


def _evening(
    newest: Mapping[PartitionIndex, Copy],
    loads: Mapping[str, int],
    room: Mapping[str, int | None],
    weights: Mapping[str, float],
    moved: Collection[PartitionIndex],
) -> Move | None:
    """Return the move that helps the fullest location most; None if no move helps it."""

    def filled(name: str, more_bytes: int = 0) -> float:
        return (loads[name] + more_bytes) / _weight(weights, name)

    if not loads:
        return None
    fullest = max(loads, key=filled)
    found: list[tuple[float, float, PartitionIndex, Move]] = []
    for index, copy in newest.items():
        size = copy.partition.size_bytes
        if copy.location != fullest or index in moved:
            continue
        for name in loads:
            after = max(filled(fullest, -size), filled(name, size))
            if name != fullest and _fits(room.get(name), size) and after < filled(fullest):
                found.append((after, filled(name, size), index, _move(copy, name)))
    return min(found, key=lambda each: each[:3])[3] if found else None


def to_follow(locations: Sequence[Location]) -> dict[str, Departed]:
    """Return the addresses that have to be asked as well, each with the note that names it: no location that was asked
    has a copy as new as the one that left. locations: those that were asked."""
    names = {location.name for location in locations}
    stores = {each.store_id for location in locations for each in location.partitions}
    found: dict[str, Departed] = {}
    for location in locations:
        for note in location.departed:
            own = [each for each in location.partitions if each.index == note.index]
            if note.to in names or any(age_of(each) != note.age for each in own):
                # A file that was put there since makes the note void.
                continue
            if stores and note.store_id not in stores:
                # Of a store that was there before.
                continue
            elsewhere = (
                each for other in locations if other is not location for each in other.partitions
                if (each.index, each.store_id) == (note.index, note.store_id)
            )  # fmt: skip
            if all(age_of(each) < note.age for each in elsewhere):
                found.setdefault(note.to, note)
    return found


def check_arrival(there: Sequence[PartitionDescription], coming: PartitionDescription, at: str) -> None:
    """Check that a partition may be put beside those of a directory, in place of an older copy. Raises what
    `newest_copies` raises, DuplicatePartitionError for a newer copy."""
    newest = newest_copies([Location(at, tuple(there)), Location("the owner that it comes from", (coming,))]).copies
    if newest[coming.index].location == at and age_of(newest[coming.index].partition) > age_of(coming):
        raise DuplicatePartitionError(
            f"it has a newer copy of part-{coming.index}.sqlite3 than the one that comes",
            path=at,
            cause="A run used the copy there since the plan was made.",
            remedy="Run the same command again.",
        )


def _loads(copies: Collection[Copy], names: Sequence[str]) -> dict[str, int]:
    return {name: sum(each.partition.size_bytes for each in copies if each.location == name) for name in names}


def _move(copy: Copy, target: str) -> Move:
    return Move(copy.partition.index, copy.location, target, copy.partition.size_bytes)


def _weight(weights: Mapping[str, float], name: str) -> float:
    return weights.get(name, 1.0)


def _fits(room_bytes: int | None, size_bytes: int) -> bool:
    return room_bytes is None or room_bytes >= size_bytes


def _take(room: dict[str, int | None], name: str, size_bytes: int) -> None:
    left = room.get(name)
    if left is not None:
        room[name] = left - size_bytes


def _room(room_bytes: int | None) -> str:
    return "an unknown number of bytes" if room_bytes is None else format_bytes(room_bytes)
