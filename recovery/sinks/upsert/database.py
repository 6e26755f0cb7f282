"""A transaction of any DB-API connection. Statements name the user's table and the tables beside it in braces."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from recovery.base.tracebacks import headline
from recovery.errors import ConfigurationError, FlowFailedError, RecoveryError, shown
from recovery.sinks.upsert.reasons import ABSENT, DATABASE_ERRORS, POSTGRESQL, reason_of, said

PLACEHOLDERS = {"qmark": "?", "format": "%s", "pyformat": "%s"}
MYSQL = ("pymysql", "MySQLdb", "mysql", "mariadb", "asyncmy", "aiomysql")
"""The modules of connections to MySQL and MariaDB."""
PLACE = "\0"
"""Marks a value's place in a statement, until the module's own sign is known; no name may contain it."""

_OF_THE_FUNCTION = (LookupError, TypeError, AttributeError, NameError, ImportError, ValueError)
"""Exceptions that no database's module raises for a server's answer."""

COLUMN_TYPES = """
SELECT format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = CAST({p} AS regclass) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


class Transaction:
    """One transaction. `names` replace the braces in statements; {p} is a value's place."""

    def __init__(self, connection: Any, names: Mapping[str, str], paramstyle: str | None) -> None:
        module = _module(connection)
        if module in MYSQL:
            raise refusal_of_mysql()
        self.is_sqlite = module == "sqlite3"
        self.is_postgresql = module in POSTGRESQL
        if module == "psycopg":
            # A pooler may give the next transaction to another session of the server, which has other statements.
            connection.prepare_threshold = None
        self._place = _placeholder(connection, paramstyle)
        self._names = {**names, "p": PLACE}
        self._connection = connection
        self._doubles: bool | None = None
        with _typed():
            self._cursor = connection.cursor()
        self._begin()

    def run(self, sql: str, values: Sequence[Any] = (), *, rows: str = "", **names: str) -> list[tuple[Any, ...]]:
        """Execute a statement; returns its rows, if any. `rows`: a statement with names to fill in, for {rows}."""
        filled = self._for_module(self._filled(sql, {**names, "rows": self._filled(rows, names)}))
        with _typed():
            self._cursor.execute(filled, tuple(values))
            return [_in_order(row) for row in self._cursor.fetchall()] if self._cursor.description else []

    def run_many(self, sql: str, rows: list[tuple[Any, ...]], **names: str) -> None:
        """Execute a statement for every row."""
        filled = self._for_module(self._filled(sql, names))
        with _typed():
            self._cursor.executemany(filled, rows)

    def columns(self, table: str) -> list[str]:
        """Return the columns of the table behind {table}."""
        self.run(f"SELECT * FROM {{{table}}} WHERE 1 = 0")
        return [column[0] for column in self._cursor.description]

    def types(self, table: str) -> list[Any]:
        """Return the database's types of the columns behind {table}; a copy of the table has the same types."""
        if self.is_sqlite:
            # SQLite's results have no column types, and a copy's types differ from the table's: compare those of a
            # copy.
            self.run(f"CREATE TEMP TABLE recovery_probe AS SELECT * FROM {{{table}}} WHERE 1 = 0")
            found = [kind for (kind,) in self.run("SELECT type FROM pragma_table_info('recovery_probe')")]
            self.run("DROP TABLE temp.recovery_probe")
            return found
        if self.is_postgresql:
            # pg8000's results do not say how long a text may be.
            return [kind for (kind,) in self.run(COLUMN_TYPES, (self._names[table],))]
        self.columns(table)
        # After the name come the type and the sizes.
        return [[str(each) for each in list(column)[1:6]] for column in self._cursor.description]

    def name_of(self, table: str) -> str:
        """Return the name in SQL of the table behind {table}."""
        return self._names[table]

    def exists(self, table: str) -> bool:
        """Whether the table behind {table} exists. If the table does not exist, the transaction is undone and begun
        again."""
        try:
            self.columns(table)
        except DATABASE_ERRORS as error:
            if reason_of(error) is not ABSENT:
                raise
            self.restart()
            return False
        return True

    def kept(self, names: Sequence[str]) -> list[str]:
        """Return names as the database stores them: some databases cut long names."""
        self.run("SELECT {all}", all=", ".join(f"1 AS {quoted(name)}" for name in names))
        return [column[0] for column in self._cursor.description]

    def check_constraints(self) -> None:
        """Check now what the database would check at the commit, where it can be asked for that."""
        if self.is_postgresql:
            self.run("SET CONSTRAINTS ALL IMMEDIATE")

    def limit_waits(self, limit_s: float) -> None:
        """Wait for each lock no longer than `limit_s` in this transaction, where the connection does not set a limit of
        its own and the database knows one."""
        if self.is_postgresql and self.run("SELECT current_setting('lock_timeout')") == [("0",)]:
            self.run(f"SET LOCAL lock_timeout = '{math.ceil(limit_s * 1000)}ms'")

    def restart(self) -> None:
        """Undo the transaction and begin again: some databases refuse everything after an error."""
        self.rollback()
        self._begin()

    def commit(self) -> None:
        """Commit the transaction."""
        self.run("COMMIT")
        self._open = False

    def rollback(self) -> None:
        """Undo the transaction, unless it was committed."""
        if self._open:
            self._open = False
            with contextlib.suppress(Exception):
                self._cursor.execute("ROLLBACK")

    def release(self) -> None:
        """Undo what is not committed and close the cursor; an open one could keep the transaction alive beyond its
        connection."""
        self.rollback()
        with contextlib.suppress(Exception):
            self._cursor.close()

    def _begin(self) -> None:
        try:
            self._cursor.execute("BEGIN")
        except Exception as error:
            # A sqlite3 connection can be configured to be always in a transaction.
            if not getattr(self._connection, "in_transaction", False):
                raise _error_of(error, "no transaction can be begun") from error
        self._open = True

    def _filled(self, sql: str, names: Mapping[str, str]) -> str:
        return sql.format(**self._names, **names)

    def _for_module(self, filled: str) -> str:
        """Return the statement with the module's signs for values, and with % doubled if it is such a sign."""
        if "%" in filled and self._place == "%s":
            if self._doubles is None:
                # Some modules ignore it inside quotes.
                with _typed():
                    self._cursor.execute('SELECT 1 AS "%%"', ())
                    self._doubles = self._cursor.description[0][0] == "%"
                    self._cursor.fetchall()
            if self._doubles:
                filled = filled.replace("%", "%%")
        return filled.replace(PLACE, self._place)


