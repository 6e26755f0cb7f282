"""What a run has to take back from a table: the rows of epochs that are no longer closed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from recovery.errors import OutputMismatchError
from recovery.sinks.protocol import Resume
from recovery.sinks.tables.log import Change, Commit, Record, TableLog


@dataclass(frozen=True)
class TakeBack:
    """What to undo: files to remove from the table, or a version to restore; neither if there is nothing."""

    taken_back: tuple[tuple[str, int], ...] = ()
    remove: tuple[Any, ...] = field(default=(), repr=False)
    restore: int | None = None

    def change(self, log: TableLog) -> Change:
        """Return the change that does it, which may change nothing."""
        return log.remove(self.remove) if self.restore is None else log.restore(self.restore)


def plan_take_back(log: TableLog, table: Any, history: Iterable[Commit], resume: Resume) -> TakeBack:
    """Return how to take back what this store, or one whose place it takes, committed for epochs that are not closed on
    the resumed timeline.

    Raises StaleDirectoryError if an execution that the partitions do not know has committed last, or such an epoch, or
    owns the output since before the known history;
    OutputMismatchError if it is impossible: the rows of a closed epoch were taken back before, or somebody else changed
    rows after ones that can only be removed by restoring an older version.
    """
    done: set[tuple[str, int]] = set()
    abandoned: list[tuple[int, Record]] = []
    foreign = 0
    newest = True
    for commit in history:
        record = commit.record
        if record is None or not resume.shares(record.store, record.formers):
            if record is not None:
                resume.check_origin(log.name, record.store, record.formers, own=log.own)
            foreign = max(foreign, 0 if commit.harmless or commit.version == 0 else commit.version)
            continue
        done.update(record.taken_back)
        undone = record.epoch == 0 or (record.execution, record.epoch) in done
        is_abandoned = not undone and not resume.closed(record.epoch, record.execution)
        if newest or is_abandoned:
            log.check_known(resume, record, log.owner_of(table, resume, record.store) if newest else 0)
            newest = False
        if is_abandoned:
            abandoned.append((commit.version, record))
    if newest:
        log.check_owner(table, resume)
    resurrected = [epoch for execution, epoch in done if resume.closed(epoch, execution)]
    if resurrected:
        raise OutputMismatchError(
            f"the rows of epoch {min(resurrected)} were taken back from the table, and the partitions hold that epoch",
            path=log.name,
            cause="The partitions are a copy from before a run that went back.",
            remedy="Use the newer partitions; or go back before that epoch (--resume-after), or write to a new table.",
        )
    if not abandoned:
        return TakeBack()
    taken_back = tuple((record.execution, record.epoch) for _, record in abandoned)
    files = [file for path, file in log.paths(table) if any(record.has(path) for _, record in abandoned)]
    if all(record.files for _, record in abandoned) and len(files) == sum(record.files for _, record in abandoned):
        return TakeBack(taken_back, remove=tuple(files))
    first = min(version for version, _ in abandoned)
    if foreign > first:
        raise OutputMismatchError(
            f"version {foreign} of the table is a change by somebody else, after version {first} with rows of epochs "
            "that are abandoned",
            path=log.name,
            cause="Those rows were merged or compacted, so that only restoring the version before takes them back.",
            remedy=f"Take the rows back yourself (restore version {first - 1}, repeat the other changes), and give the "
            "sink a new table; or resume without going back.",
        )
    return TakeBack(taken_back, restore=first - 1)
