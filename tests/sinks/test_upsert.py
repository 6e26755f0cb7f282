"""A table that a flow writes to by key, through kills and failures at every statement. Nothing here starts Spark."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import random
import shutil
import sqlite3
import threading
from datetime import date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from recovery.base.ids import Lease
from recovery.errors import (
    ConfigurationError,
    FlowFailedError,
    LeaseLostError,
    OutputMismatchError,
    RecoveryError,
    SinkFailedError,
    SinkRefusedError,
    StaleDirectoryError,
)
from recovery.sinks.protocol import EpochOutput
from recovery.sinks.upsert import retry
from recovery.sinks.upsert.sink import UpsertSink
from tests.shares import some, steps_up_to, strided
from tests.sinks.memory_disk import Killed
from tests.sinks.postgresql import MODULES
from tests.sinks.support import Closed, Store

CREATE = "CREATE TABLE words (word TEXT, part INTEGER, n INTEGER, own TEXT DEFAULT 'mine', PRIMARY KEY (word, part))"
COLUMNS = ["n", "word", "part"]
EVERY = ["sqlite3", "duckdb", *MODULES]
BY_DEFAULT = some(EVERY, "sqlite3", "psycopg")
"""What every database shows is `test_other_databases`."""
_values = itertools.count()


class Database:
    """A SQLite file whose statements can be cut off or fail."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.statements = self.kill_at = self.fail_at = self.fail_from = 0
        if not path.exists():
            self.execute(CREATE)

    def connect(self) -> Connection:
        return Connection(self)

    def execute(self, sql: str) -> list[tuple]:
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(sql).fetchall()

    def table(self) -> dict:
        return {(word, part): n for word, part, n in self.execute("SELECT word, part, n FROM words")}

    def healthy(self) -> Database:
        self.statements = self.kill_at = self.fail_at = self.fail_from = 0
        return self

    def statement(self) -> None:
        self.statements += 1
        if self.statements == self.kill_at:
            raise Killed
        if self.statements == self.fail_at or 0 < self.fail_from <= self.statements:
            raise sqlite3.OperationalError("database or disk is full")


class Connection:
    """sqlite3's, with every statement counted."""

    def __init__(self, database: Database) -> None:
        database.statement()
        self._database = database
        self._connection = sqlite3.connect(database.path, timeout=0)
        # Speed alone: what is tested is what statements do, and SQLite's own durability is not in doubt.
        self._connection.execute("PRAGMA synchronous = OFF")

    def cursor(self):
        cursor, database = self._connection.cursor(), self._database

        class Cursor:
            description = property(lambda _: cursor.description)
            fetchall = staticmethod(cursor.fetchall)

            @staticmethod
            def execute(*arguments):
                database.statement()
                return cursor.execute(*arguments)

            @staticmethod
            def executemany(*arguments):
                database.statement()
                return cursor.executemany(*arguments)

            close = staticmethod(cursor.close)

        return Cursor()

    def close(self):
        self._connection.close()


class Run:
    """One execution that writes to the table."""

    def __init__(self, store: Store, database, *, resume_epoch: int | None = None, key=("word", "part")) -> None:
        self.store = store
        # Its connections are of no module.
        paramstyle = "qmark" if isinstance(database, Database) else None
        self.sink = UpsertSink(database.connect, "words", list(key), paramstyle=paramstyle)
        resume = store.begin(resume_epoch)
        self.lease = resume.execution
        self.closed_batch = store.closed[-1].batch if store.closed else -1
        self.written: dict[int, list] = {}
        self.sink.check(resume)
        self.sink.rollback(resume)

    def write(self, batch: int, keys: str = "abc") -> None:
        """A micro-batch: a row per letter, with values that were never there before."""
        rows = [(next(_values), letter, batch % 2) for letter in keys]
        self.sink.stage(COLUMNS, rows, batch)
        self.written[batch] = rows

    def output(self, batch: int) -> EpochOutput:
        return EpochOutput(len(self.store.closed) + 1, batch, self.lease, "5e1f", "flow", self.store.floor)

    def close(self, batch: int) -> None:
        output = self.output(batch)
        note = self.sink.prepare(output)
        rows = [row for b in sorted(self.written) if self.closed_batch < b <= batch for row in self.written[b]]
        self.store.closed.append(Closed(self.lease, batch, note, rows))
        self.closed_batch = batch
        self.sink.publish(output)


