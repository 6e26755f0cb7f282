"""Whether a run would find nothing to do: then it ends here, without Spark.

The questions, in their order; the first one without a clear answer starts Spark, which does everything as without
--if-new-input:

1. Has an earlier run with the option left a note, and could it tell what its sources have?
2. Is the command the same: flow, options, code, variables, files that the code has read?
3. Does the command ask for something that a start does even without input?
4. Is the directory as that run left it: the same execution was the last, and closed the newest epoch in every
   partition; nothing to restore, to move or to clean?
5. Is no timeout of a step due?
6. Do the sources have nothing that the epoch lacks?
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recovery.base.clock import Clock
from recovery.base.reserved import CHECKPOINT_STEP, SOURCES_STEP
from recovery.checkpoint.reached import position_in
from recovery.checkpoint.sources import IDENTITIES_KEY, texts_by_name
from recovery.config import RecoveryConfig, checkpoint_address
from recovery.errors import DirectoryLockedError, RecoveryError
from recovery.idle.code import change_of, forgotten_imports
from recovery.idle.note import FORM, FlowCode, FlowInput, LastInput, read_note, write_note
from recovery.idle.sources import Positions, new_input
from recovery.operational.backends.open import choose, open_backend
from recovery.operational.backends.retry import RetryPolicy
from recovery.operational.runs import FLOW, RunHistory
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.storage.connect import SCRATCH_NAME, left_executions
from recovery.storage.hydration import hydrating
from recovery.storage.lock import DirectoryLock
from recovery.storage.moving.departed import read_notes
from recovery.storage.reading import FileReader
from recovery.storage.restored import NAME as RESTORED
from recovery.storage.scan import scan
from recovery.storage.snapshot import Snapshot

ALWAYS = {
    "owners": "--owner: owners have partitions",
    "replicate": "--replicate: epochs may wait to be shipped",
    "replace_from": "--replace-from: owners have partitions",
    "resume_after": "--resume-after goes back",
    "resume_epoch": "--resume-epoch goes back",
    "rewind_again": "--rewind-again goes back",
    "until": "--until",
    "no_output": "--no-output",
    "discard_history": "history may be discarded",
    "takeover": "--takeover",
    "lose_epochs": "--lose-epochs",
    "lose_input": "--lose-input",
    "drop_steps": "--drop-step changes state",
    "rename_steps": "--rename-step changes state",
}
"""Settings with which a run always starts Spark, and why."""


@dataclass(frozen=True, slots=True)
class Idle:
    """A run that would find nothing to do. flow: its name. epoch: the newest one. runs: how many such runs came in a
    row, with this one."""

    flow: str
    epoch: int
    runs: int


def look(config: RecoveryConfig, facts: Mapping[str, str], clock: Clock) -> Idle | str:
    """Return that a run would find nothing to do, once the run history says so; or why Spark has to start.

    facts: as for `CodeWatch`. Only the run history is written. Raises DirectoryLockedError if another run has the
    directory.
    """
    try:
        note = read_note(config.path)
        if note is None:
            return "no earlier run with --if-new-input has noted its input"
        why = _differs(note, config, facts)
        if why is not None:
            return why
        with DirectoryLock(config.path, clock, f"flow {note.input.flow}"):
            return _directory_differs(note.input, config, clock) or _recorded(note.input, config, clock)
    except DirectoryLockedError:
        raise
    except (RecoveryError, OSError, ValueError, TypeError, KeyError) as error:
        # Spark's own start says what is wrong, with its way out.
        return error.found if isinstance(error, RecoveryError) else str(error)


def note_input(config: RecoveryConfig, found: FlowInput, code: FlowCode) -> None:
    """Leave the note for the next run. found: of a run that has ended without an error."""
    write_note(config.path, LastInput(form=FORM, input=found, code=code))


def _differs(note: LastInput, config: RecoveryConfig, facts: Mapping[str, str]) -> str | None:
    for name, why in ALWAYS.items():
        given = getattr(config, name)
        # To go back after epoch 0 is to begin again.
        if given or (given is not None and type(given) is int):
            return why
    return note.input.why_not or change_of(note.code, facts)


def _directory_differs(found: FlowInput, config: RecoveryConfig, clock: Clock) -> str | None:
    plan = plan_resume(scan(config.path), flow_id=found.flow)
    newest = plan.snapshot
    if newest is None or (newest.epoch, newest.batch_id) != (found.epoch, found.batch):
        return "the directory has other epochs than after that run"
    for each in plan.partitions:
        last = max(each.executions, key=lambda execution: execution.number, default=None)
        if last is None or last.id != found.execution or each.newest is None or each.newest.cut != newest.cut:
            return f"{each.path.name} was changed after that run"
    scratch = config.path / SCRATCH_NAME if config.scratch_directory is None else config.scratch_directory
    if checkpoint_address(config) is not None or left_executions(scratch, config.path):  # type: ignore[arg-type]
        return "a run has left files behind"
    if (config.path / RESTORED).exists() or hydrating(config.path) or read_notes(config.path):
        return "the directory was restored, or partitions have left it"
    if found.due_ms is not None and found.due_ms <= clock.wall_ms():
        return "a timeout is due"
    positions = _positions(plan, found.batch)
    if positions is None:
        return "the partitions do not hold the whole position"
    with forgotten_imports():
        return new_input(found.sources, found.places, positions, found.group)


def _positions(plan: ResumePlan, batch: int) -> Positions | None:
    assert plan.snapshot is not None
    at = Snapshot.of(plan, plan.snapshot.cut, FileReader.of)
    found = position_in(((each.key, each.value) for each in at.states(CHECKPOINT_STEP)), batch)
    identities = at.state(SOURCES_STEP, IDENTITIES_KEY)
    known = texts_by_name(None if identities is None else identities.value)
    return None if found is None else Positions(*found, known)


def _recorded(found: FlowInput, config: RecoveryConfig, clock: Clock) -> Idle:
    """Record the run in the run history."""
    backend = open_backend(choose(config.path, config.state_backend), clock, RetryPolicy())
    facts: dict[str, Any] = {"epoch": found.epoch, "batches": 0, "rows": 0}
    return Idle(found.flow, found.epoch, RunHistory(backend, clock).skip(found.flow, FLOW, facts))
