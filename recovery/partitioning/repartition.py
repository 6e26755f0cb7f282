"""Give a store another number of partitions: make a new store with everything that the old one holds.

repartition.1  Lock the directory, plan, and make a draft beside the new one.
repartition.2  Write the new partitions, in several processes, and read them again; sync.
repartition.3  Compare: each step has the same rows, with the same digests, at every held epoch.
repartition.4  Record the origin in part-0. Sync.
repartition.5  Plan a resume from the new partitions: it must be at the same epoch.
repartition.6  Rename the draft into place.

In place, the draft gets the name that the old directory is to have, and then both swap their names, in one rename:
see `recovery.partitioning.in_place`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recovery.base.addresses import local_path
from recovery.base.clock import Clock, SystemClock
from recovery.base.wording import counted
from recovery.errors import ConfigurationError, CorruptPartitionError, StorageError
from recovery.host.durable import granted, modes_beside, sync
from recovery.host.new_directory import check_free, check_outside, new_directory
from recovery.partitioning.in_place import check_exchange, check_in_place, clear_unfinished, kept_path, swap
from recovery.partitioning.worker import Work
from recovery.partitioning.workers import do_all
from recovery.planning.moving import divide
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.storage.documents import home, state_totals
from recovery.storage.hydration import refuse_hydrating
from recovery.storage.lock import DirectoryLock, check_unlocked
from recovery.storage.origin import How, Origin, add_origin, origin_of, refuse_made
from recovery.storage.repartition import MAX_PARTITIONS, StepTally, Tally, refuse_misplaced
from recovery.storage.scan import scan
from recovery.storage.standby import refuse_standby

VERB: How = "repartition"
FEW_ROWS = 200_000
"""For fewer rows, a second process costs more than it saves."""
MOST_PROCESSES = 8

Observer = Callable[[int, int], None]
"""Called with the number of rows read so far and an estimate of all rows."""


def ignore(_done: int, _total: int) -> None:
    """An observer that does nothing."""


@dataclass(frozen=True, slots=True)
class RepartitionPlan:
    """What a repartitioning will do. new_directory: None: in place. rows: of all steps and held epochs.

    keeps: where the old directory will be afterwards, if in place.
    """

    directory: Path
    new_directory: Path | None
    keeps: Path | None
    store_id: str
    flow_id: str | None
    partitions: int
    new_partitions: int
    epochs: tuple[int, ...]
    rows: int
    size_bytes: int

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return {
            "directory": str(self.directory),
            "new_directory": str(self.new_directory or self.directory),
            "kept": None if self.keeps is None else str(self.keeps),
            "flow": self.flow_id,
            "partitions": {"before": self.partitions, "after": self.new_partitions},
            "epochs": {"first": self.epochs[0], "last": self.epochs[-1], "held": len(self.epochs)},
            "rows": self.rows,
            "bytes": self.size_bytes,
        }


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """What a repartitioning has done. before, after: what the old and the new partitions hold; they were compared."""

    plan: RepartitionPlan
    store_id: str
    origin: Origin
    size_bytes: int
    elapsed_s: float
    before: Tally
    after: Tally

    def steps(self) -> list[str]:
        """Return the steps that have rows, the run's own steps included."""
        return self.after.steps()

    def of(self, step: str) -> Iterator[tuple[StepTally, StepTally]]:
        """Yield the rows of a step at each held epoch with the sum of their digests, before and after."""
        epochs = self.plan.epochs
        return zip(self.before.of(step, epochs), self.after.of(step, epochs), strict=True)


def plan_repartition(
    directory: str | os.PathLike[str],
    new_directory: str | os.PathLike[str] | None,
    count: int,
    *,
    copied_from: Path | None = None,
) -> RepartitionPlan:
    """Return what `repartition` will do with these arguments; changes nothing. Raises what that raises."""
    source, target = local_path(directory), None if new_directory is None else local_path(new_directory)
    origin = copied_from or source
    scan(source)
    refuse_standby(origin)
    check_unlocked(origin)
    plan, _ = _planned(source, origin, target, count)
    return plan


def _planned(
    directory: Path, origin: Path, new_directory: Path | None, count: int
) -> tuple[RepartitionPlan, ResumePlan]:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_PARTITIONS:
        raise ConfigurationError(
            f"{count!r:.80} is not a number of partitions",
            cause=f"A recovery directory has 1 to {MAX_PARTITIONS} partitions.",
            remedy="Take about one per core that will run the flow.",
        )
    refuse_hydrating(origin, "repartition")
    found = plan_resume(scan(directory))
    if count == len(found.partitions):
        raise ConfigurationError(f"{origin} has {counted(count, 'partition')} already", cause="", remedy="")
    keeps = None
    if new_directory is None:
        check_in_place(directory, found)
        keeps = kept_path(directory, found.store_id)
    else:
        check_outside(new_directory, origin)
        refuse_made(new_directory, found.store_id)
        check_free(new_directory)
    return RepartitionPlan(
        directory=origin,
        new_directory=new_directory,
        keeps=keeps,
        store_id=found.store_id,
        flow_id=found.flow_id,
        partitions=len(found.partitions),
        new_partitions=count,
        epochs=tuple(found.window),
        rows=sum(d.row_count for d in found.partitions),
        size_bytes=sum(d.size_bytes for d in found.partitions),
    ), found


