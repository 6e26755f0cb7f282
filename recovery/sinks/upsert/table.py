"""The user's table and the sink's own tables beside it: their names and columns, and the errors that name them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from recovery.errors import ConfigurationError, OutputMismatchError
from recovery.sinks.protocol import Resume
from recovery.sinks.upsert.database import Transaction, listed, quoted, quoted_table, refusal_of_mysql
from recovery.sinks.upsert.reasons import ABSENT, DATABASE_ERRORS, reason_of

MARKS = ("recovery_execution", "recovery_batch")
"""The additional columns of a staged row."""
HISTORY = ("recovery_epoch", "recovery_had")
"""The additional columns of a replaced row."""
RANK = "recovery_rank"
"""The additional column of both tables in statements that select the last or the first of a key's rows."""
BESIDE = ("_recovery_owner", "_recovery_epochs", "_recovery_staged", "_recovery_replaced")
"""The suffixes of the tables beside the user's."""

CREATE_OWNER = """
CREATE TABLE {owner} (
    sink VARCHAR(64) NOT NULL, store_id VARCHAR(64) NOT NULL, flow_id TEXT NOT NULL,
    execution_id VARCHAR(64) NOT NULL, history_from BIGINT NOT NULL, formers TEXT
)
"""
ADD_FORMERS = "ALTER TABLE {owner} ADD COLUMN formers TEXT"
"""Older versions made the table without this column: the stores whose place the owner takes, with spaces between."""
CREATE_EPOCHS = """
CREATE TABLE {epochs} (
    epoch BIGINT NOT NULL, execution_id VARCHAR(64) NOT NULL, batch_id BIGINT NOT NULL, published BIGINT NOT NULL
)
"""
CREATE_STAGED = """
CREATE TABLE {staged} AS
SELECT {columns}, CAST('' AS VARCHAR(64)) AS recovery_execution, CAST(0 AS BIGINT) AS recovery_batch
FROM {table} WHERE 1 = 0
"""
CREATE_REPLACED = """
CREATE TABLE {replaced} AS
SELECT {columns}, CAST(0 AS BIGINT) AS recovery_epoch, CAST(0 AS BIGINT) AS recovery_had FROM {table} WHERE 1 = 0
"""


@dataclass(frozen=True, slots=True)
class UpsertTable:
    """The table that a sink writes to, by key."""

    name: str
    key: tuple[str, ...]

    def names(self) -> dict[str, str]:
        """Return what the braces in statements stand for."""
        return {
            "table": quoted_table(self.name),
            **{end.rpartition("_")[2]: quoted_table(self.name + end) for end in BESIDE},
            "key": listed(self.key),
            "s_key": listed(self.key, "s"),
            "first": quoted(self.key[0]),
            # The sink's own column comes first: then SQLite compares with its collation, BINARY, as in the unique
            # index.
            "same_key": " AND ".join(f"s.{quoted(k)} = t.{quoted(k)}" for k in self.key),
        }

    def columns(self, database: Transaction) -> list[str]:
        """Return the table's columns. Raises one of `DATABASE_ERRORS` if the table cannot be read."""
        try:
            columns = database.columns("table")
        except DATABASE_ERRORS as error:
            if "MariaDB server" in error.found or "MySQL server" in error.found:
                # It does not take quoted names.
                raise refusal_of_mysql() from error
            cause, remedy = error.cause, error.remedy
            if reason_of(error) is ABSENT:
                cause = "The table does not exist, or this is another database."
                remedy = "Create it first, with a primary key on the key's columns."
            raise type(error)(f"table {self.name} cannot be read: {error.found}", cause=cause, remedy=remedy) from error
        self.refuse_own(columns)
        return columns

    def refuse_own(self, columns: Sequence[str]) -> None:
        """Refuse user columns with the names of the sink's own: statements could not tell them apart. Some databases
        ignore case in names."""
        own = [column for column in columns if column.lower() in (*MARKS, *HISTORY, RANK)]
        if own:
            raise ConfigurationError(
                f"table {self.name}: a column cannot be called {', '.join(own)}",
                cause="UpsertSink uses these names for its own columns.",
                remedy="Rename it, in the table and in the flow.",
            )

    def refuse_unknown(self, columns: Sequence[str], known: Sequence[str]) -> None:
        """Refuse columns of the flow that the table does not have."""
        unknown = [column for column in columns if column not in known]
        if unknown:
            alike = [column for column in known if column.lower() in [each.lower() for each in unknown]]
            remedy = "Add it, or select the columns that the table has."
            if alike:
                remedy = f"The table has {', '.join(alike)}: write it in the flow as it is written there."
            raise ConfigurationError(f"table {self.name} has no column {', '.join(unknown)}", remedy=remedy)

    def require_key(self, columns: Sequence[str], where: str) -> None:
        """Refuse columns without the key's."""
        lacking = [k for k in self.key if k not in columns]
        if lacking:
            raise ConfigurationError(
                f"UpsertSink: the {where} has no column {', '.join(lacking)}; it has {', '.join(columns)}",
                remedy="Name the key's columns as they are called in the table and in the flow's output.",
            )

    def mismatch(self, found: str, cause: str, remedy: str = "") -> OutputMismatchError:
        """Return the error for a table that does not belong to the partitions' snapshot."""
        restored = f"Restore partitions and database from the same backup. {self.begin_again()}"
        return OutputMismatchError(f"table {self.name}: {found}", cause=cause, remedy=remedy or restored)

    def begin_again(self) -> str:
        """Return, as a sentence, how to begin without the table's history."""
        beside = tables_beside(self.name)
        return f"To begin again, drop the tables {beside} where they are, and take a new recovery directory."


def tables_beside(table: str) -> str:
    """Return the names of the tables beside a table, as a text."""
    first, *others, last = [table + BESIDE[0], *(end.removeprefix("_recovery") for end in BESIDE[1:])]
    return f"{', '.join([first, *others])} and {last}"


def create_tables(database: Transaction, columns: list[str], resume: Resume) -> None:
    """Create the sink's own tables, for a new pair of table and store."""
    database.run(CREATE_OWNER)
    database.run(CREATE_EPOCHS)
    database.run(CREATE_STAGED, columns=listed(columns))
    database.run(CREATE_REPLACED, columns=listed(columns))
    values = (secrets.token_hex(8), resume.store_id, resume.flow_id, resume.execution.id)
    database.run("INSERT INTO {owner} VALUES ({p}, {p}, {p}, {p}, 0, NULL)", values)


def formers_of(database: Transaction) -> tuple[str, ...]:
    """Return the stores whose place the owner of the table takes; empty where an older version recorded none."""
    if "formers" not in database.columns("owner"):
        return ()
    [[formers]] = database.run("SELECT formers FROM {owner}")
    return tuple((formers or "").split())


def take_over(database: Transaction, resume: Resume) -> None:
    """Record that an execution owns the table: no earlier one writes any more, also none of a store whose place its
    store takes."""
    if "formers" not in database.columns("owner"):
        database.run(ADD_FORMERS)
    values = (resume.store_id, resume.execution.id, " ".join(resume.formers))
    database.run("UPDATE {owner} SET store_id = {p}, execution_id = {p}, formers = {p}", values)
