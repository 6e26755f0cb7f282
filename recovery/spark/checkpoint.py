"""Spark's position in its input: taken out of a scratch checkpoint, and put into a fresh one.

A checkpoint of a query without native state is a few small files: `metadata`, `offsets/<batch>`, `commits/<batch>`
and, for sources that keep a log (files, rate, Kafka), `sources/<i>/<n>`. They are stored as they are, under their
paths, so any source works. All of them are immutable once written.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from recovery.errors import FlowFailedError
from recovery.ids import BatchId, StepId

CHECKPOINT_STEP = StepId("$checkpoint")
Content = str | bytes
_LOG_ENTRY = re.compile(r"(\d+)(\.compact)?")


class Position:
    """The position as the recovery partitions hold it, and what an epoch has to change in it.

    `saved` are the paths that the newest snapshot holds.
    """

    def __init__(self, checkpoint: Path, saved: Mapping[str, Content]) -> None:
        self._checkpoint = checkpoint
        self._saved = set(saved)

    def changes(self, batch: BatchId) -> dict[str, Content | None]:
        """New files as of `batch`, and None for those that are not needed any more. Reads only what is new."""
        wanted = self._paths(batch)
        found: dict[str, Content | None] = dict.fromkeys(self._saved - wanted)
        for path in wanted - self._saved:
            found[path] = _content((self._checkpoint / path).read_bytes())
        return found

    def saved(self, changes: Mapping[str, Content | None]) -> None:
        """Note that an epoch with these changes was closed."""
        for path, content in changes.items():
            if content is None:
                self._saved.discard(path)
            else:
                self._saved.add(path)

    def _paths(self, batch: BatchId) -> set[str]:
        offsets = f"offsets/{batch}"
        paths = {"metadata", offsets, f"commits/{batch}"}
        lines = (self._checkpoint / offsets).read_text().splitlines()[2:]
        sources = self._checkpoint / "sources"
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


def seed(checkpoint: Path, saved: Mapping[str, Content]) -> BatchId | None:
    """Write the saved position into a fresh checkpoint; returns its micro-batch, None when nothing was saved."""
    checkpoint.mkdir(parents=True)
    batch: BatchId | None = None
    for name, content in saved.items():
        path = checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(data)
        if name.startswith("offsets/"):
            batch = BatchId(int(path.name))
            if batch > 0:
                # Spark asks for the offsets of the batch before as well.
                (path.parent / str(batch - 1)).write_bytes(data)
    return batch


def _newest_entry(offset_lines: list[str], source: str, batch: BatchId) -> int:
    """The last entry of a source's log that belongs to the micro-batch: file sources count entries of their own."""
    try:
        offset = msgspec.json.decode(offset_lines[int(source)])
        return int(offset["logOffset"])
    except (ValueError, IndexError, KeyError, TypeError, msgspec.DecodeError):
        return batch


def _content(data: bytes) -> Content:
    """Text where it is text, so that it can be read in SQLite."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
