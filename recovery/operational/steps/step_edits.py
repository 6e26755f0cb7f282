"""The state of a flow's steps: editing it as a new epoch."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from recovery.base.clock import Clock
from recovery.base.ids import Epoch
from recovery.base.reserved import DECLARATIONS_STEP, RESERVED_PREFIX, quarantined_step
from recovery.epochs.writer import EpochWriter, StepKey
from recovery.errors import ConfigurationError, EpochNotHeldError, FlowMismatchError, RecoveryError, StateValueError
from recovery.operational.backends.backend import Backend
from recovery.operational.backends.open import choose, open_backend
from recovery.operational.backends.owned import documents_of
from recovery.operational.backends.retry import RetryPolicy
from recovery.operational.runs import EDIT, RunHistory, RunRecorder
from recovery.planning.going_back import kept_interval_s
from recovery.planning.resume import Cut, ResumePlan, plan_resume
from recovery.storage.seam import Edited
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import Store
from recovery.storage.verify import run_all
from recovery.values.declaration import Declaration, shown
from recovery.values.fits import key_check, state_check

E = TypeVar("E")


def edit_states(
    store: Store,
    what: str,
    compute: Callable[[Snapshot], Mapping[StepKey, Edited]],
    *,
    clock: Clock,
    force: bool = False,
    purpose: str = "state",
) -> Epoch | None:
    """Change states of steps as a new epoch; returns that epoch, or None if there was nothing to change.

    `compute` returns the changes, given the newest snapshot under the store's locks; with `force` it may be called
    twice. purpose: the command that edits; only "quarantine" may change rows in quarantine. The input position stays,
    so the next run continues where the last one stopped. With `force` the edit does not wait for a run that holds the
    lock, but fences it: nothing that the run does from then on counts. A run with owners is never fenced. The edit is
    an execution with an entry in the run history; going back before its epoch undoes it. Raises DirectoryLockedError,
    FlowMismatchError, CorruptPartitionError, and the errors of planning, of `compute` and of the run history's backend;
    then nothing was changed and no run fenced.
    """
    # Where no partitions are, no lock file is left.
    store.found()
    with ExitStack() as held:
        fence = force and store.to_fence() is not None
        if not fence:
            store = held.enter_context(store.locked(clock, f"{purpose} {what}"))
        plan = plan_resume(store.found())
        check_used(plan, store.directory)
        check_whole(plan, store)
        if fence:
            return _edit_by_force(store, what, compute, clock)
        changes = _changes(store, plan, compute, purpose)
        facts = {"what": what, "keys": len(changes)}
        return _audited(store, plan, facts, lambda writer: writer.close(changes), clock) if changes else None


def check_used(plan: ResumePlan, directory: Path) -> None:
    """Raise FlowMismatchError for a store that no flow has used."""
    if plan.flow_id is None:
        raise FlowMismatchError(
            "no flow has used it yet, so there is no state to edit",
            path=directory,
            cause="No flow has run on the directory.",
            remedy="Run the flow once.",
        )


def _changes(
    store: Store, plan: ResumePlan, compute: Callable[[Snapshot], Mapping[StepKey, Edited]], purpose: str = "state"
) -> Mapping[StepKey, Edited]:
    newest = Snapshot.of(plan, _cut(plan), store.reader)
    changes = compute(newest)
    for step, _ in changes:
        if purpose != "quarantine" or quarantined_step(step) is None:
            _check_step(step)
    _check_fits(newest, changes)
    return changes


def _check_fits(newest: Snapshot, changes: Mapping[StepKey, Edited]) -> None:
    """Raises StateValueError for a state or a new key that does not fit what its step declares. A state that is removed
    may have any form, and so may the state of a step that declares nothing."""
    wanted = {step for (step, _), (text, _) in changes.items() if text is not None and quarantined_step(step) is None}
    declared = dict[str, Declaration]()
    for step, row in newest.some(DECLARATIONS_STEP, wanted).items():
        # A later version may declare more.
        with suppress(ValueError):
            declared[step] = Declaration.from_text(row.value)
    checks = {step: (key_check(each.key), state_check(each.state)) for step, each in declared.items()}
    for (step, key), (text, _) in changes.items():
        if step not in checks or text is None:
            continue
        fits_key, fits_state = checks[step]
        unfit, what = fits_key(key), declared[step].key_text()
        if unfit is None or newest.state(step, key) is not None:
            unfit, what = fits_state(str(text)), shown(declared[step].state)
        if unfit is not None:
            raise StateValueError(
                f"step {step!r:.80}, key {key!r:.120}: this does not fit what it declares, {what:.200}: {unfit:.300}",
                cause="A run could not read such a key, or would never look it up.",
                remedy="Write the key as `state get` prints others; `recovery status --json` has the declarations.",
            )


def _cut(plan: ResumePlan) -> Cut:
    """Return the newest snapshot that all partitions hold."""
    return max(plan.cuts)


class _NothingToChange(Exception):  # noqa: N818 - not an error
    """A forced edit has nothing to change, so it fences no run."""


def _edit_by_force(
    store: Store, what: str, compute: Callable[[Snapshot], Mapping[StepKey, Edited]], clock: Clock
) -> Epoch | None:
    """Edit during a run, by force: until the run is fenced. The run may close epochs meanwhile: then the changes are
    computed again, while all partitions are held."""
    plan = plan_resume(store.found())
    seen, changes = _cut(plan), dict[StepKey, Edited]()
    facts: dict[str, object] = {"what": what}

    def look(newest: ResumePlan) -> None:
        found = dict(_changes(store, newest, compute))
        changes.clear()
        changes.update(found)
        facts["keys"] = len(changes)
        if not changes:
            raise _NothingToChange

    def decide(newest: ResumePlan) -> None:
        if _cut(newest) != seen or not changes:
            look(newest)

    try:
        # The run may have collected the epoch meanwhile.
        with suppress(EpochNotHeldError):
            look(plan)
        return _audited(store, plan, facts, lambda writer: writer.close(changes), clock, fence=decide)
    except _NothingToChange:
        return None


def backend_of(store: Store, clock: Clock) -> Backend:
    """Return the operational state of a store, whose copies `store.found` has chosen."""
    chosen, retry = choose(store.directory, None), RetryPolicy()
    return documents_of(store, clock, retry) if chosen == store.directory else open_backend(chosen, clock, retry)


def audit(store: Store, clock: Clock) -> RunHistory:
    """Return the run history of a store, whose copies `store.found` has chosen."""
    return RunHistory(backend_of(store, clock), clock)


def close_audited(
    store: Store,
    plan: ResumePlan,
    flow_id: str,
    facts: Mapping[str, object],
    close: Callable[[EpochWriter], E],
    *,
    clock: Clock,
    backup_interval_s: float,
    fence: Callable[[ResumePlan], None] | None = None,
) -> E:
    """Close an epoch in an execution of its own. The entry of that execution in the run history holds `facts` and the
    user's name.

    `close` gets the writer. The caller holds the store's locks, or fences.
    """
    history = audit(store, clock)
    # Record the edit before it begins, above all before it fences another run.
    record = history.begin(flow_id, EDIT, {**_numbers(plan), **facts, "by": current_user()})
    # Owners take the record's end as long as they are held.
    with ExitStack() as held:
        try:
            writer = EpochWriter(store, plan, flow_id, clock, backup_interval_s=backup_interval_s, fence=fence)
            held.callback(writer.release)
            record.note(**_numbers(writer.plan), **facts)
            closed = close(writer)
        except _NothingToChange:
            _end(record, None, **{**dict.fromkeys(_numbers(plan)), **facts})
            raise
        except BaseException as error:
            _end(record, error)
            raise
        _end(record, None)
    return closed


def _numbers(plan: ResumePlan) -> dict[str, int]:
    return {"execution": plan.execution_number, "epoch": plan.resume_epoch}


def _audited(
    store: Store,
    plan: ResumePlan,
    facts: Mapping[str, object],
    close: Callable[[EpochWriter], E],
    clock: Clock,
    *,
    fence: Callable[[ResumePlan], None] | None = None,
) -> E:
    assert plan.flow_id is not None
    # An edit keeps history for as long as the last run.
    kept_s = kept_interval_s(plan.partitions, None)
    return close_audited(store, plan, plan.flow_id, facts, close, clock=clock, backup_interval_s=kept_s, fence=fence)


def check_whole(plan: ResumePlan, store: Store) -> None:
    """Raises CorruptPartitionError for a damaged file: nothing may be written on top of one."""
    for verdict in run_all(store.checks(plan.partitions, lazy=True)):
        verdict.raise_if_damaged()


def _check_step(step: str) -> None:
    if not step or step.startswith(RESERVED_PREFIX) or "\0" in step:
        raise ConfigurationError(
            f"step {step!r:.80} cannot be edited",
            cause="Steps that begin with $ are the run's own: the input position must fit the state.",
            remedy="To go back in the input, run with --resume-after.",
        )


def _end(record: RunRecorder, error: BaseException | None, **details: object) -> None:
    """Record how the edit ended; a failure to record it changes nothing."""
    with suppress(RecoveryError):
        record.end(error, **details)


def current_user() -> str:
    """Return the user's name, for records of who did something."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())
