"""Numbers and moments for people, in every output: counts with their nouns, times with their zone."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime


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
    """Return local time to the second with its offset from UTC, as `recovery restore --at` reads it."""
    return _local(wall_ms).isoformat(sep=" ", timespec="seconds")


def short_moment_text(wall_ms: int) -> str:
    """Return local time to the minute with its offset from UTC, without the year: Nov 26, 21:44 +01:00."""
    local = _local(wall_ms)
    offset = local.strftime("%z")
    return f"{local.strftime('%b %d, %H:%M')} {offset[:3]}:{offset[3:5]}"


def _local(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, tz=UTC).astimezone()
