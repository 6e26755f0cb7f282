"""The names that a log rotation gives.

Known are a number or a date after the name or before its extension, and a few words: app.log.1,
app.log-20240101, app.log.2024-01-01_00, app-1.log, app.log.old.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_MARKER = re.compile(r"[-._](?:\d[\dTZ:+._-]*|old|prev|bak|orig)")
_CERTAIN = re.compile(r"\.\d+$|.(?:old|prev)$|.*\d{4}-?\d\d-?\d\d")


def bases(name: str) -> list[str]:
    """Return the names of files that a rotation may have renamed to `name`: app.log for app.log.1 and app-1.log."""
    return [before + after for before, _, after in _readings(name)]


def is_rotation_of(base: str, name: str) -> bool:
    """Return whether a rotation may have renamed `base` to `name`."""
    return base in bases(name)


def certain_bases(name: str) -> list[str]:
    """Return the names of which `name` is a generation, judged by the name alone: it has a date, or a number after a
    dot, or ends with old or prev. report-2.csv may be a file of its own, and app.log.bak a copy.
    """
    return [before + after for before, marker, after in _readings(name) if _CERTAIN.match(marker)]


def siblings_pattern(base: str, name: str) -> re.Pattern[str] | None:
    """Return a pattern for the names of all generations of `base`, of which `name` is one; None without a number."""
    for before, marker, after in _readings(name):
        if before + after == base and re.search(r"\d", marker):
            numbers = r"\d+".join(re.escape(text) for text in re.split(r"\d+", marker))
            return re.compile(re.escape(before) + numbers + re.escape(after))
    return None


def generation(base: str, name: str) -> tuple[int, ...]:
    """Return a sort key from older to younger generations: a small single number counts down, all else is a date."""
    for before, marker, after in _readings(name):
        if before + after == base:
            numbers = tuple(int(digits) for digits in re.findall(r"\d+", marker))
            return (-numbers[0],) if len(numbers) == 1 and numbers[0] < 1000 else numbers
    return ()


def _readings(name: str) -> Iterator[tuple[str, str, str]]:
    """Yield each split of a name into the old name's first part, the rotation's marker, and the old name's rest."""
    stem, dot, extension = name.rpartition(".")
    for text, after in ((name, ""), (stem, dot + extension)):
        for place in range(1, len(text)):
            if text[place] in "-._" and _MARKER.fullmatch(text, place):
                yield text[:place], text[place:], after
