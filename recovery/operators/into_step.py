"""The state of a Spark job's own operator, imported as the state of a step: the first epoch of fresh partitions.

import.1  Take the directory's lock; check that the partitions hold no epoch and are undamaged.
import.2  Find the newest micro-batch that is logged as done; refuse one that was only begun, and other operators.
import.3  Write the files of that micro-batch into a temporary directory. Spark reads the keys there, and each becomes a
          key of the step. Until here nothing is written in the partitions.
import.4  Check that the job has begun no micro-batch meanwhile.
import.5  Begin an execution, and close epoch 1 with the step's states, what they are declared as, and the input
          position, in all partitions at the same time.

A crash within import.5 leaves the epoch in some partitions only: it does not count, and a new import starts over.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from recovery.base.clock import Clock
from recovery.base.ids import BatchId, Epoch, StepId
from recovery.base.reserved import CHECKPOINT_STEP, DECLARATIONS_STEP, RESERVED_PREFIX
from recovery.base.untrusted_json import decode_json
from recovery.base.wording import counted
from recovery.checkpoint.directories import CheckpointDirectory, Observer, ignore
from recovery.checkpoint.offsets import read_offsets
from recovery.checkpoint.restore import restore
from recovery.checkpoint.state_stores.operators import StatefulOperator
from recovery.epochs.writer import StepKey
from recovery.errors import ConfigurationError, SparkCheckpointError, UnsupportedPlanError, shown
from recovery.host.storage_errors import storage_errors
from recovery.operational.steps.step_edits import check_whole, close_audited
from recovery.operators.importing import (
    AS_LEFT,
    WHAT,
    FoundCheckpoint,
    check_fresh,
    check_name,
    found_checkpoint,
    newest_begun,
)
from recovery.operators.mapping import MappedKeys, SparkKey, StepMapping, map_keys
from recovery.planning.going_back import kept_interval_s
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.storage.seam import DriverRows, Edited
from recovery.storage.store import Store
from recovery.values.codec import StateType
from recovery.values.declaration import Declaration
from recovery.values.keys import RowsView

GROUPED = ("applyInPandasWithState", "flatMapGroupsWithState")
PROCESSOR = "transformWithState"
"""How Spark's names of its operators for a `StatefulProcessor` begin."""


@dataclass(frozen=True, slots=True)
class OperatorKeys:
    """The keys of one of Spark's operators, as its checkpoint has them.

    columns: name and type of each key column. kept: the type of states that a step can keep as they are; None: none.
    event_time: whether times are event time; None: the checkpoint does not say. keys: may be taken once.
    """

    columns: tuple[tuple[str, str], ...]
    kept: StateType
    event_time: bool | None
    keys: Iterator[SparkKey]


ReadKeys = Callable[[Path, StatefulOperator, StepId], OperatorKeys]
"""Reads the keys of an operator from a whole checkpoint of this machine."""


@dataclass(frozen=True, slots=True)
class IntoStep:
    """What the user wants. function: --map; None: states are kept. state: the type of the step's states; None: not
    named. processing_time: the user says that timeouts are in processing time."""

    step: StepId
    function: Callable[..., Any] | None = None
    state: StateType = None
    processing_time: bool = False


@dataclass(frozen=True, slots=True)
class StepImport:
    """What was imported, or would be. epoch: None: nothing was written. batch: the micro-batch after which the flow
    resumes. keys: the number of keys that the step has. left_out, expired, timeouts: as in `MappedKeys`."""

    flow_id: str
    step: StepId
    epoch: Epoch | None
    batch: BatchId
    operator: StatefulOperator
    keys: int
    left_out: int
    expired: int
    timeouts: int


