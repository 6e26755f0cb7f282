"""When a backup may store what changed instead of a whole copy, and how its changes files are merged: pure functions.

A *chain* is a whole copy of a partition and the changes files that lead from it to later backups. Each backup adds one
*link*. When `FANOUT` changes files with equally many links lie at a chain's end, they are merged into one. So a chain
of n links has at most (FANOUT - 1) * log(n + 1) changes files, with the logarithm to the base FANOUT. `LONGEST` bounds
n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from recovery.base.ids import Epoch
from recovery.planning.held import newest_shared
from recovery.planning.values import ClosedEpoch, Execution, PartitionDescription

FANOUT = 8
LONGEST = FANOUT**4 - 1
"""The most links of a chain: 4,095, which lie in at most 28 changes files."""


class Continuation(NamedTuple):
    """The epoch from which a link leads on. None: no link is possible, and why."""

    epoch: Epoch | None
    why_not: str = ""


def continues(before: PartitionDescription, now: PartitionDescription) -> Continuation:
    """Return the newest epoch that a partition holds `now` and held at the backup `before`: a link begins there."""
    if not before.executions:
        # Erasing operational state there leaves no execution by which this would know of the erasure.
        return Continuation(None, "no run had begun at the backup before")
    if before.executions != now.executions[: len(before.executions)]:
        return Continuation(None, "its executions are not those of the backup before")
    if now.erased_since(before):
        return Continuation(None, "a key was erased since the backup before")
    if now.newest is not None and now.newest.is_logged:
        return Continuation(None, "its newest epochs are only logged")
    if now.collected < before.collected:
        return Continuation(None, "it goes back further than the backup before, so an older copy took its place")
    shared = newest_shared([before, now])
    if shared is None:
        return Continuation(None, f"what epochs up to {now.collected} replaced was collected since the backup before")
    return Continuation(shared[0])


def outgrown(links: int, whole_bytes: int, changes_bytes: int) -> str | None:
    """Return why a chain ends, so that the next backup stores a whole copy; None if it continues."""
    if links >= LONGEST:
        return f"its chain has {links:,} links"
    # So at most half of what a restore reads was replaced since, and the changes pay for the next whole copy.
    return "its changes are as large as the whole copy" if changes_bytes > whole_bytes else None


def merged_from(links: Sequence[int]) -> int:
    """Return the position of the first changes file to merge with all after it; that of the last if there is nothing
    to merge. links: the number of links in each changes file of a chain, the new one last."""
    left = list(links)
    while len(left) >= FANOUT and len(set(left[-FANOUT:])) == 1:
        left[-FANOUT:] = [sum(left[-FANOUT:])]
    return len(left) - 1


class ChainLink(NamedTuple):
    """The description of a link: the epoch that it continues, the epoch up to which the partition had collected, when
    it was taken, and which executions and epochs it adds. The first link of a chain has all epochs that the partition
    held."""

    number: int
    after: Epoch
    collected: Epoch
    taken_ms: int
    executions: tuple[Execution, ...]
    epochs: tuple[ClosedEpoch, ...]


def described(links: Sequence[ChainLink], last: PartitionDescription) -> list[PartitionDescription]:
    """Return the description of the partition as of each link of a chain. last: that as of the last one."""
    found = []
    epochs: list[ClosedEpoch] = []
    executions = len(last.executions) - sum(len(link.executions) for link in links)
    for link in links:
        executions += len(link.executions)
        kept = [each for each in epochs if each.epoch <= link.after]
        epochs = [*kept, *(each for each in link.epochs if not kept or each.epoch > link.after)]
        held = tuple(each for each in epochs if each.epoch >= link.collected)
        begun = last.executions[:executions]
        flow_id = begun[-1].flow_id if begun else None
        found.append(
            replace(last, flow_id=flow_id, collected=link.collected, executions=begun, epochs=held, unlisted=0)
        )
    return found
