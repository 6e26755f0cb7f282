"""The sources of a restored checkpoint, when the flow has other tick sources than the one that left it.

Spark knows sources by their place in the plan: the log of offsets has a line for each, and what a source logs besides
is in `sources/<place>`. A step with timeouts brings a source of ticks, whose offset means nothing after a restart.
So the lines of ticks are put in and taken out as the flow has them now, and the other sources keep theirs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from recovery.checkpoint.restore import Restored
from recovery.checkpoint.rows import row_keys

HEADER_LINES = 2
NO_TICK = json.dumps({"tick_ms": 0})


def fit_ticks(restored: Restored, directory: Path, ticks: Sequence[bool]) -> Restored:
    """Make the checkpoint fit a flow whose sources, in the order of the plan, are ticks or others.

    Nothing is done when the others are not as many as before: what that means is Spark's to say.
    """
    if restored.batch is None:
        return restored
    log = directory / "offsets" / str(restored.batch)
    lines = log.read_text().split("\n")
    header, offsets = lines[:HEADER_LINES], lines[HEADER_LINES:]
    were = [_is_tick(line) for line in offsets]
    if were == list(ticks) or were.count(False) != list(ticks).count(False):
        return restored
    others = iter([line for line, tick in zip(offsets, were, strict=True) if not tick])
    text = "\n".join([*header, *(NO_TICK if tick else next(others) for tick in ticks)])
    for batch in (restored.batch, restored.batch - 1):
        if (directory / "offsets" / str(batch)).exists():
            (directory / "offsets" / str(batch)).write_text(text)
    return _move(restored, directory / "sources", dict(zip(_others(were), _others(ticks), strict=True)))


def _move(restored: Restored, sources: Path, places: dict[int, int]) -> Restored:
    """Move what sources have logged to their new places. What the partitions hold of the sources that had those places
    before is another's, though it may have the same name: it is not held any more, and its rows are stale."""
    moved = {old: new for old, new in places.items() if old != new and (sources / str(old)).exists()}
    for old in moved:
        (sources / str(old)).rename(sources / f"{old}.moved")
    for old, new in moved.items():
        (sources / f"{old}.moved").rename(sources / str(new))
    taken = tuple(f"sources/{new}/" for new in moved.values())
    held = {path: file for path, file in restored.held.items() if not path.startswith(taken)}
    gone = {path: file for path, file in restored.held.items() if path not in held}
    stale = frozenset(key for path, file in gone.items() for key in row_keys(path, file))
    return Restored(restored.batch, held, stale)


def _others(ticks: Sequence[bool]) -> list[int]:
    return [place for place, tick in enumerate(ticks) if not tick]


def _is_tick(line: str) -> bool:
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and found.keys() == {"tick_ms"}