def import_into_step(
    source: CheckpointDirectory,
    store: Store,
    flow_id: str,
    wanted: IntoStep,
    read: ReadKeys,
    *,
    clock: Clock,
    dry_run: bool = False,
    observe: Observer = ignore,
) -> StepImport:
    """Import the state of the only stateful operator of the checkpoint at `source` as that of a step, with the input
    position, into the fresh partitions of a store, which are bound to `flow_id`. Holds all states in memory.

    dry_run: read and check everything, and write nothing. The import changes nothing at `source`.

    Raises AlreadyInitializedError when the partitions hold an epoch, DirectoryLockedError, SparkCheckpointError for a
    checkpoint that is incomplete or in use, UnsupportedPlanError for state of other operators, StateValueError for keys
    that cannot be taken over, StorageError, and the errors of planning; after an error no epoch is closed.
    """
    check_name(flow_id)
    _check_step(wanted.step)
    # Where no partitions are, no lock file is left.
    store.found()
    with _temporary() as scratch, contextlib.ExitStack() as held:
        # import.1
        locked = store if dry_run else held.enter_context(store.locked(clock, WHAT))
        plan = plan_resume(locked.found(), flow_id=flow_id)
        check_fresh(locked, plan, clock, wanted.step)
        check_whole(plan, locked)
        # import.2
        found = held.enter_context(found_checkpoint(source, scratch / "received", observe))
        operator = _only_operator(source, found)
        # import.3
        with storage_errors(scratch):
            restore(found.rows.items(), scratch / "checkpoint")
        keys = read(scratch / "checkpoint", operator, wanted.step)
        mapped = _mapped(keys, operator, wanted, _began_ms(scratch / "checkpoint", found, source))
        shutil.rmtree(scratch / "checkpoint", ignore_errors=True)
        # import.4
        _check_unused(source, found)
        epoch = None
        if not dry_run:
            # import.5
            facts = {"what": WHAT, "from": source.shown, "batch": found.batch, "step": wanted.step}
            epoch = _close(locked, plan, flow_id, wanted.step, mapped, _rows(found, keys, mapped, wanted), facts, clock)
    return StepImport(
        flow_id=flow_id,
        step=wanted.step,
        epoch=epoch,
        batch=found.batch,
        operator=operator,
        keys=len(mapped.states),
        left_out=mapped.left_out,
        expired=mapped.expired,
        timeouts=mapped.timeouts,
    )


@contextlib.contextmanager
def _temporary() -> Iterator[Path]:
    with storage_errors(Path(tempfile.gettempdir())):
        made = tempfile.TemporaryDirectory(prefix="recovery-import-")
    with made as scratch:
        yield Path(scratch)


def _close(
    store: Store,
    plan: ResumePlan,
    flow_id: str,
    step: StepId,
    mapped: MappedKeys,
    rows: DriverRows,
    facts: Mapping[str, Any],
    clock: Clock,
) -> Epoch:
    states: dict[StepKey, Edited] = {(step, key): edited for key, edited in mapped.states.items()}
    return close_audited(
        store,
        plan,
        flow_id,
        {**facts, "keys": len(states)},
        lambda writer: writer.close(states, batches=facts["batch"] + 1, driver_rows=rows),
        clock=clock,
        backup_interval_s=kept_interval_s(plan.partitions, None),
    )


def _rows(found: FoundCheckpoint, keys: OperatorKeys, mapped: MappedKeys, wanted: IntoStep) -> DriverRows:
    """Return the driver's own rows: the input position, without the files of state, and what the states are."""
    position = RowsView(found.rows)
    position.keys_held = [key for key in found.rows if not key.startswith("state/")]
    rows: dict[StepId, Mapping[str, str | bytes | None]] = {StepId(CHECKPOINT_STEP): position}
    if mapped.form is not None:
        declared = Declaration(keys.columns, mapped.form)
        rows[StepId(DECLARATIONS_STEP)] = {wanted.step: declared.to_text()}
    return rows


class _Header(msgspec.Struct):
    batchTimestampMs: int = 0  # noqa: N815 - Spark's name


def _began_ms(checkpoint: Path, found: FoundCheckpoint, source: CheckpointDirectory) -> int:
    """Return when the newest micro-batch began, in milliseconds since 1970; 0 if the log does not say."""
    log = read_offsets(checkpoint, found.batch)
    assert log is not None, "the checkpoint was checked to have it"

    def refuse(why: str) -> SparkCheckpointError:
        return SparkCheckpointError(
            f"offsets/{found.batch} is not in the form that Spark writes: {why}", path=source.shown, remedy=AS_LEFT
        )

    return decode_json(log.header[1], refuse, _Header).batchTimestampMs


