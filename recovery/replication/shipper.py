"""Ships the newest closed epoch of a directory to a place of backups, again and again.

Each shipping is an incremental backup: it covers every epoch since the last one that succeeded, so nothing is queued.
What a shipping needs lies in the partitions for the backup interval; if that was collected meanwhile, a whole copy is
stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from recovery.backup.catalog import Catalog
from recovery.backup.make import DirectoryParts, Made, Parts, make_backup
from recovery.backup.manifest import Manifest
from recovery.backup.note import LastReplica, last_replica, note_replica
from recovery.backup.repository import check_store, prune
from recovery.backup.writer import lacks
from recovery.base.clock import Clock
from recovery.errors import (
    BackupDamagedError,
    BackupTargetError,
    HydratingError,
    InconsistentPartitionsError,
    OwnerUnreachableError,
    RecoveryError,
    StorageError,
)
from recovery.places.protocol import Place
from recovery.planning.backups import KeepRule
from recovery.planning.replica import NOTHING, Shipped

LOOK_S = 600.0
"""How often a shipping looks at all objects and manifests of the place, as a backup command does. In between a shipping
asks for its own last manifest alone."""
PRUNE_S = 300.0

PASSING = (
    BackupTargetError,
    BackupDamagedError,
    HydratingError,
    InconsistentPartitionsError,
    OwnerUnreachableError,
    StorageError,
)
"""Errors that may be gone at the next attempt: an unreachable service or owner, a full disk, a lazy restore under way,
owners that were looked at one after the other while epochs were closed."""


class ShippedEpoch(NamedTuple):
    """What a shipping has brought to the place. pruning_problem: why older backups could not be removed; None if they
    were, or were not to be."""

    newest: Shipped
    made: Made
    pruning_problem: RecoveryError | None


class Shipper:
    """Ships one directory to one place. For one thread.

    keep: which backups stay; without a rule all do. scratch: where files are made, on the disk of the partitions or one
    as large. fence: returns this run's term, and raises if it may no longer add to the place. `fence` is called before
    each manifest is written, and when it is there, before the epoch counts as shipped: what is at the place by then, a
    later writer has seen. parts: the partitions, if not all are in the directory.
    """

    def __init__(
        self,
        directory: Path,
        target: Place,
        *,
        clock: Clock,
        random_id: Callable[[], str],
        keep: Sequence[KeepRule] = (),
        scratch: Path | None = None,
        fence: Callable[[], int] = lambda: 0,
        parts: Parts | None = None,
    ) -> None:
        self._directory = directory
        self._target = target
        self._clock = clock
        self._random_id = random_id
        self._keep = keep
        self._scratch = scratch
        self._fence = fence
        self._parts = parts or DirectoryParts(directory)
        self._catalog = Catalog(target)
        self._base: Manifest | None = None
        self._looked_s = self._pruned_s = clock.elapsed_s()

    def look(self, store_id: str) -> None:
        """Check that the place holds backups of this store only. Raises ForeignPartitionError, BackupTargetError."""
        check_store(self._catalog.look().backups, store_id, self._target.shown, self._parts.origins)

    def newest_term(self) -> int:
        """Return the newest term under which a backup at the place was made. Raises BackupTargetError."""
        return max((each.stage.term for each in self._catalog.look().backups), default=0)

    def lacks(self, executions: Collection[str], epoch: int, since: Collection[str] = ()) -> str | None:
        """Return what the latest backup holds and the directory lacks, as a sentence; None if nothing. executions,
        epoch: the executions that have begun on the directory, and its newest epoch. since: if these are of an earlier
        moment, the executions that have begun since. Raises BackupTargetError."""
        newest = self._catalog.newest()
        return None if newest is None else lacks(executions, epoch, newest, since)

    def ship(self) -> ShippedEpoch:
        """Ship the newest epoch that is closed in all partitions. Raises what `make_backup` raises, and the fence."""
        now_s = self._clock.elapsed_s()
        if now_s - self._looked_s >= LOOK_S:
            self._base = None
        looks = self._base is None
        # After a failure look at everything again: an object of the chain may be gone.
        base, self._base = self._base, None
        try:
            made = make_backup(
                self._directory, self._target, clock=self._clock, random_id=self._random_id, incremental=True,
                scratch=self._scratch, catalog=self._catalog, base=base, staged=True, may_count=self._fence,
                parts=self._parts,
            )  # fmt: skip
            self._fence()
        except RecoveryError as error:
            note_problem(self._directory, self._target.shown, self._clock, error)
            raise
        if looks:
            self._looked_s = now_s
        self._base = made.manifest
        newest = newest_of(made.manifest)
        note_replica(
            self._directory, LastReplica(self._target.shown, newest.epoch, newest.execution, made.manifest.finished_ms)
        )
        return ShippedEpoch(newest, made, self._prune(made.manifest))

    def _prune(self, made: Manifest) -> RecoveryError | None:
        now_s = self._clock.elapsed_s()
        if not self._keep or now_s - self._pruned_s < PRUNE_S:
            return None
        self._pruned_s = now_s
        try:
            prune(self._target, self._keep, self._clock.wall_ms(), self._catalog, made)
        except RecoveryError as error:
            # The epoch is shipped nevertheless.
            return error
        return None


def note_problem(directory: Path, destination: str, clock: Clock, error: RecoveryError) -> None:
    """Note in the directory why nothing can be shipped to this place, which `shown_address` has made of its address."""
    last = last_replica(directory)
    if last is None or last.destination != destination:
        last = LastReplica(destination, NOTHING.epoch, NOTHING.execution, 0)
    since_ms = clock.wall_ms() if last.since_ms is None else last.since_ms
    note_replica(directory, msgspec.structs.replace(last, problem=error.found, since_ms=since_ms))


def newest_of(manifest: Manifest) -> Shipped:
    """Return the newest epoch that all copies of a backup hold."""
    described = min((copy.description for copy in manifest.copies), key=lambda each: each.newest_epoch)
    return NOTHING if described.newest is None else Shipped(described.newest.epoch, described.newest.execution.number)
