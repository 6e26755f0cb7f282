"""How two JSON values differ, member by member."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from recovery.errors import ConfigurationError


class Absent:
    """The class of ABSENT, a value that is not there. JSON's null is a value."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


@dataclass(frozen=True, slots=True)
class Difference:
    """One member that differs. path: like `total`, `visits[2].page`; empty for the whole value. before, after: ABSENT
    for a member that is only in the other value."""

    path: str
    before: Any
    after: Any

    def as_json(self) -> dict[str, Any]:
        """Return the difference as JSON; a member that is absent has no entry."""
        sides = {"before": self.before, "after": self.after}
        return {"path": self.path, **{name: value for name, value in sides.items() if value is not ABSENT}}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What counts as equal. tolerance: by how much two floats may differ, absolutely or relatively. ignored: names of
    members that are not compared, at any depth. Raises ConfigurationError for a tolerance below 0, or without end."""

    tolerance: float = 0.0
    ignored: Collection[str] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < math.inf:
            raise ConfigurationError(
                f"{self.tolerance!r:.80} is not a tolerance", cause="", remedy="Give a number such as 0 or 1e-9."
            )

    def differences(self, before: Any, after: Any) -> list[Difference]:
        """Return the members that differ between two JSON values, in the order of the first. Lists of different lengths
        are one difference, and so are values that are nested too deeply to be compared by member."""
        try:
            return list(self._differences("", before, after))
        except RecursionError:
            return [Difference("", before, after)]

    def _differences(self, path: str, before: Any, after: Any) -> Iterator[Difference]:
        if isinstance(before, dict) and isinstance(after, dict):
            for name in dict.fromkeys([*before, *after]):
                if name not in self.ignored:
                    inner = f"{path}.{name}" if path else name
                    yield from self._differences(inner, before.get(name, ABSENT), after.get(name, ABSENT))
        elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
            for number, (one, other) in enumerate(zip(before, after, strict=True)):
                yield from self._differences(f"{path}[{number}]", one, other)
        elif not self._equal(before, after):
            yield Difference(path, before, after)

    def _equal(self, before: Any, after: Any) -> bool:
        # In Python True == 1; in JSON they differ.
        if not (_is_number(before) and _is_number(after)):
            return type(before) is type(after) and bool(before == after)
        if before == after or (before != before and after != after):
            return True
        if not self.tolerance or not (isinstance(before, float) or isinstance(after, float)):
            return False
        try:
            return math.isclose(before, after, rel_tol=self.tolerance, abs_tol=self.tolerance)
        except OverflowError:
            # A whole number beyond every float.
            return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
