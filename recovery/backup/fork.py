"""Fork a store: an independent one that continues from a held epoch, also while a run writes to the first.

fork.1  Pin all partitions as of one moment, and choose the epoch.
fork.2  Clone or copy each partition into a directory beside the new one.
fork.3  In each copy discard the epochs after the chosen one, and replace the id of the store; record the origin in
        part-0. Sync.
fork.4  Plan a resume from the copies: it must be at the chosen epoch.
fork.5  Rename the directory into place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from recovery.backup.progress import FileProgress, Observer, ignore
from recovery.base.addresses import local_path
from recovery.base.clock import Clock, SystemClock
from recovery.base.ids import Epoch
from recovery.base.threads import each
from recovery.errors import ConfigurationError, CorruptPartitionError
from recovery.host.durable import modes_beside
from recovery.host.new_directory import check_free, check_outside, new_directory
from recovery.host.open_files import allow_open_files
from recovery.planning.resume import ResumePlan, cuts_of, plan_resume
from recovery.planning.values import FoundFile, PartitionDescription
from recovery.storage.copies import PinnedPartition, discard_copy, pin, settle
from recovery.storage.hydration import refuse_hydrating
from recovery.storage.initialize import new_store_id
from recovery.storage.origin import Origin, add_origin, origin_of, refuse_made
from recovery.storage.scan import describe_file, scan
from recovery.storage.standby import refuse_standby

AT_ONCE = 4
FILES_PER_COPY = 8


@dataclass(frozen=True, slots=True)
class Forked:
    """A store that was made by `fork`. cloned: how many of its partitions share their blocks with the origin's."""

    directory: Path
    store_id: str
    origin: Origin
    partitions: int
    cloned: int
    size_bytes: int
    elapsed_s: float


def plan_fork(found: Sequence[FoundFile], directory: Path, new_directory: Path, epoch: int | None = None) -> ResumePlan:
    """Return where a fork of the store with these files would continue; changes nothing. directory: that of its runs.
    epoch: None: the newest that all partitions hold.

    Raises the errors of `plan`, StandbyDirectoryError, EpochNotHeldError, ConfigurationError, AlreadyInitializedError
    or StorageError.
    """
    refuse_standby(directory)
    refuse_hydrating(directory, "a fork")
    planned = _plan(found, epoch)
    check_outside(new_directory, directory)
    refuse_made(new_directory, planned.store_id)
    check_free(new_directory)
    return planned


def fork(
    directory: str | os.PathLike[str],
    new_directory: str | os.PathLike[str],
    epoch: int | None = None,
    *,
    observe: Observer = ignore,
    clock: Clock | None = None,
    random_id: Callable[[], str] = new_store_id,
    copied_from: Path | None = None,
) -> Forked:
    """Make a store in `new_directory` that continues from an epoch of the one in `directory`, and return what was made.

    A run may be active in `directory`, which does not change. The new store has an id of its own, all held epochs up to
    this one, and the present operational state. Where the file system can clone files, it takes no space. epoch: None:
    the newest that all partitions hold; 0: the beginning. copied_from: the directory of the run, if `directory` has
    copies of its partitions; the new store names it as its origin.

    `new_directory` is missing or empty. The fork appears when it is whole; what a killed attempt left, the next attempt
    removes. Raises the errors of `plan`, EpochNotHeldError, AlreadyInitializedError, DirectoryLockedError or
    StorageError.
    """
    if epoch is not None and (type(epoch) is not int or epoch < 0):
        raise ConfigurationError(
            f"epoch {epoch!r:.80} does not exist", cause="", remedy="List them: recovery status DIR"
        )
    source = local_path(directory)
    attempt = _ForkAttempt(source, copied_from or source, epoch, observe, clock or SystemClock(), random_id())
    return attempt.make(local_path(new_directory))


def _plan(found: Sequence[FoundFile], epoch: int | None) -> ResumePlan:
    return plan_resume(found, resume_epoch=None if epoch is None else epoch + 1)


class _ForkAttempt:
    def __init__(
        self, directory: Path, origin: Path, epoch: int | None, observe: Observer, clock: Clock, store_id: str
    ) -> None:
        self._directory = directory
        self._origin = origin
        self._epoch = epoch
        self._observe = observe
        self._clock = clock
        self._store_id = store_id

    def make(self, target: Path) -> Forked:
        """Do steps fork.1 to fork.5."""
        began_s = self._clock.elapsed_s()
        first = plan_fork(scan(self._directory), self._origin, target, self._epoch)
        paths = [d.path for d in first.partitions]
        allow_open_files(len(paths) * FILES_PER_COPY)
        with new_directory(target, "fork", modes_beside(paths[0])) as draft:
            # fork.1
            pinned = pin(paths)
            try:
                planned = _plan([FoundFile(one.path, one.description) for one in pinned], self._epoch)
                # fork.2
                cloned = each(lambda one: self._bring(one, draft, planned), pinned, at_once=AT_ONCE, name="fork")
            finally:
                for one in pinned:
                    one.release()
            origin = origin_of(self._origin, "fork", planned, self._clock.wall_ms())
            settled = self._settle(draft, planned, origin)
            # fork.4
            resumed = plan_resume(scan(draft))
            if resumed.resume_epoch != planned.resume_epoch or resumed.store_id != self._store_id:
                raise CorruptPartitionError(
                    f"the copies resume at epoch {resumed.resume_epoch}, not {planned.resume_epoch}",
                    path=self._directory,
                )
        # fork.5
        return Forked(
            directory=target,
            store_id=self._store_id,
            origin=origin,
            partitions=len(paths),
            cloned=sum(cloned),
            size_bytes=sum(d.size_bytes for d in settled),
            elapsed_s=self._clock.elapsed_s() - began_s,
        )

    def _bring(self, pinned: PinnedPartition, draft: Path, planned: ResumePlan) -> bool:
        """Clone or copy a partition; return whether it was cloned."""
        target, size = draft / pinned.path.name, pinned.description.size_bytes
        cut = max(cut for cut in cuts_of(pinned.description) if cut[0] == planned.resume_epoch - 1)
        # A clone is of a later moment than the pin: a run may have collected the epoch by then.
        cloned = pinned.clone_to(target) and cut in cuts_of(describe_file(target))
        if not cloned:
            discard_copy(target)
            pinned.copy_to(target, lambda done, _: self._observe(FileProgress("copy", target.name, done, size)))
        pinned.release()
        self._observe(FileProgress("cloned" if cloned else "copied", target.name, size, size))
        return cloned

    def _settle(self, draft: Path, planned: ResumePlan, origin: Origin) -> list[PartitionDescription]:
        # fork.3
        add_origin(draft, origin)
        modes = modes_beside(planned.partitions[0].path)

        def settled(path: Path) -> PartitionDescription:
            path.chmod(modes.file)
            return settle(path, Epoch(planned.resume_epoch - 1), store_id=self._store_id)

        return each(settled, [draft / d.path.name for d in planned.partitions], at_once=AT_ONCE, name="fork")