def expected(store: Store) -> dict:
    """The table after the rows of all closed epochs, in their order."""
    return {(word, part): n for closed in store.closed for n, word, part in closed.records}


def story(store: Store, database, resume_epoch: int | None = None) -> None:
    """New keys, known keys, keys twice in an epoch, and an epoch that is closed when a later batch is staged."""
    run = Run(store, database, resume_epoch=resume_epoch)
    first = run.closed_batch + 1
    run.write(first, "ab")
    run.write(first + 1, "xyz")
    run.write(first + 1, "bc")
    run.write(first + 2, "ad")
    run.write(first + 3, "ae")
    run.close(first + 2)
    store.floor = max(store.floor, len(store.closed) - 3)
    run.close(first + 3)


@functools.cache
def _lived(directory: Path) -> Store:
    store, database = Store(), Database(directory / "lived.sqlite3")
    story(store, database)
    story(store, database, resume_epoch=2)
    store.edit()
    return store


@pytest.fixture
def lived(tmp_path):
    """A function that gives a database with a past: a run, a rewind, another run, an edit."""
    made = itertools.count()

    def make() -> tuple[Store, Database]:
        store = copy.deepcopy(_lived(tmp_path))
        path = tmp_path / f"{next(made)}.sqlite3"
        shutil.copy(tmp_path / "lived.sqlite3", path)
        return store, Database(path)

    return make


RESUMES = {"goes on": None, "goes back": 2}


def statements(lived, resume_epoch) -> int:
    store, database = lived()
    story(store, database, resume_epoch)
    return database.statements


def test_rows_appear_with_the_closed_epoch(tmp_path):
    """Not when they are written; the last one of a key counts; columns that the flow does not write stay."""
    store, database = Store(), Database(tmp_path / "db")
    database.execute("INSERT INTO words VALUES ('a', 0, -1, 'kept')")
    run = Run(store, database)
    run.write(0)
    run.write(1)
    run.write(2)
    assert database.table() == {("a", 0): -1}
    run.close(1)
    assert database.table() == expected(store)
    run.close(2)
    assert database.table() == expected(store)
    assert database.execute("SELECT own FROM words WHERE word = 'a' ORDER BY part") == [("kept",), ("mine",)]


def test_calls_may_be_repeated(tmp_path):
    """A micro-batch that is written again replaces the first time; preparing and publishing again change nothing."""
    store, database = Store(), Database(tmp_path / "db")
    run = Run(store, database)
    run.write(0, "abc")
    run.write(0, "b")
    run.sink.prepare(run.output(0))
    output = run.output(0)
    run.close(0)
    run.write(1, "b")
    run.sink.publish(output)
    assert database.table() == expected(store)
    assert len(database.table()) == 1


def test_going_back_restores_replaced_rows(tmp_path):
    """Values that were replaced, rows that were not there, and rows that others had made before."""
    store, database = Store(), Database(tmp_path / "db")
    database.execute("INSERT INTO words VALUES ('a', 0, -1, 'kept'), ('q', 0, -2, 'kept')")
    before = database.table()
    run = Run(store, database)
    tables = [before]
    for batch in range(4):
        run.write(batch, "abcd"[: batch + 1])
        run.close(batch)
        tables.append(database.table())
    for epoch in (4, 3, 1):
        Run(store, database, resume_epoch=epoch)
        assert database.table() == tables[epoch - 1]


@strided(3)
@pytest.mark.parametrize("name", some(RESUMES, "goes back"))
def test_killed_at_every_statement(lived, name, every):
    """And once more during the next start: after the one that follows, each row took effect once."""
    for kill_at in steps_up_to(statements(lived, RESUMES[name]), every):
        store, database = lived()
        database.kill_at = kill_at
        with pytest.raises(Killed):
            story(store, database, RESUMES[name])
        database.healthy().kill_at = random.Random(kill_at).randrange(1, 25)
        with contextlib.suppress(Killed):
            Run(store, database)
        Run(store, database.healthy())
        assert database.table() == expected(store)
        story(store, database)
        assert database.table() == expected(store)