@contextlib.contextmanager
def session(connect: Callable[[], Any], names: Mapping[str, str], paramstyle: str | None) -> Iterator[Transaction]:
    """Open a connection and a transaction, which is undone unless it is committed."""
    connection = _connected(connect)
    try:
        transaction = Transaction(connection, names, paramstyle)
        try:
            yield transaction
        finally:
            transaction.release()
    finally:
        with contextlib.suppress(Exception):
            connection.close()


def _connected(connect: Callable[[], Any]) -> Any:
    """Return what the user's function returns, if it is a connection."""
    with _typed():
        try:
            connection = connect()
        except _OF_THE_FUNCTION as error:
            raise FlowFailedError(
                f"UpsertSink: `connect` failed: {headline(error)}",
                cause="There is an error in that function, or an argument that the database's module does not take.",
            ) from error
    if not hasattr(connection, "cursor"):
        raise ConfigurationError(
            f"UpsertSink: `connect` returned {shown(connection)}, which is no connection",
            remedy="Return a new DB-API connection, as in: return psycopg.connect(…)",
        )
    return connection


def refusal_of_mysql() -> ConfigurationError:
    """Return the error for a database whose SQL the sink does not speak."""
    return ConfigurationError(
        "UpsertSink cannot write to MySQL or MariaDB",
        cause="They have no INSERT … ON CONFLICT, commit a transaction when a table is created, and compare text keys "
        "without case by default, so that different keys would be one.",
        remedy="Use PostgreSQL, SQLite or DuckDB; or a function as the sink, which is called at least once and writes "
        "with INSERT … ON DUPLICATE KEY UPDATE.",
    )


def quoted(name: str) -> str:
    """Return a name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    """Return a table's name in SQL; a dot separates it from its schema's."""
    return ".".join(map(quoted, name.split(".")))


def listed(columns: Sequence[str], table: str = "") -> str:
    """Return columns in SQL, prefixed with the table if it is given."""
    prefix = f"{table}." if table else ""
    return ", ".join(f"{prefix}{quoted(column)}" for column in columns)


def _module(connection: Any) -> str:
    """Return the name of the database's module, without the underscore that a compiled module may begin with. The
    connection's class may be derived from the module's."""
    names = [kind.__module__.partition(".")[0].lstrip("_") for kind in type(connection).__mro__]
    return next((name for name in names if hasattr(sys.modules.get(name), "paramstyle")), names[0])


def _placeholder(connection: Any, given: str | None) -> str:
    style = given or getattr(sys.modules.get(_module(connection)), "paramstyle", None)
    if style not in PLACEHOLDERS:
        raise ConfigurationError(
            f"it is not known how to pass values to {type(connection).__module__}",
            remedy="Set paramstyle='qmark', 'format' or 'pyformat'; see the documentation of that module.",
        )
    return PLACEHOLDERS[style]


def _in_order(row: Any) -> tuple[Any, ...]:
    """Return a row's values; a connection can be configured to return rows as dicts."""
    return tuple(row.values()) if isinstance(row, Mapping) else tuple(row)


@contextlib.contextmanager
def _typed() -> Iterator[None]:
    """Translate a database module's exception to one of `DATABASE_ERRORS`."""
    try:
        yield
    except RecoveryError:
        raise
    except Exception as error:
        raise _error_of(error, "the database says") from error


def _error_of(error: Exception, what: str) -> RecoveryError:
    reason = reason_of(error)
    return reason.error(f"{what}: {type(error).__name__}: {said(error)}", cause=reason.cause, remedy=reason.remedy)
