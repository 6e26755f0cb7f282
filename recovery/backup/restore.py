"""Restore a recovery directory from copies: all of it, or nothing.

restore.1  Plan: of all copies the newest set with a common epoch. Report what it gives up.
restore.2  Fetch each copy into a staging directory and compare it with the manifest. If a copy turns out to be
           damaged, leave it out and make a new plan of the other copies (restore.1).
restore.3  Check every digest in each file; discard epochs after the restored one; sync.
restore.4  Plan a resume from the staged files: it must be at the planned epoch.
restore.5  Link the files into place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from recovery.backup.progress import FileProgress, Observer, ignore
from recovery.backup.sources import Source, open_source
from recovery.base.clock import Clock
from recovery.base.ids import PartitionIndex
from recovery.base.threads import each
from recovery.errors import (
    AlreadyInitializedError,
    BackupDamagedError,
    CorruptPartitionError,
    EpochNotHeldError,
    RecoveryError,
)
from recovery.host.durable import PRIVATE, UMASK
from recovery.host.scratch import scratch_directory
from recovery.places.opening import open_place
from recovery.planning.backups import PartitionCopy, RestorePlan, plan_restore
from recovery.planning.held import differing
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.planning.values import FoundFile
from recovery.storage.copies import settle
from recovery.storage.hydration import hydrating, is_lazy
from recovery.storage.initialize import place_restored
from recovery.storage.restored import read_restored
from recovery.storage.scan import describe_file, scan
from recovery.storage.sqlite.file.opening import partition_path
from recovery.storage.verify import PartitionCheck, naming

AT_ONCE = 4
SHOWN = 3
"""How many unusable copies an error names."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timings:
    """How long the steps took for all partitions together, in seconds."""

    plan_s: float
    fetch_s: float
    check_s: float
    place_s: float

    @property
    def total_s(self) -> float:
        """The total time, in seconds."""
        return self.plan_s + self.fetch_s + self.check_s + self.place_s


@dataclass(frozen=True, slots=True)
class RestoredDirectory:
    """A restored directory. left_out: one sentence for each copy that turned out to be damaged."""

    plan: RestorePlan
    paths: tuple[Path, ...]
    rows: int
    size_bytes: int
    left_out: tuple[str, ...]
    timings: Timings


Announce = Callable[[RestorePlan, Sequence[str]], None]
"""Called with each plan before anything is written for it, and with the copies left out since the previous plan."""


def restore(
    source: Source,
    directory: Path,
    *,
    clock: Clock,
    random_id: Callable[[], str],
    epoch: int | None = None,
    at_ms: int | None = None,
    umask: bool = False,
    collects: bool = True,
    lazy_from: str | None = None,
    announce: Announce = lambda _plan, _left_out: None,
    observe: Observer = ignore,
) -> RestoredDirectory:
    """Restore the newest common epoch (that of `epoch`, or of `at_ms`) into `directory`, which is made if missing.

    umask: others may read the files, as far as this process's umask allows. collects: without the epochs that the
    partitions had collected by then; else with all that their chains hold. lazy_from: a lasting address of the source,
    from which pages are fetched when they are read: then the directory is usable, and `recovery.storage.hydration`
    fetches and checks the rest. Copies that an older version stored are fetched and checked first.

    Nothing appears in the directory before all files are whole and checked. If anything fails, the written files are
    removed; the next attempt removes the files of a killed one. The restored directory holds no epoch after the
    restored one. Raises AlreadyInitializedError, DirectoryLockedError, BackupDamagedError, BackupTargetError,
    StorageError, CorruptPartitionError, and the errors of `plan_restore`.
    """
    look_into_chains(source, epoch, at_ms)
    attempt = _RestoreAttempt(source, clock, observe, announce, epoch, at_ms, collects, lazy_from)
    # Only complete restores are placed, so the newest execution of all copies is at least that of the restored ones.
    newest = max((e.number for copy in source.copies for e in copy.description.executions), default=0)
    started = clock.elapsed_s()
    try:
        paths = place_restored(
            directory, attempt.fill, newest_execution=newest, random_id=random_id, modes=UMASK if umask else PRIVATE
        )
    except AlreadyInitializedError as error:
        raise AlreadyInitializedError(
            error.found,
            path=error.path,
            cause="The directory already holds recovery partitions, or the logs of lost ones.",
            remedy="Move it away, with the -wal and -shm files, or restore to another directory.",
        ) from None
    spent = clock.elapsed_s() - started
    assert attempt.plan is not None
    return RestoredDirectory(
        plan=attempt.plan,
        paths=tuple(paths),
        rows=attempt.rows,
        size_bytes=sum(copy.description.size_bytes for copy in attempt.plan.copies),
        left_out=tuple(attempt.left_out),
        timings=Timings(
            attempt.plan_s, attempt.fetch_s, attempt.check_s, spent - attempt.plan_s - attempt.fetch_s - attempt.check_s
        ),
    )