@strided(3)
@pytest.mark.parametrize("lasting", some([False, True], False), ids=["once", "lasting"])
@pytest.mark.parametrize("name", some(RESUMES, "goes back"))
def test_every_statement_fails(lived, name, lasting, every, monkeypatch):
    """A full disk at any statement is a typed error; when there is space again, each row takes effect once."""
    monkeypatch.setattr(retry, "TRIES", 1)
    tried = unnoticed = 0
    for fail_at in steps_up_to(statements(lived, RESUMES[name]), every):
        tried += 1
        store, database = lived()
        database.fail_at, database.fail_from = (0, fail_at) if lasting else (fail_at, 0)
        with contextlib.suppress(RecoveryError):
            story(store, database, RESUMES[name])
            unnoticed += 1
        Run(store, database.healthy())
        assert database.table() == expected(store)
        story(store, database)
        assert database.table() == expected(store)
    # Rolling back what only asked may fail.
    assert unnoticed < 0.1 * tried


def test_an_epoch_of_many_keys_and_batches(tmp_path):
    """Chunks, and the last of several rows of a key, against a plain dict."""
    store, database = Store(), Database(tmp_path / "db")
    run = Run(store, database)
    generator = random.Random(7)
    truth = {}
    for batch in range(4):
        rows = [(batch, f"k{n}", 0) for n in generator.sample(range(4000), 2500)]
        truth.update({(word, 0): n for n, word, _ in rows})
        run.sink.stage(COLUMNS, iter(rows), batch)
    run.close(3)
    assert database.table() == truth


