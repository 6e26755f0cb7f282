"""Moves of partitions from the plan to the end, as a command does them by itself, and as a run does them between two of
its executions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from recovery.base.clock import Clock
from recovery.base.ids import PartitionIndex
from recovery.errors import ConfigurationError, LeaseLostError
from recovery.planning.copies import Location, newest_copies
from recovery.planning.moves import BY_HAND, Move, plan_moves
from recovery.storage.moving.mover import Mover, MoveResult, Observer, ignore
from recovery.storage.store import Store
from recovery.wire.calls import OwnerCalls
from recovery.wire.run_client import Owner

Plan = Callable[[Sequence[Location]], Sequence[Move]]
"""Chooses moves from what each location has."""


def to_targets(targets: Mapping[PartitionIndex, str]) -> Plan:
    """Return the plan that brings each of these partitions to its target."""

    def plan(locations: Sequence[Location]) -> list[Move]:
        return [
            move
            for target in dict.fromkeys(targets.values())
            for move in plan_moves(locations, [index for index, to in targets.items() if to == target], target)
        ]

    return plan


class MoveTask:
    """Moves between owners, planned when this object is made. `release` it whatever happens."""

    def __init__(self, directory: Path, owners: Sequence[Owner], also: Sequence[str] = ()) -> None:
        """Connect. directory: that of the run; without a run, one of the command's own that has nothing. owners: as
        named, connected to by this task alone. also: addresses of further owners. Raises ConfigurationError."""
        self._store = Store(directory, owners)
        self._located: dict[str, str] = {}
        for address in also:
            self._add(address)
        self._mover: Mover | None = None
        self.drained: frozenset[str] = frozenset()
        """The owners whose last partitions `finish` has moved away."""

    def _add(self, address: str) -> None:
        owner = self._store.owners[0].elsewhere(address)
        known = next((each for each in self._store.owners if each.is_same(owner)), None)
        if known is not None:
            owner.release()
        else:
            self._store.owners += (owner,)
        self._located[address] = (known or owner).location

    @property
    def owners(self) -> dict[str, Owner]:
        """The owners by location, also those that were found by a note of a partition that moved."""
        return {owner.location: owner for owner in self._store.owners}

    def location(self, address: str) -> str:
        """Return the location by which an owner is known here."""
        return self._located.get(address, address)

    def free_bytes(self) -> dict[str, int | None]:
        """Return the free space of each owner."""
        return {at: owner.ask(OwnerCalls.serving).facts.disk_free_bytes for at, owner in self.owners.items()}

    def plan(self, plan: Plan, move_id: str, observe: Observer = ignore) -> tuple[Move, ...]:
        """Plan the moves, and return them; what was staged for an earlier plan is removed. Raises what `plan` raises,
        and ConfigurationError for a partition that is at no owner."""
        if self._mover is not None:
            self._mover.end(self.owners)
            self._mover = None
        moves = tuple(plan(self._locations(self._store)))
        for move in moves:
            if move.source not in self.owners:
                raise ConfigurationError(
                    f"{move.name} is in the directory of the run, which is no owner: {move.source}",
                    remedy=BY_HAND,
                )
        self._mover = Mover(move_id, moves, observe)
        return moves

    def stage(self, stopping: threading.Event) -> None:
        """Stage the partitions while they are in use. Raises what the owners refuse with."""
        assert self._mover is not None
        self._mover.stage(self.owners, stopping)

    def finish(self, clock: Clock, purpose: str) -> MoveResult:
        """Hold all locations, and complete the moves. Raises DirectoryLockedError if a run holds one of them, and
        LeaseLostError if a partition is not where it was."""
        assert self._mover is not None
        with self._store.locked(clock, purpose) as held:
            newest = newest_copies(self._locations(held)).copies
            for move in self._mover.moves:
                if move.index not in newest or newest[move.index].location != move.source:
                    raise LeaseLostError(
                        f"the copy of {move.name} at {move.source} is not the one that counts any more",
                        cause="Another command has moved the partition meanwhile, or somebody has.",
                        remedy="Run the same command again.",
                    )
            result = self._mover.finish({owner.location: owner for owner in held.owners}, clock)
        at = {index: copy.location for index, copy in newest.items()} | {m.index: m.target for m in result.moved}
        self.drained = frozenset(move.source for move in result.moved) - frozenset(at.values())
        return result

    def release(self) -> None:
        """Remove what is staged, and end all connections."""
        if self._mover is not None:
            self._mover.end(self.owners)
        self._store.release()

    def _locations(self, store: Store) -> list[Location]:
        """Return what the locations have, without a directory that has nothing."""
        found = store.locations()
        return [each for each in found if each.partitions or each.name in {o.location for o in store.owners}]
