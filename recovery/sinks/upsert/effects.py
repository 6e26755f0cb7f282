"""The effects of epochs on the user's table: write their rows; keep, restore and forget the rows that they replaced.

Every function is a part of the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recovery.errors import SinkFailedError
from recovery.sinks.upsert.database import Transaction, listed, quoted
from recovery.sinks.upsert.reasons import DATABASE_ERRORS, OTHER, SHAPE, VALUE, reason_of
from recovery.sinks.upsert.table import CREATE_REPLACED, CREATE_STAGED, HISTORY, MARKS, UpsertTable

# The rows of an epoch: for each key, those of the last micro-batch.
LAST = """
SELECT {columns} FROM (
    SELECT {columns}, row_number() OVER (PARTITION BY {key} ORDER BY recovery_batch DESC) AS recovery_rank
    FROM {staged} WHERE recovery_execution = {p} AND recovery_batch <= {p}
) AS ranked WHERE recovery_rank = 1
"""
KEEP_REPLACED = """
INSERT INTO {replaced} ({key}, {others}recovery_epoch, recovery_had)
SELECT {s_key}, {t_others}{p}, CASE WHEN t.{first} IS NULL THEN 0 ELSE 1 END
FROM ({rows}) AS s LEFT JOIN {table} AS t ON {same_key}
"""
# In the order of their keys: two transactions that write rows in the same order do not lock each other out.
UPSERT = """
INSERT INTO {table} ({columns}) SELECT {columns} FROM ({rows}) AS s WHERE 1 = 1 ORDER BY {key}
ON CONFLICT ({key}) {action}
"""

# The state of a key before the first of the epochs that are taken back; recovery_had is 0 for keys that did not exist.
BEFORE = """
SELECT {columns} FROM (
    SELECT {columns}, recovery_had, row_number() OVER (PARTITION BY {key} ORDER BY recovery_epoch) AS recovery_rank
    FROM {replaced} WHERE recovery_epoch > {p}
) AS ranked WHERE recovery_rank = 1 AND recovery_had = {p}
"""
REMOVE = "DELETE FROM {table} AS t WHERE EXISTS (SELECT 1 FROM ({rows}) AS s WHERE {same_key})"


def publish_epoch(
    table: UpsertTable, database: Transaction, columns: list[str], epoch: int, batch: int, execution: str
) -> None:
    """Write the rows of a closed epoch, and record that it is published."""
    keep_replaced(table, database, columns, epoch, batch, execution)
    try:
        write_rows(table, database, batch, execution)
    except DATABASE_ERRORS as error:
        reason = reason_of(error)
        if reason not in (VALUE, SHAPE, OTHER):
            raise
        raise type(error)(
            f"table {table.name} does not take the rows of closed epoch {epoch}: {error.found}",
            cause="The table's constraints, the types of its columns, or the rows that it refers to were changed after "
            f"the epoch was prepared{'; or the database is full or failing' * (reason is OTHER)}.",
            remedy="Change the table back and run again: the rows are written then. Or give the epoch up, and have it "
            f"computed again with a corrected flow: --resume-epoch {epoch}, from the snapshot after epoch {epoch - 1}, "
            "as long as that is held.",
        ) from error
    database.run("DELETE FROM {staged} WHERE recovery_execution = {p} AND recovery_batch <= {p}", (execution, batch))
    database.run("UPDATE {epochs} SET published = 1 WHERE epoch = {p}", (epoch,))


def keep_replaced(
    table: UpsertTable, database: Transaction, columns: list[str], epoch: int, batch: int, execution: str
) -> None:
    """Keep what an epoch's rows will replace. Raises SinkFailedError if the next start has to prepare the history for
    that."""
    staged = _staged_columns(database)
    # The history lacks a column that was added since the run began; the next run starts the history again.
    had = database.columns("replaced")
    others = [column for column in columns if column not in table.key and column in had]
    try:
        database.run(
            KEEP_REPLACED,
            (epoch, execution, batch),
            rows=LAST,
            columns=listed(staged),
            others="".join(f"{quoted(column)}, " for column in others),
            t_others="".join(f"t.{quoted(column)}, " for column in others),
        )
    except DATABASE_ERRORS as error:
        if reason_of(error) not in (VALUE, SHAPE):
            raise
        raise SinkFailedError(
            f"table {table.name}: the rows that epoch {epoch} replaces cannot be kept: {error.found}",
            cause="A column's type was changed since the run began.",
            remedy="Run the same command again: a start keeps replaced rows in the columns that the table then has. "
            "No run can go back beyond that point.",
        ) from error


def write_rows(table: UpsertTable, database: Transaction, batch: int, execution: str, part: str = "") -> None:
    """Write an epoch's rows into the table. part: a LIMIT, to write some of the rows, in the order of their keys."""
    _upsert(table, database, _staged_columns(database), _part_of_last(part), (execution, batch))


def select_last(
    database: Transaction, columns: list[str], batch: int, execution: str, part: str
) -> list[tuple[Any, ...]]:
    """Return some of an epoch's rows. part: as in `write_rows`."""
    return database.run("{rows}", (execution, batch), rows=_part_of_last(part), columns=listed(columns))


def make_staged(database: Transaction, columns: Sequence[str]) -> None:
    """Give the table of staged rows these columns."""
    if database.columns("staged") != [*columns, *MARKS]:
        database.run("DROP TABLE {staged}")
        database.run(CREATE_STAGED, columns=listed(columns))


def _part_of_last(part: str) -> str:
    return f"{LAST} ORDER BY {{key}} {part}" if part else LAST


def _staged_columns(database: Transaction) -> list[str]:
    return [column for column in database.columns("staged") if column not in MARKS]


def take_back(table: UpsertTable, database: Transaction, columns: list[str], last: int) -> None:
    """Restore the rows that the epochs after `last` replaced."""
    _upsert(table, database, columns, BEFORE, (last, 1))
    database.run(REMOVE, (last, 0), rows=BEFORE, columns=listed(columns))
    database.run("DELETE FROM {replaced} WHERE recovery_epoch > {p}", (last,))


def forget(database: Transaction, floor: int) -> None:
    """Remove what is needed only to go back below the floor; the newest epoch at or below the floor stays known."""
    database.run("DELETE FROM {replaced} WHERE recovery_epoch <= {p}", (floor,))
    database.run("DELETE FROM {epochs} WHERE epoch < (SELECT max(epoch) FROM {epochs} WHERE epoch <= {p})", (floor,))
    database.run("UPDATE {owner} SET history_from = {p} WHERE history_from < {p}", (floor, floor))


def renew_history(database: Transaction, columns: list[str], last: int) -> None:
    """Start the history again if the table's columns have changed: then nothing can be taken back beyond this point."""
    if not has_history_of(database, columns):
        database.run("DROP TABLE {replaced}")
        database.run(CREATE_REPLACED, columns=listed(columns))
        database.run("UPDATE {owner} SET history_from = {p}", (last,))


def has_history_of(database: Transaction, columns: list[str]) -> bool:
    """Whether the replaced rows are kept in the same columns with the same types: another type would change the
    values."""
    if database.columns("replaced") != [*columns, *HISTORY]:
        return False
    return database.types("replaced")[: len(columns)] == database.types("table")


def _upsert(table: UpsertTable, database: Transaction, columns: list[str], rows: str, values: tuple[Any, ...]) -> None:
    sets = ", ".join(f"{quoted(c)} = excluded.{quoted(c)}" for c in columns if c not in table.key)
    action = f"DO UPDATE SET {sets}" if sets else "DO NOTHING"
    database.run(UPSERT, values, rows=rows, columns=listed(columns), action=action)
