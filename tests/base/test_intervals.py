"""Intervals and triggers as users write them, and as people read them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from recovery.base.intervals import (
    AVAILABLE_NOW,
    LONGEST_S,
    duration_ms,
    format_interval,
    parse_interval,
    parse_trigger,
)
from recovery.errors import ConfigurationError


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(0, 0), (2, 2), (0.5, 0.5), ("10", 10), (".5", 0.5), ("1.", 1), (" 250 ms ", 0.25), ("10s", 10), ("5m", 300),
     ("1.5 h", 5400), ("2d", 172800), (timedelta(minutes=1), 60), (LONGEST_S, LONGEST_S), ("1w", 604800),
     ("10 seconds", 10), ("5min", 300), ("1 Minute", 60), ("1 hour 30 minutes", 5400), ("1h30m", 5400),
     ("INTERVAL 2 DAYS", 172800), ("3 hrs", 10800), ("10 secs", 10), ("250 milliseconds", 0.25),
     ("PT10S", 10), ("PT1H30M", 5400), ("P1DT0.5S", 86400.5), ("P2W", 1209600), ("pt5m", 300),
     ("INTERVAL '10' SECOND", 10), ("interval '1' hour '30' minutes", 5400)],
)  # fmt: skip
def test_seconds(value, seconds):
    assert parse_interval(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    ["", "s", "-1", "1 x", "1H", "1M", "1 month", "1 year", "1e3", "1s 2s", "5 minutes 3",
     "interval", "1 min -5 s", "٣", "P", "PT", "P1M", "P1Y", "PT1S1S", "'10' SECOND",
     "00:00:10", "1,5s", "nan", -1, -0.5, float("nan"), float("inf"), 10**400, True, None,
     [1], timedelta(seconds=-1), LONGEST_S + 1, "9" * 400],
    ids=lambda value: f"{value!r:.20}",
)  # fmt: skip
def test_what_is_no_interval(value):
    with pytest.raises(ConfigurationError, match="is not an interval"):
        parse_interval(value)


def test_milliseconds():
    """Beside an argument in milliseconds, an interval has a unit."""
    assert [duration_ms(value) for value in ("5min", "1 microsecond", "0s", timedelta(minutes=5))] == [
        300_000,
        1,
        0,
        300_000,
    ]
    for value in ("5000", " 10 ", 5):
        with pytest.raises(ConfigurationError, match="has no unit"):
            duration_ms(value)


@pytest.mark.parametrize("value", ["available-now", "availableNow", "AVAILABLE_NOW", "once"])
def test_to_the_end_of_the_input(value):
    """By our name and by Spark's, in any case."""
    assert parse_trigger(value) == AVAILABLE_NOW


def test_triggers():
    assert parse_trigger(None) is None
    assert parse_trigger("2m") == 120
    with pytest.raises(ConfigurationError, match="'now' is not a trigger: 'now' is not an interval"):
        parse_trigger("now")


def test_the_text_for_people():
    given = (0.5, 10, 59.96, 60, 300, 5400, 172800, 86400 * 1234)
    shown = ["0.5 s", "10 s", "60 s", "1 min", "5 min", "1.5 h", "2 d", "1234 d"]
    assert [format_interval(seconds) for seconds in given] == shown
