"""Rehearse a disaster: restore into scratch, begin an execution there, and report the result and the times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from recovery.backup.progress import Observer, ignore
from recovery.backup.restore import Announce, RestoredDirectory, restore
from recovery.backup.sources import Source
from recovery.base.clock import Clock
from recovery.base.ids import Epoch
from recovery.base.intervals import format_interval
from recovery.base.wording import age_s, ahead_text
from recovery.epochs.execution import new_execution
from recovery.errors import BackupDamagedError, BackupTooOldError, RecoveryError
from recovery.host.scratch import scratch_directory
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.storage.connect import connect_driver
from recovery.storage.scan import scan, step_names


@dataclass(frozen=True, slots=True)
class Drilled:
    """The result of a drill.

    began_at: the epoch at which an execution began in the restored copy. open_s: time to plan and begin it.
    problem: why the drill fails although something could be restored.
    """

    restored: RestoredDirectory
    steps: tuple[str, ...]
    began_at: Epoch
    open_s: float
    problem: RecoveryError | None

    @property
    def total_s(self) -> float:
        """The time from listing the copies to a run that could continue, in seconds."""
        return self.restored.timings.total_s + self.open_s


def drill(
    source: Source,
    *,
    clock: Clock,
    random_id: Callable[[], str],
    scratch: Path | None = None,
    epoch: int | None = None,
    at_ms: int | None = None,
    max_age_s: float | None = None,
    announce: Announce = lambda _plan, _left_out: None,
    observe: Observer = ignore,
) -> Drilled:
    """Restore into a temporary directory (in `scratch`), check all of it, begin an execution there, and remove it.

    Nothing in the source changes. The drill fails if a copy was damaged, even if others replaced it, if an object is
    missing that any backup lists, or if the restored epoch is older than `max_age_s`: see `problem`. Raises the errors
    of `restore` if nothing can be restored.
    """
    with scratch_directory("drill", scratch) as room:
        directory = room / "restored"
        restored = restore(
            source,
            directory,
            clock=clock,
            random_id=random_id,
            epoch=epoch,
            at_ms=at_ms,
            announce=announce,
            observe=observe,
        )
        started = clock.elapsed_s()
        planned = plan_resume(scan(directory))
        steps = step_names(restored.paths)
        _begin(planned, directory, clock, random_id)
        open_s = clock.elapsed_s() - started
    return Drilled(restored, tuple(steps), planned.resume_epoch, open_s, _problem(restored, source, clock, max_age_s))


def _begin(planned: ResumePlan, directory: Path, clock: Clock, random_id: Callable[[], str]) -> None:
    """Start an execution as a run does, to find errors that only a write shows."""
    store = connect_driver(planned.partitions, directory / "scratch")
    try:
        execution = new_execution(planned, planned.flow_id or "drill", clock, identity=random_id())
        store.start(execution, [], planned.partitions)
    finally:
        store.release()


def _problem(
    restored: RestoredDirectory, source: Source, clock: Clock, max_age_s: float | None
) -> RecoveryError | None:
    damaged = [*restored.left_out, *source.damaged, *source.missing()]
    if damaged:
        return BackupDamagedError("; ".join(damaged[:3]), path=source.shown)
    snapshot = restored.plan.snapshot
    if max_age_s is None:
        return None
    age = age_s(snapshot.closed_ms, clock.wall_ms()) if snapshot is not None else None
    if age is not None and age < 0:
        return BackupTooOldError(
            f"its newest whole epoch is dated {ahead_text(age)}",
            path=source.shown,
            cause="The clock of the run's host is ahead, or that of this host is behind.",
            remedy="Set the clocks by NTP, and look whether backups are still being made.",
        )
    if age is None or age > max_age_s:
        old = "no epoch was closed yet" if age is None else f"its newest whole epoch is {format_interval(age)} old"
        return BackupTooOldError(f"{old}, and {format_interval(max_age_s)} was allowed", path=source.shown)
    return None
