"""Make a standby an ordinary directory, which takes over the store.

promote.1  Lock the directory, and complete what a killed call left (follow.1). If the directory is whole, plan a resume
           of it: a directory that no run could resume does not stop the writer. promote.2  Claim the next term of the
           place, if its writer is still the one that the standby last saw. From now on that writer is refused: what it
           stored by now is what it may have published. promote.3  Follow the place to its latest backup. promote.4
           Plan a resume, which has to succeed. promote.5  Remove the mark. The first run takes the other directory's
           place at the sinks as well.

A promotion may be repeated at any step: the directory holds the term that it claimed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recovery.backup.conditional import Documents, open_documents
from recovery.backup.lease import Claimant, Term, claim, look_at_term, places_of, taken_over
from recovery.backup.manifest import Manifest
from recovery.backup.progress import Observer, ignore
from recovery.backup.standby.document import At, end_standby, incomplete
from recovery.backup.standby.follow import Follower, Missed
from recovery.base import faults
from recovery.base.clock import Clock
from recovery.errors import BackupDamagedError, BackupTargetError, ConfigurationError, NoBackupError
from recovery.host.scratch import scratch_directory
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.planning.values import FoundFile
from recovery.storage.restored import mark_restored, read_restored
from recovery.storage.scan import scan
from recovery.storage.standby import is_standby

Unseen = Literal["nothing", "unpublished", "unknown"]
"""What the writer may have closed after the latest backup: nothing, only epochs that it did not publish, or unknown."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """A directory that was promoted, and what the promotion loses; or a directory that is the store's writer already.

    changed: whether a promotion was left to do. backup: the one that it is as of; None: not known. term: the one that
    it holds; None: unfenced. before: the writer that was replaced; None: nobody had claimed a term. missed: later
    backups that could not be used. unseen: what else may be lost.
    """

    directory: Path
    source: str
    backup: str | None
    resume: ResumePlan
    term: Term | None
    before: Term | None
    missed: tuple[Missed, ...]
    unseen: Unseen
    changed: bool = True

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
    dry_run: bool = False,
    observe: Observer = ignore,
) -> Promoted:
    """Make a standby an ordinary directory that the next run resumes, and return what is lost by that.

    A directory that is the store's writer already stays as it is. dry_run: change nothing, and return what would be
    done: what has to be applied is fetched to a scratch directory.

    The writer of the place is fenced by a conditional write. unfenced: claim no term and do not ask the place, for a
    place that is gone or cannot write conditionally; then the writer is not stopped.

    Raises TakenOverError if the place has another writer than the standby last saw; what `Follower` and `claim` raise;
    and the errors of `plan`.
    """
    if not is_standby(directory):
        done = _done_before(directory, clock, unfenced)
        if done is not None:
            return done
    with contextlib.ExitStack() as held:
        preview = held.enter_context(scratch_directory("promote")) if dry_run else None
        # promote.1
        follower = held.enter_context(Follower(directory, None, clock, observe=observe, preview=preview))
        document, store_id, at = follower.document, follower.document.store_id, follower.at
        if at is None or store_id is None:
            remedy = "Follow a place with a backup first."
            raise NoBackupError("nothing was fetched into it yet", path=directory, cause="", remedy=remedy)
        if at.is_whole:
            plan_resume(scan(directory))
        term = before = None
        missed: tuple[Missed, ...] = ()
        if not unfenced:
            # promote.2
            claimant = Claimant(directory, store_id, "promotion", os.getpid(), least=at.term)
            lease = claim(
                open_documents(document.place), claimant, clock, random_id, seen=document.writer, dry_run=dry_run
            )
            term, before = lease.term, lease.before
            faults.reach("promote.2")
            # promote.3
            missed = follower.look().missed
            faults.reach("promote.3")
        at = _whole(follower)
        # promote.4
        reached = follower.reached if dry_run else None
        resume = plan_resume(scan(directory) if reached is None else _described(reached))
        # promote.5
        if not dry_run:
            mark_restored(directory)
            end_standby(directory)
        faults.reach("promote.5")
    return Promoted(
        directory, document.shown, at.manifest, resume, term, before, missed, _unseen(before, resume, unfenced)
    )


def _whole(follower: Follower) -> At:
    """Return what the standby is as of. Raises BackupDamagedError unless the standby is whole."""
    at = follower.at
    assert at is not None
    if not at.is_whole:
        raise BackupDamagedError(
            f"{', '.join(incomplete(at))} is not whole, and could not be fetched", path=follower.directory,
            remedy="Follow the place once more: python -m recovery follow SRC DIR --once",
        )  # fmt: skip
    return at


def _described(manifest: Manifest) -> list[FoundFile]:
    return [FoundFile(copy.description.path, copy.description) for copy in manifest.copies]


def _done_before(directory: Path, clock: Clock, unfenced: bool) -> Promoted | None:
    """Return an ordinary directory that needs no promotion; None if none is known to have made it the writer. Raises
    TakenOverError if another directory is the writer of a place since."""
    places = places_of(directory) if directory.is_dir() else []
    if unfenced:
        if not read_restored(directory, clock.wall_ms()).counts:
            return None
        return _unchanged(directory, places[0] if places else "", None)
    if not places:
        return None
    last = open_documents(places[0])
    term = _own_term(last, directory)
    if term is None:
        raise taken_over(last.shown, None)
    for place in places[1:]:
        # A place that is gone since has no other writer that could be known.
        with contextlib.suppress(BackupTargetError, ConfigurationError):
            _own_term(open_documents(place), directory)
    return _unchanged(directory, last.shown, term)


def _own_term(documents: Documents, directory: Path) -> Term | None:
    """Return the term of a place, None if there is none any more. Raises TakenOverError if another directory has it."""
    term, holds = look_at_term(documents, directory)
    if term is not None and not holds:
        raise taken_over(documents.shown, term)
    return term


def _unchanged(directory: Path, source: str, term: Term | None) -> Promoted:
    resume = plan_resume(scan(directory))
    return Promoted(directory, source, None, resume, term, None, (), "nothing", changed=False)


def _unseen(before: Term | None, resume: ResumePlan, unfenced: bool) -> Unseen:
    if before is None or unfenced:
        return "unknown"
    if before.ended is not None and before.ended < resume.resume_epoch:
        return "nothing"
    return "unpublished" if before.sync else "unknown"
