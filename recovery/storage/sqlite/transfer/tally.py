"""How many rows each step has at each held epoch, and the sum of their digests: equal tallies mean equal states.

The digest of a row covers step, key, epoch, value and timeout. A tally is the sum over any number of partitions, so it
does not depend on how the keys are divided among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from recovery.storage.sqlite.digests import MODULUS, combine

Rows = tuple[int, int]
"""A number of rows, and the sum of their digests."""
Row = tuple[str, int, int, int, int]
"""A row of a query: step, epoch, and what SUM_SQL selects."""


@dataclass(frozen=True, slots=True)
class StepTally:
    """The rows of one step at one epoch. digest: the sum of their digests."""

    step: str
    epoch: int
    rows: int
    digest: int


@dataclass(slots=True)
class Tally:
    """By step and epoch: the rows that an epoch wrote, and those that it superseded. What was written before the first
    held epoch counts as written in it."""

    written: dict[tuple[str, int], Rows] = field(default_factory=dict)
    superseded: dict[tuple[str, int], Rows] = field(default_factory=dict)

    def wrote(self, found: Iterable[Row], sign: int = 1) -> None:
        """Add rows that were written; sign -1 takes them off."""
        _add(self.written, ((step, epoch, (sign * rows, sign * combine(*sums))) for step, epoch, rows, *sums in found))

    def ended(self, found: Iterable[Row]) -> None:
        """Add rows that were superseded, by the epoch that superseded them."""
        _add(self.superseded, ((step, epoch, (rows, combine(*sums))) for step, epoch, rows, *sums in found))

    def add(self, other: Tally) -> None:
        """Add what other partitions have."""
        for own, others in ((self.written, other.written), (self.superseded, other.superseded)):
            _add(own, ((step, epoch, rows) for (step, epoch), rows in others.items()))

    def steps(self) -> list[str]:
        """Return the steps, sorted."""
        return sorted({step for step, _ in self.written})

    def of(self, step: str, epochs: Iterable[int]) -> Iterator[StepTally]:
        """Yield the rows of a step at each of some epochs, which come in order."""
        changes = sorted([
            *((epoch, rows, digest) for (name, epoch), (rows, digest) in self.written.items() if name == step),
            *((epoch, -rows, -digest) for (name, epoch), (rows, digest) in self.superseded.items() if name == step),
        ], reverse=True)  # fmt: skip
        count = total = 0
        for epoch in epochs:
            while changes and changes[-1][0] <= epoch:
                _, rows, digest = changes.pop()
                count, total = count + rows, (total + digest) % MODULUS
            yield StepTally(step, epoch, count, total)

    def all(self, epochs: Iterable[int]) -> Iterator[Rows]:
        """Yield the rows of all steps together at each of some epochs, which come in order."""
        together = Tally(*({("", epoch): rows for epoch, rows in each.items()} for each in self.by_epoch()))
        yield from ((each.rows, each.digest) for each in together.of("", epochs))

    def by_epoch(self) -> tuple[dict[int, Rows], dict[int, Rows]]:
        """Return the rows of all steps that each epoch wrote, and those that it superseded."""
        return _of_all_steps(self.written), _of_all_steps(self.superseded)


def _of_all_steps(of_steps: Mapping[tuple[str, int], Rows]) -> dict[int, Rows]:
    found: dict[tuple[str, int], Rows] = {}
    _add(found, (("", epoch, rows) for (_, epoch), rows in of_steps.items()))
    return {epoch: rows for (_, epoch), rows in found.items()}


def _add(own: dict[tuple[str, int], Rows], others: Iterable[tuple[str, int, Rows]]) -> None:
    for step, epoch, (rows, digest) in others:
        before = own.get((step, epoch), (0, 0))
        after = before[0] + rows, (before[1] + digest) % MODULUS
        if after == (0, 0):
            own.pop((step, epoch), None)
        else:
            own[step, epoch] = after