class TestRefused:
    """What would give a wrong table is refused, and nothing is changed."""

    def refused(self, kind, match, store, database, **options):
        before = list(map(database.execute, ("SELECT * FROM words", "SELECT name, sql FROM sqlite_master")))
        with pytest.raises(kind, match=match):
            Run(store, database, **options)
        assert before == list(map(database.execute, ("SELECT * FROM words", "SELECT name, sql FROM sqlite_master")))

    def test_rows_without_a_key_or_with_the_key_of_another(self, tmp_path):
        """NULL is no key, and of two rows with one key in a micro-batch none is the last."""
        store, database = Store(), Database(tmp_path / "db")
        run = Run(store, database)
        with pytest.raises(FlowFailedError, match="a row has NULL in its key"):
            run.sink.stage(COLUMNS, [(1, "a", None)], 0)
        with pytest.raises(FlowFailedError, match=r"the key \('a', 0\) comes more than once"):
            run.sink.stage(COLUMNS, [(1, "a", 0), (2, "a", 0)], 0)
        run.close(0)
        assert database.table() == {}

    def test_missing_columns(self, tmp_path):
        """In the table or in the output."""
        store, database = Store(), Database(tmp_path / "db")
        self.refused(ConfigurationError, "the table has no column nope", store, database, key=["nope"])
        run = Run(store, database)
        with pytest.raises(ConfigurationError, match="the output has no column part"):
            run.sink.stage(["word"], [("a",)], 0)
        with pytest.raises(ConfigurationError, match="table words has no column colour"):
            run.sink.stage(["word", "part", "colour"], [("a", 1, "red")], 0)

    def test_no_table_and_no_database(self, tmp_path):
        """Each has an error of its own."""
        database = Database(tmp_path / "db")
        database.execute("DROP TABLE words")
        with pytest.raises(SinkRefusedError, match=r"table words cannot be read(?s:.*)Create it first"):
            Run(Store(), database)
        database.fail_from = 1
        with pytest.raises(SinkFailedError, match="the database says: OperationalError"):
            Run(Store(), database)

    @pytest.mark.parametrize(
        "index",
        ["", "UNIQUE INDEX i ON words (word)", "UNIQUE INDEX i ON words (word, part) WHERE n > 1",
         "UNIQUE INDEX i ON words (lower(word), part)", "INDEX i ON words (word, part)"],
    )  # fmt: skip
    def test_a_table_without_a_unique_key(self, tmp_path, index):
        """It is known before anything is made; with an index on the key, in any order, the run starts."""
        database, store = Database(tmp_path / "db"), Store()
        database.execute("DROP TABLE words")
        database.execute("CREATE TABLE words (word TEXT, part INTEGER, n INTEGER)")
        if index:
            database.execute(f"CREATE {index}")
        self.refused(ConfigurationError, r"no unique index that serves the key \(word, part\)", store, database)
        database.execute("CREATE UNIQUE INDEX fit ON words (part, word)")
        run = Run(store, database)
        run.write(0)
        run.close(0)
        assert database.table() == expected(store)

    def test_another_store_or_flow(self, lived):
        """A table is written by one flow on one recovery directory."""
        _, database = lived()
        self.refused(OutputMismatchError, "flow 'flow' on recovery directory 5e1f", Store(store_id="b"), database)
        self.refused(OutputMismatchError, "not by 'other' on 5e1f", Store(flow_id="other"), database)

    def test_another_database(self, lived, tmp_path):
        """One that knows nothing of what the snapshot says was written to it."""
        store, _ = lived()
        self.refused(OutputMismatchError, "which has no record of that epoch", store, Database(tmp_path / "new"))

    def test_an_older_database(self, lived, tmp_path):
        """A copy from before the newest snapshot."""
        store, database = lived()
        shutil.copy(database.path, tmp_path / "older")
        story(store, database)
        self.refused(OutputMismatchError, "it does not know epoch 6", store, Database(tmp_path / "older"))

    def test_older_partitions(self, lived):
        """Inside the backup interval the table goes back with them; past it, it is refused."""
        store, database = lived()
        story(store, database)
        story(store, database)
        old = copy.deepcopy(store)
        del old.closed[1:]
        self.refused(OutputMismatchError, "it does not know epoch 1, to which the snapshot belongs", old, database)
        old.closed = store.closed[: store.floor]
        Run(old, database)
        assert database.table() == expected(old)

    def test_another_directory_of_the_store(self, tmp_path):
        """An older copy, or one that was taken over, is refused before it changes anything; so is its run that goes
        on. On the user's word it takes the table back."""
        old, database = Store(past=[]), Database(tmp_path / "db")
        story(old, database)
        run = Run(old, database)
        new = old.copied()
        successor = Run(new, database)
        for published in range(2):
            before = database.table()
            self.refused(
                StaleDirectoryError, f"execution {successor.lease.id} has written to it", old.copied(), database
            )
            assert database.table() == before == expected(new)
            if not published:
                successor.write(9, "ab")
                successor.close(9)
        for step in (lambda: run.write(9), lambda: run.close(9)):
            with pytest.raises(LeaseLostError):
                step()
        old.loses = True
        Run(old, database)
        assert database.table() == expected(old)
        self.refused(StaleDirectoryError, "would begin execution 4 at epoch 4", new, database)

    def test_a_copy_from_the_middle_of_an_execution(self, tmp_path):
        """The table has more of that execution than the copy knows. What is only prepared does not count."""
        store, database = Store(past=[]), Database(tmp_path / "db")
        run = Run(store, database)
        for batch in (0, 1):
            copy = store.copied()
            run.write(batch)
            run.close(batch)
        self.refused(StaleDirectoryError, "has that execution only up to epoch 1", copy, database)
        run.write(2)
        run.sink.prepare(run.output(2))
        Run(store, database)
        assert database.table() == expected(store)

    def test_rows_of_a_closed_epoch_that_are_gone(self, tmp_path):
        """No epoch is published without a part of its rows, neither by the run nor by the next start; and it can be
        computed again."""
        store, database = Store(), Database(tmp_path / "db")
        story(store, database)
        run = Run(store, database)
        batch = run.closed_batch + 1
        run.write(batch, "abc")
        note = run.sink.prepare(run.output(batch))
        database.execute("DELETE FROM words_recovery_staged WHERE word = 'a'")
        with pytest.raises(SinkFailedError, match=f"all rows of micro-batch {batch}: it has 2 of 3"):
            run.sink.publish(run.output(batch))
        store.closed.append(Closed(run.lease, batch, note, run.written[batch]))
        found = "closed epoch 3 is not published yet, and 2 of its 3 staged rows are there"
        self.refused(OutputMismatchError, found, copy.deepcopy(store), database)
        Run(store, database, resume_epoch=3)
        assert database.table() == expected(store)

    def test_another_kind_of_sink(self, lived):
        """The note is not one of an UpsertSink."""
        store, database = lived()
        store.closed[-1].note = "{}"
        self.refused(OutputMismatchError, "another kind of sink", store, database)

    def test_a_stopped_run_that_wakes(self, lived):
        """Nothing of it is accepted after its successor began."""
        store, database = lived()
        sleeper = Run(store, database)
        batch = sleeper.closed_batch + 1
        sleeper.write(batch)
        Run(store, database)
        for late in (
            lambda: sleeper.write(batch + 1),
            lambda: sleeper.sink.prepare(sleeper.output(batch)),
            lambda: sleeper.sink.publish(sleeper.output(batch)),
        ):
            with pytest.raises(LeaseLostError, match="is written by execution"):
                late()
        assert database.table() == expected(store)

    def test_wrong_settings(self):
        """A key that is a text would be taken for its letters."""
        with pytest.raises(ConfigurationError, match="key='word'"):
            UpsertSink(lambda: None, "words", "word")
        with pytest.raises(ConfigurationError, match="paramstyle='named'"):
            UpsertSink(lambda: None, "words", ["word"], paramstyle="named")


