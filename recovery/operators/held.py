"""The Spark checkpoint that the recovery partitions hold at an epoch: its files, its operators, and the whole
checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from recovery.base.reserved import CHECKPOINT_STEP
from recovery.checkpoint.directories import CheckpointTransfer, Observer, ignore
from recovery.checkpoint.restore import RestoredCheckpoint, restore
from recovery.checkpoint.rows import Content, file_of, row_objection
from recovery.checkpoint.state_stores.operators import StatefulOperator, operators_of
from recovery.checkpoint.state_stores.state_schemas import Schema, state_schemas
from recovery.errors import CorruptPartitionError, EpochNotHeldError, SparkCheckpointError
from recovery.host.storage_errors import storage_errors
from recovery.planning.measures import Measure, operators_measured
from recovery.storage.snapshot import Snapshot


def held_files(at: Snapshot) -> dict[str, int]:
    """Return the files in the checkpoint of a snapshot with their sizes in bytes, without reading their content.

    Raises CorruptPartitionError.
    """
    files: dict[str, int] = {}
    for key, size in at.sizes(CHECKPOINT_STEP):
        wrong = row_objection(key)
        if wrong is not None:
            raise CorruptPartitionError(wrong, path=at.paths[0].parent)
        path, _ = file_of(key)
        files[path] = files.get(path, 0) + size
    return files


def held_operators(at: Snapshot) -> tuple[StatefulOperator, ...]:
    """Return the stateful operators that have state in a snapshot; reads one small file of each."""
    return operators_of(held_files(at), _reader(at))


def held_schemas(at: Snapshot) -> dict[int, dict[str, Schema]]:
    """Return the schemas of native state in a snapshot, by operator, and by store or variable; without unknown ones."""
    return state_schemas(held_files(at), _reader(at))


def _reader(at: Snapshot) -> Callable[[str], str | bytes]:
    def read(path: str) -> str | bytes:
        return at.values(CHECKPOINT_STEP, [path]).get(path, "")

    return read


def held_measure(at: Snapshot, measures: Sequence[Measure]) -> Measure | None:
    """Return the measure that describes the stateful operators in a snapshot; None: nothing is known of them.

    measures: the measures of the snapshot's directory, oldest first. See `operators_measured`.
    """
    snapshot = next((closed for closed in at.epochs if closed.cut == at.cut), None)
    return None if snapshot is None else operators_measured(measures, at.executions, snapshot)


def held_rows(at: Snapshot, measures: Sequence[Measure]) -> Mapping[int, int]:
    """Return the rows in the state of stateful operators in a snapshot, by operator number; absent ones are unknown."""
    found = held_measure(at, measures)
    return {} if found is None else found.operators


def materialise(
    directory: Path, at: Snapshot, target: Path, observe: Observer = ignore, location: str | None = None
) -> RestoredCheckpoint:
    """Write the checkpoint of a snapshot into `target`, which is created.

    location: its URI when Spark starts on it, if that is not `target`.

    Raises EpochNotHeldError when no micro-batch was done then, SparkCheckpointError when the partitions hold no
    checkpoint, CorruptPartitionError, StorageError.
    """
    total = sum(held_files(at).values())
    if not total:
        raise _nothing(directory, at)
    with storage_errors(target):
        return restore(_observed(_rows(at), total, observe), target, location)


def _rows(at: Snapshot) -> Iterator[tuple[str, Content]]:
    for state in at.states(CHECKPOINT_STEP):
        yield state.key, state.value


def _observed(
    rows: Iterator[tuple[str, Content]], total_bytes: int, observe: Observer
) -> Iterator[tuple[str, Content]]:
    done = 0
    for key, content in rows:
        yield key, content
        done += len(content)
        observe(CheckpointTransfer("writing", min(done, total_bytes), total_bytes))


def _nothing(directory: Path, at: Snapshot) -> EpochNotHeldError | SparkCheckpointError:
    if at.epoch == 0:
        return EpochNotHeldError(
            "before the first epoch there is no checkpoint",
            path=directory,
            cause="No micro-batch was done then, and there is no state.",
            remedy="Name a later epoch; see python -m recovery status DIR",
        )
    return SparkCheckpointError(
        f"epoch {at.epoch} has no checkpoint of Spark",
        path=directory,
        cause="No flow ran on this directory: it is used for a pipeline, or for operational state.",
        remedy="Name the recovery directory of a flow.",
    )
