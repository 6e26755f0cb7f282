"""The state of a flow's steps: reading it at any epoch that is held, and editing it as an epoch of its own."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from recovery.clock import Clock, RecoveryClock
from recovery.errors import ConfigurationError, EpochNotHeldError, FlowMismatchError, RecoveryError
from recovery.ids import NO_BATCH, Epoch, StepId
from recovery.keys import partition_of
from recovery.planning.resume import Cut, ResumePlan, common_cuts, plan_resume
from recovery.planning.retention import collection_floor, shared_history
from recovery.planning.values import Execution
from recovery.state.open import choose, open_backend
from recovery.state.retry import RetryPolicy
from recovery.state.runs import EDIT, RunHistory
from recovery.storage.files import SCRATCH_NAME, FilePartitions, scan
from recovery.storage.history import KeyChange, KeyState, changes_between, states_at, steps_in
from recovery.storage.lock import DirectoryLock, lock_holder
from recovery.storage.seam import RESERVED_PREFIX, CloseRequest
from recovery.storage.verify import PartitionCheck

StepKey = tuple[str, str]
"""Step id and state key."""

Edited = tuple[str | None, int | None]
"""A value as it is stored and when it times out, in milliseconds since 1970; a value of None discards the key."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One snapshot of a recovery directory: the files, and the cut that they share."""

    paths: tuple[Path, ...]
    cut: Cut

    @property
    def epoch(self) -> int:
        """Its number, 0 for the time before the first."""
        return self.cut[0]

    def states(self, step: str) -> Iterator[KeyState]:
        """The states of a step, one partition after the other."""
        for path in self.paths:
            yield from states_at(path, step, self.cut)

    def state(self, step: str, key: str) -> KeyState | None:
        """The state of one key."""
        path = self.paths[partition_of(key, len(self.paths))]
        return next(states_at(path, step, self.cut, key), None)

    def changes(self, step: str, since: Moment) -> Iterator[KeyChange]:
        """The keys of a step whose state is another one than at the moment `since`."""
        for path in self.paths:
            yield from changes_between(path, step, since.cut, self.cut)

    def steps(self, *, reserved: bool = False) -> list[str]:
        """The steps that have state at this or another epoch that is held."""
        found = {step for path in self.paths for step in steps_in(path)}
        return sorted(step for step in found if reserved or not step.startswith(RESERVED_PREFIX))


def moment(directory: Path, epoch: int | None = None) -> Moment:
    """The snapshot of an epoch that all partitions hold; None: the newest. Only reads; a run may be going on.

    Raises the errors of planning, and EpochNotHeldError.
    """
    plan = plan_resume(scan(directory))
    cuts = common_cuts(plan.partitions)
    paths = tuple(d.path for d in plan.partitions)
    if epoch is None:
        return Moment(paths, max(cuts))
    for cut in cuts:
        if cut[0] == epoch:
            return Moment(paths, cut)
    raise EpochNotHeldError(
        f"epoch {epoch} is not held: the partitions share epochs {min(cuts)[0]} to {max(cuts)[0]}", path=directory
    )


def edit_states(
    directory: Path,
    what: str,
    compute: Callable[[Moment], Mapping[StepKey, Edited]],
    *,
    clock: Clock,
    force: bool = False,
) -> Epoch | None:
    """Change states of steps as a new epoch; returns it, or None when there was nothing to change.

    `compute` gives the changes from the newest snapshot, under the directory's lock. The input position stays, so the
    next run continues where the last one stopped. With `force` a run that holds the lock is not waited for but fenced:
    nothing that it does from then on counts. The edit is an execution with an entry in the run history; going back
    before its epoch undoes it. Raises DirectoryLockedError, FlowMismatchError, CorruptPartitionError, and what
    planning and `compute` raise; nothing was changed then.
    """
    scan(directory)
    with ExitStack() as held:
        if not (force and lock_holder(directory) is not None):
            held.enter_context(DirectoryLock(directory, clock, f"state {what}"))
        plan = plan_resume(scan(directory))
        if plan.flow_id is None:
            raise FlowMismatchError(
                "it belongs to no flow yet, so there is no state to edit",
                path=directory,
                cause="No flow ever ran on it.",
                remedy="Run the flow once.",
            )
        _check(plan)
        newest = Moment(tuple(d.path for d in plan.partitions), max(common_cuts(plan.partitions)))
        changes = compute(newest)
        for step, _ in changes:
            _check_step(step)
        if not changes:
            return None
        return _apply(directory, plan, what, changes, clock)