def test_columns_that_are_added(tmp_path):
    """A run goes on with more columns; it does not go back to before them, since what they held is not known."""
    store, database = Store(), Database(tmp_path / "db")
    run = Run(store, database)
    run.write(0)
    run.close(0)
    run.write(1)
    run.close(1)
    database.execute('ALTER TABLE words ADD COLUMN "a {new} one" TEXT')
    with pytest.raises(OutputMismatchError, match="and they had other columns"):
        Run(copy.deepcopy(store), database, resume_epoch=2)
    run = Run(store, database)
    run.sink.stage([*COLUMNS, "a {new} one"], [(7, "a", 0, "x")], 2)
    run.close(2)
    run.sink.stage([*COLUMNS, "a {new} one"], [(8, "a", 0, "y")], 3)
    run.close(3)
    Run(store, database, resume_epoch=4)
    assert database.execute("SELECT * FROM words WHERE word = 'a' AND part = 0") == [("a", 0, 7, "mine", "x")]
    with pytest.raises(OutputMismatchError, match="are kept from epoch 3 on only"):
        Run(store, database, resume_epoch=2)


def test_a_column_that_is_added_during_a_run(tmp_path):
    """The run goes on, and so does the next one; what the column held before is not known, so none goes back beyond."""
    store, database = Store(), Database(tmp_path / "db")
    run = Run(store, database)
    run.write(0)
    run.close(0)
    database.execute("ALTER TABLE words ADD COLUMN extra TEXT DEFAULT 'more'")
    run.write(1)
    run.close(1)
    assert database.table() == expected(store)
    with pytest.raises(OutputMismatchError, match="and they had other columns"):
        Run(copy.deepcopy(store), database, resume_epoch=2)
    run = Run(store, database)
    run.write(2)
    run.close(2)
    assert database.table() == expected(store)
    Run(store, database, resume_epoch=3)
    assert database.table() == expected(store)
    with pytest.raises(OutputMismatchError, match="are kept from epoch 3 on only"):
        Run(store, database, resume_epoch=2)


@pytest.mark.parametrize("module", BY_DEFAULT)
def test_a_column_that_is_removed(real, module):
    """The next run of a flow that does not write it any more goes on, also with an epoch that has no rows."""
    database = real(module)
    execute = database.execute
    execute("CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER, extra INTEGER)")
    store = Store()
    run = Run(store, database, key=["word"])
    run.sink.stage(["word", "n", "extra"], [("a", 1, 5), ("b", 2, 5)], 0)
    run.close(0)
    run.sink.stage(["word", "n", "extra"], [("a", 3, 5)], 1)
    execute("ALTER TABLE words DROP COLUMN extra")
    run = Run(store, database, key=["word"])
    run.close(0)
    assert execute("SELECT * FROM words ORDER BY word") == [("a", 1), ("b", 2)]
    run.sink.stage(["word", "n"], [("a", 4)], 1)
    run.close(1)
    assert execute("SELECT * FROM words ORDER BY word") == [("a", 4), ("b", 2)]
    Run(store, database, key=["word"], resume_epoch=3)
    assert execute("SELECT * FROM words ORDER BY word") == [("a", 1), ("b", 2)]


