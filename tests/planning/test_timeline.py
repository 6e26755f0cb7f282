"""Which execution closed which epochs: by hand, and against a plain replay of the history."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from recovery.planning.timeline import TimelinePart, fork, timeline
from recovery.planning.values import ClosedEpoch, Execution

HISTORIES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=8)


def execution(number: int, resume_epoch: int) -> Execution:
    return Execution(number, f"id{number}", "flow", resume_epoch, 0, 10.0, 0.0, "host", 1, "0")


def snapshot(epoch: int, closed_by: Execution) -> ClosedEpoch:
    return ClosedEpoch(epoch, closed_by.lease, epoch, 0, 0, 0, 0, 0, 0, 0)


def test_the_beginning_has_no_timeline():
    """Executions that closed nothing leave none."""
    assert timeline([execution(1, 1)], None) == ()


def test_a_rewind_cuts_what_it_abandons():
    """Execution 2 went back to epoch 3, so 3 and 4 are its own, and execution 1 keeps the first two."""
    first, second = execution(1, 1), execution(2, 3)
    parts = (TimelinePart(first.lease, 1, 2), TimelinePart(second.lease, 3, 4))
    assert timeline([second, first], snapshot(4, second)) == parts


def test_later_executions_do_not_count():
    """Going back to a snapshot of execution 1 leaves out those that came after it."""
    first, second = execution(1, 1), execution(2, 3)
    assert timeline([first, second], snapshot(2, first)) == (TimelinePart(first.lease, 1, 2),)


@given(HISTORIES)
def test_any_history(steps):
    """Each step goes back some epochs and closes some: every epoch that is left is of the execution that closed it."""
    closed: list[Execution] = []
    executions = []
    for number, (back, forward) in enumerate(steps, 1):
        del closed[max(0, len(closed) - back) :]
        executions.append(execution(number, len(closed) + 1))
        closed += [executions[-1]] * forward
        found = timeline(executions, snapshot(len(closed), closed[-1]) if closed else None)
        spread = [part.execution for part in found for _ in range(part.first, part.last + 1)]
        assert spread == [each.lease for each in closed]


@given(HISTORIES, HISTORIES, HISTORIES)
def test_where_two_timelines_part(shared, one, other):
    """Two stores that were one for a time share the epochs that neither went back behind, and no others."""

    def replay(steps, closed, executions, branch):
        for back, forward in steps:
            del closed[max(0, len(closed) - back) :]
            number = len(executions) + 1
            executions.append(replace(execution(number, len(closed) + 1), id=f"{branch}{number}"))
            closed += [(executions[-1].id, len(closed) + 1 + each) for each in range(forward)]

    def ends(closed, executions):
        by_id = {each.id: each for each in executions}
        return timeline(executions, snapshot(len(closed), by_id[closed[-1][0]]) if closed else None)

    trunk, starts = [], []
    replay(shared, trunk, starts, "")
    branches = []
    for name, steps in (("a", one), ("b", other)):
        closed, executions = list(trunk), list(starts)
        replay(steps, closed, executions, name)
        branches.append((closed, executions))
    common = sum(1 for mine, theirs in zip(branches[0][0], branches[1][0], strict=False) if mine == theirs)
    assert fork(ends(*branches[0]), ends(*branches[1])) == common
