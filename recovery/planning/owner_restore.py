"""A restore to several owners: who gets which partitions, and what to do with what a killed one left at an owner.

Owners place their files one after the other, the home last: it is the owner of part-0. So the restore counts as soon as
the home has part-0, and until then it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recovery.base.ids import PartitionIndex
from recovery.errors import AlreadyInitializedError


@dataclass(frozen=True, slots=True)
class LeftRestore:
    """An owner's part of a restore, all in place, that did not tell the owner the end.

    name: the same at all owners. home: the location of the owner of part-0; empty if that cannot be read. was_used: a
    run has begun on one of the files since.
    """

    name: str
    home: str
    files: tuple[str, ...]
    was_used: bool


def allot(count: int, owners: Sequence[str]) -> dict[PartitionIndex, str]:
    """Return which owner gets each partition: as many each, in the order in which the owners were named."""
    return {PartitionIndex(index): owners[index * len(owners) // count] for index in range(count)}


def counts(location: str, left: LeftRestore, has_first: Mapping[str, bool]) -> bool:
    """Return whether the restore counts that left a part at an owner. If the restore counts, its files stay; else they
    are removed.

    has_first: for each owner that was named, whether part-0 is there. Raises AlreadyInitializedError if only an owner
    that was not named can tell.
    """
    if left.was_used:
        return True
    if left.home in has_first:
        return has_first[left.home]
    files = ", ".join(left.files[:4]) + (" …" if len(left.files) > 4 else "")
    raise AlreadyInitializedError(
        f"it holds {files} of a restore; only the owner of part-0 knows whether that restore was completed: "
        f"{left.home or 'which one that is cannot be read'}",
        path=location,
        cause="A restore to this owner and to others was killed, and not all those other owners are named now.",
        remedy="Name the same owners again, in the same way; or move these files away.",
    )
