"""Databases as they are set up: how they give rows, name things, and say what is wrong. Nothing here starts Spark."""

from __future__ import annotations

import contextlib
import copy
import re
import sqlite3

import pytest

from recovery.errors import ConfigurationError, OutputMismatchError, SinkFailedError, SinkRefusedError
from recovery.sinks.upsert.database import Transaction, quoted
from recovery.sinks.upsert.sink import UpsertSink
from tests.shares import first, some
from tests.sinks import postgresql
from tests.sinks.conftest import Real
from tests.sinks.support import Closed, Store
from tests.sinks.test_upsert import EVERY, Run


class Sqlite(Real):
    """SQLite whose connections are of a class that a test gives."""

    def __init__(self, path, factory=sqlite3.Connection) -> None:
        super().__init__("sqlite3", path)
        self.factory = factory

    def connect(self):
        return sqlite3.connect(self._path, factory=self.factory)


def translated(translate, *, described=lambda name: name):
    """A class of connections whose statements are translated, and so are the names of columns in answers."""

    class Cursor(sqlite3.Cursor):
        @property
        def description(self):
            found = super().description
            return found and [(described(name), *rest) for name, *rest in found]

        def execute(self, sql, values=()):
            return super().execute(translate(sql, values), values)

        def executemany(self, sql, rows):
            return super().executemany(translate(sql, rows[0]), rows)

    class Connection(sqlite3.Connection):
        def cursor(self):
            return super().cursor(Cursor)

    return Connection


def as_psycopg(sql: str, values) -> str:
    """Percent signs are doubled wherever they stand, and %s is the place of a value."""
    return sql % (("?",) * len(values))


def as_pg8000(sql: str, values) -> str:
    """Inside of quotes a percent sign means nothing."""
    parts = re.split(r'("(?:[^"]|"")*")', sql)
    return "".join(part if part.startswith('"') else part.replace("%s", "?") for part in parts)


class Start(Run):
    """One execution that writes to a table of any name."""

    def __init__(self, store: Store, database, table: str, key: str, **options) -> None:
        self.store, resume = store, store.begin(options.pop("resume_epoch", None))
        self.sink = UpsertSink(database.connect, table, [key], **options)
        self.lease, self.closed_batch, self.written = resume.execution, -1, {}
        self.sink.check(resume)
        self.sink.rollback(resume)


def there_and_back(database, table: str, key: str, column: str, **options) -> None:
    """Two epochs, and back to the first."""
    store = Store()
    run = Start(store, database, table, key, **options)
    run.sink.stage([key, column], [("a", 1)], 0)
    run.close(0)
    run.sink.stage([key, column], [("a", 2), ("b", 3)], 1)
    run.close(1)
    assert sorted(database.execute(f"SELECT * FROM {quoted(table)}")) == [("a", 2), ("b", 3)]
    Start(store, database, table, key, resume_epoch=2, **options)
    assert database.execute(f"SELECT * FROM {quoted(table)}") == [("a", 1)]


ROWS = {
    "dicts": lambda cursor, row: {column[0]: value for column, value in zip(cursor.description, row, strict=True)},
    "sqlite3.Row": sqlite3.Row,
    "lists": lambda cursor, row: list(row),
}


@pytest.mark.parametrize("kind", ROWS)
def test_connections_that_give_rows_in_another_form(tmp_path, kind):
    """A row is the sequence of its values, or names them."""

    class Connection(sqlite3.Connection):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            self.row_factory = ROWS[kind]

    plain, database = Sqlite(tmp_path / "db"), Sqlite(tmp_path / "db", Connection)
    plain.execute("CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER)")
    database.execute = plain.execute
    there_and_back(database, "words", "word", "n")


NAMES = ("a.b", "share%", "100%s", "%%", "we\"ird'", "{z}", "?", "$1")
MODULES = {"qmark": None, "psycopg's": as_psycopg, "pg8000's": as_pg8000}


@pytest.mark.parametrize("module", MODULES)
def test_columns_and_tables_of_any_name(tmp_path, module):
    """Signs that mean something to SQL or to a module are a part of the name; a dot is one in that of a column."""
    translate = MODULES[module]
    for number, name in enumerate(NAMES):
        plain = database = Sqlite(tmp_path / f"{number}")
        options = {}
        if translate:
            database, options = Sqlite(tmp_path / f"{number}", translated(translate)), {"paramstyle": "format"}
            database.execute = plain.execute
        table = name if "." not in name else "words"
        plain.execute(f"CREATE TABLE {quoted(table)} ({quoted(name)} TEXT PRIMARY KEY, {quoted('n' + name)} INTEGER)")
        there_and_back(database, table, name, f"n{name}", **options)


@first("name", NAMES, count=2)
@pytest.mark.parametrize("module", some(["duckdb", *postgresql.MODULES], "psycopg"))
def test_columns_of_any_name_in_other_databases(real, module, name):
    """Each has its own rules of quoting."""
    database = real(module)
    database.execute(f"CREATE TABLE words ({quoted(name)} TEXT PRIMARY KEY, n INTEGER)")
    there_and_back(database, "words", name, "n")


