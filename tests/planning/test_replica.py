"""How far a replica is behind, and how long to wait after failures."""

from __future__ import annotations

from recovery.base.ids import BatchId, Epoch, ExecutionNumber, Lease
from recovery.planning.replica import NO_LAG, NOTHING, ReplicaLag, Shipped, lag_of, pause_s
from recovery.planning.values import ClosedEpoch


def closed(execution: int, epoch: int) -> ClosedEpoch:
    """An epoch that was closed at a tenth of its number of seconds."""
    lease = Lease(ExecutionNumber(execution), f"id{execution}")
    return ClosedEpoch(Epoch(epoch), lease, BatchId(epoch), epoch * 100, epoch * 100, 0, 0, 0, 0, 0)


def test_epochs_after_the_shipped_one():
    """Their number, and the age of the oldest."""
    epochs = [closed(1, number) for number in range(1, 8)]
    assert lag_of(epochs, Shipped(Epoch(5), 1), 1600) == ReplicaLag(2, 1.0)
    assert lag_of(epochs, Shipped(Epoch(7), 1), 1600) == NO_LAG
    assert lag_of(epochs, NOTHING, 1600) == ReplicaLag(7, 1.5)
    assert lag_of([], NOTHING, 1600) == NO_LAG


def test_after_a_rewind_lower_numbers_are_newer():
    """The replica still has what was abandoned."""
    epochs = [closed(1, 4), closed(1, 5), closed(2, 6), closed(2, 7)]
    assert lag_of(epochs, Shipped(Epoch(9), 1), 1600).epochs == 2
    assert lag_of(epochs, Shipped(Epoch(6), 2), 1600).epochs == 1


def test_a_clock_that_was_set_back_makes_no_lag_of_nothing():
    """The epoch is older than it says: by how much is not known, unless it is less than two clocks differ."""
    assert lag_of([closed(1, 9)], NOTHING, 5) == ReplicaLag(1, 0.0)
    assert lag_of([closed(1, 9)], NOTHING, closed(1, 9).closed_ms - 3_600_000) == ReplicaLag(1, -3600.0)


def test_pauses_double_up_to_a_minute():
    """However often it fails."""
    assert [pause_s(failures) for failures in (0, 1, 2, 3, 7, 10_000)] == [0, 1, 2, 4, 60, 60]
