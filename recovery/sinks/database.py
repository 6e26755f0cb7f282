"""A transaction of any DB-API connection, with the names of a table and of those beside it filled in."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from recovery.errors import ConfigurationError, SinkFailedError

PLACEHOLDERS = {"qmark": "?", "format": "%s", "pyformat": "%s"}


class Session:
    """One transaction. `names` are what the braces in statements stand for; {p} is a value's place."""

    def __init__(self, connection: Any, names: Mapping[str, str], paramstyle: str | None) -> None:
        self.place = _placeholder(connection, paramstyle)
        self.is_sqlite = _module(connection) == "sqlite3"
        self._names = {**names, "p": self.place}
        self._connection = connection
        with _typed():
            self._cursor = connection.cursor()
        self._begin()

    def run(self, sql: str, values: Sequence[Any] = (), *, rows: str = "", **names: str) -> list[tuple[Any, ...]]:
        """Execute a statement; the rows, if it gives any. `rows`: a statement with names to fill in, for {rows}."""
        filled = self._filled(sql, {**names, "rows": self._filled(rows, names)})
        with _typed():
            self._cursor.execute(filled, tuple(values))
            return [tuple(row) for row in self._cursor.fetchall()] if self._cursor.description else []

    def run_many(self, sql: str, rows: list[tuple[Any, ...]], **names: str) -> None:
        """Execute a statement for every row."""
        with _typed():
            self._cursor.executemany(self._filled(sql, names), rows)

    def columns(self, table: str) -> list[str]:
        """The columns of the table behind {table}."""
        self.run(f"SELECT * FROM {{{table}}} WHERE 1 = 0")
        return [column[0] for column in self._cursor.description]

    def types(self, table: str) -> list[Any]:
        """What the database tells of the types of the columns behind {table}; a copy of a table has the same."""
        if self.is_sqlite:
            # Its columns have no type in an answer, and others in a copy than in the table: so those of a copy count.
            self.run(f"CREATE TEMP TABLE recovery_probe AS SELECT * FROM {{{table}}} WHERE 1 = 0")
            found = [kind for (kind,) in self.run("SELECT type FROM pragma_table_info('recovery_probe')")]
            self.run("DROP TABLE temp.recovery_probe")
            return found
        self.columns(table)
        # Behind the name: the type, and sizes.
        return [[str(each) for each in list(column)[1:6]] for column in self._cursor.description]

    def exists(self, table: str) -> bool:
        """Whether the table behind {table} can be read. Where it cannot, what was done so far is undone."""
        try:
            self.columns(table)
        except SinkFailedError:
            # Some databases refuse everything in a transaction that had an error.
            self.rollback()
            self._begin()
            return False
        return True

    def commit(self) -> None:
        """All of it has happened."""
        self.run("COMMIT")
        self._open = False

    def rollback(self) -> None:
        """None of it has happened, unless it was committed."""
        if self._open:
            self._open = False
            with contextlib.suppress(Exception):
                self._cursor.execute("ROLLBACK")

    def release(self) -> None:
        """The end, committed or not; an open cursor could keep the transaction alive beyond its connection."""
        self.rollback()
        with contextlib.suppress(Exception):
            self._cursor.close()

    def _begin(self) -> None:
        try:
            self._cursor.execute("BEGIN")
        except Exception as error:
            # A connection of sqlite3 can be set to be in a transaction always.
            if not getattr(self._connection, "in_transaction", False):
                raise SinkFailedError(f"no transaction can be begun: {error}") from error
        self._open = True

    def _filled(self, sql: str, names: Mapping[str, str]) -> str:
        return sql.format(**self._names, **names)


@contextlib.contextmanager
def session(connect: Callable[[], Any], names: Mapping[str, str], paramstyle: str | None) -> Iterator[Session]:
    """A fresh connection with a transaction that is lost unless it is committed."""
    with _typed():
        connection = connect()
    try:
        transaction = Session(connection, names, paramstyle)
        try:
            yield transaction
        finally:
            transaction.release()
    finally:
        with contextlib.suppress(Exception):
            connection.close()


def quoted(name: str) -> str:
    """An identifier in SQL; a dot separates the parts of one."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def listed(columns: Sequence[str], table: str = "") -> str:
    """Columns in SQL, of a table if it is named."""
    prefix = f"{table}." if table else ""
    return ", ".join(f"{prefix}{quoted(column)}" for column in columns)


def _module(connection: Any) -> str:
    """The database's module, whose name may begin with an underscore where it is compiled; also that of a class from
    which the connection's own is derived."""
    names = [kind.__module__.partition(".")[0].lstrip("_") for kind in type(connection).__mro__]
    return next((name for name in names if hasattr(sys.modules.get(name), "paramstyle")), names[0])


def _placeholder(connection: Any, given: str | None) -> str:
    style = given or getattr(sys.modules.get(_module(connection)), "paramstyle", None)
    if style not in PLACEHOLDERS:
        raise ConfigurationError(
            f"how values are passed to {type(connection).__module__} is not known",
            remedy="Say it: paramstyle='qmark', 'format' or 'pyformat'; the documentation of that module knows.",
        )
    return PLACEHOLDERS[style]


@contextlib.contextmanager
def _typed() -> Iterator[None]:
    """What a database's module raises, as an error of ours."""
    try:
        yield
    except Exception as error:
        raise SinkFailedError(f"the database says: {type(error).__name__}: {error}") from error
