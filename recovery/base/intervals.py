"""Parse and format intervals and triggers."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from recovery.errors import ConfigurationError

Interval = int | float | str | timedelta

AVAILABLE_NOW = "available-now"
"""The trigger of a run that ends with its input."""
_LETTERS = re.compile(r"[\s_-]+")
LONGEST_S = 1000 * 366 * 86400.0
_INTERVAL = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>ms|s|m|h|d)?", re.ASCII)
_SHOWN = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
_SECONDS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_interval(value: Interval) -> float:
    """Return the seconds in `value`: a number of seconds, a timedelta, or text such as "10", "0.5", "10s", "5m", "1h".

    Raises ConfigurationError for a negative or unreadable interval, or one longer than a thousand years, which is a
    mistake and too long for system clocks.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _unreadable(value)
    elif isinstance(value, str):
        match = _INTERVAL.fullmatch(value.strip())
        if match is None:
            raise _unreadable(value)
        seconds = float(match["number"]) * _SECONDS[match["unit"]]
    else:
        try:
            seconds = float(value)
        except OverflowError:
            raise _unreadable(value) from None
    if not math.isfinite(seconds) or seconds < 0:
        raise _unreadable(value)
    if seconds > LONGEST_S:
        raise ConfigurationError(
            f"{value!r:.80} is not an interval: it is longer than a thousand years",
            cause="It has a digit or a unit too many.",
            remedy="Write it like 10, 0.5, 10s, 5m or 1h.",
        )
    return seconds


def _unreadable(value: object) -> ConfigurationError:
    return ConfigurationError(
        f"{value!r:.80} is not an interval",
        cause="An interval is a number of seconds, not negative, or a number with a unit.",
        remedy="Write it like 10, 0.5, 10s, 5m or 1h.",
    )


def parse_trigger(value: str | Interval | None) -> str | float | None:
    """Return AVAILABLE_NOW, or the seconds between micro-batches; None: as fast as possible.

    Also accepts Spark's own names for a run to the end of the input, in any case: availableNow, once. Raises
    ConfigurationError.
    """
    if isinstance(value, str) and _LETTERS.sub("", value).lower() in ("availablenow", "once"):
        return AVAILABLE_NOW
    try:
        return None if value is None else parse_interval(value)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{value!r:.80} is not a trigger: {error.found}",
            cause="A trigger is available-now, once, or an interval between micro-batches.",
            remedy="Write available-now, or an interval like 0.5, 10s, 5m or 1h.",
        ) from error


def format_interval(seconds: float) -> str:
    """Format `seconds` for people: 0.5 s, 10 s, 5 min, 1.5 h, 2 d."""
    size, unit = next((each for each in _SHOWN if seconds >= each[0]), (1.0, "s"))
    number = seconds / size
    return f"{number:.3g} {unit}" if number < 1000 else f"{number:.0f} {unit}"
