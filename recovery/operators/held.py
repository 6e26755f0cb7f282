"""The Spark checkpoint that the recovery partitions hold at an epoch: its files, its operators, and the whole
checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from recovery.base.reserved import CHECKPOINT_STEP
from recovery.checkpoint.directories import CheckpointTransfer, Observer, ignore
from recovery.checkpoint.restore import RestoredCheckpoint, restore
from recovery.checkpoint.rows import Content, file_of, row_objection
from recovery.checkpoint.state_stores.operators import StatefulOperator, operators_of
from recovery.checkpoint.state_stores.state_schemas import Schema, state_schemas
from recovery.errors import CorruptPartitionError, EpochNotHeldError, RecoveryError, SparkCheckpointError
from recovery.host.storage_errors import storage_errors
from recovery.planning.measures import Measure, OperatorWork, operators_measured
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


def operators_at(at: Snapshot) -> list[dict[str, Any]]:
    """Return the stateful operators that have state in a snapshot, with the schemas of their stores or variables, their
    number of rows and their work in the epoch; None if it is unknown."""
    operators = held_operators(at)
    measure, schemas = None, {}
    if operators:
        schemas = held_schemas(at)
        # The numbers are for people; commands that check the files report damage.
        with contextlib.suppress(RecoveryError, ValueError):
            measure = held_measure(at, at.measures())
    rows, native = (measure.operators, measure.native or {}) if measure is not None else ({}, {})
    return [
        {
            **each.as_json(),
            "schemas": schemas.get(each.number),
            "rows": rows.get(each.number),
            "work": _work(native.get(each.number)),
        }
        for each in operators
    ]


def _work(work: OperatorWork | None) -> dict[str, Any] | None:
    return None if work is None else {**to_builtins(work), "update_latency_s": work.latency_s}


def operators_in(*snapshots: Snapshot) -> list[int]:
    """Return the numbers of Spark's own operators that have state in any of these snapshots, sorted."""
    return sorted({each.number for at in snapshots for each in held_operators(at)})


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
