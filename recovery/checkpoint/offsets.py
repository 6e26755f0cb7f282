"""Spark's log of offsets: where a micro-batch ends in each source. See `recovery.checkpoint.position`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from recovery.base.ids import BatchId
from recovery.checkpoint.position import HEADER_LINES, ONE_LINE_EACH
from recovery.checkpoint.source_places import SourcePlaces
from recovery.errors import RecoveryError

NOTHING_READ = "-"
"""Spark's line for a source that has no offset yet."""
NO_TICK = '{"tick_ms": 0}'


@dataclass(frozen=True, slots=True)
class OffsetLog:
    """A log of offsets: its header lines, and the offsets by line number, or by the name that begins the line."""

    header: tuple[str, ...]
    offsets: Mapping[str, str]

    @property
    def begun(self) -> set[str]:
        """The sources that have an offset."""
        return {label for label, offset in self.offsets.items() if offset != NOTHING_READ}

    @property
    def is_numbered(self) -> bool:
        """Whether each line begins with a name that identifies it."""
        return self.header[0] != ONE_LINE_EACH

    def to_bytes(self) -> bytes:
        """Return the offset's text as bytes."""
        lines = (f"{label}:{offset}" if self.is_numbered else offset for label, offset in self.offsets.items())
        return "\n".join([*self.header, *lines]).encode()


class DeltaOffset(msgspec.Struct):
    """A position in a Delta table. Behind the last file of a version, it names the next version with a negative
    index."""

    reservoirId: str  # noqa: N815 - Delta's name
    reservoirVersion: int  # noqa: N815
    index: int
    isStartingVersion: bool = False  # noqa: N815

    @property
    def read_up_to(self) -> int:
        """The version of which nothing was read, and all before were."""
        return self.reservoirVersion + (self.index >= 0 or self.isStartingVersion)


def delta_offset(text: str | None) -> DeltaOffset | None:
    """Return a position in a Delta table; None for another source's position, and without a position."""
    try:
        return msgspec.json.decode(text or "", type=DeltaOffset)
    except (ValueError, RecursionError, RecoveryError):
        return None


def read_offsets(checkpoint: Path, batch: BatchId) -> OffsetLog | None:
    """Return the log of offsets of a micro-batch; None when it does not exist."""
    try:
        return read_log((checkpoint / "offsets" / str(batch)).read_text())
    except FileNotFoundError:
        return None


def move_offsets(checkpoint: Path, batch: BatchId, places: SourcePlaces, to: Mapping[int, str]) -> None:
    """Put other offsets, by the places of their sources, in a restored checkpoint."""
    log = read_offsets(checkpoint, batch) if to else None
    if log is None:
        return
    known = labels(places, log)
    moved = replace(log, offsets={**log.offsets, **{known[place]: offset for place, offset in to.items()}})
    for each in (batch, batch - 1):
        path = checkpoint / "offsets" / str(each)
        if path.exists():
            path.write_bytes(moved.to_bytes())


def offset_at(log: OffsetLog | None, places: SourcePlaces, place: int) -> str | None:
    """Return the offset of the source in a place; None if it has read nothing yet."""
    if log is None:
        return None
    offset = log.offsets.get(labels(places, log)[place], NOTHING_READ)
    return None if offset == NOTHING_READ else offset


def read_log(text: str) -> OffsetLog:
    """Return the log of offsets that a file has as its text."""
    lines = text.split("\n")
    header, rest = tuple(lines[:HEADER_LINES]), lines[HEADER_LINES:]
    if header[0] == ONE_LINE_EACH:
        return OffsetLog(header, {str(number): line for number, line in enumerate(rest)})
    return OffsetLog(header, {label: offset for label, _, offset in (line.partition(":") for line in rest)})


def labels(places: SourcePlaces, log: OffsetLog) -> list[str]:
    """Return the label by which a log knows the source in each place."""
    if not log.is_numbered:
        return [str(place) for place in range(len(places.ids))]
    last = {source: place for place, source in enumerate(places.ids)}
    named = places.labels or (None,) * len(places.ids)
    return [name or str(last[source]) for source, name in zip(places.ids, named, strict=True)]


def ticking(places: SourcePlaces, log: OffsetLog) -> set[str]:
    """Return the labels of tick sources, whose offsets mean nothing after a restart."""
    return {label for label, tick in zip(labels(places, log), places.ticks, strict=True) if tick}


def is_tick(offset: str) -> bool:
    """Return whether an offset is one of a tick source."""
    try:
        found = msgspec.json.decode(offset)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.keys() == {"tick_ms"}