def cut(name: str) -> str:
    return name.encode()[:63].decode(errors="ignore")


def as_postgresql(sql: str, _) -> str:
    """Names are cut after 63 bytes."""
    return re.sub('"([^"]*)"', lambda found: f'"{cut(found[1])}"', sql)


def test_a_table_whose_name_is_too_long(tmp_path):
    """Where names are cut, those of the tables beside it have to stay different: otherwise it is refused."""
    database = Sqlite(tmp_path / "db", translated(as_postgresql, described=cut))
    plain = Sqlite(tmp_path / "db")
    database.execute = plain.execute
    for length in (45, 52):
        plain.execute(f"CREATE TABLE {'t' * length} (word TEXT PRIMARY KEY, n INTEGER)")
        there_and_back(database, "t" * length, "word", "n")
    for name in ("t" * 53, "ü" * 27, "t" * 63):
        plain.execute(f"CREATE TABLE {name} (word TEXT PRIMARY KEY, n INTEGER)")
        with pytest.raises(ConfigurationError, match=f"table {name}: its name is too long") as caught:
            Start(Store(), database, name, "word")
        assert "at most 52 bytes" in caught.value.remedy
        there_and_back(plain, name, "word", "n")


OWN = ("recovery_rank", "recovery_epoch", "recovery_had", "recovery_batch", "recovery_execution", "Recovery_Rank")


@pytest.mark.parametrize("module", ["sqlite3", "duckdb", "psycopg"])
@pytest.mark.parametrize("name", some(OWN, "recovery_rank"))
def test_a_column_that_is_called_as_one_of_the_sink_s_own(real, module, name):
    """It is refused before anything is made, also where the flow does not write it; other names with the prefix are
    the user's."""
    database = real(module)
    database.execute(f"CREATE TABLE words (word TEXT PRIMARY KEY, recovery_n INTEGER, {quoted(name)} INTEGER)")
    with pytest.raises(ConfigurationError, match=f"table words: a column cannot be called {name}"):
        Run(Store(), database, key=["word"])
    tables = (
        "SELECT name FROM sqlite_master" if module == "sqlite3" else "SELECT table_name FROM information_schema.tables"
    )
    assert ("words_recovery_owner",) not in database.execute(tables)
    database.execute(f"ALTER TABLE words DROP COLUMN {quoted(name)}")
    run = Run(Store(), database, key=["word"])
    with pytest.raises(ConfigurationError, match=f"table words: a column cannot be called {name}"):
        run.sink.stage(["word", name], [("a", 2)], 0)
    database.execute(f"ALTER TABLE words ADD COLUMN {quoted(name)} INTEGER")
    with pytest.raises(ConfigurationError, match=f"table words: a column cannot be called {name}"):
        run.sink.stage(["word", "recovery_n"], [("a", 2)], 0)
    database.execute(f"ALTER TABLE words DROP COLUMN {quoted(name)}")
    there_and_back(database, "words", "word", "recovery_n")


def test_a_column_whose_name_differs_in_case(tmp_path):
    """The error names the one that was meant."""
    database = Real("sqlite3", tmp_path / "db")
    database.execute("CREATE TABLE words (word TEXT PRIMARY KEY, N INTEGER)")
    run = Run(Store(), database, key=["word"])
    with pytest.raises(ConfigurationError, match="table words has no column n") as caught:
        run.sink.stage(["word", "n"], [("a", 1)], 0)
    assert "The table has N" in caught.value.remedy


@pytest.mark.parametrize("module", EVERY)
def test_only_absence_is_absence(real, module):
    """A table that is not there is none; the message of every other error says what happened."""
    database = real(module)
    database.execute("CREATE TABLE words (n INTEGER)")
    with contextlib.closing(database.connect()) as connection:
        names = {"words": "words", "none": "none", "elsewhere": "nowhere.none", "broken": "words WHERE nope"}
        session = Transaction(connection, names, None)
        assert [session.exists(name) for name in ("words", "none", "elsewhere", "words")] == [True, False, False, True]
        with pytest.raises(SinkRefusedError, match="the database says"):
            session.exists("broken")
        session.release()


class RefusedError(Exception):
    """As psycopg, psycopg2 and pg8000 say it."""


@pytest.mark.parametrize("said", ["sqlstate", "pgcode", "args"])
@pytest.mark.parametrize(("code", "cause"), [("42P01", ""), ("42501", "lacks a right"), ("55P03", "holds a lock")])
def test_what_postgresql_says_by_number(tmp_path, said, code, cause):
    """Its texts are in the language of the server; without the right to see a table, nothing is said of dropping it."""
    error = RefusedError({"C": code, "M": "nein"}) if said == "args" else RefusedError("nein")
    if said != "args":
        setattr(error, said, code)

    def translate(sql, _):
        if 'FROM "words_recovery_owner"' in sql:
            raise error
        return sql

    plain = Sqlite(tmp_path / "db")
    plain.execute("CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER)")
    store = Store(closed=[])
    run = Run(store, plain, key=["word"])
    run.close(0)
    kind = {"42P01": OutputMismatchError, "42501": SinkRefusedError}.get(code, SinkFailedError)
    with pytest.raises(kind) as caught:
        Run(store, Sqlite(tmp_path / "db", translated(translate)), key=["word"])
    assert cause in caught.value.cause
    assert ("drop the tables" in caught.value.remedy) == (code == "42P01")