def _mapped(keys: OperatorKeys, operator: StatefulOperator, wanted: IntoStep, began_ms: int) -> MappedKeys:
    """Return the step's states. began_ms: of the job's newest micro-batch."""
    if wanted.function is None and wanted.state is None and keys.kept is None:
        what = (
            f"the variables {', '.join(sorted(operator.variables))}" if operator.variables else "state without columns"
        )
        raise ConfigurationError(
            f"operator {operator.number} ({operator.name}) has {what}, which step {wanted.step!r} cannot keep as it is",
            cause="A step has one state for each key.",
            remedy="Give --map MODULE:FUNCTION, a function map(key, state) that returns the step's state.",
        )
    mapping = StepMapping(wanted.function, wanted.state, keys.kept)
    if wanted.processing_time and keys.event_time:
        raise ConfigurationError(
            f"operator {operator.number} ({operator.name}) has timers in event time, and --processing-time says "
            "otherwise",
            remedy="Leave the option out.",
        )
    if mapping.with_times or keys.event_time is False:
        return map_keys(keys.keys, mapping)
    left = _not_before(began_ms, keys, operator) if wanted.processing_time else _without_times(keys, operator)
    return map_keys(left, mapping)


def _not_before(began_ms: int, keys: OperatorKeys, operator: StatefulOperator) -> Iterator[SparkKey]:
    """Yield the keys. Raises ConfigurationError for one with a timeout that is in event time: in processing time, none
    is left that was due when the newest micro-batch began."""
    for each in keys.keys:
        if each.times and each.times[0] < began_ms:
            raise ConfigurationError(
                f"operator {operator.number} ({operator.name}) has a timeout of key {shown(each.key)} at "
                f"{each.times[0]} ms since 1970, before the job's newest micro-batch began ({began_ms}), and "
                "--processing-time is given",
                cause="The timeouts are in event time: Spark would have ended one in processing time.",
                remedy="Leave the option out, and decide about the timeouts in a function of three arguments, --map "
                "with map(key, state, times), which returns (state, timeout in ms or None).",
            )
        yield each


def _without_times(keys: OperatorKeys, operator: StatefulOperator) -> Iterator[SparkKey]:
    """Yield the keys. Raises UnsupportedPlanError for one with a timeout, which may be in event time."""
    for each in keys.keys:
        if each.times:
            raise UnsupportedPlanError(
                f"operator {operator.number} ({operator.name}) has timeouts, and "
                + ("they are in event time" if keys.event_time else "its checkpoint does not say in which time"),
                cause="A step has timeouts in processing time only.",
                remedy="Decide about them in a function of three arguments, --map with map(key, state, times), which "
                "returns (state, timeout in ms or None)."
                + ("" if keys.event_time else " If the job has ProcessingTimeTimeout, give --processing-time."),
            )
        yield each


def _only_operator(source: CheckpointDirectory, found: FoundCheckpoint) -> StatefulOperator:
    """Return the operator whose state is imported. Raises SparkCheckpointError, UnsupportedPlanError."""
    if found.begun is not None:
        raise SparkCheckpointError(
            f"micro-batch {found.begun} was begun and is not finished",
            path=source.shown,
            cause="The job was stopped or killed in the middle of a micro-batch, or is still running. Its output of "
            "that micro-batch may be at its target, and the flow would write that output again.",
            remedy="Start the job once more with the trigger availableNow, let it end, and run the same command again.",
        )
    listed = ", ".join(f"{each.number} ({each.name or 'without a name'})" for each in found.operators)
    if len(found.operators) != 1:
        raise UnsupportedPlanError(
            f"the job has {counted(len(found.operators), 'stateful operator')}: {listed}"
            if found.operators
            else "the job has no stateful operator",
            path=source.shown,
            cause="The state of one operator becomes that of one step; the state of the others would be lost."
            if found.operators
            else "",
            remedy="Without --into-step, the import takes all operators as they are.",
        )
    [operator] = found.operators
    if operator.name not in GROUPED and not operator.name.startswith(PROCESSOR):
        raise UnsupportedPlanError(
            f"operator {listed} is none whose state a step can have",
            path=source.shown,
            cause=f"Those are {', '.join(GROUPED)} and {PROCESSOR}, whose states have the columns that the job's code "
            "gave them.",
            remedy="Without --into-step, the import takes the operator as it is.",
        )
    return operator


def _check_unused(source: CheckpointDirectory, found: FoundCheckpoint) -> None:
    begun = newest_begun(source.sizes(), found.batch)
    if begun is not None:
        raise SparkCheckpointError(
            f"the job began micro-batch {begun} while its checkpoint was read",
            path=source.shown,
            cause="The job is still running.",
            remedy="Stop the job, and run the same command again.",
        )


def _check_step(step: StepId) -> None:
    if not step or step.startswith(RESERVED_PREFIX) or "\0" in step:
        raise ConfigurationError(f"{step!r:.80} cannot be the name of a step", remedy="Name it like 'total'.")
