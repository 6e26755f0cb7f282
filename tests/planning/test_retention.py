"""Which epoch may be collected up to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recovery.planning.retention import collection_floor, shared_history
from tests.planning.test_resume import Sketch, describe

CLOSED = st.lists(st.integers(0, 50), max_size=8).map(
    lambda gaps: [(epoch, sum(gaps[:epoch])) for epoch in range(1, len(gaps) + 1)]
)


@given(closed=CLOSED, now=st.integers(0, 500), interval=st.floats(0, 500))
def test_the_floor_is_the_newest_epoch_that_was_closed_an_interval_ago(closed, now, interval):
    """Every epoch after the floor is younger than the backup interval; the floor itself is not."""
    floor = collection_floor(closed, now, interval)
    assert floor == 0 or dict(closed)[floor] <= now - interval
    assert all(at > now - interval for epoch, at in closed if epoch > floor)


@given(closed=CLOSED, now=st.integers(0, 500), later=st.integers(0, 100), interval=st.floats(0, 500))
def test_the_floor_never_goes_down_as_time_passes(closed, now, later, interval):
    """What was collected once need not be kept again."""
    assert collection_floor(closed, now + later, interval) >= collection_floor(closed, now, interval)


def test_without_an_interval_only_the_newest_epoch_is_kept():
    """An epoch that all partitions have closed makes every older one unnecessary immediately."""
    assert collection_floor([(1, 10), (2, 20), (3, 30)], 30, 0) == 3


def test_nothing_is_collected_before_the_interval_has_passed():
    """Two copies of different age, less than the interval apart, still share an epoch."""
    closed = [(epoch, epoch * 10) for epoch in range(1, 11)]
    assert collection_floor(closed, 100, 100) == 0
    assert collection_floor(closed, 100, 99) == 0
    assert collection_floor(closed, 100, 90) == 1
    assert collection_floor(closed, 100, 25) == 7
    assert collection_floor([], 100, 0) == 0


@given(closed=CLOSED, interval=st.integers(0, 100), ages=st.tuples(st.integers(0, 100), st.integers(0, 100)))
def test_copies_within_the_interval_share_an_epoch(closed, interval, ages):
    """Of two files copied at most an interval apart, the later still holds the newest epoch of the earlier."""
    if not closed:
        return
    first = ages[0]
    second = first + min(ages[1], interval)
    held_by_first = [epoch for epoch, at in closed if at <= first]
    collected_by_second = collection_floor([(e, at) for e, at in closed if at <= second], second, interval)
    assert max(held_by_first, default=0) >= collected_by_second


def test_an_epoch_is_as_old_as_its_last_partition():
    """Epochs age from the moment the last partition had closed them; those not shared have no age at all."""
    partitions = [
        describe(Sketch(0, epochs={1: "x", 2: "x", 3: "x"}, clock_ms={1: 10, 2: 20, 3: 30})),
        describe(Sketch(1, epochs={1: "x", 2: "x"}, clock_ms={1: 11, 2: 19})),
    ]
    assert shared_history(partitions, [1, 2]) == [(1, 11), (2, 20)]
    assert shared_history(partitions, []) == []
