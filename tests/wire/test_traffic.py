"""Counts of an owner's connections."""

from __future__ import annotations

from recovery.wire import traffic
from recovery.wire.traffic import CallTimes, Repeats


def test_percentiles_are_of_the_newest_calls(monkeypatch):
    times = CallTimes()
    assert times.percentiles(0.5, 0.99) == [None, None]
    times.add(9.0)
    assert times.percentiles(0.5, 0.99) == [9.0, 9.0]
    for number in range(traffic.NEWEST):
        times.add(float(number))
    assert times.percentiles(0.0, 0.5, 0.99, 1.0) == [0.0, 500.0, 990.0, 999.0]


def test_a_text_comes_through_once_in_a_while(monkeypatch):
    """The next time it says how often it was kept back; others are not kept back, and do not fill the memory."""
    now = [0.0]
    monkeypatch.setattr(traffic.time, "monotonic", lambda: now[0])
    repeats = Repeats()
    assert [repeats("a"), repeats("a"), repeats("b"), repeats("a")] == ["a", None, "b", None]
    now[0] += traffic.QUIET_S
    assert [repeats("a"), repeats("a")] == ["a (and 2 times before)", None]


def test_many_different_texts_fill_no_log(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(traffic.time, "monotonic", lambda: now[0])
    repeats = Repeats()
    for minute in range(1, 4):
        said = [each for number in range(1000) if (each := repeats(f"text {number}")) is not None]
        assert len(said) == len(repeats._said) == traffic.MOST_TEXTS, minute
        now[0] += traffic.QUIET_S
