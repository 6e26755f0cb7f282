"""Where a run continues: its position as Spark's checkpoint, the plan for steps that are held, the sink's resume."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from recovery.base.ids import NO_BATCH, StepId
from recovery.base.reserved import (
    CHECKPOINT_STEP,
    DECLARATIONS_STEP,
    RESERVED_PREFIX,
    SINK_STEP,
    SOURCES_STEP,
    quarantined_step,
)
from recovery.base.wording import counted, moment_text
from recovery.checkpoint.beginning import InputBeginning, recorded_beginning
from recovery.checkpoint.home import CheckpointHome
from recovery.checkpoint.reached import reached
from recovery.checkpoint.restore import RestoredCheckpoint, restore
from recovery.checkpoint.source_places import SourcePlaces, recorded_places
from recovery.checkpoint.sources import IDENTITIES_KEY, LEFT_KEY, PLACES_KEY, check_logs, fit_sources, texts_by_name
from recovery.config import RecoveryConfig
from recovery.errors import FlowMismatchError
from recovery.planning.going_back import given_up, goes_back
from recovery.planning.lost_input import is_accepted
from recovery.planning.resume import ResumePlan
from recovery.planning.steps import StepChoices, StepPlan, plan_quarantines, plan_steps
from recovery.planning.timeline import timeline
from recovery.planning.values import Execution, StepEdit
from recovery.sinks import Resume
from recovery.sinks.delivery import NOTE_KEY
from recovery.spark.inputs.look import look_at_inputs
from recovery.spark.planner.bind import BoundPlan
from recovery.spark.planner.iceberg_tables import IcebergInput
from recovery.spark.run.launch import setting_of
from recovery.storage.origin import Origin
from recovery.storage.seam import PartitionStore
from recovery.storage.store import Store


class RecoveredPosition(NamedTuple):
    """The recovered position as files of a checkpoint, and what to record of the sources with it.
    laid_out: whether the position was recorded for other sources or other steps.
    outdated: whether it is where the input begins, recorded for other sources.
    began: what distinguished parts of the sources where the input begins, if that is the position."""

    restored: RestoredCheckpoint
    new_rows: dict[StepId, dict[str, str]]
    laid_out: bool
    outdated: bool
    began: Mapping[str, str] = {}

    @property
    def identities(self) -> dict[str, str]:
        """What distinguishes parts of the sources now, as far as it is to be recorded."""
        return texts_by_name(self.new_rows.get(SOURCES_STEP, {}).get(IDENTITIES_KEY))


def restore_position(
    store: PartitionStore,
    plan: ResumePlan,
    bound: BoundPlan,
    home: CheckpointHome,
    config: RecoveryConfig,
    edits: Iterable[StepEdit] = (),
) -> RecoveredPosition:
    """Write into `home` the checkpoint that Spark continues from. Changes nothing in the partitions.

    edits: what to do to the state that steps hold. Raises FlowMismatchError or SparkCheckpointError if Spark could not
    continue from the checkpoint, or would continue from another place.
    """
    sources, checkpoint = bound.sources, home.directory
    restored = restore(store.driver_rows(CHECKPOINT_STEP, plan.resume_epoch), checkpoint, home.location)
    recorded = store.driver_values(SOURCES_STEP, plan.resume_epoch).get(PLACES_KEY)
    left_by = recorded if isinstance(recorded, str) else None
    _check_counted(restored, plan, config.path)
    begins, beginning = restored.batch is None, None
    if begins:
        restored, beginning = _restore_beginning(store, checkpoint, partial(setting_of, bound.frame.sparkSession))
        left_by = beginning.places if beginning is not None else None
    # No edit renames a step that holds no state now. A command that is run again finds the rename already done.
    edited = {edit.old for edit in edits if edit.new is not None}
    restored = fitted(restored, checkpoint, sources, left_by, config.rename_steps, edited)
    places = sources.to_text()
    changed = places != recorded
    laid_out = changed and recorded is not None and not begins
    outdated = begins and left_by not in (None, places)
    rows = {SOURCES_STEP: {PLACES_KEY: places}} if changed else {}
    began = beginning.identities if beginning is not None else {}
    return RecoveredPosition(restored, rows, laid_out, outdated, began)


def fitted(
    restored: RestoredCheckpoint,
    checkpoint: Path,
    sources: SourcePlaces,
    left_by: str | None,
    renames: Mapping[str, str],
    edited: Collection[str] = (),
) -> RestoredCheckpoint:
    """Lay out a restored checkpoint for the sources of this flow. left_by: the text of the sources that left it, if it
    is known. edited: the steps that are renamed now. Raises FlowMismatchError or SparkCheckpointError."""
    before = recorded_places(left_by) if left_by is not None else None
    if before is not None:
        before = before.renamed(
            {
                old: new
                for old, new in renames.items()
                if old in edited or new not in before.steps or old not in sources.steps
            }
        )
    restored = fit_sources(restored, checkpoint, sources, before)
    check_logs(restored, checkpoint, sources)
    return restored


def readable(
    store: PartitionStore,
    plan: ResumePlan,
    bound: BoundPlan,
    position: RecoveredPosition,
    home: CheckpointHome,
    tables: IcebergInput,
    accepted: Sequence[str],
    left: Iterable[Path],
) -> tuple[RecoveredPosition, dict[str, str], tuple[str, ...]]:
    """Check that the input can be read from a position on. Returns the position without the lost input that is
    accepted; what is left out, by source; and further texts for the user. Changes nothing but the restored checkpoint.

    left: checkpoints of killed runs on this host. Raises what `look_at_inputs` raises.
    """
    back = goes_back(plan)
    with closing(store.driver_rows(CHECKPOINT_STEP)) as rows:
        beyond = reached(rows if back else (), left, home.directory)
    recorded, newest = store.driver_values(SOURCES_STEP, plan.resume_epoch), store.driver_values(SOURCES_STEP)
    known = {
        **texts_by_name(newest.get(IDENTITIES_KEY)),
        **position.began,
        **texts_by_name(recorded.get(IDENTITIES_KEY)),
    }
    restored = position.restored
    found = look_at_inputs(
        bound, home, restored.batch, beyond, known, texts_by_name(recorded.get(LEFT_KEY)), accepted,
        given_up(plan, moment_text) if back else None, tables,
    )  # fmt: skip
    rows_of = dict(position.new_rows)
    for key, names in ((IDENTITIES_KEY, found.identities), (LEFT_KEY, found.left)):
        text = msgspec.json.encode(dict(sorted(names.items()))).decode()
        if text != recorded.get(key) and (names or key in recorded):
            rows_of[SOURCES_STEP] = {**rows_of.get(SOURCES_STEP, {}), key: text}
    said = [f"--lose-input {shlex.quote(name)}: {text}" for name, text in found.left_out.items()]
    said += [
        f"--lose-input {shlex.quote(name)}: nothing of it is lost; without the option, a later loss is noticed"
        for name in accepted
        if not is_accepted(name, found.left_out)
    ]
    if beyond.entries_lack:
        said.append("some of what later epochs have read is not known, since a partition is an older copy")
    if not found.moved or restored.batch is None:
        return position._replace(new_rows=rows_of), dict(found.left_out), tuple(said)
    # The accepted loss becomes part of the position before the first micro-batch: it is accepted once.
    begins = restored.batch == NO_BATCH
    moved = RecoveredPosition(
        restored.without({f"offsets/{restored.batch}"}),
        rows_of,
        position.laid_out or not begins,
        position.outdated or begins,
    )
    return moved, dict(found.left_out), tuple(said)


def _restore_beginning(
    store: PartitionStore, checkpoint: Path, setting: Callable[[str], str | None]
) -> tuple[RestoredCheckpoint, InputBeginning | None]:
    """Write the checkpoint by which Spark begins where an earlier execution began; return it with that beginning. If no
    execution has begun, Spark asks the sources. Epochs do not hold any of its files."""
    text = store.beginning()
    if text is None:
        return RestoredCheckpoint(None, {}), None
    found = recorded_beginning(text).with_settings(setting)
    shutil.rmtree(checkpoint)
    restored = restore(found.files.items(), checkpoint)
    return RestoredCheckpoint(restored.batch, {}), found


def step_plan(store: PartitionStore, plan: ResumePlan, bound: BoundPlan, config: RecoveryConfig) -> StepPlan:
    """Plan what happens to the state that the partitions hold at the resume epoch."""
    at = plan.resume_epoch
    known = store.known_steps(at)
    held = {step for step in known if not step.startswith(RESERVED_PREFIX)}
    declared = {step: str(text) for step, text in store.driver_values(DECLARATIONS_STEP, at).items()}
    steps = {s.definition.step_id: s.planned for s in bound.steps}
    choices = StepChoices(config.drop_steps, config.rename_steps, config.keep_steps)
    misreads = {s.definition.step_id: s.misread for s in bound.steps}

    def misread(old: StepId, new: StepId) -> str | None:
        with closing(store.driver_rows(old, at)) as rows:
            return misreads[new]((key, str(text)) for key, text in rows)

    planned = plan_steps(held, declared, steps, choices, config.path, misread)
    waiting = {step for step in map(quarantined_step, known) if step is not None}
    moved = plan_quarantines(waiting, declared, steps, choices, config.path)
    return StepPlan((*planned.edits, *moved.edits), {**planned.declarations, **moved.declarations})


def resume_of_sink(
    plan: ResumePlan,
    execution: Execution,
    store: PartitionStore,
    origins: tuple[Origin, ...] = (),
    where: Store | None = None,
    *,
    loses: bool,
    accepts_loss: bool = False,
    edits: bool = False,
    say: Callable[[str], None],
) -> Resume:
    """Where the sink must go back to. origins: the stores that this one was made from. where, loses, accepts_loss,
    edits, say: see `Resume`."""
    note = store.driver_values(SINK_STEP, plan.resume_epoch).get(NOTE_KEY)
    return Resume(
        epoch=plan.resume_epoch,
        note=note if isinstance(note, str) else None,
        execution=execution.lease,
        store_id=plan.store_id,
        flow_id=execution.flow_id,
        floor=plan.window[0],
        timeline=timeline(plan.partitions[0].executions, plan.snapshot),
        origins=origins,
        where=where,
        executions=frozenset(each.id for partition in plan.partitions for each in partition.executions),
        held=plan.held,
        loses=loses,
        say=say,
        accepts_loss=accepts_loss,
        edits=edits,
    )


def _check_counted(restored: RestoredCheckpoint, plan: ResumePlan, directory: Path) -> None:
    """Check that the position is the snapshot's: otherwise its micro-batches would be taken for closed ones. Raises
    FlowMismatchError."""
    batches = plan.snapshot.batch_id if plan.snapshot is not None else NO_BATCH
    held = NO_BATCH if restored.batch is None else restored.batch
    if held != batches:
        known = counted(batches + 1, "micro-batch", "micro-batches")
        raise FlowMismatchError(
            f"its newest snapshot counts {known}, and it holds the position after {held + 1}",
            path=directory,
            cause="A pipeline of the same name ran on it, which has no position in a stream.",
            remedy="Give the flow a directory of its own, or go back before the pipeline by --resume-after.",
        )
