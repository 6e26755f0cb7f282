"""What a run has to take back from a table, the rows of epochs that are no longer closed; and whether the rows of those
that are closed are still there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from recovery.errors import OutputMismatchError
from recovery.sinks.protocol import Resume
from recovery.sinks.tables.commits import Change, CommitHistory, Mark, Record, app_of, files_of
from recovery.sinks.tables.forgotten import find_forgotten, newest_closed
from recovery.sinks.tables.log import BY_HAND, TableLog


@dataclass(frozen=True)
class TakeBack:
    """What to undo: files to remove from the table, or a version to restore; neither if there is nothing.

    marks: what the table has to remember instead of what is undone. accepts: see `Record`.
    """

    taken_back: tuple[tuple[str, int], ...] = ()
    remove: tuple[Any, ...] = field(default=(), repr=False)
    restore: int | None = None
    marks: tuple[Mark, ...] = ()
    accepts: bool = False

    def change(self, log: TableLog) -> Change:
        """Return the change that takes the output back, which may change nothing."""
        return log.remove(self.remove) if self.restore is None else log.restore(self.restore)


@dataclass
class _Found:
    """What the known history says of the output of a store, and of the stores whose place it takes.

    done: execution and epoch of what was taken back. abandoned: the epochs that are not closed; present: those of them
    whose rows are in the table, by version, newest first. before: the version before the oldest of these, if it is
    known. foreign: the newest version in which somebody else changed rows. missing: the closed epochs whose rows
    somebody else took out of the table, and how. seen: store and execution of those whose first commit is known, or one
    of a closed epoch: so each epoch of theirs that has to be taken back is known. has_own: whether one of these stores
    has a known commit.
    """

    done: set[tuple[str, int]] = field(default_factory=set)
    abandoned: list[Record] = field(default_factory=list)
    present: list[tuple[int, Record]] = field(default_factory=list)
    before: int | None = None
    foreign: int = 0
    missing: list[tuple[int, str]] = field(default_factory=list)
    seen: set[tuple[str, str]] = field(default_factory=set)
    has_own: bool = False


def plan_take_back(log: TableLog, table: Any, resume: Resume, newest: Record | None) -> TakeBack:
    """Return how to take back what this store, or one whose place it takes, committed for epochs that are not closed on
    the resumed timeline. Changes nothing.

    newest: the record of the newest closed epoch. Raises StaleDirectoryError if an execution that the partitions do not
    know has committed last, or such an epoch, or owns the output since before the known history; OutputMismatchError if
    taking back is impossible, or if rows of a closed epoch are not in the table any more.
    """
    log.check_line(table, resume)
    history = log.history(table, resume)
    found = _read(log, table, history, resume)
    if not found.has_own:
        log.check_owner(table, resume)
    _check_not_resurrected(log, found, resume)
    accepts = _check_there(log, history, found, resume)
    forgotten = [] if history.whole else [*find_forgotten(log, table, resume, newest, found.seen)]
    taken_back = dict.fromkeys((record.execution, record.epoch) for record in found.abandoned)
    taken_back.update(dict.fromkeys((each.execution, each.epoch) for each in forgotten))
    marks = {**dict(_lowered(resume, newest, found.abandoned)), **dict(m for each in forgotten for m in each.marks)}
    by_path = {(each.store, each.execution) for each in forgotten}
    present = [
        (version, record) for version, record in found.present if (record.store, record.execution) not in by_path
    ]
    own = [file for path, file in log.paths(table) if any(r.has(path) for _, r in present)] if present else []
    restore = None
    if not all(r.files for _, r in present) or len(own) != sum(r.files for _, r in present):
        own, restore = [], _version_to_restore(log, table, found, present, resume, only=not forgotten)
    files = [*own, *(file for each in forgotten for file in each.files)]
    if files or restore is not None:
        log.check_removable(table)
    return TakeBack(tuple(taken_back), tuple(files), restore, tuple(marks.items()), accepts)


def _read(log: TableLog, table: Any, history: CommitHistory, resume: Resume) -> _Found:
    """Return what the history says. Raises StaleDirectoryError if the partitions do not know an execution that has
    committed last, or an epoch that would have to be taken back."""
    found = _Found()
    # Going back in time: `replaced` is what somebody put in the place of all older rows, `gone` whether the user has
    # accepted that, `accepted` whether the user has accepted what older restores left out.
    replaced, gone, accepted, is_oldest = "", False, False, False
    for commit in history.commits:
        record, standing = commit.record, commit.undone_by is None
        if is_oldest and standing:
            found.before, is_oldest = commit.version, False
        if record is None or not resume.shares(record.store, record.formers):
            if record is not None:
                resume.check_origin(log.name, record.store, record.formers, own=log.own)
            if standing and not commit.harmless:
                found.foreign = max(found.foreign, commit.version)
            if standing and commit.replaces:
                gone = gone or accepted
                replaced = replaced or ("" if gone else f"{commit.operation} in version {commit.version}")
            continue
        if standing:
            found.done.update(record.taken_back)
            accepted = accepted or record.accepts
        is_closed, commit_of = resume.closed(record.epoch, record.execution), (record.execution, record.epoch)
        if is_closed or record.epoch == 0:
            found.seen.add((record.store, record.execution))
        is_abandoned = not is_closed and record.epoch > 0 and commit_of not in found.done
        if not found.has_own or is_abandoned:
            log.check_known(resume, record, 0 if found.has_own else log.owner_of(table, resume, record.store))
            found.has_own = True
        if is_abandoned:
            found.abandoned.append(record)
            if standing and not replaced and not gone:
                found.present.append((commit.version, record))
                found.before, is_oldest = None, True
        undone = replaced or ("" if accepted else commit.undone_by)
        if is_closed and commit_of not in found.done and undone and not gone:
            found.missing.append((record.epoch, undone))
    return found


def _check_not_resurrected(log: TableLog, found: _Found, resume: Resume) -> None:
    """Raise OutputMismatchError if the rows of a closed epoch were taken back."""
    resurrected = [epoch for execution, epoch in found.done if resume.closed(epoch, execution)]
    if resurrected:
        raise OutputMismatchError(
            f"the rows of epoch {min(resurrected)} were taken back from the table, and the partitions hold that epoch",
            path=log.name,
            cause="The partitions are a copy from before a run that went back.",
            remedy="Use the newer partitions; or go back before that epoch (--resume-after), or write to a new table.",
        )


def _check_there(log: TableLog, history: CommitHistory, found: _Found, resume: Resume) -> bool:
    """Raise OutputMismatchError if somebody took rows of closed epochs out of the table, other than by deleting or
    updating rows. Returns True if somebody did, and the user accepts that."""
    if not found.missing and not history.lost:
        return False
    epochs = sorted(epoch for epoch, _ in found.missing)
    which = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {epochs[0]} to {epochs[-1]}" if epochs else "epochs"
    by = found.missing[0][1] if epochs else history.lost
    if resume.accepts_loss:
        resume.say(f"{log.name}: the rows of closed {which} are no longer in the table, and stay lost: {by}")
        return True
    back = f"go back and compute them again (--resume-after {epochs[0] - 1})" if epochs else "go back (--resume-after)"
    raise OutputMismatchError(
        f"the rows of closed {which} are no longer in the table: {by}",
        path=log.name,
        cause="Somebody restored or rolled back the table, or overwrote it.",
        remedy=f"Undo that in the table; or {back}; or write to a new table. --lose-epochs goes on without these rows.",
    )


def _lowered(resume: Resume, newest: Record | None, abandoned: Sequence[Record]) -> Iterator[Mark]:
    """Yield the marks of executions whose epochs are taken back."""
    closed = newest_closed(resume)
    for store, execution in {(record.store, record.execution) for record in abandoned}:
        kept = closed.get(execution, 0)
        yield app_of(store, execution), kept
        if newest is not None and newest.execution == execution:
            yield files_of(store, execution), newest.total
        elif not kept:
            yield files_of(store, execution), 0


def _version_to_restore(
    log: TableLog, table: Any, found: _Found, present: Sequence[tuple[int, Record]], resume: Resume, *, only: bool
) -> int | None:
    """Return the version from before epochs whose rows no path shows any more.

    only: whether nothing else is to be taken back. Raises OutputMismatchError if that version cannot be restored; None
    if the user accepts that these rows stay.
    """
    first = min(version for version, _ in present)
    rewritten = "Those rows were merged or compacted, so that only restoring the version before takes them back"
    try:
        if found.foreign > first:
            raise OutputMismatchError(
                f"somebody else changed the table in version {found.foreign}, after version {first}, which has rows of "
                "abandoned epochs",
                path=log.name,
                cause=f"{rewritten}.",
                remedy=f"Resume without going back. Or take the rows out yourself (restore the version before {first}, "
                "repeat the other changes), and run once with --lose-epochs: what is still there of them stays.",
            )
        if found.before is None or not only:
            raise OutputMismatchError(
                f"version {first} has rows of abandoned epochs, and the version before {first} is gone",
                path=log.name,
                cause=f"{rewritten}, and the table's maintenance has removed it.",
                remedy=BY_HAND,
            )
        log.check_restorable(table, found.before)
    except OutputMismatchError as error:
        if not resume.accepts_loss:
            raise
        resume.say(f"{log.name}: {error.found}: these rows stay in the table")
        return None
    return found.before