RETYPED = {
    "sqlite3": (
        "CREATE TABLE other (word TEXT PRIMARY KEY, n TEXT, own INTEGER)",
        "INSERT INTO other SELECT * FROM words",
        "DROP TABLE words",
        "ALTER TABLE other RENAME TO words",
    ),
}


@pytest.mark.parametrize("module", BY_DEFAULT)
def test_a_column_that_gets_another_type(real, module):
    """Its values are staged and kept as what they are now; what they were is not put back into it."""
    database = real(module)
    database.execute("CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER, own INTEGER)")
    store = Store()
    run = Run(store, database, key=["word"])
    run.sink.stage(["word", "n"], [("a", 1), ("b", 2)], 0)
    run.close(0)
    run.sink.stage(["word", "n"], [("a", 3)], 1)
    run.close(1)
    database.execute(*RETYPED.get(module, ["ALTER TABLE words ALTER n TYPE TEXT"]))
    with pytest.raises(OutputMismatchError, match="and they had other columns"):
        Run(copy.deepcopy(store), database, key=["word"], resume_epoch=2)
    run = Run(store, database, key=["word"])
    run.sink.stage(["word", "n"], [("a", "007"), ("c", "1e3")], 2)
    run.close(2)
    before = [("a", "007", None), ("b", "2", None), ("c", "1e3", None)]
    assert database.execute("SELECT * FROM words ORDER BY word") == before
    run.sink.stage(["word", "n"], [("a", "x"), ("d", "y")], 3)
    run.close(3)
    Run(store, database, key=["word"], resume_epoch=4)
    assert database.execute("SELECT * FROM words ORDER BY word") == before


@pytest.mark.parametrize("module", some(["duckdb", *MODULES], "psycopg"))
def test_a_column_of_the_user_s_own_that_gets_wider(real, module):
    """What could not be kept is known before the epoch is closed, and the next run goes on."""
    database = real(module)
    database.execute("CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER, own INTEGER)")
    store = Store()
    run = Run(store, database, key=["word"])
    run.sink.stage(["word", "n"], [("a", 1)], 0)
    run.close(0)
    large = 1 << 40
    database.execute("ALTER TABLE words ALTER own TYPE BIGINT", f"UPDATE words SET own = {large}")
    run.sink.stage(["word", "n"], [("a", 2)], 1)
    with pytest.raises(SinkFailedError, match="the rows that epoch 2 replaces cannot be kept") as caught:
        run.close(1)
    assert "A column's type was changed" in caught.value.cause
    run = Run(store, database, key=["word"])
    run.sink.stage(["word", "n"], [("a", 2)], 1)
    run.close(1)
    assert database.execute("SELECT * FROM words") == [("a", 2, large)]


CONSTRAINTS = {
    "check": "n INTEGER CHECK (n >= 0)",
    "not null": "n INTEGER NOT NULL",
    "foreign key": "n INTEGER REFERENCES known (n)",
}


