"""How much input the newest closed epoch lacks: pure functions of what was seen of each source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from recovery.base.untrusted_json import MOST, Count, Moment, Real
from recovery.base.wording import counted

MOST_SAMPLES = 64
"""The number of looks at a part that are remembered. Beyond it every second one is forgotten: a lag then seems shorter
than it is, by less than the time between two looks that stayed."""
SHOWN = 3
"""The number of sources that a line about a micro-batch names."""
MOST_SOURCES = 100
"""The number of sources that a note names: those that lack most."""

LAG_ADVICE = {
    "source-lag": "The flow reads more slowly than its input comes: give it more cores, and larger micro-batches if a "
    "limit cuts them (maxOffsetsPerTrigger, maxFilesPerTrigger, maxBytesPerTrigger).",
}
"""What to do about a target of this module."""


@dataclass(frozen=True, slots=True)
class PartLag:
    """One part of a source, as a look found it.

    source: the brokers of a topic, or the path or name of a table or of files. topic, partition: Kafka's; empty for
    other sources. unit: of `behind`, in the singular. read, end: marks that never fall, of what the epoch has read and
    of what is there. behind: how much lies between.
    """

    source: str
    topic: str
    partition: str
    unit: str
    read: int
    end: int
    behind: int

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the part's metric."""
        return {"source": self.source, "topic": self.topic, "partition": self.partition, "unit": self.unit}


class SourceLag(msgspec.Struct, frozen=True, kw_only=True):
    """How much the newest epoch lacks of one topic, table, or path of files.

    seconds: how long ago input was seen that the epoch still lacks; 0: no look before the newest one has seen any.
    parts: the number of partitions of a topic. most, most_behind: the partition that is furthest behind, and how far.
    """

    source: str
    topic: str = ""
    unit: str
    behind: Count
    seconds: Real = 0.0
    parts: Count = 1
    most: str = ""
    most_behind: Count = 0

    @property
    def name(self) -> str:
        """The topic, path or table."""
        return self.topic or self.source

    def __str__(self) -> str:
        return f"{self.name} {counted(self.behind, self.unit)}"


class InputLag(msgspec.Struct, frozen=True, kw_only=True):
    """What an epoch lacked of the input when a run last looked, at `seen_ms` (wall time).

    group: the consumer group that shows the epoch's offsets to tools of Kafka; None: none does. problem: why the group
    does not show them; None: it does.
    """

    execution: Count
    epoch: Annotated[int, msgspec.Meta(ge=0, le=MOST)]
    seen_ms: Moment
    sources: tuple[SourceLag, ...] = ()
    group: str | None = None
    problem: str | None = None

    @property
    def seconds(self) -> float | None:
        """The longest lag of a source; None: no source says how much there is."""
        return max((each.seconds for each in self.sources), default=None)

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        facts: dict[str, Any] = msgspec.to_builtins(self)
        return {**facts, "seconds": self.seconds}


def growth(before: InputLag | None, now: InputLag) -> str:
    """Return the sources that lack more than at the look before, and how much, as text; empty if none does,
    and for the first look."""
    if before is None:
        return ""
    known = {(each.source, each.topic): each.behind for each in before.sources}
    grown = [each for each in now.sources if each.behind > known.get((each.source, each.topic), 0)]
    return ", ".join(map(str, sorted(grown, key=lambda each: -each.behind)[:SHOWN]))


def together(parts: Iterable[PartLag]) -> tuple[PartLag, ...]:
    """Return each part once. A part that is read in several places has read as much as the place that lacks most."""
    found: dict[tuple[str, str, str], PartLag] = {}
    for each in parts:
        key = each.source, each.topic, each.partition
        if key not in found or each.behind > found[key].behind:
            found[key] = each
    return tuple(found.values())


@dataclass
class LagHistory:
    """The looks of one run at its sources, as far as they matter: when input was first seen that is still lacking."""

    _seen: dict[tuple[str, str], list[tuple[float, Mapping[str, int]]]] = field(default_factory=dict)

    def add(self, parts: Sequence[PartLag], now_s: float) -> tuple[SourceLag, ...]:
        """Take a look at `now_s`, and return the lag of each source, the largest first."""
        sources: dict[tuple[str, str], list[PartLag]] = {}
        for each in parts:
            sources.setdefault((each.source, each.topic), []).append(each)
        # A source that has not answered still lacks what was seen of it before.
        answered = {source for source, _ in sources}
        self._seen = {key: looks for key, looks in self._seen.items() if key in sources or key[0] not in answered}
        found = [_summed(of, self._since(key, of, now_s)) for key, of in sources.items()]
        return tuple(sorted(found, key=lambda each: (-each.seconds, -each.behind, each.name)))[:MOST_SOURCES]

    def _since(self, key: tuple[str, str], parts: Sequence[PartLag], now_s: float) -> float:
        read = {each.partition: each.read for each in parts}
        looks = self._seen.setdefault(key, [])
        while looks and all(end <= read.get(part, end) for part, end in looks[0][1].items()):
            looks.pop(0)
        looks.append((now_s, {each.partition: each.end for each in parts}))
        if len(looks) > MOST_SAMPLES:
            # The oldest one says since when.
            del looks[1::2]
        return max(0.0, now_s - looks[0][0])


def _summed(parts: Sequence[PartLag], seconds: float) -> SourceLag:
    most = max(parts, key=lambda each: each.behind)
    return SourceLag(
        source=most.source,
        topic=most.topic,
        unit=most.unit,
        behind=sum(each.behind for each in parts),
        seconds=seconds,
        parts=len(parts),
        most=most.partition,
        most_behind=most.behind,
    )
