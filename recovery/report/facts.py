"""Everything known about a directory, read once, for status, advise and report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from recovery.backup.drills import LastDrill
from recovery.backup.note import (
    LastBackup,
    LastReplica,
    Waiting,
    last_backup,
    last_drill,
    last_input_lag,
    last_replica,
    last_waiting,
)
from recovery.base.ids import Epoch
from recovery.base.reserved import CHECKPOINT_STEP, RESERVED_PREFIX, quarantined_step
from recovery.base.wording import age_s
from recovery.errors import EpochNotHeldError, LookLimitError, RecoveryError, with_path
from recovery.operational.backends.owned import origins_of
from recovery.operational.steps.quarantine import WaitingRows, steps_now
from recovery.operators.held import held_operators, held_rows
from recovery.planning.advice import Known
from recovery.planning.health import Finding, HealthTarget, findings, unsaved_s
from recovery.planning.lag import LAG_ADVICE, InputLag
from recovery.planning.lanes import Lane, lanes
from recovery.planning.measures import Measure, StepSize, summed
from recovery.planning.owner_facts import OWNER_ADVICE, SeenOwner, owner_findings
from recovery.planning.replica import ReplicaLag, Shipped, lag_of
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.planning.strays import file_name
from recovery.planning.values import ClosedEpoch, FoundFile, PartitionDescription
from recovery.storage.lock import lock_holder
from recovery.storage.origin import Origin
from recovery.storage.scan import links_of
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import Store

OfRun = TypeVar("OfRun", Waiting, InputLag)


@dataclass(frozen=True, slots=True)
class Facts:
    """A directory as it was found. Unreadable parts are missing, and listed in `problems`.

    plan: None when no run can resume from the files; `problem` explains why.
    sizes: per file name, the steps in its newest snapshot; None: the file does not contain them.
    origins: the stores that this store was made from, the nearest first.
    replica, replica_lag: what a run that replicates has shipped, and what is not; None: there was no such run.
    owners: the owners that were asked, with what they say of themselves.
    lag: what an epoch of the newest execution lacked of the input when its run last looked; None: there was no look.
    quarantine: what waits there, by step.
    waiting: what the run that has the directory waits for; None: there is no run, or it does not wait.
    at: the newest snapshot that all partitions hold; None: no run can resume from the files.
    operator_count, operator_rows: Spark's own operators that have state, and the rows in it; None: not known of all.
    """

    directory: Path
    now_ms: int
    found: tuple[FoundFile, ...]
    plan: ResumePlan | None
    problem: RecoveryError | None
    measures: tuple[Measure, ...]
    sizes: Mapping[str, Mapping[str, StepSize] | None]
    backup: LastBackup | None
    drill: LastDrill | None
    holder: Mapping[str, Any] | None
    links: Mapping[str, str]
    health: tuple[Finding, ...]
    problems: tuple[str, ...]
    operator_count: int = 0
    operator_rows: int | None = None
    origins: tuple[Origin, ...] = ()
    replica: LastReplica | None = None
    replica_lag: ReplicaLag | None = None
    lag: InputLag | None = None
    waiting: Waiting | None = None
    owners: tuple[SeenOwner, ...] = ()
    quarantine: Mapping[str, WaitingRows] = field(default_factory=dict)
    at: Snapshot | None = None

    @property
    def described(self) -> list[PartitionDescription]:
        """The partitions that could be read."""
        return [file.description for file in self.found if file.description is not None]

    @property
    def in_place(self) -> list[PartitionDescription]:
        """The partitions that could be read and have their own names: copies beside them do not count."""
        return [each for each in self.described if _is_in_place(each)]

    @property
    def steps(self) -> dict[str, StepSize]:
        """The size of each step's state, over the partitions whose sizes are known."""
        return summed(sizes for sizes in self.sizes.values() if sizes is not None)

    @property
    def state_bytes(self) -> int | None:
        """The bytes of keys and values of all live rows; None when a partition's are unknown."""
        return _state_bytes(self.sizes, max((d.count for d in self.described), default=0))

    @property
    def epochs(self) -> list[Measure]:
        """The measures of closed epochs, oldest first."""
        return [measure for measure in self.measures if measure.epoch]


