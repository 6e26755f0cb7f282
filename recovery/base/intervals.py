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
_SPARK_MS = {
    "microsecond": 0.001, "millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000,
    "week": 7 * 86_400_000,
}  # fmt: skip
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
            cause="It has too many digits, or the wrong unit.",
            remedy="Write it like 10, 0.5, 10s, 5m or 1h.",
        )
    return seconds


def duration_ms(text: str) -> int:
    """Return the milliseconds in a duration as Spark writes them, such as "5 minutes" or "1 hour 30 minutes", or as
    `parse_interval` does.

    Raises ConfigurationError. A month has no fixed length, and is refused.
    """
    words = text.strip().lower().removeprefix("interval ").split()
    pairs = list(zip(words[::2], words[1::2], strict=False))
    units = [_SPARK_MS.get(unit.removesuffix("s")) for _, unit in pairs]
    try:
        if len(words) % 2 or not words or None in units:
            return round(parse_interval(text) * 1000)
        return round(sum(float(number) * unit for (number, _), unit in zip(pairs, units, strict=True) if unit))
    except (ConfigurationError, ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"{text!r:.80} is not a duration",
            cause="A duration has numbers with units of fixed length.",
            remedy="Write it like '5 minutes', '1 hour 30 minutes' or '10s'.",
        ) from error


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
