"""What has to be taken back from a table although its history has forgotten the commits.

The paths of the table's files name store, execution and micro-batch, and a mark counts how many files an execution has
added. So if as many files are in the table as were added since the newest closed epoch, these files are all rows of the
abandoned epochs, and nothing else. A commit with which an execution begins takes back what was abandoned until then,
and lowers the marks. Hence only the execution of the newest closed epoch can have epochs to keep and also forgotten
epochs to take back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from recovery.errors import OutputMismatchError
from recovery.sinks.protocol import Resume
from recovery.sinks.tables.commits import Mark, Record, app_of, files_of, written_by
from recovery.sinks.tables.log import BY_HAND, TableLog


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Files of abandoned epochs of one execution, whose first one is `epoch`. marks: as they have to be after that."""

    store: str
    execution: str
    epoch: int
    files: tuple[Any, ...]
    marks: tuple[Mark, ...]


def find_forgotten(
    log: TableLog, table: Any, resume: Resume, newest: Record | None, seen: set[tuple[str, str]]
) -> Iterator[Forgotten]:
    """Yield what executions have in the table of epochs that are not closed, but for those in `seen`, whose commits the
    history still has.

    newest: the record of the newest closed epoch. Raises StaleDirectoryError for an execution that the partitions do
    not know, OutputMismatchError if the files cannot be told from others, unless the user accepts what is left.
    """
    files: list[tuple[tuple[str, str, int] | None, Any]] | None = None
    closed = newest_closed(resume)
    for store, execution in sorted(set(log.executions(table, resume)) - seen):
        kept, is_newest = closed.get(execution, 0), newest is not None and newest.execution == execution
        if kept and newest is not None and not is_newest:
            continue
        epoch = log.mark(table, resume, app_of(store, execution))
        if epoch <= kept:
            continue
        if store in resume.stores:
            resume.check_known(execution, log.name, epoch=epoch, store=store)
        last, total = (newest.last_batch, newest.total) if newest is not None and is_newest else (-1, 0)
        if files is None:
            files = [(written_by(path), file) for path, file in log.paths(table)]
        own = tuple(file for by, file in files if by is not None and by[:2] == (store, execution) and by[2] > last)
        added = log.mark(table, resume, files_of(store, execution)) - total
        if not own or len(own) != added:
            which = f"epoch {epoch}" if epoch == kept + 1 else f"epochs {kept + 1} to {epoch}"
            _check_accepted(log, resume, f"{which} of execution {execution}", len(own), added)
        yield Forgotten(
            store,
            execution,
            kept + 1,
            own if len(own) == added else (),
            ((app_of(store, execution), kept), (files_of(store, execution), total)),
        )


def newest_closed(resume: Resume) -> dict[str, int]:
    """Return the newest epoch of each execution that closed one on the resumed timeline."""
    return {part.execution.id: part.last for part in resume.timeline if part.first <= part.last}


def _check_accepted(log: TableLog, resume: Resume, epochs: str, found: int, added: int) -> None:
    """Raise OutputMismatchError, unless the user accepts that rows of abandoned epochs stay in the table."""
    has = f"the table has {found} of the {added} files that were added" if added > 0 else "the rows were merged"
    if resume.accepts_loss:
        resume.say(f"{log.name}: rows of {epochs} stay in the table, as far as they are there: {has}")
        return
    raise OutputMismatchError(
        f"{epochs} cannot be taken back: the {log.forgets} of these rows are gone, and the table's files do not show "
        f"which rows they are: {has}",
        path=log.name,
        cause="The table's maintenance removed its history, and compacted or merged the rows; or they were deleted.",
        remedy=BY_HAND,
    )
