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
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_PART = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z]+)", re.ASCII)
_QUOTED = re.compile(rf"'\s*({_NUMBER})\s*'", re.ASCII)
_BARE = re.compile(_NUMBER, re.ASCII)
_ISO = re.compile(
    r"P(?=.)(?:(\d+)W)?(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII | re.I
)
_ISO_S = (7 * 86400.0, 86400.0, 3600.0, 60.0, 1.0)
_SHOWN = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
_LETTERS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_WORDS_S = {
    "microsecond": 1e-6, "millisecond": 0.001, "second": 1.0, "sec": 1.0, "minute": 60.0, "min": 60.0, "hour": 3600.0,
    "hr": 3600.0, "day": 86400.0, "week": 7 * 86400.0,
}  # fmt: skip
_WRITE = "Write it like 10s, 5m, 1h, '5 minutes' or '1 hour 30 minutes'."


def parse_interval(value: Interval) -> float:
    """Return the seconds in `value`: a number of seconds, a timedelta, or a text: numbers with units, or one number of
    seconds.

    Units are ms, s, m, h, d and w, and words as Spark has them, in the singular or plural: "10s", "0.5 h", "1h30m",
    "5 minutes", "1 hour 30 min". The forms of ISO 8601 and of Spark's SQL are read too: "PT10S", "INTERVAL '10'
    SECOND". Raises ConfigurationError for a negative or unreadable interval, for months and years, which have no fixed
    length, and for more than a thousand years, which is a mistake and too long for system clocks.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _unreadable(value)
    elif isinstance(value, str):
        seconds = float(value) if _BARE.fullmatch(value.strip()) else _parts(value)
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
            cause="The number has too many digits, or the wrong unit.",
            remedy=_WRITE,
        )
    return seconds


def bare(value: Interval) -> int | float | None:
    """Return the number that an interval without a unit is; None for an interval with a unit, or an unreadable one."""
    if isinstance(value, str):
        text = value.strip()
        return (
            None if _BARE.fullmatch(text) is None else int(text) if text.isdigit() and len(text) < 16 else float(text)
        )
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def duration_ms(value: str | timedelta) -> int:
    """Return the milliseconds in an interval that has a unit, at least one for an interval above zero.

    Raises ConfigurationError, also for a number without a unit: beside an argument in milliseconds its unit is unclear.
    """
    if bare(value) is not None:
        raise ConfigurationError(
            f"{value!r:.80} has no unit", cause="As a number it would be milliseconds.", remedy=_WRITE
        )
    seconds = parse_interval(value)
    return max(1, round(seconds * 1000)) if seconds else 0


def _parts(text: str) -> float:
    """Return the seconds in numbers with units."""
    rest, seconds = text.strip(), 0.0
    iso = _ISO.fullmatch(rest)
    if iso is not None:
        return sum(float(number) * size for number, size in zip(iso.groups(), _ISO_S, strict=True) if number)
    if rest[:9].lower() == "interval ":
        rest = _QUOTED.sub(r"\1", rest[9:].strip())
    seen: set[float] = set()
    while rest:
        part = _PART.match(rest)
        unit_s = None if part is None else _LETTERS_S.get(part[2]) or _WORDS_S.get(part[2].lower().removesuffix("s"))
        if part is None or unit_s is None or unit_s in seen:
            raise _unreadable(text)
        seconds += float(part[1]) * unit_s
        seen.add(unit_s)
        rest = rest[part.end() :].strip()
    if not seen:
        raise _unreadable(text)
    return seconds


def _unreadable(value: object) -> ConfigurationError:
    return ConfigurationError(
        f"{value!r:.80} is not an interval",
        cause="An interval is not negative; each number has a unit of fixed length, not months or years; one number "
        "without a unit is seconds.",
        remedy=_WRITE,
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
            remedy="Write available-now, or an interval like 0.5, 10s, 5m or '1 minute'.",
        ) from error


def format_interval(seconds: float) -> str:
    """Format `seconds` for people: 0.5 s, 10 s, 5 min, 1.5 h, 2 d."""
    size, unit = next((each for each in _SHOWN if seconds >= each[0]), (1.0, "s"))
    number = seconds / size
    return f"{number:.3g} {unit}" if number < 1000 else f"{number:.0f} {unit}"
