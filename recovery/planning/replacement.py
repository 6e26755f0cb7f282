"""Partitions of a store that no location has any more: which they are, and who gets them. Pure functions.

The other partitions stay as they are, so a copy of a missing one must share an epoch with them; see
`recovery.planning.backups.plan_restore`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from recovery.base.ids import Epoch, PartitionIndex
from recovery.planning.backups import PartitionCopy
from recovery.planning.values import PartitionDescription


class Replacement(NamedTuple):
    """Partitions that came back. lost: the locations of owners that were not reached. owner_of: which owner got each
    partition. place: where their copies are, without secrets. epoch: the newest epoch that all partitions share now."""

    lost: tuple[str, ...]
    owner_of: Mapping[PartitionIndex, str]
    place: str
    epoch: Epoch

    def text(self) -> str:
        """Return a sentence for the user."""
        lost = ""
        if self.lost:
            what, verb = ("owner", "is") if len(self.lost) == 1 else ("owners", "are")
            lost = f"{what} {', '.join(self.lost)} {verb} lost; "
        came = []
        for location, parts in self.by_owner().items():
            what, verb = ("partition", "comes") if len(parts) == 1 else ("partitions", "come")
            came.append(f"{what} {', '.join(map(str, parts))} {verb} back at {location}")
        return f"{lost}{'; '.join(came)} from {self.place}, epoch {self.epoch}"

    def by_owner(self) -> dict[str, list[PartitionIndex]]:
        """Return the partitions that each owner got."""
        found: dict[str, list[PartitionIndex]] = {}
        for index, location in sorted(self.owner_of.items()):
            found.setdefault(location, []).append(index)
        return found

    def as_json(self) -> dict[str, object]:
        """Return the replacement for programs."""
        owners = {f"part-{index}.sqlite3": location for index, location in sorted(self.owner_of.items())}
        return {"lost": list(self.lost), "owners": owners, "place": self.place, "epoch": self.epoch}


def lacking(
    held: Mapping[PartitionIndex, PartitionDescription], copies: Sequence[PartitionCopy], *, only_missing: bool = False
) -> list[PartitionIndex]:
    """Return the partitions to bring back: those that no location has, and those of which the locations have only a
    copy that knows fewer executions than a copy at the place. Such a copy was left behind before its partition went to
    an owner that is lost now.

    copies: those at the place. only_missing: an older copy is what the user wants.
    """
    newest: dict[PartitionIndex, int] = {}
    for copy in copies:
        newest[copy.index] = max(newest.get(copy.index, 0), executions_of(copy.description))
    counts = {each.count for each in held.values()} | {copy.description.count for copy in copies}
    return [
        PartitionIndex(index)
        for index in range(max(counts, default=0))
        if index not in held
        or (not only_missing and executions_of(held[PartitionIndex(index)]) < newest.get(PartitionIndex(index), 0))
    ]


def executions_of(description: PartitionDescription) -> int:
    """Return the number of the newest execution that a partition knows."""
    return max((each.number for each in description.executions), default=0)


def spread(sizes: Mapping[PartitionIndex, int], held_bytes: Mapping[str, int]) -> dict[PartitionIndex, str]:
    """Return which owner gets each partition: one by one, the largest first, to the owner that has the fewest bytes by
    then; of several, to the one that was named first.

    sizes: of the partitions, in bytes. held_bytes: what each owner has, in the order in which the owners were named.
    """
    has = dict(held_bytes)
    found: dict[PartitionIndex, str] = {}
    for index in sorted(sizes, key=lambda index: (-sizes[index], index)):
        owner = min(has, key=lambda location: has[location])
        has[owner] += sizes[index]
        found[index] = owner
    return found
