"""The end of the next micro-batch, fixed before Spark plans it: at a position that another run had reached.

Spark runs a micro-batch again whose offsets it has logged and which it has not logged as done. So the offsets of the
next micro-batch are logged before Spark starts. The sources' own logs, which say which files an offset stands for, come
from the other run.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from recovery.base.ids import NO_BATCH, BatchId
from recovery.checkpoint.offsets import OffsetLog, read_offsets, ticking
from recovery.checkpoint.source_places import SourcePlaces
from recovery.errors import SparkCheckpointError


def fix_end(
    checkpoint: Path, batch: BatchId | None, reached: Path, reached_batch: BatchId, places: SourcePlaces
) -> BatchId | None:
    """Let the next micro-batch of `checkpoint` end at the position in the checkpoint `reached`; return its number.

    Returns None, and changes nothing, if `checkpoint` is at that position already. batch: the last one of `checkpoint`;
    None: it has none. The micro-batch gets the time at which the other run reached the position, so the timeouts that
    passed there pass here. Raises SparkCheckpointError.
    """
    before = None if batch is None else read_offsets(checkpoint, batch)
    end = read_offsets(reached, reached_batch)
    if end is None:
        raise SparkCheckpointError(f"offsets/{reached_batch} is missing in the position of the origin")
    if before is not None and before.is_numbered != end.is_numbered:
        raise SparkCheckpointError(
            "the positions of this store and of its origin have two forms",
            cause="Two versions of Spark wrote them.",
            remedy="Run with the version of Spark that the origin ran with.",
        )
    if before is not None and _input(before, places) == _input(end, places):
        return None
    after = BatchId((NO_BATCH if batch is None else batch) + 1)
    log = OffsetLog(_header(before, end), end.offsets)
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(after)).write_bytes(log.to_bytes())
    if (reached / "sources").is_dir():
        shutil.copytree(reached / "sources", checkpoint / "sources", dirs_exist_ok=True)
    return after


def _input(log: OffsetLog, places: SourcePlaces) -> dict[str, str]:
    ticks = ticking(places, log)
    return {label: offset for label, offset in log.offsets.items() if label not in ticks}


def _header(before: OffsetLog | None, end: OffsetLog) -> tuple[str, ...]:
    """Return the header of `before` (this run's settings) if there is one, else of `end`; the batch time is that of
    `end`."""
    try:
        version, *rest = (before or end).header
        described = json.loads(rest[0])
        described["batchTimestampMs"] = json.loads(end.header[1])["batchTimestampMs"]
    except (ValueError, LookupError, TypeError) as error:
        raise SparkCheckpointError(f"a log of offsets is not in the form that Spark writes: {error}") from error
    return version, json.dumps(described, separators=(",", ":")), *rest[1:]
