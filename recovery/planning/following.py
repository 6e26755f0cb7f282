"""Which backup is the latest, what a directory lacks of it, and what a standby has to fetch: pure functions.

`age` is the one order of backups, for all that asks which is later: the term of the writer first, then the executions
that a backup lists and its epoch, and only between backups that have all of that in common their times. Hosts that
write one after the other may have different clocks. Within a term one directory writes, so its backups are one line,
and the order is that in which they were made. Of two lines of one term, which older versions could make, the line
counts whose first own execution was begun later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

from recovery.base.ids import Epoch
from recovery.planning.timeline import timeline
from recovery.planning.values import Execution, PartitionDescription

T = TypeVar("T")


class Stage(NamedTuple):
    """How far a store had come: the executions that had begun, each with its time, and the newest epoch.

    taken_ms, name: the time and the id of a backup, which count between backups of one epoch. term: of the writer that
    made it: a later writer has what an earlier one had stored. Only between backups of one term, or of none, the
    executions count.
    """

    executions: tuple[tuple[str, int], ...]
    epoch: Epoch
    taken_ms: int
    name: str
    term: int = 0


def stage_of(descriptions: Sequence[PartitionDescription], taken_ms: int, name: str, term: int = 0) -> Stage:
    """Return the stage of partitions as of one moment. A partition may lack an execution that begins at that moment."""
    longest = max(descriptions, key=lambda each: len(each.executions))
    begun = tuple((each.id, each.started_ms) for each in longest.executions)
    return Stage(begun, min(each.newest_epoch for each in descriptions), taken_ms, name, term)


def age(stage: Stage) -> tuple[object, ...]:
    """Return a sort key: a stage is later than another if it continues that stage, or is on a timeline that was begun
    later."""
    begun = tuple((started_ms, identity) for identity, started_ms in stage.executions)
    return stage.term, begun, stage.epoch, stage.taken_ms, stage.name


def is_later(one: Stage, other: Stage) -> bool:
    """Return whether `one` is what became of `other`, or on a timeline that was begun later."""
    return age(one) > age(other)


def latest_first(stages: Sequence[tuple[Stage, T]]) -> list[T]:
    """Return what belongs to stages, the latest stage's first."""
    return [each for _, each in sorted(stages, key=lambda found: age(found[0]), reverse=True)]


def lines(stages: Sequence[Stage]) -> list[Stage]:
    """Return the last stage of each line of backups, the latest one last. Backups are of one line if each is what
    became of the one before; two lines show that two directories went on from one state, or each from its own.

    stages: of one store, in the order of `age`.
    """
    found: list[Stage] = []
    for stage in stages:
        before = next((each for each in reversed(found) if _continues(each, stage)), None)
        if before is not None:
            found.remove(before)
        found.append(stage)
    return found


def _continues(one: Stage, other: Stage) -> bool:
    """Return whether `other` is what became of `one`: all executions that had begun in `one` had begun in `other`."""
    begun = len(one.executions)
    return other.executions[:begun] == one.executions and (len(other.executions) > begun or other.epoch >= one.epoch)


class Lacking(NamedTuple):
    """Epochs that a store has, and a directory of it lacks; the last of them was closed by `execution`."""

    first: Epoch
    last: Epoch
    execution: Execution


def lacking(
    executions: Collection[str], epoch: int, there: Sequence[PartitionDescription], since: Collection[str] = ()
) -> Lacking | None:
    """Return what a backup has and a directory lacks; None if nothing. Uses no clock.

    executions: those that have begun on the directory. epoch: its newest. there: the partitions in the backup. since:
    executions that began on the directory later; it lacks nothing of them.
    """
    longest = max(there, key=lambda each: len(each.executions))
    # A directory may have thousands of them.
    executions, since = frozenset(executions), frozenset(since)
    if len(executions) > len(longest.executions) and all(each.id in executions for each in longest.executions):
        # The directory continued from there, or back.
        return None
    described = min(there, key=lambda each: each.newest_epoch)
    lost = [
        (each.execution.id, max(each.first, epoch + 1) if each.execution.id in executions else each.first, each.last)
        for each in timeline(described.executions, described.newest)
        if each.execution.id not in since and (each.execution.id not in executions or each.last > epoch)
    ]
    if not lost:
        return None
    identity, _, last = lost[-1]
    execution = next(each for each in described.executions if each.id == identity)
    return Lacking(Epoch(min(first for _, first, _ in lost)), last, execution)


def newer_documents(
    here: Mapping[str, tuple[int, str | None]], there: Mapping[str, tuple[int, str | None]]
) -> list[str]:
    """Return the ids of the documents of operational state that a backup has and a directory lacks, sorted: newer ones,
    and others of the same generation. here, there: generation and content by id, of the directory and of the backup; no
    content: it was removed. If both have changed a document, only the generations tell which is newer."""
    return sorted(
        state_id
        for state_id, (generation, content) in there.items()
        if (found := here.get(state_id, (0, None))) != (generation, content)
        and generation >= found[0]
        and (state_id in here or content is not None)
    )


class ChainPosition(NamedTuple):
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
    of the chain, and why. Nothing at all if no file continues from that position."""

    files: int | None
    why: str = ""


def needed(at: ChainPosition | None, target: ChainPosition, files: Sequence[tuple[str, int]]) -> Need:
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


def same_link(at: ChainPosition, links: Sequence[tuple[int, int]]) -> bool:
    """Return whether links, each with its number and time, continue the partition: the link that the partition ends
    with is among them, or the links begin right after that one."""
    taken_ms = dict(links).get(at.links)
    return links[0][0] == at.links + 1 if taken_ms is None else taken_ms == at.taken_ms
