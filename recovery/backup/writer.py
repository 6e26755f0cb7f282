"""The writer of a place of backups: the one directory whose backups count there.

A run that replicates ships under its own term (see `recovery.backup.lease`). Every other backup does this:

write.1  Before anything is written: if the directory holds the place's term, go on under it. If nobody holds a term, or
the directory held the term before, claim the next term. Else refuse. A takeover claims the term from whoever has it.
write.2 Before that: refuse if the latest backup has epochs that the directory lacks. A backup of an earlier term does
not count: such a backup came too late. To give these epochs up, the directory claims the next term. Before a takeover,
also refuse if the backup has newer operational state, which belongs to no epoch. write.3  Before the manifest is
written: the place's term must still be the directory's.

So the latest backup is always one of the directory that holds the term, whatever the clocks of the hosts say. A user
who may not write to the directory claims nothing, and may back it up until another directory claims the place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from recovery.backup.conditional import documents_to_back_up, unconditional
from recovery.backup.lease import BACKUP, CHECK, Claimant, Term, claim, look_at_term, may_continue, taken_over
from recovery.backup.manifest import Manifest
from recovery.backup.objects import SpoiledObject, bring
from recovery.backup.progress import ignore
from recovery.base.clock import Clock
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.errors import BackupTargetError, ConfigurationError, StaleDirectoryError
from recovery.host.scratch import scratch_directory
from recovery.places.opening import refuse_itself
from recovery.places.protocol import Place
from recovery.planning.following import lacking, newer_documents
from recovery.planning.values import PartitionDescription
from recovery.storage.documents import read_prefix

SHOWN = 3
"""How many documents an error names."""


class _Unconditional(Exception):  # noqa: N818 - the claim is repeated
    """The store of the place has no conditional writes that can be used."""


class Writer:
    """A directory that backs itself up to a place. place: its address; None: claim nothing. takeover: claim the place's
    term from whoever holds it. lose_epochs: also if the place has epochs, or for a takeover newer operational state,
    that the directory lacks."""

    def __init__(
        self,
        directory: Path,
        target: Place,
        clock: Clock,
        random_id: Callable[[], str],
        *,
        place: str | None = None,
        takeover: bool = False,
        lose_epochs: bool = False,
        dry_run: bool = False,
    ) -> None:
        """dry_run: claim nothing, and refuse what is refused otherwise. Raises ConfigurationError if the place is the
        directory."""
        if place is not None:
            refuse_itself(place, directory, "backup")
        self._directory = directory
        self._target = target
        self._place = place
        self._documents = documents_to_back_up(target, place)
        self._clock = clock
        self._random_id = random_id
        self._takeover = takeover
        self._lose_epochs = lose_epochs
        self._dry_run = dry_run
        self._unclaimed: int | None = None

    def begin(self, partitions: Sequence[PartitionDescription], latest: Manifest | None) -> None:
        """Steps write.1 and write.2. partitions: of the directory, or of its owners. latest: the place's latest backup.

        Raises TakenOverError, StaleDirectoryError, ForeignPartitionError, BackupTargetError, BackupDamagedError or
        StorageError; then nothing was written.
        """
        self._unclaimed = None
        found, holds = self._look()
        lost = None
        if latest is not None and not (holds and found is not None and latest.term < found.term):
            longest = max(partitions, key=lambda each: len(each.executions))
            epoch = min(each.newest_epoch for each in partitions)
            lost = lacks([each.id for each in longest.executions], epoch, latest)
        if self._place is not None and os.access(self._directory, os.W_OK | os.X_OK):
            if not holds or lost is not None:
                self._claim(partitions[0], lost, latest, takes_over=self._takeover and not holds)
        elif not may_continue(self._documents, self._directory, found):
            raise taken_over(self._documents.shown, found, BACKUP, is_replaced=False)
        elif lost is not None:
            raise self._stale(lost)
        else:
            self._unclaimed = 0 if latest is None else latest.term

    def check(self) -> int:
        """Step write.3: return the term under which the backup counts. Raises what `begin` raises."""
        found, _ = self._look()
        if found is None and self._unclaimed is not None:
            return self._unclaimed
        if found is None or not may_continue(self._documents, self._directory, found):
            raise taken_over(self._documents.shown, found, BACKUP)
        return found.term

    def _claim(
        self, first: PartitionDescription, lost: str | None, latest: Manifest | None, *, takes_over: bool
    ) -> None:
        least = 0 if latest is None else latest.term
        claimant = Claimant(self._directory, first.store_id, BACKUP, os.getpid(), least=least)

        def check(_: bool) -> None:
            if lost is not None and not self._lose_epochs:
                raise self._stale(lost)
            self._check_conditions()
            if takes_over and latest is not None and not self._lose_epochs:
                documents = lacks_documents(first.path, latest, self._target)
                if documents is not None:
                    raise self._stale(documents)

        for _ in range(2):
            with contextlib.suppress(_Unconditional):
                claim(
                    self._documents, claimant, self._clock, self._random_id, takeover=self._takeover,
                    renews=lost is not None, check=check, dry_run=self._dry_run,
                )  # fmt: skip
                return

    def _check_conditions(self) -> None:
        if not self._documents.in_bucket:
            return
        try:
            self._documents.check(CHECK)
        except (ConfigurationError, BackupTargetError) as error:
            self._documents = unconditional(self._target, self._place)
            raise _Unconditional from error

    def _look(self) -> tuple[Term | None, bool]:
        try:
            return look_at_term(self._documents, self._directory)
        except BackupTargetError:
            # The client that writes conditionally may not reach every store that takes backups.
            if not self._documents.in_bucket:
                raise
            self._documents = unconditional(self._target, self._place)
            return look_at_term(self._documents, self._directory)

    def _stale(self, lost: str) -> StaleDirectoryError:
        return StaleDirectoryError(
            lost,
            path=self._documents.shown,
            remedy="Back up the other directory, or restore the latest backup into a new directory. To make this "
            "directory "
            "the latest nevertheless: --lose-epochs. To keep both, give this directory a place of its own.",
        )


def lacks(executions: Collection[str], epoch: int, latest: Manifest, since: Collection[str] = ()) -> str | None:
    """Return what a backup holds and a directory lacks, as a sentence; None if nothing. executions, epoch: the
    executions that have begun on the directory, and its newest epoch. since: if these are of an earlier moment, the
    executions that have begun since."""
    found = lacking(executions, epoch, [copy.description for copy in latest.copies], since)
    if found is None:
        return None
    epochs = f"epoch {found.last}" if found.first == found.last else f"epochs {found.first} to {found.last}"
    by = f"closed by execution {found.execution.number} on {found.execution.host}"
    ends = f"ended at epoch {epoch} before it went on by itself" if since else f"ends at epoch {epoch}"
    return one_line(f"it has {epochs}, {by}, in backup {latest.id}, and this directory {ends}")


def lacks_documents(path: Path, latest: Manifest, target: Place) -> str | None:
    """Return what operational state a backup holds and the directory of partition 0, at `path`, lacks, as a sentence;
    None if nothing. Fetches the backup's copy of that partition. Raises BackupTargetError, CorruptPartitionError or
    StorageError."""
    here = {each.state_id: (each.generation, each.content) for each in read_prefix(path, "")}
    [stored] = [copy for copy in latest.copies if copy.description.index == 0]
    with scratch_directory("backup") as room:
        try:
            bring(target, stored, room / path.name, ignore)
        except SpoiledObject as error:
            return one_line(f"its operational state, in backup {latest.id}, is not known: {error.found}")
        there = {each.state_id: (each.generation, each.content) for each in read_prefix(room / path.name, "")}
    newer = newer_documents(here, there)
    if not newer:
        return None
    named = ", ".join(newer[:SHOWN]) + (", …" if len(newer) > SHOWN else "")
    documents = counted(len(newer), "newer document")
    return one_line(f"it has {documents} of operational state, in backup {latest.id}, than this directory: {named}")
