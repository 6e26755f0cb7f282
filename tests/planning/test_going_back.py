"""What a start gives up, and what it refuses to give up."""

from __future__ import annotations

import pytest

from recovery.errors import ConfigurationError, HistoryLossError, RewindRepeatedError
from recovery.planning.going_back import (
    Rewind,
    check_again,
    check_history,
    check_rewind,
    cut_of,
    discarded,
    kept_interval_s,
)
from recovery.planning.resume import plan_resume
from recovery.storage.scan import scan
from tests.backup.support import work


def plan(store, resume_epoch=None):
    """The plan of a directory in which three epochs were closed, and all are held."""
    return plan_resume(scan(store), resume_epoch=resume_epoch)


@pytest.fixture
def store(make_store):
    made = make_store(2)
    work(made, 3)
    return made


def test_what_a_rewind_discards(store):
    """Its epochs, their executions, their micro-batches; without a rewind nothing."""
    assert discarded(plan(store)) is None
    gone = discarded(plan(store, 2))
    assert (gone.first, gone.last, gone.executions) == (2, 3, (1,))
    assert gone.text(str).startswith("epochs 2 to 3 of execution 1, closed ")
    assert discarded(plan(store, 3)).text(str).startswith("epoch 3 of execution 1, closed ")
    assert discarded(plan(store, 1)).first == 1


def test_the_same_rewind_again_is_refused(store):
    """To the same snapshot, unless the execution that made it is named; to another one it is a new one."""
    again = plan(store, 2)
    made = [Rewind(cut_of(again), 5, 0), Rewind(cut_of(again), 7, 0)]
    for confirmed in (None, 5):
        with pytest.raises(RewindRepeatedError, match="execution 7 went back to after epoch 1 already"):
            check_rewind(again, made, confirmed, str)
    check_rewind(again, made, 7, str)
    check_rewind(plan(store, 3), made, None, str)
    check_rewind(plan(store), made, None, str)
    with pytest.raises(ConfigurationError, match="goes with"):
        check_again(None, 7)


def test_a_shorter_backup_interval_is_refused(store):
    """Where something is kept; a longer one, or none, is not."""
    kept_s = kept_interval_s(plan(store).partitions, None)
    check_history(plan(store), None, str)
    check_history(plan(store), kept_s + 1, str)
    if kept_s:
        with pytest.raises(HistoryLossError, match="before epoch 1 to 2"):
            check_history(plan(store), kept_s / 2, str)
    assert kept_interval_s((), None) == 0.0
    assert kept_interval_s(plan(store).partitions, 7.0) == 7.0
