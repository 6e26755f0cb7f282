"""A held epoch as an ordinary Spark checkpoint, from which plain Spark starts.

export.1  Check every digest in every partition: damaged state is not exported.
export.2  Write the files of the epoch beside the target, and check that Spark will find everything it needs.
export.3  Rename: the checkpoint appears, complete.
"""

from __future__ import annotations

from dataclasses import dataclass

from recovery.base.ids import BatchId
from recovery.checkpoint.directories import CheckpointDirectory, Observer, ignore
from recovery.checkpoint.state_stores.operators import StatefulOperator, operators_of
from recovery.operators.held import materialise
from recovery.planning.resume import plan_resume
from recovery.storage.store import Store
from recovery.storage.verify import run_all


@dataclass(frozen=True, slots=True)
class ExportedCheckpoint:
    """A written checkpoint. batch: its last micro-batch. steps: the flow's own steps, whose state is not in the
    checkpoint."""

    epoch: int
    batch: BatchId
    files: int
    size_bytes: int
    operators: tuple[StatefulOperator, ...]
    steps: tuple[str, ...]


def export(
    store: Store, target: CheckpointDirectory, *, epoch: int | None = None, observe: Observer = ignore
) -> ExportedCheckpoint:
    """Write an epoch that all partitions hold to `target`, all of it or nothing; by default the newest.

    A run may be active.

    Raises EpochNotHeldError, ConfigurationError when the target is not empty, CorruptPartitionError,
    SparkCheckpointError, StorageError, and the errors of planning.
    """
    at = store.at(epoch)
    target.check_vacant()
    # export.1
    for verdict in run_all(store.checks(plan_resume(store.found()).partitions, lazy=True)):
        verdict.raise_if_damaged()
    with target.writing(observe) as draft:
        # export.2
        restored = materialise(store.directory, at, draft, observe, target.location)
        sizes = {path: file.size_bytes for path, file in restored.held.items()}
        operators = operators_of(sizes, lambda path: (draft / path).read_bytes())
        steps = tuple(step for step in at.steps() if next(at.sizes(step), None) is not None)
    # export.3
    assert restored.batch is not None
    return ExportedCheckpoint(
        epoch=at.epoch,
        batch=restored.batch,
        files=len(sizes),
        size_bytes=sum(sizes.values()),
        operators=operators,
        steps=steps,
    )
