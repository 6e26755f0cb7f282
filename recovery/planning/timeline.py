"""Which execution closed which epochs of the timeline up to a snapshot: a pure function of the executions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recovery.base.ids import NO_EPOCH, Epoch, Lease
from recovery.planning.values import ClosedEpoch, Execution


@dataclass(frozen=True, slots=True)
class TimelinePart:
    """Epochs `first` to `last`, all closed by one execution."""

    execution: Lease
    first: Epoch
    last: Epoch


def timeline(executions: Sequence[Execution], snapshot: ClosedEpoch | None) -> tuple[TimelinePart, ...]:
    """Return the parts of the timeline up to `snapshot`, oldest first; empty when it is None, the beginning.

    `executions` come from any partition that holds the snapshot: it recorded every start before it. An execution
    abandons epochs from its resume epoch on, so an epoch belongs to the last execution that started at or below it.
    """
    return () if snapshot is None else timeline_to(executions, snapshot.execution.number, snapshot.epoch)


def timeline_to(executions: Sequence[Execution], number: int, epoch: Epoch) -> tuple[TimelinePart, ...]:
    """Return the parts of the timeline up to an epoch that the execution of this number closed, oldest first."""
    parts: list[TimelinePart] = []
    for execution in sorted(executions, key=lambda each: each.number):
        if execution.number <= number:
            parts = [part for part in parts if part.first < execution.resume_epoch]
            if parts:
                parts[-1] = TimelinePart(parts[-1].execution, parts[-1].first, Epoch(execution.resume_epoch - 1))
            parts.append(TimelinePart(execution.lease, execution.resume_epoch, epoch))
    return tuple(part for part in parts if part.first <= part.last)


def fork(one: Sequence[TimelinePart], other: Sequence[TimelinePart]) -> Epoch:
    """Return the newest epoch that two timelines share; 0 when they part at the beginning."""
    shared = NO_EPOCH
    for mine, theirs in zip(one, other, strict=False):
        if (mine.execution, mine.first) != (theirs.execution, theirs.first):
            break
        shared = min(mine.last, theirs.last)
        if mine.last != theirs.last:
            break
    return shared