def gather(
    store: Store,
    targets: Sequence[HealthTarget],
    now_ms: int,
    *,
    owners: Sequence[SeenOwner] = (),
    before: Facts | None = None,
) -> Facts:
    """Read all facts about a store, even if a part is damaged. owners: what its owners say of themselves. before: the
    facts of an earlier look, whose plan counts if no partition has changed since. Raises NoPartitionsError,
    StorageError, and what `Store.found` does."""
    home, found = store.directory, store.found()
    problems: list[str] = []
    plan, problem = None, None
    try:
        plan = before.plan if before is not None and _is_same(found, before.found) else plan_resume(found)
    except RecoveryError as error:
        problem = error
    sizes, measures = _contents(store, found, problems)
    at = None if plan is None else Snapshot.newest(plan, store.reader)
    operators, operator_rows = (0, None) if at is None else _operators(at, sizes, measures)
    backup, replica = last_backup(home), last_replica(home)
    behind = _behind(replica, found, now_ms)
    holder = lock_holder(home)
    waiting = None if holder is None else _of_newest(last_waiting(home), found)
    origins = _origins(store, problems) if problem is None else ()
    facts = Facts(
        directory=home,
        now_ms=now_ms,
        found=tuple(found),
        plan=plan,
        problem=problem,
        measures=tuple(measures),
        sizes=sizes,
        backup=backup,
        drill=last_drill(home),
        holder=holder,
        links=links_of(home),
        health=(),
        problems=tuple(problems),
        operator_count=operators,
        operator_rows=operator_rows,
        origins=origins,
        replica=replica,
        replica_lag=behind,
        lag=_of_newest(last_input_lag(home), found),
        waiting=waiting,
        owners=tuple(owners),
        quarantine=_quarantine(at, sizes, problems, before if before is not None and plan is before.plan else None),
        at=at,
    )
    return replace(facts, health=_health(facts, targets))


def _is_same(found: Sequence[FoundFile], before: Sequence[FoundFile]) -> bool:
    """Return whether all partitions have the very descriptions that they had: none was read again."""
    return len(found) == len(before) and all(
        one.description is not None and one.description is two.description
        for one, two in zip(found, before, strict=True)
    )


def _health(facts: Facts, targets: Sequence[HealthTarget]) -> tuple[Finding, ...]:
    """Return the facts compared with the targets."""
    now_ms, backup, behind, waiting = facts.now_ms, facts.backup, facts.replica_lag, facts.waiting
    oldest = min((each.since_ms for each in facts.quarantine.values() if each.since_ms is not None), default=None)
    began = (execution for each in facts.described for execution in each.executions)
    return (
        *findings(
            facts.measures,
            targets,
            state_bytes=facts.state_bytes,
            backup_lag_s=None if backup is None else age_s(backup.finished_ms, now_ms),
            unsaved_s=unsaved_s(began, now_ms),
            replica=behind,
            source_lag_s=None if facts.lag is None else facts.lag.seconds,
            wait_s=None if waiting is None else age_s(waiting.since_ms, now_ms),
            quarantine_s=None if oldest is None else age_s(oldest, now_ms),
        ),
        *owner_findings(facts.owners, targets),
    )


def _quarantine(
    at: Snapshot | None,
    sizes: Mapping[str, Mapping[str, StepSize] | None],
    problems: list[str],
    same: Facts | None,
) -> Mapping[str, WaitingRows]:
    """Return what waits in quarantine at the newest epoch, by step. same: facts of the same partitions as they are now;
    None: they have changed since. Adds to `problems`."""
    if at is None or not at.epoch:
        return {}
    if same is not None and not same.problems:
        return same.quarantine
    named = (quarantined_step(step) for each in sizes.values() for step in each or ())
    try:
        return steps_now(at, filter(None, named))
    except EpochNotHeldError:
        # A run has closed the next epoch meanwhile; the next look shows what that has.
        return {}
    except RecoveryError as error:
        problems.append(with_path(error.found, error.path))
        return {}


def _of_newest(note: OfRun | None, found: Sequence[FoundFile]) -> OfRun | None:
    """Return the note of a run if it is of the newest execution; None: it is of an earlier one, or there is none."""
    executions = [each.number for file in found if file.description for each in file.description.executions]
    return note if note is not None and note.execution == max(executions, default=0) else None


def _contents(
    store: Store, found: Sequence[FoundFile], problems: list[str]
) -> tuple[dict[str, Mapping[str, StepSize] | None], list[Measure]]:
    """Return the sizes of the steps by file name, None for a file that cannot be read, and the measures. Adds to
    `problems`."""
    sizes: dict[str, Mapping[str, StepSize] | None] = {}
    measures: list[Measure] = []
    for file in found:
        if file.description is None:
            problems.append(f"{file.path.name}: {file.error.found if file.error else 'it cannot be read'}")
            continue
        if not _is_in_place(file.description):
            continue
        try:
            reader = store.reader(file.description)
            sizes[file.path.name] = reader.sizes()
            if file.description.index == 0:
                measures = reader.measures()
        except (RecoveryError, ValueError) as error:
            sizes.setdefault(file.path.name, None)
            problems.append(f"{file.path.name}: {error.found if isinstance(error, RecoveryError) else error}")
    return sizes, measures


