"""What each execution closed, and what of it still counts: a pure function of executions and epochs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from recovery.base.ids import Epoch, Lease
from recovery.planning.timeline import timeline
from recovery.planning.values import ClosedEpoch, Execution


@dataclass(frozen=True, slots=True)
class Lane:
    """One execution: the epochs that it closed, `first` to `last`; last < first when there is none.

    lived: the last of them that belongs to the present timeline, first − 1 when none does; those after it were
    abandoned by a later execution that went back. rewound: how many epochs this execution went back over.
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
        """How many of its epochs count no more."""
        return self.last - max(self.lived, self.first - 1)


def lanes(executions: Sequence[Execution], closed: Iterable[tuple[int, int]], newest: ClosedEpoch | None) -> list[Lane]:
    """A lane for each execution, in the order of their numbers.

    closed: pairs of execution number and epoch that are known of, from snapshots that are held and from measures; not
    all need be there. newest: the snapshot that the present timeline ends with; None: the beginning.
    """
    ordered = sorted(executions, key=lambda each: each.number)
    last: dict[int, int] = {}
    for number, epoch in closed:
        last[number] = max(last.get(number, 0), epoch)
    for before, after in itertools.pairwise(ordered):
        # Whoever comes next starts at an epoch that was reached.
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
        # Later epochs of a longer future may be those of an execution that went on beyond a rewind.
        lived = Epoch(min(end, living.get(execution.lease, Epoch(first - 1))))
        parent = next((lane.execution.number for lane in reversed(made) if lane.first <= first - 1 <= lane.last), None)
        made.append(Lane(execution, first, end, lived, max(0, reached - (first - 1)), parent))
        reached = end
    return made