def repartition(
    directory: str | os.PathLike[str],
    new_directory: str | os.PathLike[str] | None,
    count: int,
    *,
    processes: int | None = None,
    observe: Observer = ignore,
    announce: Callable[[RepartitionPlan], None] = lambda plan: None,
    clock: Clock | None = None,
    random_id: Callable[[], str] = lambda: secrets.token_hex(8),
    copied_from: Path | None = None,
) -> Repartitioned:
    """Make a store with `count` partitions in `new_directory` that has all of the one in `directory`; return it.

    No run may be active in `directory`, which does not change.

    The new store has all held epochs, so that runs can go back as before, and timeouts, executions, operational state,
    measures and the input position. The new store has an id of its own, and sinks that take part continue with that
    store. Rows and digests of both stores are compared, by step and held epoch.

    new_directory: missing or empty; it appears when it is whole, and what a killed attempt left, the next one removes.
    None: in place: `directory` becomes the new one, in one rename, and the old one is kept beside it until `drop_old`.
    processes: None: one per core. announce: is called with the plan before anything is written. copied_from: the
    directory of the run, if `directory` has copies of its partitions, which the caller has locked where they are.

    Raises the errors of `plan`, ConfigurationError, AlreadyInitializedError, DirectoryLockedError,
    CorruptPartitionError or StorageError.
    """
    source, target = local_path(directory), None if new_directory is None else local_path(new_directory)
    attempt = _RepartitionAttempt(source, copied_from, target, count, clock or SystemClock(), random_id())
    return attempt.make(processes, observe, announce)


class _RepartitionAttempt:
    def __init__(
        self, directory: Path, copied_from: Path | None, target: Path | None, count: int, clock: Clock, store_id: str
    ) -> None:
        # A link keeps its name; the directory that it leads to is the one that changes.
        self._directory = directory if target is not None else Path(os.path.realpath(directory))
        self._origin = copied_from or self._directory
        self._target = target
        self._count = count
        self._clock = clock
        self._store_id = store_id

    def make(
        self, processes: int | None, observe: Observer, announce: Callable[[RepartitionPlan], None]
    ) -> Repartitioned:
        """Do steps repartition.1 to repartition.6."""
        began_s = self._clock.elapsed_s()
        scan(self._directory)
        with DirectoryLock(self._directory, self._clock, VERB):
            # 1
            if self._target is None:
                clear_unfinished(self._directory)
            plan, found = _planned(self._directory, self._origin, self._target, self._count)
            announce(plan)
            first = home(self._directory)
            totals = state_totals(first)
            place = self._target if self._target is not None else plan.keeps
            assert place is not None
            if self._target is None:
                check_exchange(place, VERB)
            with new_directory(place, VERB, modes_beside(first)) as draft:
                # 2
                before, after = self._move(draft, plan, processes, observe)
                # 3
                self._compare(before, after, found)
                # 4
                origin = origin_of(self._origin, VERB, found, self._clock.wall_ms())
                add_origin(draft, origin)
                size_bytes = self._settle(draft, first)
                # 5
                self._check_plan(draft, found)
            # 6
            if self._target is None:
                swap(self._directory, place, totals)
        elapsed_s = self._clock.elapsed_s() - began_s
        return Repartitioned(plan, self._store_id, origin, size_bytes, elapsed_s, before, after)

    def _move(
        self, draft: Path, plan: RepartitionPlan, processes: int | None, observe: Observer
    ) -> tuple[Tally, Tally]:
        """Write the new partitions."""
        at_once = processes or (1 if plan.rows < FEW_ROWS else min(MOST_PROCESSES, os.cpu_count() or 1))
        created_ms = self._clock.wall_ms()
        shares = divide(plan.partitions, plan.new_partitions, at_once)
        works = [
            Work(
                os.fsencode(self._directory), self._store_id, created_ms, plan.new_partitions, os.fsencode(draft), each
            )
            for each in shares
        ]
        done = 0

        def moved(rows: int) -> None:
            nonlocal done
            done += rows
            observe(done, plan.rows)

        return do_all(works, moved)

    def _compare(self, before: Tally, after: Tally, found: ResumePlan) -> None:
        for step in sorted({*before.steps(), *after.steps()}):
            for old, new in zip(before.of(step, found.window), after.of(step, found.window), strict=True):
                if old != new:
                    refuse_misplaced(found.partitions)
                self._check_equal(old, new)

    def _check_equal(self, old: StepTally, new: StepTally) -> None:
        if old != new:
            found = (f"{counted(each.rows, 'row')} with the digest {each.digest:015x}" for each in (old, new))
            raise StorageError(
                f"step {old.step!r} has at epoch {old.epoch} {' in the old files, and '.join(found)} in the new ones",
                path=self._directory,
                cause="The disk or the memory of this machine is not reliable, or this package has a defect.",
                remedy="Check the partitions (recovery verify DIR), and run the same command again: nothing was made.",
            )

    def _settle(self, draft: Path, first: Path) -> int:
        """Give the new files the permissions of the old ones, and sync them; return their size."""
        mode, owner = granted(modes_beside(first).file, draft), first.stat()
        size_bytes = 0
        for path in [*draft.iterdir(), draft]:
            if path != draft:
                path.chmod(mode)
                size_bytes += path.stat().st_size
            if os.geteuid() == 0:
                # Done by root for a service that runs as somebody else.
                os.chown(path, owner.st_uid, owner.st_gid)
            sync(path)
        return size_bytes

    def _check_plan(self, draft: Path, found: ResumePlan) -> None:
        made = plan_resume(scan(draft))
        cuts = [(plan.resume_epoch, plan.window, plan.flow_id, plan.execution_number) for plan in (made, found)]
        if cuts[0] != cuts[1] or made.store_id != self._store_id:
            raise CorruptPartitionError(
                f"the new partitions would resume as {cuts[0]}, the old ones as {cuts[1]}", path=self._directory
            )
