"""The checkpoint on which Spark starts, from the rows of an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path

from recovery.base.ids import BatchId
from recovery.base.untrusted_paths import open_beneath
from recovery.checkpoint.home import LocalHome
from recovery.checkpoint.relocate import names_location, relocated
from recovery.checkpoint.rows import CHUNK_BYTES, Content, HeldFile, checked_row, row_keys
from recovery.checkpoint.state_stores.state_files import StateFiles
from recovery.errors import CorruptPartitionError
from recovery.host.durable import PRIVATE, make_directories


@dataclass(frozen=True, slots=True)
class RestoredCheckpoint:
    """A written checkpoint. batch: its last micro-batch; None: nothing was saved. held: its files that the partitions
    hold. stale: the keys of further rows in the partitions, which the next epoch discards."""

    batch: BatchId | None
    held: dict[str, HeldFile]
    stale: frozenset[str] = frozenset()

    def without(self, paths: Set[str]) -> RestoredCheckpoint:
        """Return this checkpoint after these files have changed in it: their rows in the partitions are stale."""
        held = {path: file for path, file in self.held.items() if path not in paths}
        gone = paths & self.held.keys()
        stale = frozenset(key for path in gone for key in row_keys(path, self.held[path]))
        return RestoredCheckpoint(self.batch, held, self.stale | stale)


def restore(rows: Iterable[tuple[str, Content]], directory: Path, location: str | None = None) -> RestoredCheckpoint:
    """Write the files that the rows hold into a fresh directory. Rows may come in any order; only one is in memory at a
    time.

    location: the URI of the directory when Spark starts on it; by default that of `directory`.
    Raises CorruptPartitionError when rows of a file are missing, and SparkCheckpointError when files are.
    """
    make_directories(directory.parent)
    directory.mkdir(PRIVATE.directory)
    held = write_files(rows, directory, location)
    batch = _last_batch(held)
    if batch is not None:
        _check_whole(directory, held, batch)
        if batch != 0:
            # Spark also reads the offsets of the previous batch.
            offsets = directory / "offsets"
            (offsets / str(batch - 1)).write_bytes((offsets / str(batch)).read_bytes())
    return RestoredCheckpoint(batch, held)


def write_files(
    rows: Iterable[tuple[str, Content]], directory: Path, location: str | None = None
) -> dict[str, HeldFile]:
    """Write the files that the rows hold, all rows of each, into a directory, and return them. Else as `restore`."""
    sizes: dict[str, int] = {}
    chunks: dict[str, int] = {}
    last: dict[str, int] = {}
    for key, content in rows:
        path, chunk, data = checked_row(key, content)
        with open_beneath(directory, path, CorruptPartitionError) as handle:
            handle.seek(max(0, chunk - 1) * CHUNK_BYTES)
            handle.write(data)
        sizes[path] = sizes.get(path, 0) + len(data)
        chunks[path] = chunks.get(path, 0) + (chunk > 0)
        last[path] = max(last.get(path, 0), chunk)
    for path, count in chunks.items():
        if count != last[path] or (directory / path).stat().st_size != sizes[path]:
            raise CorruptPartitionError(f"rows of file {path!r} of Spark's checkpoint are missing")
    for path in filter(names_location, chunks):
        file = directory / path
        file.write_bytes(relocated(path, file.read_bytes(), location or f"file:{directory.absolute()}"))
    return {path: HeldFile(size, chunks[path]) for path, size in sizes.items()}


def _last_batch(held: dict[str, HeldFile]) -> BatchId | None:
    numbers = [int(path.removeprefix("offsets/")) for path in held if path.startswith("offsets/")]
    return BatchId(max(numbers)) if numbers else None


def _check_whole(directory: Path, held: dict[str, HeldFile], batch: BatchId) -> None:
    """Raise CorruptPartitionError unless every store can be loaded: Spark would fail in the middle of a micro-batch."""
    missing = StateFiles(LocalHome(directory), {}).needed(batch) - held.keys()
    if missing:
        raise CorruptPartitionError(f"file {min(missing)!r} of Spark's checkpoint is missing")