def _is_in_place(description: PartitionDescription) -> bool:
    return description.path.name == file_name(description.index)


def _behind(replica: LastReplica | None, found: Sequence[FoundFile], now_ms: int) -> ReplicaLag | None:
    """Return how far the replica is behind the partition that has closed most; None if there is no replica."""
    if replica is None:
        return None
    shipped = Shipped(Epoch(replica.epoch), replica.execution)
    lags = [lag_of(file.description.epochs, shipped, now_ms) for file in found if file.description is not None]
    return max(lags, default=None)


def _operators(
    at: Snapshot, sizes: Mapping[str, Mapping[str, StepSize] | None], measures: Sequence[Measure]
) -> tuple[int, int | None]:
    """Return the number of Spark's own operators that have state in a snapshot, and the rows in all of them, if known.

    Reads the operators only if no step has state.
    """
    steps = summed(each for each in sizes.values() if each is not None)
    if CHECKPOINT_STEP not in steps or any(not step.startswith(RESERVED_PREFIX) for step in steps):
        return 0, None
    try:
        operators = held_operators(at)
        rows = held_rows(at, measures)
    except (RecoveryError, ValueError):
        return 0, None
    counts = [rows.get(each.number) for each in operators]
    return len(operators), None if None in counts else sum(count or 0 for count in counts)


def _origins(store: Store, problems: list[str]) -> tuple[Origin, ...]:
    try:
        return origins_of(store)
    except RecoveryError as error:
        problems.append(with_path(error.found, error.path))
        return ()


def _state_bytes(sizes: Mapping[str, Mapping[str, StepSize] | None], partitions: int) -> int | None:
    known = [each for each in sizes.values() if each is not None]
    if not known or len(known) < partitions:
        return None
    return sum(size.size_bytes for size in summed(known).values())


def largest(
    store: Store, facts: Facts, limit: int, check: Callable[[], None] = lambda: None
) -> list[tuple[str, str, int]]:
    """Return the states with the most bytes, of all partitions: step, key, bytes; without the run's own rows.

    Reads every key of the newest snapshot. Skips unreadable partitions. check: called before each partition; raises if
    it takes too long. Raises LookLimitError.
    """
    states: list[tuple[str, str, int]] = []
    for description in facts.in_place:
        check()
        try:
            states += store.reader(description).largest(limit)
        except LookLimitError:
            raise
        except RecoveryError:
            continue
    return sorted(states, key=lambda state: (-state[2], state[0], state[1]))[:limit]


def lanes_of(facts: Facts) -> list[Lane]:
    """Return a lane for each execution, in the order of their numbers."""
    executions = {run.number: run for d in facts.described for run in d.executions}
    return lanes(list(executions.values()), _closed(facts), _newest(facts))


def _newest(facts: Facts) -> ClosedEpoch | None:
    if facts.plan is not None:
        return facts.plan.snapshot
    return max((d.newest for d in facts.described if d.newest), key=lambda e: e.clock_ms, default=None)


def _closed(facts: Facts) -> set[tuple[int, int]]:
    """Return every known epoch, with the number of its execution."""
    held = {(e.execution.number, e.epoch) for d in facts.described for e in d.epochs}
    return held | {(measure.execution, measure.epoch) for measure in facts.epochs}


def advice_of(finding: Finding) -> str | None:
    """Return what to do about a target of health that is not met; None: it is met, or `recovery advise` says it."""
    advice = {**OWNER_ADVICE, **LAG_ADVICE}.get(finding.target.name)
    return advice if finding.level.severity else None


def known(facts: Facts, cores: int) -> Known:
    """Return the input of `advise`."""
    described = facts.in_place
    runs = sorted((run for d in described for run in d.executions), key=lambda run: run.number)
    count = max((d.count for d in described), default=1)
    return Known(
        measures=facts.measures,
        snapshot_interval_s=runs[-1].snapshot_interval_s if runs else None,
        backup_interval_s=runs[-1].backup_interval_s if runs else None,
        partitions=count,
        cores=cores,
        live_rows=sum(d.newest.live_rows for d in described if d.newest),
        live_bytes=facts.state_bytes,
        superseded_rows=sum(e.superseded_rows for d in described for e in d.epochs if e.epoch > d.collected),
        file_bytes=sum(d.size_bytes for d in described),
        partition_bytes=[
            sum(size.size_bytes for size in sizes.values()) for sizes in facts.sizes.values() if sizes is not None
        ],
    )
