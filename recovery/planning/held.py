"""Which epochs a partition, or a copy of it, holds: pure functions of its description.

A description may list only the newest epochs: the manifest of a backup lists those since the backup before, and an
owner sends those since the look before, so that both grow with what changed. The earlier held epochs follow each other
without a gap, from the epoch up to which the partition has collected. The executions say which of them closed each one
(see `recovery.planning.timeline`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import merge

from recovery.base.ids import NO_EPOCH, Epoch
from recovery.planning.resume import BEGINNING, Cut, check_flow, check_set, inconsistent
from recovery.planning.timeline import TimelinePart, timeline
from recovery.planning.values import FoundFile, PartitionDescription


def first_held(collected: Epoch) -> Epoch:
    """Return the oldest epoch whose row a partition keeps that has collected up to this epoch."""
    return max(collected, Epoch(1))


def is_without_gap(description: PartitionDescription) -> bool:
    """Return whether the description says of each held epoch, listed or not, who closed it."""
    first = description.epochs[0].epoch if description.epochs else Epoch(description.unlisted + 1)
    return description.unlisted in (0, first - first_held(description.collected))


def listed_from(description: PartitionDescription, since: Epoch) -> PartitionDescription:
    """Return the description with only the epochs from `since` on, and the newest, in its list. Returns it as it is if
    the earlier ones have gaps."""
    epochs = description.epochs
    kept = next((n for n, each in enumerate(epochs) if each.epoch >= since), len(epochs) - 1)
    if kept <= 0:
        return description
    shorter = replace(description, epochs=epochs[kept:], unlisted=description.unlisted + kept)
    return shorter if is_without_gap(shorter) else description


def unsettled_from(description: PartitionDescription) -> Epoch:
    """Return the epoch from which on a partition has to be described again to know what it holds by now: its oldest one
    that is only logged, else its newest. Earlier ones stay as they are until they are removed, or a key is erased."""
    return next((each.epoch for each in description.epochs if each.is_logged), description.newest_epoch)


def continued(before: PartitionDescription, now: PartitionDescription) -> PartitionDescription | None:
    """Return the description `now` with the epochs that it leaves out, which an earlier description has. None if the
    partition no longer holds what it held `before`. now: as of later, from `unsettled_from` of `before` on.

    A partition adds epochs at the end and removes them at the beginning, and going back replaces the newest."""
    if not now.unlisted:
        return now
    if (now.store_id, now.index, now.count) != (before.store_id, before.index, before.count):
        return None
    if now.erased_since(before) or before.newest is None or before.newest.cut not in {each.cut for each in now.epochs}:
        return None
    first, last = first_held(now.collected), now.epochs[0].epoch
    kept = tuple(each for each in before.epochs if first <= each.epoch < last)
    return replace(now, epochs=(*kept, *now.epochs), unlisted=0) if len(kept) == now.unlisted else None


def unlisted_parts(description: PartitionDescription) -> tuple[TimelinePart, ...]:
    """Return the epochs that the description holds and does not list, by the execution that closed them."""
    if not description.unlisted:
        return ()
    first, last = first_held(description.collected), Epoch(description.epochs[0].epoch - 1)
    parts = timeline(description.executions, description.newest)
    cut = [TimelinePart(p.execution, max(p.first, first), min(p.last, last)) for p in parts]
    return tuple(part for part in cut if part.first <= part.last)


def is_in(parts: Iterable[TimelinePart], cut: Cut) -> bool:
    """Return whether a snapshot is one of these unlisted epochs. Within an execution, an epoch has one micro-batch."""
    return any(part.first <= cut[0] <= part.last and part.execution.id == cut[1] for part in parts)


def unlisted(description: PartitionDescription) -> Iterator[tuple[Epoch, str]]:
    """Yield the epochs that the description holds and does not list, each with the id of its execution."""
    for part in unlisted_parts(description):
        for epoch in range(part.first, part.last + 1):
            yield Epoch(epoch), part.execution.id


def merged_spans(spans: Iterable[tuple[Epoch, Epoch]]) -> list[tuple[Epoch, Epoch]]:
    """Return the same epochs, each span with its first and its last one, in order and without overlaps."""
    found: list[tuple[Epoch, Epoch]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def differing(listed: PartitionDescription, found: PartitionDescription) -> bool:
    """Return whether a partition has other epochs than the list of its description, and those that it leaves out."""
    first = len(found.epochs) - len(listed.epochs)
    left_out, parts = found.epochs[:first], unlisted_parts(listed)
    return (
        first != listed.unlisted
        or [each.cut for each in found.epochs[first:]] != [each.cut for each in listed.epochs]
        or not all(is_in(parts, each.cut) for each in left_out)
    )


def holds(description: PartitionDescription, cut: Cut) -> bool:
    """Return whether the partition holds a snapshot, listed or not."""
    if cut == BEGINNING:
        return description.collected == NO_EPOCH
    # Whoever asks for a listed one asks for one of the newest.
    listed = next((each for each in reversed(description.epochs) if each.epoch <= cut[0]), None)
    return is_in(unlisted_parts(description), cut) if listed is None else listed.cut == cut


def newest_shared(partitions: Sequence[PartitionDescription]) -> Cut | None:
    """Return the newest snapshot that one partition lists and all hold; None if there is none. Looks at the newest
    epochs only, back to that snapshot."""
    latest_first = merge(*(reversed(d.epochs) for d in partitions), key=lambda closed: closed.epoch, reverse=True)
    shared = (closed.cut for closed in latest_first if all(holds(d, closed.cut) for d in partitions))
    # Epochs that no partition lists may be later than the beginning.
    begins = all(holds(d, BEGINNING) for d in partitions) and not all(d.unlisted for d in partitions)
    return next(shared, BEGINNING if begins else None)


def check_fit(found: Sequence[FoundFile]) -> tuple[PartitionDescription, ...]:
    """Return the partitions of one store, in order of their index, if they have a snapshot in common. Checks what
    `plan_resume` checks before it plans, at a cost that does not grow with the held epochs. Raises what it raises."""
    partitions = check_set(found)
    check_flow(partitions)
    if newest_shared(partitions) is None:
        raise inconsistent(partitions)
    return partitions