def restore_beside(
    source: Source,
    held: Sequence[PartitionCopy],
    room: Path,
    *,
    clock: Clock,
    announce: Announce = lambda _plan, _left_out: None,
    observe: Observer = ignore,
) -> tuple[RestorePlan, dict[PartitionIndex, Path]]:
    """Restore the partitions that are not among `held` into the empty directory `room`, as of the newest epoch that all
    partitions share then; return the plan, whose copies include `held`, and the path of each restored partition.

    held: the partitions of the store that stay as they are, as copies of themselves; none: all are restored. Raises
    what `restore` raises for copies.
    """
    attempt = _RestoreAttempt(source, clock, observe, announce, None, None, True, None, held)
    attempt.fill(room)
    plan = attempt.plan
    assert plan is not None
    return plan, {copy.index: partition_path(room, copy.index) for copy in plan.copies if copy not in held}


def look_into_chains(source: Source, epoch: int | None, at_ms: int | None) -> None:
    """Let the source describe its chains in full if the wanted epoch may be one that only they hold.

    Raises BackupTargetError or StorageError.
    """
    if at_ms is not None:
        source.describe_chains()
    elif epoch is not None:
        try:
            plan_restore(source.copies, epoch=epoch, latest=source.latest)
        except EpochNotHeldError:
            source.describe_chains()
        except RecoveryError:
            # Planning again reports it.
            return


def plan_from(
    source: Source,
    *,
    epoch: int | None = None,
    at_ms: int | None = None,
    usable: Sequence[PartitionCopy] | None = None,
    unusable: Sequence[PartitionCopy] = (),
    held: Sequence[PartitionCopy] = (),
) -> RestorePlan:
    """Return `plan_restore` of a source's copies; its errors name the source, and what in it is unusable.

    held: partitions that stay, as their own copies. Only partitions that are not held are planned from the source.
    """
    try:
        copies = source.copies if usable is None else usable
        if held:
            stay = {each.index for each in held}
            # What leads to the latest backup says nothing about what the partitions that stay have done since.
            return plan_restore([*held, *(each for each in copies if each.index not in stay)], unusable=unusable)
        return plan_restore(copies, epoch=epoch, at_ms=at_ms, unusable=unusable, latest=source.latest)
    except RecoveryError as error:
        found = "; ".join([error.found, *(f"not used: {problem}" for problem in source.problems[:SHOWN])])
        raise type(error)(found, path=source.shown, cause=error.cause, remedy=error.remedy) from error


def restored_before(
    source: Source, directory: Path, now_ms: int, *, epoch: int | None = None, at_ms: int | None = None
) -> ResumePlan | None:
    """Return the plan of a directory that an earlier restore of a source's store has made whole, as of the wanted epoch
    if one was named, and on which no run has begun since; None if it is not known to be that.

    Raises the errors of `plan_from`, BackupTargetError or StorageError.
    """
    if not read_restored(directory, now_ms).counts or hydrating(directory):
        return None
    try:
        here = plan_resume(scan(directory))
    except RecoveryError:
        return None
    known = {(copy.description.store_id, each.id) for copy in source.copies for each in copy.description.executions}
    if not all((here.store_id, each.id) in known for d in here.partitions for each in d.executions):
        return None
    if epoch is None and at_ms is None:
        return here
    look_into_chains(source, epoch, at_ms)
    return here if plan_from(source, epoch=epoch, at_ms=at_ms).epoch == here.resume_epoch - 1 else None