def test_a_locked_database(tmp_path):
    """The sink does not take it for a missing table, and when the lock is gone the run goes on."""
    database = Sqlite(tmp_path / "db")
    database.execute("CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER)")
    store = Store()
    Run(store, database, key=["word"]).close(0)
    database.connect = lambda: sqlite3.connect(tmp_path / "db", timeout=0)
    with contextlib.closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SinkFailedError, match=r"table words cannot be read: .*is locked") as caught:
            Run(store, database, key=["word"])
        assert "holds a lock" in caught.value.cause
        assert "Create it" not in caught.value.remedy
        other.execute("ROLLBACK")
    Run(store, database, key=["word"])


def test_a_lock_that_comes_later(tmp_path):
    """No column of the table is blamed for it."""

    def translate(sql, _):
        if sql.startswith("EXPLAIN"):
            raise sqlite3.OperationalError("database is locked")
        return sql

    plain = Sqlite(tmp_path / "db")
    plain.execute("CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER)")
    with pytest.raises(SinkFailedError, match=r"table words: the database says.*\n.*holds a lock"):
        Run(Store(), Sqlite(tmp_path / "db", translated(translate)), key=["word"])


class TestWaysOut:
    """What an error advises is right for its case, and harms nobody else."""

    TABLES = ("owner", "epochs", "staged", "replaced")

    @pytest.fixture
    def lived(self, tmp_path):
        """A table that a flow wrote to."""
        database, store = Sqlite(tmp_path / "db"), Store()
        database.execute("CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER)")
        run = Start(store, database, "words", "word")
        run.sink.stage(["word", "n"], [("a", 1)], 0)
        run.close(0)
        return store, database

    def drop(self, database):
        database.execute(*(f"DROP TABLE words_recovery_{name}" for name in self.TABLES))

    def test_two_flows_on_one_table(self, lived):
        """The second error does not advise to destroy what the first one needs."""
        store, database = lived
        with pytest.raises(OutputMismatchError, match="it is written by flow 'flow'") as caught:
            Start(Store(store_id="other", flow_id="second"), database, "words", "word")
        assert caught.value.remedy == "Give each flow its own table."
        Start(store, database, "words", "word")

    def test_a_flow_on_a_new_recovery_directory(self, lived):
        """The former one is named; if it is given up, its tables may go, and its rows stay."""
        _, database = lived
        with pytest.raises(OutputMismatchError) as caught:
            Start(Store(store_id="other"), database, "words", "word")
        assert "Run it on recovery directory 5e1f" in caught.value.remedy
        assert "words_recovery_owner, _epochs, _staged and _replaced" in caught.value.remedy
        self.drop(database)
        Start(Store(store_id="other"), database, "words", "word")
        assert database.execute("SELECT * FROM words") == [("a", 1)]

    def test_another_table_than_before(self, lived):
        """That is what is said, whether the other one was written to or not; all three ways out are ways out."""
        store, database = lived
        database.execute("CREATE TABLE others (word TEXT PRIMARY KEY, n INTEGER)")
        for _ in range(2):
            with pytest.raises(OutputMismatchError, match=r"epoch 1 was written to table words\n") as caught:
                Start(store, database, "others", "word")
            assert "Give it words again" in caught.value.remedy
            # Begin there from nothing, as the same flow.
            Start(Store(), database, "others", "word")
        Start(store, database, "words", "word")
        database.execute("ALTER TABLE words RENAME TO renamed")
        for name in self.TABLES:
            database.execute(f"ALTER TABLE words_recovery_{name} RENAME TO renamed_recovery_{name}")
        Start(store, database, "renamed", "word")

    def test_tables_that_were_dropped(self, lived):
        """Here, and where database and partitions are of different times, to drop what is left is a way out."""
        store, database = lived
        before = copy.deepcopy(store)
        first = store.closed[0]
        store.closed.append(Closed(first.execution, 1, first.note.replace('"epoch":1', '"epoch":2'), []))
        with pytest.raises(OutputMismatchError, match="it does not know epoch 2") as caught:
            Start(store, database, "words", "word")
        assert "drop the tables words_recovery_owner" in caught.value.remedy
        self.drop(database)
        with pytest.raises(OutputMismatchError, match="which has no record of that epoch") as caught:
            Start(before, database, "words", "word")
        assert "drop the tables words_recovery_owner" in caught.value.remedy
        Start(Store(store_id="new"), database, "words", "word")

    def test_another_kind_of_sink(self, lived):
        """Nothing of the table is to be dropped for it."""
        store, database = lived
        store.closed[-1].note = "{}"
        with pytest.raises(OutputMismatchError, match="another kind of sink") as caught:
            Start(store, database, "words", "word")
        assert "drop" not in caught.value.remedy