class TestRowsThatTheTableDoesNotTake:
    """They are known before the epoch is closed, for afterwards nothing but them can follow."""

    @pytest.mark.parametrize("constraint", CONSTRAINTS)
    @pytest.mark.parametrize("module", BY_DEFAULT)
    def test_the_epoch_is_not_closed(self, real, module, constraint):
        """Nothing of it is seen; a corrected flow goes on with the same database."""
        database = real(module)
        connect = database.connect

        def with_foreign_keys():
            connection = connect()
            if module == "sqlite3":
                connection.execute("PRAGMA foreign_keys = ON")
            return connection

        def rows() -> list[tuple]:
            return database.execute("SELECT word, n FROM words ORDER BY word")

        database.connect = with_foreign_keys
        database.execute(
            "CREATE TABLE known (n INTEGER PRIMARY KEY)",
            "INSERT INTO known VALUES (1), (2)",
            f"CREATE TABLE words (word TEXT PRIMARY KEY, {CONSTRAINTS[constraint]})",
        )
        store = Store()
        run = Run(store, database, key=["word"])
        run.sink.stage(["word", "n"], [("a", 1)], 0)
        run.close(0)
        value = None if constraint == "not null" else -1
        run.sink.stage(["word", "n"], [("a", 2), ("b", value), ("c", 1)], 1)
        with pytest.raises(FlowFailedError, match=r"does not take the rows of epoch 2: .*[Cc]onstraint") as caught:
            run.close(1)
        assert caught.value.found.endswith(f"the row with the key word='b' has n={value}")
        assert "was not closed" in caught.value.remedy
        assert (len(store.closed), rows()) == (1, [("a", 1)])
        run = Run(store, database, key=["word"])
        run.sink.stage(["word", "n"], [("a", 2), ("b", 1)], 1)
        run.close(1)
        assert rows() == [("a", 2), ("b", 1)]

    def test_a_table_that_is_changed_after_it_was_asked(self, tmp_path):
        """The error names the way out: abandon the epoch, and compute it again."""
        store, database = Store(), Database(tmp_path / "db")
        run = Run(store, database)
        run.write(0)
        run.close(0)
        before = database.table()
        run.write(1)
        output = run.output(1)
        store.closed.append(Closed(run.lease, 1, run.sink.prepare(output), run.written[1]))
        database.execute("CREATE TRIGGER no BEFORE INSERT ON words BEGIN SELECT RAISE(FAIL, 'not any more'); END")
        with pytest.raises(SinkRefusedError, match=r"the rows of closed epoch 2: .*not any more") as caught:
            run.sink.publish(output)
        assert "--resume-epoch 2" in caught.value.remedy
        with pytest.raises(SinkRefusedError, match=r"the rows of closed epoch 2: .*not any more"):
            Run(store, database)
        Run(store, database, resume_epoch=2)
        assert database.table() == before


def test_an_epoch_closed_by_another_sink(lived):
    """A sink that was left out for some epochs goes on from where it was, and takes back what was abandoned."""
    store, database = lived()
    later = Closed(Lease(9, "another"), 20, store.closed[-1].note, [])
    store.closed.append(later)
    run = Run(store, database)
    run.closed_batch = 20
    run.write(21)
    run.close(21)
    assert database.table() == expected(store)
    Run(store, database, resume_epoch=6)
    assert database.table() == expected(store)


@pytest.mark.parametrize("module", [name for name in EVERY if name != "sqlite3"])
def test_other_databases(real, module):
    """The same calls lead to the same table: what they ask for is not SQLite's alone."""
    database, store = real(module), Store()
    database.execute(CREATE)
    database.table = lambda: {(w, part): n for w, part, n in database.execute("SELECT word, part, n FROM words")}
    story(store, database)
    assert database.table() == expected(store)
    Run(store, database, resume_epoch=2)
    assert database.table() == expected(store)
    story(store, database)
    assert database.table() == expected(store)


class Plain:
    """sqlite3's own connections."""

    def __init__(self, path: Path, create: str) -> None:
        self.path = path
        self.run(create)

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path)

    def run(self, sql: str) -> list[tuple]:
        with contextlib.closing(self.connect()) as connection, connection:
            return connection.execute(sql).fetchall()


class Derived(Plain):
    """The same of a class of one's own, as `sqlite3.connect(…, factory=…)` gives them."""

    def connect(self) -> sqlite3.Connection:
        class Connection(sqlite3.Connection):
            pass

        return sqlite3.connect(self.path, factory=Connection)


@pytest.mark.parametrize("kind", [Plain, Derived])
def test_what_sqlite_takes_for_one_key(tmp_path, kind):
    """A collation that knows no case is refused, and so is NaN in a key, which SQLite keeps as NULL."""
    nocase = kind(tmp_path / "nocase", "CREATE TABLE words (word TEXT COLLATE NOCASE PRIMARY KEY, n INTEGER)")
    with pytest.raises(ConfigurationError, match="collation NOCASE"):
        Run(Store(), nocase, key=["word"])
    numbers = Plain(tmp_path / "nan", "CREATE TABLE words (word REAL PRIMARY KEY, n REAL)")
    run = Run(Store(), numbers, key=["word"])
    with pytest.raises(FlowFailedError, match="NULL in its key"):
        run.sink.stage(["word", "n"], [(float("nan"), 1)], 0)
    run.sink.stage(["word", "n"], [(0.5, float("nan"))], 0)