def _apply(directory: Path, plan: ResumePlan, what: str, changes: Mapping[StepKey, Edited], clock: Clock) -> Epoch:
    execution = _execution(plan, clock)
    history = RunHistory(open_backend(choose(directory, None), clock, RetryPolicy()), clock)
    by = {"execution": execution.number, "epoch": plan.resume_epoch, "what": what, "keys": len(changes), "by": _user()}
    record = history.begin(execution.flow_id, EDIT, by)
    store = FilePartitions([d.path for d in plan.partitions], directory / SCRATCH_NAME)
    try:
        store.start(execution, [])
        store.close(execution.lease, _requests(plan, execution, changes, clock))
        store.checkpoint()
    except BaseException as error:
        _end(record.end, error)
        raise
    finally:
        store.release()
    _end(record.end, None)
    return plan.resume_epoch


def _requests(
    plan: ResumePlan, execution: Execution, changes: Mapping[StepKey, Edited], clock: Clock
) -> list[CloseRequest]:
    """One for every partition: the keys that are its own."""
    count = len(plan.partitions)
    now_ms = RecoveryClock(clock, *plan.last_clock).now_ms()
    history = shared_history(plan.partitions, [e for e in plan.window if e < plan.resume_epoch])
    floor = collection_floor(history, now_ms, execution.backup_interval_s * 1000)
    rows: list[dict[StepId, dict[str, Edited]]] = [{} for _ in range(count)]
    for (step, key), edited in changes.items():
        rows[partition_of(key, count)].setdefault(StepId(step), {})[key] = edited
    return [
        CloseRequest(
            epoch=plan.resume_epoch,
            batch=plan.snapshot.batch_id if plan.snapshot else NO_BATCH,
            closed_ms=clock.wall_ms(),
            clock_ms=now_ms,
            floor=floor,
            driver_rows={},
            state_rows=part,
        )
        for part in rows
    ]


def _execution(plan: ResumePlan, clock: Clock) -> Execution:
    """An edit keeps what the last run was told to keep."""
    runs = [execution for d in plan.partitions for execution in d.executions]
    last = max(runs, key=lambda execution: execution.number)
    assert plan.flow_id is not None
    return Execution(
        number=plan.execution_number,
        id=secrets.token_hex(8),
        flow_id=plan.flow_id,
        resume_epoch=plan.resume_epoch,
        started_ms=clock.wall_ms(),
        snapshot_interval_s=last.snapshot_interval_s,
        backup_interval_s=last.backup_interval_s,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=version("recovery"),
    )


def _check(plan: ResumePlan) -> None:
    """Nothing is written on top of a damaged file. Raises CorruptPartitionError."""
    with ThreadPoolExecutor(4) as pool:
        for verdict in pool.map(lambda d: PartitionCheck(d.path).run(), plan.partitions):
            verdict.raise_if_damaged()


def _check_step(step: str) -> None:
    if not step or step.startswith(RESERVED_PREFIX) or "\0" in step:
        raise ConfigurationError(
            f"step {step!r:.80} cannot be edited",
            cause="Steps that begin with $ are the run's own: the input position must fit the state.",
            remedy="To go back in the input, run with --resume-epoch.",
        )


def _end(end: Callable[[BaseException | None], None], error: BaseException | None) -> None:
    """The edit is done, or not; whether that can be noted changes neither."""
    try:
        end(error)
    except RecoveryError:
        return


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())
