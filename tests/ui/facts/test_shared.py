"""What callers share: one reading at a time, and nobody waits longer than he may."""

from __future__ import annotations

import threading

import pytest

from recovery.base.clock import SystemClock
from recovery.ui.facts.shared import Shared
from tests.waiting import wait_until


class Source:
    """Something to read that takes as long as a test wants, and fails if it says so."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.reads = 0
        self.error: Exception | None = None
        self.is_fresh = True
        self.shared = Shared(self.read, lambda _: self.is_fresh, SystemClock(), 60.0)

    def read(self) -> list[int]:
        self.reads += 1
        assert self.goes_on.wait(30)
        if self.error is not None:
            raise self.error
        return [self.reads]


def test_callers_of_the_same_moment_share_a_reading():
    """A look that fails is shared, too, as an owner that is not reached takes long for each of them. A later
    caller reads again."""
    source, outcomes = Source(), []
    source.error = ValueError("broken")

    def ask() -> None:
        try:
            source.shared.get(30)
        except ValueError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for each in threads:
        each.start()
    # A caller that comes after the end of the reading would begin another one.
    wait_until(lambda: source.shared._reading is not None and source.shared._reading.waiting == 4)
    source.goes_on.set()
    for each in threads:
        each.join(30)
    assert (source.reads, len(outcomes)) == (1, 4)
    source.error = None
    assert source.shared.get(30) == [2]


def test_the_value_before_serves_while_the_next_is_read():
    """And a caller who cannot use it gets nothing. A fresh value is not read again."""
    source = Source()
    assert source.shared.get(0) is None
    source.goes_on.set()
    first = source.shared.get(30)
    assert source.shared.get(0) is first
    source.is_fresh = False
    source.goes_on.clear()
    assert source.shared.get(0) is first
    assert source.shared.get(0, first) is None
    source.goes_on.set()
    assert source.shared.get(30, first) == [2]
    assert source.reads == 2


def test_a_reading_that_does_not_end_keeps_one_thread():
    """However many ask meanwhile."""
    source = Source()
    for _ in range(5):
        assert source.shared.get(0) is None
        source.shared.begin()
    assert source.reads == 1
    assert source.shared.began_s is not None
    source.goes_on.set()
    assert source.shared.get(30) == [1]


def test_an_error_is_not_remembered():
    """The next caller reads again; one who cannot wait for that gets the error, not the value from before it."""
    source = Source()
    source.goes_on.set()
    first = source.shared.get(30)
    source.is_fresh, source.error = False, OSError("gone")
    with pytest.raises(OSError, match="gone"):
        source.shared.get(30)
    source.goes_on.clear()
    with pytest.raises(OSError, match="gone"):
        source.shared.get(0)
    source.error = None
    source.goes_on.set()
    assert source.shared.get(30) == [3]
    assert first == [1]
