"""Texts that do not sort in the order of the values that they spell."""

from __future__ import annotations

import pytest

from recovery import HighWaterMarkError, StateManager, StateValueError
from recovery.cli.hwm import parse_value
from recovery.operational.marks import is_future
from recovery.operational.text_order import disagreement, is_unordered


@pytest.mark.parametrize(
    "text",
    ["20-APR-24", "04-MAY-24", "20 April 2024", "Apr 20, 2024", "Sat, 20 Apr 2024 10:00:00 GMT", "20/04/2024",
     "4/20/24", "20.04.2024 10:00", "2024-4-20", "2024/04/2", "2024-04-20 09:00 PM", "24-04-20", "-5"],
)  # fmt: skip
def test_dates_and_numbers_out_of_order(text):
    """The parts of a date are not year, month, day; a number is below zero."""
    assert is_unordered(text)


@pytest.mark.parametrize(
    "text",
    ["2024-04-20", "2024-04-20T10:00:00Z", "2024/04/20 10:00", "20240420", "a", "order-17", "marketing-12", "mayor 5",
     "01HV5Y8Z6N", "550e8400-e29b-41d4-a716-446655440000", "may", "12", "1.5", ""],
)  # fmt: skip
def test_texts_in_order(text):
    """ISO dates, ids, words."""
    assert not is_unordered(text)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [("9", "10", True), ("09", "10", False), ("order-9", "order-10", True), ("a-9", "b-10", False), ("a", "ab", False),
     ("1.5", "10.5", True), ("2024-04-20", "2024-04-20T10:00:00", True), ("2024-04-20", "2024-05-01", False),
     ("2024-04-20T10:00:00Z", "2024-04-20T10:00:00.5Z", True),
     ("2024-04-20T10:00:00+01:00", "2024-04-20T10:00:00+02:00", True),
     ("2026-11-01T01:50:00-05:00[America/New_York]", "2026-11-01T01:55:00-04:00[America/New_York]", True),
     ("2026-11-01 01:50:00 -0500", "2026-11-01 01:55:00 -0400", True), ("2026-11-01 01-05", "2026-11-01 01-04", True),
     ("2026-11-01 01:50:00-05", "2026-11-01 01:55:00-05", False), ("2024-04-20", "2024-04-21", False),
     ("2024-04-20 10:00", "2024-04-21 11:30", False)],
)  # fmt: skip
def test_texts_beside_each_other(one, other, apart):
    """Numbers of one length, times of one form and one offset."""
    assert disagreement(one, other) is apart


def test_marks_are_not_set_to_such_texts(store_dir):
    """By hand neither, unless that is forced; nor to what is not a number."""
    state = StateManager(store_dir)
    for value in ("20-APR-24", "4/20/2024"):
        with pytest.raises(HighWaterMarkError, match="sort in another order than the values"):
            state.set_hwm("orders", value)
    state.set_hwm("orders", "9")
    with pytest.raises(HighWaterMarkError, match="'10' beside '9'"):
        state.set_hwm("orders", "10")
    state.set_hwm("orders", "10", force=True)
    for value in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(StateValueError, match="cannot be a high-water mark"):
            state.set_hwm("other", value)
    for word in ("NaN", "nan", "-Infinity", "inf"):
        with pytest.raises(StateValueError, match="cannot be a high-water mark"):
            parse_value(word)
    assert parse_value('"NaN"') == "NaN"


def test_marks_in_the_future():
    """A time to come, also as text; the day of today is none, wherever somebody is."""
    from datetime import UTC, date, datetime, timedelta

    now = datetime(2024, 5, 1, 12, tzinfo=UTC)
    assert is_future(now + timedelta(seconds=1), now)
    assert is_future(date(2024, 5, 3), now)
    assert is_future("9999-12-31", now)
    assert not any(is_future(each, now) for each in (now, date(2024, 5, 2), "2024-05-01", "text", 7, None))
