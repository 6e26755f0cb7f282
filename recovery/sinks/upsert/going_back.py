"""What a start has to do to a table, from its record of epochs and the note in the partitions; or why the start
cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from recovery.sinks.protocol import Resume
from recovery.sinks.upsert.database import Transaction
from recovery.sinks.upsert.effects import has_history_of
from recovery.sinks.upsert.table import BESIDE, UpsertTable, formers_of, tables_beside

COUNT_STAGED = """
SELECT count(*) FROM {staged}
WHERE recovery_execution = {p} AND recovery_batch <= (SELECT batch_id FROM {epochs} WHERE epoch = {p})
"""


@dataclass(frozen=True, slots=True)
class UpsertNote:
    """The note in the partitions: the newest epoch that was written to the table. rows: how many were staged for it;
    None: an older version did not count them."""

    upsert: str
    epoch: int
    execution: str
    table: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class GoingBack:
    """What `rollback` has to do: `last` is the newest epoch that stays. known: whether the sink's own tables exist."""

    known: bool
    last: int
    takes_back: bool


def plan_going_back(table: UpsertTable, database: Transaction, resume: Resume) -> GoingBack:
    """Return what `rollback` has to do. Raises OutputMismatchError if going back is impossible."""
    note = None if resume.note is None else _decode(table, resume.note)
    last = 0 if note is None else note.epoch
    if not database.exists("owner"):
        if note is not None:
            _check_same_table(table, note)
            raise table.mismatch(
                f"the snapshot says that epoch {note.epoch} was written to this table, which has no record of that "
                "epoch",
                "The connection leads to another database, or its tables were dropped.",
                "Connect to the database that the run before wrote to, or restore partitions and database from "
                f"the same backup. {table.begin_again()}",
            )
        return GoingBack(False, last, False)
    [[sink, store_id, flow_id, execution, history_from]] = database.run(
        "SELECT sink, store_id, flow_id, execution_id, history_from FROM {owner}"
    )
    formers = formers_of(database)
    resume.check_origin(f"table {table.name}", store_id, formers)
    if not resume.shares(store_id, formers) or flow_id != resume.flow_id:
        raise table.mismatch(
            f"it is written by flow {flow_id!r} on recovery directory {store_id}, "
            f"not by {resume.flow_id!r} on {resume.store_id}",
            *_cause_and_remedy(table, flow_id == resume.flow_id, store_id),
        )
    epochs = {epoch: rest for epoch, *rest in database.run("SELECT epoch, execution_id, published FROM {epochs}")}
    newest = max((epoch for epoch, (by, published) in epochs.items() if by == execution and published), default=0)
    resume.check_known(execution, f"table {table.name}", epoch=newest, store=store_id, formers=formers)
    if note is not None and (note.upsert != sink or epochs.get(note.epoch, [None])[0] != note.execution):
        _check_same_table(table, note)
        raise table.mismatch(
            f"it does not know epoch {note.epoch}, to which the snapshot belongs",
            "Database and partitions were restored from different times, or a failover lost the database's newest "
            "transactions.",
            _way_back(table, resume, epochs) if note.upsert == sink else "",
        )
    if note is not None and note.rows is not None and epochs[note.epoch] == [note.execution, 0]:
        _check_staged(table, database, note, note.rows)
    abandoned = [epoch for epoch, (_, published) in epochs.items() if epoch > last and published]
    if abandoned and min(abandoned) <= history_from:
        raise table.mismatch(
            f"epochs {min(abandoned)} to {max(abandoned)} would have to be taken back, and the rows that they replaced "
            f"are kept from epoch {history_from + 1} on only",
            "The partitions are older than the backup interval, or the table's columns were changed.",
        )
    if abandoned and not has_history_of(database, table.columns(database)):
        raise table.mismatch(
            f"epochs {min(abandoned)} to {max(abandoned)} would have to be taken back, and they had other columns",
            "Columns were added or removed after those epochs.",
        )
    return GoingBack(True, last, bool(abandoned))


def _check_staged(table: UpsertTable, database: Transaction, note: UpsertNote, rows: int) -> None:
    """Check that the rows of a closed epoch that is about to be published are there: no other table has these rows."""
    [[held]] = database.run(COUNT_STAGED, (note.execution, note.epoch))
    if held != rows:
        raise table.mismatch(
            f"closed epoch {note.epoch} is not published yet, and {held} of its {rows} staged rows are there",
            f"Somebody changed {table.name}{BESIDE[2]}.",
            "Restore the database. Or have the epoch computed again, as long as the one before is held: --resume-after "
            f"{note.epoch - 1}.",
        )


def _way_back(table: UpsertTable, resume: Resume, epochs: Mapping[int, Sequence[Any]]) -> str:
    """Return, as a remedy, how to go on with a table that lacks the newest epochs of the partitions."""
    shared = max((epoch for epoch, (by, *_) in epochs.items() if resume.closed(epoch, by)), default=0)
    otherwise = f"restore partitions and database from the same backup. {table.begin_again()}"
    if shared < resume.floor:
        return (
            f"The newest epoch that both know is {shared}, and the partitions go back to {resume.floor} only: "
            f"{otherwise}"
        )
    return (
        "To go on with this database, go back to the newest epoch that both know: run once with --resume-after "
        f"{shared}. The epochs after that one are computed again, from input that must still exist. Or {otherwise}"
    )


def _decode(table: UpsertTable, text: str) -> UpsertNote:
    try:
        return msgspec.json.decode(text, type=UpsertNote)
    except (ValueError, RecursionError):
        raise table.mismatch(
            "the flow's output so far was written by another kind of sink",
            "The sink was changed.",
            "Use the former sink again. To begin again with this table, use a new recovery directory.",
        ) from None


def _check_same_table(table: UpsertTable, note: UpsertNote) -> None:
    if note.table != table.name:
        raise table.mismatch(
            f"the snapshot says that epoch {note.epoch} was written to table {note.table}",
            "The sink was given another table.",
            f"Give it {note.table} again; if that was renamed, rename {tables_beside(note.table)} likewise. "
            f"To begin again in {table.name}, take a new recovery directory.",
        )


def _cause_and_remedy(table: UpsertTable, same_flow: bool, store_id: str) -> tuple[str, str]:
    """Return cause and remedy for a table that belongs to another flow or store."""
    if not same_flow:
        return "Two flows use one table.", "Give each flow its own table."
    return (
        "The flow was run on two recovery directories, or its own was created a second time, or repartitioned with an "
        "older version of recovery.",
        f"Run it on recovery directory {store_id}, or give it another table. If that directory is given up for "
        f"good, drop the tables {tables_beside(table.name)}: what it wrote to {table.name} stays.",
    )
