"""The sources of a restored checkpoint, when the flow has other tick sources than the one that left it.

Spark knows sources by their place in the plan: see `recovery.checkpoint.position`. A step with timeouts brings a
source of ticks, whose offset means nothing after a restart. So the lines of ticks are put in and taken out as the flow
has them now, and the other sources keep theirs.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path

from recovery.checkpoint.position import HEADER_LINES, ONE_LINE_EACH, line_count, missing_entry
from recovery.checkpoint.restore import Restored
from recovery.checkpoint.rows import row_keys
from recovery.errors import SparkCheckpointError

NO_TICK = json.dumps({"tick_ms": 0})


@dataclass(frozen=True, slots=True)
class SourcePlaces:
    """The places in a plan where sources are read, in its order: which source it is, and whether it is one of ticks."""

    ids: tuple[int, ...]
    ticks: tuple[bool, ...]


def places_of(sources: Iterable[Hashable], ticks: Iterable[bool]) -> SourcePlaces:
    """The same from what stands in each place: sources that are equal are one, as Spark takes them."""
    seen: dict[Hashable, int] = {}
    return SourcePlaces(tuple(seen.setdefault(source, len(seen)) for source in sources), tuple(ticks))


def check_logs(restored: Restored, directory: Path, places: SourcePlaces) -> None:
    """Raises SparkCheckpointError when a source's log does not go as far as its offset."""
    if restored.batch is None:
        return
    if line_count(directory, restored.batch) != len(places.ids):
        # The flow reads other sources than before: what that means is Spark's to say.
        return
    missing = missing_entry(directory, restored.batch, places.ids)
    if missing is not None:
        raise SparkCheckpointError(
            f"{missing} is missing in the position after micro-batch {restored.batch}",
            cause="An earlier version of recovery did not keep it where the flow reads one source in two places.",
            remedy="Go back to an epoch that has it, by --resume-epoch, or begin anew: input could be passed over.",
        )


def fit_ticks(restored: Restored, directory: Path, places: SourcePlaces) -> Restored:
    """Make the checkpoint fit a flow that reads its sources in these places.

    Nothing is done when the others are not as many as before: what that means is Spark's to say.
    """
    if restored.batch is None:
        return restored
    ticks = places.ticks
    log = directory / "offsets" / str(restored.batch)
    lines = log.read_text().split("\n")
    if lines[0] != ONE_LINE_EACH:
        # There sources have names.
        return restored
    header, offsets = lines[:HEADER_LINES], lines[HEADER_LINES:]
    were = [_is_tick(line) for line in offsets]
    if were == list(ticks) or were.count(False) != list(ticks).count(False):
        return restored
    others = iter([line for line, tick in zip(offsets, were, strict=True) if not tick])
    text = "\n".join([*header, *(NO_TICK if tick else next(others) for tick in ticks)])
    for batch in (restored.batch, restored.batch - 1):
        if (directory / "offsets" / str(batch)).exists():
            (directory / "offsets" / str(batch)).write_text(text)
    # The others as they are known now; a source of ticks is one of its own.
    sources = iter([source for source, tick in zip(places.ids, ticks, strict=True) if not tick])
    before = places_of([-place - 1 if tick else next(sources) for place, tick in enumerate(were)], were)
    return _move(restored, directory / "sources", dict(zip(_others(before), _others(places), strict=True)))


def _move(restored: Restored, sources: Path, places: dict[int, int]) -> Restored:
    """Move what sources have logged to their new places. What the partitions hold of a source that moved, or of the one
    that had its place before, may be taken for another's of the same name: it is not held any more, and its rows are
    stale. That goes for sources that have logged nothing yet, too."""
    moved = {old: new for old, new in places.items() if old != new and (sources / str(old)).exists()}
    for old in moved:
        (sources / str(old)).rename(sources / f"{old}.moved")
    for old, new in moved.items():
        (sources / f"{old}.moved").rename(sources / str(new))
    taken = tuple(f"sources/{place}/" for pair in places.items() if pair[0] != pair[1] for place in pair)
    held = {path: file for path, file in restored.held.items() if not path.startswith(taken)}
    gone = {path: file for path, file in restored.held.items() if path not in held}
    stale = frozenset(key for path, file in gone.items() for key in row_keys(path, file))
    return Restored(restored.batch, held, stale)


def _others(places: SourcePlaces) -> list[int]:
    return [source for source, tick in zip(places.ids, places.ticks, strict=True) if not tick]


def _is_tick(line: str) -> bool:
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and found.keys() == {"tick_ms"}
