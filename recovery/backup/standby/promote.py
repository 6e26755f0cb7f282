"""Make a standby an ordinary directory, which takes over the store.

promote.1  Lock the directory, and complete what a killed call left (follow.1). If it is whole, plan a resume of it: a
           directory that no run could resume does not stop the writer.
promote.2  Claim the next term of the place, if its writer is still the one that the standby last saw. From now on that
           writer is refused: what it stored by now is what it may have published.
promote.3  Follow the place to its latest backup.
promote.4  Plan a resume, which has to succeed.
promote.5  Remove the mark. The first run takes the other directory's place at the sinks as well.

It may be repeated at any step: the directory holds the term that it claimed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recovery.backup.conditional import open_documents
from recovery.backup.lease import Claimant, Term, claim
from recovery.backup.progress import Observer, ignore
from recovery.backup.standby.document import end_standby, incomplete
from recovery.backup.standby.follow import Follower, Missed
from recovery.base import faults
from recovery.base.clock import Clock
from recovery.errors import BackupDamagedError, NoBackupError
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.storage.restored import mark_restored
from recovery.storage.scan import scan

Unseen = Literal["nothing", "unpublished", "unknown"]
"""What the writer may have closed after the latest backup: nothing, only epochs that it did not publish, or unknown."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """A directory that was promoted, and what is lost by that.

    backup: the one that it is as of. term: the one that it holds; None: unfenced. before: the writer that was replaced;
    None: nobody had claimed a term. missed: later backups that could not be used. unseen: what else may be lost.
    """

    directory: Path
    source: str
    backup: str
    resume: ResumePlan
    term: Term | None
    before: Term | None
    missed: tuple[Missed, ...]
    unseen: Unseen

    @property
    def lost_epochs(self) -> tuple[int, int] | None:
        """The first and the last epoch that are known to be lost; None: none is."""
        newest = max((each.epoch for each in self.missed if each.epoch is not None), default=0)
        first = int(self.resume.resume_epoch)
        return (first, newest) if newest >= first else None


def promote(
    directory: Path,
    clock: Clock,
    random_id: Callable[[], str],
    *,
    unfenced: bool = False,
    observe: Observer = ignore,
) -> Promoted:
    """Make a standby an ordinary directory that the next run resumes, and return what is lost by that.

    The writer of the place is fenced by a conditional write. unfenced: claim no term and do not ask the place, for a
    place that is gone or cannot write conditionally; then the writer is not stopped.

    Raises TakenOverError if the place has another writer than the standby last saw; what `Follower` and `claim` raise;
    and the errors of `plan`.
    """
    # promote.1
    with Follower(directory, None, clock, observe=observe) as follower:
        document = follower.document
        if document.at is None or document.store_id is None:
            raise NoBackupError(
                "nothing was fetched into it yet",
                path=directory,
                cause="",
                remedy="Follow a place with a backup first.",
            )
        if follower.at is not None and follower.at.is_whole:
            plan_resume(scan(directory))
        term = before = None
        missed: tuple[Missed, ...] = ()
        if not unfenced:
            # promote.2
            claimant = Claimant(directory, document.store_id, "promotion", os.getpid(), least=document.at.term)
            lease = claim(open_documents(document.place), claimant, clock, random_id, seen=document.writer)
            term, before = lease.term, lease.before
            faults.reach("promote.2")
            # promote.3
            missed = follower.look().missed
            faults.reach("promote.3")
        at = follower.at
        assert at is not None
        if not at.is_whole:
            raise BackupDamagedError(
                f"{', '.join(incomplete(at))} is not whole, and could not be fetched", path=directory,
                remedy="Follow the place once more: python -m recovery follow SRC DIR --once",
            )  # fmt: skip
        # promote.4
        resume = plan_resume(scan(directory))
        # promote.5
        mark_restored(directory)
        end_standby(directory)
        faults.reach("promote.5")
    return Promoted(
        directory, document.shown, at.manifest, resume, term, before, missed, _unseen(before, resume, unfenced)
    )


def _unseen(before: Term | None, resume: ResumePlan, unfenced: bool) -> Unseen:
    if before is None or unfenced:
        return "unknown"
    if before.ended is not None and before.ended < resume.resume_epoch:
        return "nothing"
    return "unpublished" if before.sync else "unknown"
