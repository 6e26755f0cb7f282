"""Checkpoints from which Spark can read one of its operators at every held epoch.

Spark reads the state after any micro-batch of a checkpoint, if the files that load it are there. Spark never changes a
file of state, so the files of all epochs go into one checkpoint, each once. Where a path has other content at a later
epoch, another checkpoint begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from recovery.base.reserved import CHECKPOINT_STEP
from recovery.checkpoint.restore import write_files
from recovery.checkpoint.rows import Content, file_of
from recovery.host.durable import PRIVATE
from recovery.host.storage_errors import storage_errors
from recovery.storage.snapshot import Snapshot

POSITION = ("metadata", "offsets/", "commits/")
"""How the paths of the files begin that Spark reads besides those of the operator."""


@dataclass(slots=True)
class EpochsCheckpoint:
    """A checkpoint that has the state of an operator after the last micro-batch of each of these snapshots."""

    path: Path
    snapshots: list[Snapshot] = field(default_factory=list)


def held_snapshots(at: Snapshot) -> list[Snapshot]:
    """Return the snapshots up to `at` that its files share, oldest first."""
    return [replace(at, cut=cut) for cut in sorted(at.cuts) if cut[0] <= at.epoch]


def write_epochs(at: Snapshot, operator: int, target: Path) -> list[EpochsCheckpoint]:
    """Write checkpoints with all snapshots up to `at` at which an operator has state, into the directory `target`.

    Reads what the partitions hold once, with one row in memory. Raises the errors of reading, and StorageError.
    """
    found: list[EpochsCheckpoint] = []
    writer: _Writer | None = None
    before: Snapshot | None = None
    with storage_errors(target):
        for snapshot in held_snapshots(at):
            try:
                if writer is None or before is None:
                    raise _OtherContentError
                changes = snapshot.changes(CHECKPOINT_STEP, before)
                writer.write((each.key, each.after.value if each.after else None) for each in changes)
            except _OtherContentError:
                writer = _Writer(operator, target / str(len(found)))
                found.append(EpochsCheckpoint(writer.path))
                writer.write((state.key, state.value) for state in snapshot.states(CHECKPOINT_STEP))
            if writer.state:
                found[-1].snapshots.append(snapshot)
            before = snapshot
    return [each for each in found if each.snapshots]


class _OtherContentError(Exception):
    """A file of the checkpoint has other content at this epoch."""


class _Writer:
    """Writes one checkpoint. state: the keys of the rows of the operator's state at the last snapshot."""

    def __init__(self, operator: int, path: Path) -> None:
        self.path = path
        self.state: set[str] = set()
        self._of_operator = f"state/{operator}/"
        self._written: set[str] = set()
        path.mkdir(PRIVATE.directory)

    def write(self, rows: Iterable[tuple[str, Content | None]]) -> None:
        """Write the rows that differ from the previous snapshot; None: a row that this snapshot no longer has."""
        self._written |= write_files(self._new(rows), self.path).keys()

    def _new(self, rows: Iterable[tuple[str, Content | None]]) -> Iterator[tuple[str, Content]]:
        for key, content in rows:
            of_operator = key.startswith(self._of_operator)
            if content is None:
                self.state.discard(key)
            elif of_operator or key.startswith(POSITION):
                if file_of(key)[0] in self._written:
                    raise _OtherContentError
                if of_operator:
                    self.state.add(key)
                yield key, content
