"""Numbers, moments and ages for people, in every output: counts with their nouns, times with their zone, and ages of
what a clock has dated that may be ahead: that of another host, or this host's before somebody set it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from recovery.base.intervals import format_interval

AHEAD_MS = 60_000
"""A moment that is further ahead of this host's clock was dated by a clock that is ahead; or this host's is behind."""


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: 1 row, 1,234 rows. many: the plural, unless it is `one` with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def were(count: int, one: str, many: str | None = None) -> str:
    """Return a count as a subject with its verb: 1 row was, 2 rows were."""
    return f"{counted(count, one, many)} {'was' if count == 1 else 'were'}"


def listed(numbers: Iterable[int]) -> str:
    """Return numbers in order, consecutive ones as a span: 1 to 3, 7."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]} to {span[-1]}" for span in spans)


def moment_text(wall_ms: int) -> str:
    """Return local time to the second with its offset from UTC, as `recovery restore --timestamp` reads it."""
    return _local(wall_ms).isoformat(sep=" ", timespec="seconds")


def short_moment_text(wall_ms: int) -> str:
    """Return local time to the minute with its offset from UTC, without the year: Nov 26, 21:44 +01:00."""
    local = _local(wall_ms)
    offset = local.strftime("%z")
    return f"{local.strftime('%b %d, %H:%M')} {offset[:3]}:{offset[3:5]}"


def age_s(then_ms: int, now_ms: int) -> float:
    """Return the seconds since a moment; negative for a moment more than `AHEAD_MS` ahead, whose age is not known. A
    moment that is less far ahead is now: two clocks are never quite the same."""
    age_ms = now_ms - then_ms
    return age_ms / 1000 if age_ms < -AHEAD_MS else max(0, age_ms) / 1000


def ahead_s(then_ms: int, now_ms: int) -> float:
    """Return how far a moment is ahead of this host's clock; 0 for one that is not more than `AHEAD_MS` ahead."""
    return max(0.0, -age_s(then_ms, now_ms))


def ago(seconds: float) -> str:
    """Return an `age_s` as text for people, after a verb or a moment: 5 min ago, 1 h ahead of this host's clock."""
    return ahead_text(seconds) if seconds < 0 else f"{format_interval(round(seconds))} ago"


def ahead_text(seconds: float) -> str:
    """Return a negative `age_s` as text for people: 1 h ahead of this host's clock."""
    return f"{format_interval(round(-seconds))} ahead of this host's clock"


def _local(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, tz=UTC).astimezone()
