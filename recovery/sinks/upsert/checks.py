"""What a table must allow before anything depends on it: names, collation, and the right to write every column."""

from __future__ import annotations

from collections.abc import Sequence

from recovery.errors import ConfigurationError
from recovery.sinks.upsert.database import Transaction, listed, quoted
from recovery.sinks.upsert.going_back import GoingBack
from recovery.sinks.upsert.reasons import DATABASE_ERRORS, OTHER, SHAPE, reason_of
from recovery.sinks.upsert.table import BESIDE, CREATE_OWNER, CREATE_STAGED, UpsertTable, tables_beside

# The columns of an SQLite table's unique indexes that do not compare byte by byte.
COLLATED = """
SELECT x.name, x.coll FROM pragma_index_list({p}) AS l, pragma_index_xinfo(l.name) AS x
WHERE l."unique" AND x.key AND x.coll <> 'BINARY'
"""


# The columns of a PostgreSQL table's unique indexes that are checked at the commit.
DEFERRABLE = """
SELECT c.relname, a.attname FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_attribute AS a ON a.attrelid = i.indexrelid AND a.attnum <= i.indnkeyatts
WHERE i.indrelid = CAST({p} AS regclass) AND i.indisunique AND NOT i.indimmediate
"""


def check_names(table: UpsertTable, database: Transaction) -> None:
    """Check that the names of the sink's tables stay different if the database cuts long names."""
    last = table.name.rpartition(".")[2]
    kept = database.kept([last, *(last + end for end in BESIDE)])
    if len(set(kept)) < len(kept):
        # One letter after the last underscore distinguishes them.
        longest = max(len(name.encode()) for name in kept) - len("_recovery_") - 1
        raise ConfigurationError(
            f"table {table.name}: its name is too long",
            cause=f"The database would cut the names of {tables_beside(table.name)} to the same text.",
            remedy=f"Give the table a name of at most {longest} bytes.",
        )


def check_collation(table: UpsertTable, database: Transaction) -> None:
    """Refuse a collation under which keys that differ here are equal in the table: such rows could not be restored."""
    if not database.is_sqlite:
        return
    for name, collation in database.run(COLLATED, (table.name.rpartition(".")[2],)):
        if name in table.key:
            raise ConfigurationError(
                f"table {table.name}: the key's column {name} has the collation {collation}",
                cause="The table treats different keys as equal, so which of them counts is undefined.",
                remedy="Use a column with the collation BINARY, and let the flow write lower case into it.",
            )


def check_unique(table: UpsertTable, database: Transaction) -> None:
    """Refuse a key without a unique index by which the database finds a row's predecessor."""
    key = ", ".join(table.key)
    try:
        database.run(
            "EXPLAIN INSERT INTO {table} ({key}) SELECT {key} FROM {table} WHERE 1 = 0 ON CONFLICT ({key}) DO NOTHING"
        )
    except DATABASE_ERRORS as error:
        if reason_of(error) not in (SHAPE, OTHER):
            raise
        raise ConfigurationError(
            f"table {table.name}: it has no unique index that serves the key ({key}): {error.found}",
            cause="The table has no primary key or unique index on just these columns; or the index holds a part of "
            "the rows only (WHERE), or an expression.",
            remedy=f"Make ({key}) the primary key, or create a unique index on just these columns, for all rows.",
        ) from error
    if database.is_postgresql:
        columns: dict[str, set[str]] = {}
        for index, column in database.run(DEFERRABLE, (database.name_of("table"),)):
            columns.setdefault(index, set()).add(column)
        deferrable = ", ".join(sorted(index for index, found in columns.items() if found == set(table.key)))
        if deferrable:
            raise ConfigurationError(
                f"table {table.name}: the unique constraint {deferrable} on the key ({key}) is deferrable",
                cause="PostgreSQL does not support INSERT … ON CONFLICT with a constraint that it may check at the "
                "commit only.",
                remedy="Drop the constraint, and make it again without DEFERRABLE.",
            )


def check_writable(table: UpsertTable, database: Transaction, columns: Sequence[str]) -> None:
    """Refuse columns that only the database may write: going back writes rows with all columns."""
    try:
        database.run("EXPLAIN INSERT INTO {table} ({columns}) SELECT {columns} FROM {table}", columns=listed(columns))
    except DATABASE_ERRORS as error:
        if reason_of(error) not in (SHAPE, OTHER):
            raise
        raise ConfigurationError(
            f"table {table.name}: its rows could not be put back: {error.found}",
            cause="The table has a column that only the database may write, such as a generated one.",
            remedy="Use a table without that column, and compute its values in a view or in the flow.",
        ) from error


def try_rights(database: Transaction, columns: Sequence[str], plan: GoingBack) -> None:
    """Try everything for which `rollback` needs a right, in a transaction that the caller undoes. Once `rollback` runs,
    the partitions have gone back already."""
    if plan.known:
        database.run("UPDATE {owner} SET execution_id = execution_id")
        database.run("DROP TABLE {staged}")
    else:
        database.run(CREATE_OWNER)
    database.run(CREATE_STAGED, columns=listed(columns))
    if plan.takes_back:
        sets = ", ".join(f"{quoted(column)} = {quoted(column)}" for column in columns)
        database.run("EXPLAIN UPDATE {table} SET {sets}", sets=sets)
        database.run("EXPLAIN DELETE FROM {table}")
