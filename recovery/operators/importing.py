"""The checkpoint of an existing Spark job, imported as the first epoch of fresh recovery partitions.

import.1  Take the directory's lock; check that the partitions hold no epoch and are undamaged.
import.2  Find the newest micro-batch that is logged as done, and the files it needs; refuse a gap.
import.3  Begin an execution, and close epoch 1 with the files as its rows, in all partitions at the same time.

A crash within import.3 leaves the epoch in some partitions only: it does not count, and a new import starts over.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recovery.base.clock import Clock
from recovery.base.ids import FIRST_EPOCH, BatchId, Epoch, StepId
from recovery.base.reserved import CHECKPOINT_STEP
from recovery.base.untrusted_paths import read_received
from recovery.checkpoint.capture import Captured
from recovery.checkpoint.directories import (
    CheckpointDirectory,
    CheckpointTransfer,
    Observer,
    ignore,
    newest_batch,
    vanished,
)
from recovery.checkpoint.home import LocalHome
from recovery.checkpoint.position import missing_entry, position_files
from recovery.checkpoint.rows import Content, held_file, row_objection
from recovery.checkpoint.state_stores.operators import StatefulOperator, missing_store, operators_of
from recovery.checkpoint.state_stores.state_files import MOST_METADATA_BYTES, StateFiles
from recovery.errors import (
    AlreadyInitializedError,
    ConfigurationError,
    RecoveryError,
    SparkCheckpointError,
    StorageError,
)
from recovery.host.storage_errors import storage_errors
from recovery.operational.steps.step_edits import audit, check_whole, close_audited
from recovery.planning.going_back import kept_interval_s
from recovery.planning.resume import ResumePlan, common_cuts, plan_resume
from recovery.storage.connect import SCRATCH_NAME
from recovery.storage.store import Store

WHAT = "checkpoint import"
"""What the run history calls an import."""
AS_LEFT = "Use the checkpoint as the job left it."
"""What to do about a checkpoint that Spark did not write: the job's, not one that a run writes again."""


@dataclass(frozen=True, slots=True)
class Imported:
    """An imported checkpoint. batch: its newest micro-batch, after which the flow resumes.

    begun: a later micro-batch that was logged as begun and is not imported; the flow computes it again.
    """

    flow_id: str
    epoch: Epoch
    batch: BatchId
    begun: BatchId | None
    files: int
    size_bytes: int
    operators: tuple[StatefulOperator, ...]