class _RestoreAttempt:
    """Fills one staging directory, with a new plan for each copy that turns out to be damaged."""

    def __init__(
        self,
        source: Source,
        clock: Clock,
        observe: Observer,
        announce: Announce,
        epoch: int | None,
        at_ms: int | None,
        collects: bool,
        lazy_from: str | None,
        held: Sequence[PartitionCopy] = (),
    ) -> None:
        self._held = held
        self._collects = collects
        self._lazy_from = lazy_from
        self._source = source
        self._clock = clock
        self._observe = observe
        self._announce = announce
        self._epoch, self._at_ms = epoch, at_ms
        self._damaged: dict[str, str] = {}
        self._staged: dict[int, str] = {}
        self.plan: RestorePlan | None = None
        self.rows = 0
        self.plan_s = self.fetch_s = self.check_s = 0.0

    @property
    def left_out(self) -> list[str]:
        """What was wrong with the copies that were not used."""
        return list(dict.fromkeys(self._damaged.values()))

    def fill(self, staging: Path) -> int:
        """Steps restore.1 to restore.4; returns the number of partitions."""
        while True:
            plan = self._choose()
            if self._bring_all(plan, staging):
                self._settle_all(plan, staging)
                return len(plan.copies)

    def _choose(self) -> RestorePlan:
        # restore.1
        started = self._clock.elapsed_s()
        damaged = [copy for copy in self._source.copies if copy.origin in self._damaged]
        usable = [copy for copy in self._source.copies if copy.origin not in self._damaged]
        try:
            self.plan = plan_from(
                self._source, epoch=self._epoch, at_ms=self._at_ms, usable=usable, unusable=damaged, held=self._held
            )
        except RecoveryError as error:
            if not self._damaged:
                raise
            raise BackupDamagedError(
                f"{'; '.join(self.left_out[:SHOWN])}; the rest does not suffice: {error.found}", path=self._source.shown
            ) from error
        self.plan_s += self._clock.elapsed_s() - started
        self._announce(self.plan, self.left_out)
        return self.plan

    def _bring_all(self, plan: RestorePlan, staging: Path) -> bool:
        """Fetch and check the copies of the plan that are not yet staged; returns False if a copy was damaged."""
        before = len(self._damaged)
        new = [copy for copy in self._fetched(plan) if self._staged.get(copy.index) != copy.origin]
        # restore.2
        started = self._clock.elapsed_s()
        _each(lambda copy: self._fetch(copy, partition_path(staging, copy.index)), new)
        self.fetch_s += self._clock.elapsed_s() - started
        # restore.3
        started = self._clock.elapsed_s()
        fetched = [copy for copy in new if copy.origin not in self._damaged]
        _each(lambda copy: self._check(copy, partition_path(staging, copy.index)), fetched)
        self.check_s += self._clock.elapsed_s() - started
        return len(self._damaged) == before

    def _fetched(self, plan: RestorePlan) -> list[PartitionCopy]:
        return [copy for copy in plan.copies if copy not in self._held]

    def _fetch(self, copy: PartitionCopy, path: Path) -> None:
        for stale in path.parent.glob(f"{path.name}*"):
            stale.unlink()
        self._staged.pop(copy.index, None)
        try:
            self._source.fetch(copy, path, self._observe, collects=self._collects, place=self._lazy_from)
        except BackupDamagedError as error:
            self._damaged[copy.origin] = error.found
            # Copies that need the same object cannot be fetched either.
            others = [each for each in self._source.copies if self._source.is_spoiled(each)]
            self._damaged |= {each.origin: self._damaged.get(each.origin, error.found) for each in others}

    def _check(self, copy: PartitionCopy, path: Path) -> None:
        size = copy.description.size_bytes
        is_begun = is_lazy(path)
        self._observe(FileProgress("check", path.name, 0, size))
        problems = () if is_begun else PartitionCheck(path).run().problems
        problem = problems[0] if problems else _misdescribed(copy, path, self._collects)
        if problem:
            self._damaged[copy.origin] = f"{copy.origin}: {problem}"
        else:
            self._staged[copy.index] = copy.origin
            self._observe(FileProgress("begun" if is_begun else "fetched", path.name, size, size))

    def _settle_all(self, plan: RestorePlan, staging: Path) -> None:
        started = self._clock.elapsed_s()
        settled = _each(lambda copy: settle(partition_path(staging, copy.index), plan.epoch), self._fetched(plan))
        self.rows = sum(each.row_count for each in settled)
        self.check_s += self._clock.elapsed_s() - started
        # restore.4
        held = [FoundFile(each.description.path, each.description) for each in self._held]
        resumed = plan_resume([*held, *scan(staging)])
        if resumed.resume_epoch != plan.epoch + 1:
            raise CorruptPartitionError(
                f"the copies resume at epoch {resumed.resume_epoch}, not {plan.epoch + 1}", path=self._source.shown
            )


def _misdescribed(copy: PartitionCopy, path: Path, exact: bool) -> str | None:
    """Return how a fetched file differs from the listed description, on which the plan was based; None if it does
    not. exact: it holds no earlier epochs."""
    found, listed = describe_file(path), copy.description
    if not exact:
        epochs = tuple(each for each in found.epochs if each.epoch >= listed.collected)
        found = replace(found, epochs=epochs, collected=max(found.collected, listed.collected))
    facts, expected = (
        (each.store_id, each.index, each.count, each.collected, each.executions) for each in (found, listed)
    )
    same = facts == expected and not differing(listed, found)
    return None if same else "it differs from the copy that the backup describes"


@contextlib.contextmanager
def restored_to_read(
    place: str,
    clock: Clock,
    random_id: Callable[[], str],
    warn: Callable[[str], None],
    parent: Path | None = None,
) -> Iterator[Path]:
    """Restore the newest backup at a place into a temporary directory, with all epochs that its chains hold, until the
    block ends. warn: called with a sentence for each copy that is not used. parent: where the directory is made, by
    default the system's temporary directory. Raises what `open_source` and `restore` raise."""
    with scratch_directory("read", parent) as room:
        source = open_source(open_place(place), room, clock)
        done = restore(source, room / "restored", clock=clock, random_id=random_id, collects=False)
        for problem in (*source.problems, *done.left_out):
            warn(f"{source.shown}: not used: {problem}")
        with naming(room / "restored", source.shown):
            yield room / "restored"


def _each(work: Callable[[PartitionCopy], T], copies: Sequence[PartitionCopy]) -> list[T]:
    return each(work, copies, at_once=AT_ONCE, name="restore")
