"""Which epochs of which execution still count."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from recovery.base.ids import Lease
from recovery.planning.lanes import lanes
from recovery.planning.values import ClosedEpoch, Execution


def execution(number, resume_epoch):
    """An execution that started with an epoch."""
    return Execution(number, f"x{number}", "flow", resume_epoch, 0, 10.0, 0.0, "host", 1, "0")


def closed(epoch, number):
    """A snapshot that an execution closed."""
    return ClosedEpoch(epoch, Lease(number, f"x{number}"), epoch, 0, 0, 0, 0, 0, 0, 0)


def shape(found):
    """First, last, last that counts, parent."""
    return [(lane.first, lane.last, lane.lived, lane.parent) for lane in found]


def test_executions_that_continue():
    """Each begins where the one before ended; one closed nothing."""
    runs = [execution(1, 1), execution(2, 4), execution(3, 4)]
    found = lanes(runs, {(1, 3), (3, 6)}, closed(6, 3))
    assert shape(found) == [(1, 3, 3, None), (4, 3, 3, 1), (4, 6, 6, 1)]
    assert [lane.abandoned for lane in found] == [0, 0, 0]


def test_a_rewind_abandons():
    """Epochs 3 to 5 of the first count no more."""
    found = lanes([execution(1, 1), execution(2, 3)], {(1, 5), (2, 4)}, closed(4, 2))
    assert shape(found) == [(1, 5, 2, None), (3, 4, 4, 1)]
    assert (found[0].abandoned, found[1].rewound) == (3, 3)


def test_what_is_not_known_follows_from_who_came_next():
    """Without any measure, an execution closed at least what the next one started after."""
    found = lanes([execution(1, 1), execution(2, 8)], (), closed(9, 2))
    assert shape(found) == [(1, 7, 7, None), (8, 9, 9, 1)]


def test_nothing_yet():
    """No execution, or none that closed an epoch."""
    assert lanes([], (), None) == []
    assert shape(lanes([execution(1, 1)], (), None)) == [(1, 0, 0, None)]


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_every_history(seed, count):
    """Each epoch of the present timeline is counted by exactly the execution that closed it last; no other is."""
    dice = random.Random(seed)
    runs, facts, owner, newest = [], set(), {}, None
    for number in range(1, count + 1):
        resume = dice.randint(1, len(owner) + 1) if dice.random() < 0.4 else len(owner) + 1
        runs.append(execution(number, resume))
        owner = {epoch: who for epoch, who in owner.items() if epoch < resume}
        for epoch in range(resume, resume + dice.randint(0, 4)):
            owner[epoch] = number
            facts.add((number, epoch))
        newest = closed(len(owner), owner[len(owner)]) if owner else None
    found = lanes(runs, facts, newest)
    counted = {epoch: lane.execution.number for lane in found for epoch in range(lane.first, lane.lived + 1)}
    assert counted == owner
    assert sum(lane.abandoned for lane in found) == len(facts) - len(owner)
    made = {(lane.execution.number, epoch) for lane in found for epoch in range(lane.first, lane.last + 1)}
    assert made == facts