def test_moments_in_sqlite(tmp_path):
    """As texts in UTC, so that the two of the hour that comes twice are two keys, whatever the machine's zone is."""
    database = Plain(tmp_path / "db", "CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER)")
    run = Run(Store(), database, key=["word"])
    berlin = ZoneInfo("Europe/Berlin")
    rows = [(datetime(2024, 10, 27, 2, 30, fold=fold, tzinfo=berlin), fold) for fold in (0, 1)]
    run.sink.stage(["word", "n"], rows, 0)
    run.written[0] = rows
    run.close(0)
    assert database.run("SELECT * FROM words ORDER BY word") == [("2024-10-27 00:30:00", 0), ("2024-10-27 01:30:00", 1)]


def test_days_in_sqlite(tmp_path):
    """As texts, as moments without a zone are; no adapters of `sqlite3` are asked, which Python is giving up."""
    database = Plain(tmp_path / "db", "CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER)")
    run = Run(Store(), database, key=["word"])
    rows = [(date(2024, 10, 27), 0), (datetime(2024, 10, 27, 1, 2, 3, 4), 1)]  # noqa: DTZ001
    run.sink.stage(["word", "n"], rows, 0)
    run.written[0] = rows
    run.close(0)
    assert database.run("SELECT * FROM words ORDER BY n") == [("2024-10-27", 0), ("2024-10-27 01:02:03.000004", 1)]


def test_staging_and_closing_take_turns(tmp_path):
    """An epoch is closed on a thread of its own: it waits for the micro-batch that is being staged, with no error."""
    store, database = Store(), Database(tmp_path / "db")
    run = Run(store, database)
    run.write(0)
    begun, closing = threading.Event(), threading.Event()

    def slow_rows():
        begun.set()
        assert closing.wait(60)
        yield from [(next(_values), "a", 7), (next(_values), "b", 7)]

    def close():
        assert begun.wait(60)
        closing.set()
        run.close(0)

    thread = threading.Thread(target=close)
    thread.start()
    run.sink.stage(COLUMNS, slow_rows(), 1)
    thread.join(60)
    assert database.table() == expected(store)
    assert len(store.closed) == 1


def test_a_column_that_only_the_database_may_write(tmp_path):
    """It is refused before the first run: rows of all columns have to be put back when a run goes back."""
    database = Database(tmp_path / "words.db")
    database.execute("ALTER TABLE words ADD COLUMN twice INTEGER GENERATED ALWAYS AS (n * 2)")
    with pytest.raises(ConfigurationError, match=r"could not be put back: .*generated"):
        Run(Store(), database)
    assert database.execute("SELECT name FROM sqlite_schema WHERE name LIKE '%recovery%'") == []


def test_a_writer_beside_is_waited_for(tmp_path):
    """Every transaction begins with a write, so SQLite waits for another's, and nothing that was read is stale."""
    database = Database(tmp_path / "words.db")
    database.execute("PRAGMA journal_mode = WAL")
    store, others = Store(), []

    class Meddling(Database):
        """Another program commits whenever a transaction of the sink's has read something."""

        def __init__(self) -> None:
            self.path = database.path
            self.statements = self.kill_at = self.fail_at = self.fail_from = 0

        def statement(self) -> None:
            super().statement()
            with (
                contextlib.suppress(sqlite3.OperationalError),
                contextlib.closing(sqlite3.connect(self.path, timeout=0)) as connection,
                connection,
            ):
                connection.execute("INSERT INTO words VALUES (?, 9, 0, 'other')", (f"other {next(_values)}",))
                others.append(True)

    run = Run(store, Meddling())
    for batch in range(3):
        run.write(batch)
        run.close(batch)
    run = Run(store, Meddling(), resume_epoch=3)
    run.write(2)
    run.close(2)
    assert len(others) > 10
    assert {word for word, part in database.table() if part < 9} == {"a", "b", "c"}