def import_checkpoint(
    source: CheckpointDirectory, store: Store, flow_id: str, *, clock: Clock, observe: Observer = ignore
) -> Imported:
    """Import the checkpoint at `source` into the fresh partitions of a store, which are bound to `flow_id`.

    The query that made it should be stopped; the import changes nothing at `source`.

    Raises AlreadyInitializedError when the partitions hold an epoch, DirectoryLockedError, SparkCheckpointError,
    UnsupportedPlanError for an unsupported checkpoint format, StorageError, and the errors of planning; after an error
    no epoch is closed.
    """
    check_name(flow_id)
    # Where no partitions are, no lock file is left.
    store.found()
    # import.1
    with store.locked(clock, WHAT) as held:
        plan = plan_resume(held.found(), flow_id=flow_id)
        check_fresh(held, plan, clock)
        check_whole(plan, held)
        # import.2
        with found_checkpoint(source, store.directory / SCRATCH_NAME / "import", observe) as found:
            # import.3
            epoch = close_audited(
                held,
                plan,
                flow_id,
                {"what": WHAT, "from": source.shown, "batch": found.batch, "files": len(found.sizes)},
                lambda writer: writer.close({}, batches=found.batch + 1, driver_rows={CHECKPOINT_STEP: found.rows}),
                clock=clock,
                backup_interval_s=kept_interval_s(plan.partitions, None),
            )
    return Imported(
        flow_id=flow_id,
        epoch=epoch,
        batch=found.batch,
        begun=found.begun,
        files=len(found.sizes),
        size_bytes=sum(found.sizes.values()),
        operators=found.operators,
    )


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint of Spark as of its newest finished micro-batch. begun: a later one that was logged as begun.

    rows: the rows that a partition would hold of the checkpoint, each read when it is looked up. sizes: the size of
    each of its files in bytes.
    """

    batch: BatchId
    begun: BatchId | None
    rows: Mapping[str, Content]
    sizes: Mapping[str, int]
    operators: tuple[StatefulOperator, ...]


@contextlib.contextmanager
def found_checkpoint(source: CheckpointDirectory, scratch: Path, observe: Observer) -> Iterator[FoundCheckpoint]:
    """Find what Spark needs to resume after the newest finished micro-batch of a checkpoint, and check that it is
    complete. The rows can be read until the block ends. scratch: where files of other file systems are copied to.

    Raises SparkCheckpointError, UnsupportedPlanError, StorageError.
    """
    paths = source.sizes()
    batch = newest_batch(paths, source.shown)
    with source.here(batch, scratch, observe) as checkpoint:
        rows, sizes = _rows(source, checkpoint, batch)
        operators = operators_of(sizes, lambda path: read_received(checkpoint / path, MOST_METADATA_BYTES))
        _check_stores(source, sizes, operators)
        observed = _Observed(source, rows, sum(sizes.values()), observe)
        yield FoundCheckpoint(batch, newest_begun(paths, batch), observed, sizes, operators)


def newest_begun(paths: Collection[str], batch: BatchId) -> BatchId | None:
    """Return the newest micro-batch that is logged as begun, if that is later than `batch`."""
    later = max((int(path.removeprefix("offsets/")) for path in paths if _is_offset(path)), default=batch)
    return BatchId(later) if later > batch else None


class _Observed(Mapping[str, Content]):
    """Rows that report how many of their bytes were read. Partitions read them from threads of their own, without a
    lock: the number is only for people."""

    def __init__(self, source: CheckpointDirectory, rows: Captured, total_bytes: int, observe: Observer) -> None:
        self._source = source
        self._rows = rows
        self._total_bytes = total_bytes
        self._observe = observe
        self._done_bytes = 0

    def __getitem__(self, key: str) -> Content:
        try:
            content = self._rows[key]
        except FileNotFoundError as error:
            raise vanished(self._source.shown, key) from error
        except OSError as error:
            raise StorageError(str(error), path=error.filename or self._source.shown) from error
        assert content is not None, "an import cannot discard anything"
        self._done_bytes = min(self._total_bytes, self._done_bytes + len(content))
        self._observe(CheckpointTransfer("writing", self._done_bytes, self._total_bytes))
        return content

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _rows(source: CheckpointDirectory, checkpoint: Path, batch: BatchId) -> tuple[Captured, dict[str, int]]:
    """Return the rows needed to resume after `batch`, read from the checkpoint on access, and the size of each file."""
    with storage_errors(checkpoint):
        try:
            missing = missing_entry(checkpoint, batch)
            wanted = position_files(checkpoint, batch) | StateFiles(LocalHome(checkpoint), {}).needed(batch)
            _check_paths(source, wanted)
            held = {path: held_file((checkpoint / path).stat().st_size) for path in wanted}
            staged = {path: checkpoint / path for path in sorted(wanted)}
            rows = Captured(held, staged, iter(()), checkpoint)
        except FileNotFoundError as error:
            raise vanished(source.shown, str(Path(error.filename).relative_to(checkpoint))) from error
        except UnicodeDecodeError as error:
            raise SparkCheckpointError(
                f"offsets/{batch} is not in the form that Spark writes", path=source.shown, remedy=AS_LEFT
            ) from error
        except SparkCheckpointError as error:
            error.remedy = AS_LEFT
            raise
    if missing is not None:
        raise SparkCheckpointError(
            f"{missing} is missing, which the position after micro-batch {batch} names",
            path=source.shown,
            cause="Only a part of the checkpoint was copied; or the query reads one source in two places, and the "
            "logs do not say which read they belong to.",
            remedy="Copy the whole checkpoint; a query that reads a source in two places cannot be imported.",
        )
    return rows, {path: file.size_bytes for path, file in held.items()}


def _check_paths(source: CheckpointDirectory, paths: Collection[str]) -> None:
    """Raise SparkCheckpointError for a path that a run could not restore as a file."""
    for path in sorted(paths):
        wrong = row_objection(path)
        if wrong is not None:
            raise SparkCheckpointError(
                wrong,
                path=source.shown,
                cause="Something other than Spark created or changed the checkpoint.",
                remedy=AS_LEFT,
            )


def _check_stores(source: CheckpointDirectory, sizes: Mapping[str, int], operators: Sequence[StatefulOperator]) -> None:
    missing = missing_store(sizes, operators)
    if missing is not None:
        raise SparkCheckpointError(
            f"{missing} is missing, or holds no version of its state",
            path=source.shown,
            cause="Only a part of the checkpoint was copied, or something deleted files in it.",
            remedy="Copy the whole checkpoint.",
        )


def _is_offset(path: str) -> bool:
    return re.fullmatch(r"offsets/[0-9]{1,15}", path) is not None


def check_name(flow_id: str) -> None:
    """Raise ConfigurationError for what cannot be the name of a flow."""
    if not flow_id or "\0" in flow_id:
        raise ConfigurationError(f"{flow_id!r} is not a name for a flow", remedy="Use a text like 'wordcount'.")


def check_fresh(store: Store, plan: ResumePlan, clock: Clock, step: StepId | None = None) -> None:
    """Raise AlreadyInitializedError for partitions that hold an epoch. step: the one to import into, if any."""
    newest = max(d.newest_epoch for d in plan.partitions) if plan.window[-1] else 0
    before = _imported_before(store, plan, clock, step) if newest == FIRST_EPOCH else None
    if before is not None:
        raise AlreadyInitializedError(
            f"it holds the checkpoint at {before['from']} after micro-batch {before['batch']} already: epoch {newest} "
            f"of flow {plan.flow_id!r}",
            path=store.directory,
            cause="The same command was run before.",
            remedy="Run the flow on it as it is. To import the checkpoint as it is now, make new partitions: python -m "
            "recovery init DIR N",
        )
    if newest:
        raise AlreadyInitializedError(
            f"it holds epochs of flow {plan.flow_id!r}, up to {newest}",
            path=store.directory,
            cause="The flow ran on this directory, or a checkpoint was imported before.",
            remedy="Import into new partitions: python -m recovery init DIR N",
        )


def _imported_before(store: Store, plan: ResumePlan, clock: Clock, step: StepId | None) -> Mapping[str, object] | None:
    """Return what the run history says of the import, into this step or into none, that closed the only epoch; None if
    it says nothing. An import that was killed after it closed the epoch has no end there."""
    try:
        runs = audit(store, clock).runs()
    except RecoveryError:
        return None
    _, by, _ = max(common_cuts(plan.partitions))
    numbers = {each.number for each in plan.partitions[0].executions if each.id == by}
    found = (run.details for run in runs if run.details.get("what") == WHAT and run.details.get("execution") in numbers)
    return next((each for each in found if "from" in each and "batch" in each and each.get("step") == step), None)
