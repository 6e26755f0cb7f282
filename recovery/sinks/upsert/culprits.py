"""Which row of an epoch, or which column's value, a table does not take: found by trying, in transactions that are
undone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from recovery.errors import FlowFailedError, shown
from recovery.sinks.upsert.database import PLACE, Transaction, quoted
from recovery.sinks.upsert.effects import LAST, make_staged, select_last, write_rows
from recovery.sinks.upsert.reasons import DATABASE_ERRORS, VALUE, reason_of
from recovery.sinks.upsert.table import MARKS, UpsertTable

Open: TypeAlias = Callable[[], AbstractContextManager[Transaction]]
"""Opens a transaction, which is undone."""


def refused_row(table: UpsertTable, open_session: Open, batch: int, execution: str, limit_s: float) -> str:
    """Return the first row of an epoch, in the order of the keys, that the table does not take with those before it: a
    text to add to an error. Empty if a search of some `limit_s` seconds does not find the row.

    batch, execution: of the epoch. Each try writes the rows up to a certain row; their number is doubled, then halved.
    """
    until_s = time.monotonic() + limit_s
    taken, refused = 0, 1
    with contextlib.suppress(*DATABASE_ERRORS):
        with open_session() as database:
            [[total]] = database.run("SELECT count(*) FROM ({rows}) AS s", (execution, batch), rows=LAST, columns="1")
        while not _refuses(table, open_session, refused, batch, execution):
            if refused >= total or time.monotonic() > until_s:
                return ""
            taken, refused = refused, min(2 * refused, total)
        while refused - taken > 1:
            if time.monotonic() > until_s:
                return ""
            middle = (taken + refused) // 2
            if _refuses(table, open_session, middle, batch, execution):
                refused = middle
            else:
                taken = middle
        with open_session() as database:
            columns = [column for column in database.columns("staged") if column not in MARKS]
            [row] = select_last(database, columns, batch, execution, f"LIMIT 1 OFFSET {taken}")
        return f"; {described(table, columns, row)}"
    return ""


def _refuses(table: UpsertTable, open_session: Open, count: int, batch: int, execution: str) -> bool:
    with open_session() as database:
        try:
            write_rows(table, database, batch, execution, f"LIMIT {count}")
            database.check_constraints()
        except DATABASE_ERRORS as error:
            if reason_of(error) is not VALUE:
                raise
            return True
    return False


def refused_value(
    table: UpsertTable,
    open_session: Open,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    types: Sequence[str],
) -> FlowFailedError | None:
    """Return the error that names the column and the row of the first value that could not be staged; None if no value
    caused the failure. types: as for `UpsertSink.stage`.

    The function tries the values in a transaction of its own: pg8000 mixes up the server's answers after a value that
    it could not send.
    """
    one = "INSERT INTO {staged} ({column}) VALUES ({value})"
    with contextlib.suppress(*DATABASE_ERRORS), open_session() as database:
        make_staged(database, columns)
        # If even this fails, the values are not the cause.
        database.run(one, column=quoted(columns[0]), value="NULL")
        for row in rows:
            for place, (column, value) in enumerate(zip(columns, row, strict=False)):
                try:
                    database.run(one, (value,), column=quoted(column), value=PLACE)
                except DATABASE_ERRORS as error:
                    kind = types[place] if types else type(value).__name__
                    return FlowFailedError(
                        f"table {table.name} does not take a value of column {column} ({kind}): {error.found}; "
                        f"{described(table, columns, row, (column,))}",
                        cause="The value is too long or out of range for the column, or of another type, or the "
                        "database or Python's module for it knows no such value.",
                        remedy="Cast it in the flow, for instance to a string (an array, a struct or a map with "
                        "to_json), or give the table's column another type; then run the same command again.",
                    )
    return None


def described(table: UpsertTable, columns: Sequence[str], row: Sequence[Any], only: Sequence[str] | None = None) -> str:
    """Return a row as an error names the row: by its key, with its other values, or `only` those of some columns."""
    values = {column: f"{column}={shown(value)}" for column, value in zip(columns, row, strict=False)}
    key = ", ".join(values[column] for column in table.key)
    others = [each for column, each in values.items() if column not in table.key and (only is None or column in only)]
    return f"the row with the key {key}{' has ' if others else ''}{', '.join(others)}"
