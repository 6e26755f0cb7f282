"""Spark's position in its input: the files of a checkpoint that every query has.

`metadata`, `offsets/<batch>`, `commits/<batch>` and, for sources that keep a log (files, rate, Kafka),
`sources/<i>/<n>`. They are stored as they are, so any source works. All are immutable once written.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from recovery.errors import FlowFailedError
from recovery.ids import BatchId

_LOG_ENTRY = re.compile(r"(\d+)(\.compact)?")


def position_files(checkpoint: Path, batch: BatchId) -> set[str]:
    """The paths of the files that hold the position after `batch`."""
    offsets = f"offsets/{batch}"
    paths = {"metadata", offsets, f"commits/{batch}"}
    lines = (checkpoint / offsets).read_text().splitlines()[2:]
    sources = checkpoint / "sources"
    for source in sources.iterdir() if sources.is_dir() else ():
        newest = _newest_entry(lines, source.name, batch)
        for entry in source.iterdir():
            match = _LOG_ENTRY.fullmatch(entry.name)
            # The file source has logged the next batch already when the epoch closes: that entry would make it
            # skip those files after a resume.
            if match is not None and int(match[1]) <= newest:
                paths.add(f"sources/{source.name}/{entry.name}")
    return paths


def wait_for_commit(checkpoint: Path, batch: BatchId, alive: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    """Wait until Spark has logged `batch` as done; False when the query ended without doing so."""
    path = checkpoint / "commits" / str(batch)
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        if not alive():
            return path.exists()
        if time.monotonic() > deadline:
            raise FlowFailedError(f"Spark has not logged micro-batch {batch} after {timeout_s:g} s", path=path)
        time.sleep(0.002)
    return True


def _newest_entry(offset_lines: list[str], source: str, batch: BatchId) -> int:
    """The last entry of a source's log that belongs to the micro-batch: file sources count entries of their own."""
    try:
        offset = msgspec.json.decode(offset_lines[int(source)])
        return int(offset["logOffset"])
    except (ValueError, IndexError, KeyError, TypeError, msgspec.DecodeError):
        return batch
