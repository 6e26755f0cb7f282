"""Which epochs each execution closed, and which of them still count: a pure function of executions and epochs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from recovery.base.ids import Epoch, Lease
from recovery.planning.timeline import timeline
from recovery.planning.values import ClosedEpoch, Execution


@dataclass(frozen=True, slots=True)
class Lane:
    """One execution and the epochs that it closed, `first` to `last`; last < first when it closed none.

    lived: the last of them on the present timeline, first − 1 when none is; a later execution that went back
    abandoned those after it. rewound: the number of epochs that this execution went back.
    parent: the number of the execution that closed the epoch before its first; None at the beginning.
    """

    execution: Execution
    first: Epoch
    last: Epoch
    lived: Epoch
    rewound: int
    parent: int | None

    @property
    def abandoned(self) -> int:
        """The number of the execution's epochs that no longer count."""
        return self.last - max(self.lived, self.first - 1)


def lanes(executions: Sequence[Execution], closed: Iterable[tuple[int, int]], newest: ClosedEpoch | None) -> list[Lane]:
    """Return a lane for each execution, in the order of their numbers.

    closed: known pairs of execution number and epoch, from held snapshots and from measures; it may be incomplete.
    newest: the last snapshot of the present timeline; None: the beginning.
    """
    ordered = sorted(executions, key=lambda each: each.number)
    last: dict[int, int] = {}
    for number, epoch in closed:
        last[number] = max(last.get(number, 0), epoch)
    for before, after in itertools.pairwise(ordered):
        # The next execution starts at an epoch that this one reached.
        if after.resume_epoch > before.resume_epoch:
            last[before.number] = max(last.get(before.number, 0), after.resume_epoch - 1)
    if newest is not None:
        number = newest.execution.number
        last[number] = max(last.get(number, 0), newest.epoch)
    living: Mapping[Lease, Epoch] = {part.execution: part.last for part in timeline(ordered, newest)}
    made: list[Lane] = []
    reached = 0
    for execution in ordered:
        first = execution.resume_epoch
        end = Epoch(max(last.get(execution.number, 0), first - 1))
        # An execution that a rewind cut short may have closed epochs beyond its part of the timeline.
        lived = Epoch(min(end, living.get(execution.lease, Epoch(first - 1))))
        parent = next((lane.execution.number for lane in reversed(made) if lane.first <= first - 1 <= lane.last), None)
        made.append(Lane(execution, first, end, lived, max(0, reached - (first - 1)), parent))
        reached = end
    return made
