"""What a standby has to fetch: pure functions of how far it has come, and of the backups at the place that it follows.

The newest backup is found by the executions that it lists, not by its time: hosts that write one after the other may
have different clocks. As in a restore, of two timelines the one that was begun last counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key
from itertools import accumulate
from typing import NamedTuple, TypeVar

from recovery.base.ids import Epoch
from recovery.planning.values import PartitionDescription

T = TypeVar("T")


class Stage(NamedTuple):
    """How far a store had come: the executions that had begun, each with its time, and the newest epoch.

    taken_ms, name: the time and the id of a backup, which count between backups of one epoch.
    """

    executions: tuple[tuple[str, int], ...]
    epoch: Epoch
    taken_ms: int
    name: str


def stage_of(descriptions: Sequence[PartitionDescription], taken_ms: int, name: str) -> Stage:
    """Return the stage of partitions as of one moment. One of them may lack an execution that begins at that moment."""
    longest = max(descriptions, key=lambda each: len(each.executions))
    begun = tuple((each.id, each.started_ms) for each in longest.executions)
    return Stage(begun, min(each.newest_epoch for each in descriptions), taken_ms, name)


def is_later(one: Stage, other: Stage) -> bool:
    """Return whether `one` is what became of `other`, or on a timeline that was begun later."""
    for ours, theirs in zip(one.executions, other.executions, strict=False):
        if ours[0] != theirs[0]:
            return (ours[1], ours[0]) > (theirs[1], theirs[0])
    if len(one.executions) != len(other.executions):
        return len(one.executions) > len(other.executions)
    return (one.epoch, one.taken_ms, one.name) > (other.epoch, other.taken_ms, other.name)


def latest_first(stages: Sequence[tuple[Stage, T]]) -> list[T]:
    """Return what belongs to stages, that of the latest stage first."""

    def order(one: tuple[Stage, T], other: tuple[Stage, T]) -> int:
        return is_later(other[0], one[0]) - is_later(one[0], other[0])

    return [each for _, each in sorted(stages, key=cmp_to_key(order))]


class Position(NamedTuple):
    """How far a partition of a standby has come: up to the link of this number in the chain of a whole copy.

    object_name: the whole copy. origin: the object that the backup of this link wrote. taken_ms: when the link was
    taken. fingerprint: of the partition's content then.
    """

    object_name: str
    links: int
    origin: str
    taken_ms: int
    fingerprint: int


class Need(NamedTuple):
    """What a partition needs. files: the position in the chain of the first changes file to fetch; None: all objects
    of the chain, and why. Nothing at all if there is no file from there on."""

    files: int | None
    why: str = ""


def needed(at: Position | None, target: Position, files: Sequence[tuple[str, int]]) -> Need:
    """Return what leads a partition to `target`, the end of a chain. files: name and number of links of each changes
    file of that chain. A file may begin with links that the partition has: then see `same_link`."""
    if at is None:
        return Need(None, "it is not there yet")
    if at.fingerprint == target.fingerprint:
        return Need(len(files))
    if at.object_name != target.object_name:
        return Need(None, "the backups began a new chain")
    ends = [0, *accumulate(links for _, links in files)]
    names = [target.object_name, *(name for name, _ in files)]
    # A file that ends with a link was written by the backup of that link.
    shared = at.links not in ends or names[ends.index(at.links)] == at.origin
    if target.links <= at.links or not shared:
        return Need(None, "its chain branched")
    return Need(sum(end <= at.links for end in ends[1:]))


def same_link(at: Position, links: Sequence[tuple[int, int]]) -> bool:
    """Return whether links, each with its number and time, continue the partition: the one that it ends with is among
    them, or they begin right after it."""
    taken_ms = dict(links).get(at.links)
    return links[0][0] == at.links + 1 if taken_ms is None else taken_ms == at.taken_ms
