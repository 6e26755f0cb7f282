"""UpsertSink with a PostgreSQL server: connections and servers that end, rights, locks and types. Without Spark.

What every database has to do is in test_upsert and test_database.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import math
import os
import random
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from decimal import Decimal

import psycopg
import pytest

from recovery import UpsertSink
from recovery.errors import (
    ConfigurationError,
    FlowFailedError,
    OutputMismatchError,
    RecoveryError,
    SinkFailedError,
    SinkRefusedError,
)
from recovery.sinks.upsert import retry
from tests.shares import first, some
from tests.sinks import postgresql
from tests.sinks.support import Store
from tests.sinks.test_upsert import CREATE, RESUMES, Run, expected, story

both = pytest.mark.parametrize("module", postgresql.MODULES)
one = pytest.mark.parametrize("module", some(postgresql.MODULES, "psycopg"))
"""Where what is tested is the server."""


class Cut:
    """A database whose connections are cut at a statement: before it, or after it with its answer lost."""

    def __init__(self, database: postgresql.Database) -> None:
        self.database = database
        self.statements = self.cut_at = self.lose_at = 0

    def table(self) -> dict:
        rows = self.database.execute("SELECT word, part, n FROM words")
        return {(word, part): n for word, part, n in rows}

    def healthy(self) -> Cut:
        self.statements = self.cut_at = self.lose_at = 0
        return self

    def connect(self):
        connection = self.database.connect()
        cursor = connection.cursor()
        cursor.execute("SELECT pg_backend_pid()")
        [pid] = cursor.fetchone()
        connection.rollback()
        execute, many = self._cutting("execute", pid), self._cutting("executemany", pid)

        class Cursor(type(cursor)):
            def execute(self, *arguments):
                return execute(super().execute, *arguments)

            def executemany(self, *arguments):
                return many(super().executemany, *arguments)

        connection.cursor = lambda: Cursor(connection)
        return connection

    def _cutting(self, name, pid):
        def call(run, *arguments):
            self.statements += 1
            if self.statements == self.cut_at:
                self.database.execute(f"SELECT pg_terminate_backend({pid}, 60000)")
            answer = run(*arguments)
            if self.statements == self.lose_at:
                self.database.execute(f"SELECT pg_terminate_backend({pid}, 60000)")
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            return answer

        # psycopg's `executemany` and pg8000's call other methods of theirs.
        return call


@pytest.fixture
def lived(server):
    """A function that gives a database with a past: a run, a rewind, another run."""
    made: dict = {}

    def make(module: str) -> tuple[Store, Cut]:
        if not made:
            store, database = Store(), Cut(server.database("psycopg"))
            database.database.execute(CREATE)
            story(store, database)
            story(store, database, resume_epoch=2)
            made["template"] = store, database.database.name
        store, name = made["template"]
        return copy.deepcopy(store), Cut(server.database(module, template=name))

    return make


def cuts(lived, module: str, resume_epoch: int | None, stride: int) -> None:
    store, database = lived(module)
    story(store, database, resume_epoch)
    count = database.statements
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    for number in range(1 + seed % stride, count + 1, stride):
        for way in ("cut_at", "lose_at"):
            store, database = lived(module)
            setattr(database, way, number)
            # During the start it may end the run; after that the step is tried again.
            with contextlib.suppress(RecoveryError):
                story(store, database, resume_epoch)
            database.healthy().cut_at = random.Random(number).randrange(1, 25)
            with contextlib.suppress(RecoveryError):
                Run(store, database)
            Run(store, database.healthy())
            assert database.table() == expected(store), f"{way} {number}"
            story(store, database)
            assert database.table() == expected(store), f"{way} {number}"


@pytest.mark.long
def test_a_connection_that_is_cut(lived):
    """The run ends with a typed error; after the next start each row took effect once."""
    cuts(lived, "psycopg", 2, 60)


@pytest.mark.long
@both
@pytest.mark.parametrize("name", RESUMES)
def test_a_connection_that_is_cut_at_any_statement(lived, module, name):
    """Before it, with its answer lost, and once more during the next start."""
    cuts(lived, module, RESUMES[name], int(os.environ.get("RECOVERY_TEST_CUT_STRIDE", "1")))


@pytest.fixture(scope="module")
def own() -> Iterator[postgresql.Server]:
    """A server that these tests may stop."""
    with postgresql.running() as server:
        yield server


class TestRestarts:
    """The server ends without a word to anyone, as after a power cut of its host, and comes again."""

    @one
    def test_between_two_steps_and_within_one(self, own, module):
        """Between two the run does not notice; within one it ends, and the next run goes on."""
        store, database = Store(), Cut(own.database(module))
        database.database.execute(CREATE)
        run = Run(store, database)
        run.write(0)
        own.stop()
        own.start()
        run.close(0)
        run.write(1)

        def rows():
            yield from [(number, f"k{number}", 0) for number in range(1500)]
            own.stop()
            yield (1500, "k1500", 0)

        with pytest.raises(SinkFailedError, match="the database says"):
            run.sink.stage(["n", "word", "part"], rows(), 2)
        with pytest.raises(SinkFailedError, match="the database says"):
            Run(copy.deepcopy(store), database)
        own.start()
        assert database.table() == expected(store)
        run = Run(store, database)
        story(store, database)
        own.stop(signal.SIGINT)
        own.start()
        Run(store, database, resume_epoch=2)
        assert database.table() == expected(store)


class TestRights:
    """A role that lacks one is refused before anything is written, with PostgreSQL's own words."""

    @pytest.fixture
    def database(self, server, request):
        database = server.database(request.getfixturevalue("module"))
        database.user, database.other = f"few_{database.name}", f"other_{database.name}"
        database.execute(
            CREATE,
            f"CREATE ROLE {database.user} LOGIN",
            f"CREATE ROLE {database.other} LOGIN",
            f"GRANT SELECT, INSERT ON words TO {database.user}",
        )
        return database

    def grant(self, database, *rights: str) -> None:
        database.execute(*(f"GRANT {right} TO {database.user}" for right in rights))

    def tables(self, database) -> list:
        return database.execute("SELECT relname FROM pg_class WHERE relname LIKE 'words_recovery%'")

    @both
    def test_to_read_insert_and_create(self, database, module):
        """Each is asked for by name."""
        database.execute(f"REVOKE INSERT ON words FROM {database.user}")
        with pytest.raises(SinkRefusedError, match="permission denied for table words") as caught:
            Run(Store(), database)
        assert "Grant it" in caught.value.remedy
        self.grant(database, "INSERT ON words")
        with pytest.raises(SinkRefusedError, match="permission denied for schema public") as caught:
            Run(Store(), database)
        assert "lacks a right" in caught.value.cause
        database.execute(f"REVOKE SELECT ON words FROM {database.user}")
        with pytest.raises(SinkRefusedError, match=r"table words cannot be read: .*permission denied"):
            Run(Store(), database)
        assert self.tables(database) == []

    @both
    def test_to_update_and_delete(self, database, module):
        """Without UPDATE no epoch is closed. DELETE is needed to go back alone, and is missed before that begins."""
        self.grant(database, "CREATE ON SCHEMA public")
        store = Store()
        run = Run(store, database)
        run.write(0)
        with pytest.raises(SinkRefusedError, match=r"table words: .*permission denied for table words"):
            run.close(0)
        self.grant(database, "UPDATE ON words")
        story(store, database)
        before = database.execute("SELECT * FROM words ORDER BY word, part")
        with pytest.raises(SinkRefusedError, match="permission denied for table words") as caught:
            Run(copy.deepcopy(store), database, resume_epoch=2)
        assert "lacks a right" in caught.value.cause
        assert database.execute("SELECT * FROM words ORDER BY word, part") == before
        self.grant(database, "DELETE ON words")
        Run(store, database, resume_epoch=2)
        assert len(database.execute("SELECT * FROM words")) == len(expected(store))

    @both
    def test_of_another_role(self, database, module):
        """The tables beside belong to the role that made them."""
        self.grant(database, "CREATE ON SCHEMA public", "UPDATE ON words")
        store = Store()
        story(store, database)
        first, database.user = database.user, database.other
        self.grant(database, "ALL ON words", "ALL ON SCHEMA public")
        with pytest.raises(SinkRefusedError, match="permission denied for table words_recovery_owner") as caught:
            Run(copy.deepcopy(store), database)
        assert "connect as the user who made those tables" in caught.value.remedy
        self.grant(database, "ALL ON ALL TABLES IN SCHEMA public")
        with pytest.raises(SinkRefusedError, match="must be owner of table words_recovery_staged") as caught:
            Run(copy.deepcopy(store), database)
        assert "connect as the user who made those tables" in caught.value.remedy
        database.user = first
        story(store, database)

    @both
    def test_to_read_alone(self, database, module):
        """As a standby allows it."""
        database.user = postgresql.SUPERUSER
        database.execute(f"ALTER DATABASE {database.name} SET default_transaction_read_only = on")
        with pytest.raises(SinkFailedError, match="in a read-only transaction"):
            Run(Store(), database)


@both
def test_a_constraint_that_is_checked_at_the_commit(server, module):
    """It is checked before the epoch is closed, for afterwards nothing but its rows could follow."""
    database, store = server.database(module), Store()
    database.execute(
        "CREATE TABLE known (n INTEGER PRIMARY KEY)",
        "CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER REFERENCES known DEFERRABLE INITIALLY DEFERRED)",
    )
    run = Run(store, database, key=["word"])
    run.sink.stage(["word", "n"], [("a", 1)], 0)
    with pytest.raises(FlowFailedError, match=r"does not take the rows of epoch 1: .*foreign key .*'a' has n=1"):
        run.close(0)
    database.execute("INSERT INTO known VALUES (1)")
    run = Run(store, database, key=["word"])
    run.sink.stage(["word", "n"], [("a", 1)], 0)
    run.close(0)
    assert database.execute("SELECT * FROM words") == [("a", 1)]


@both
def test_a_text_that_may_be_longer(server, module):
    """The next run keeps what it replaces with the new length."""
    database, store = server.database(module), Store()
    database.execute("CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER, own VARCHAR(3) DEFAULT 'x')")
    run = Run(store, database, key=["word"])
    run.sink.stage(["word", "n"], [("a", 1)], 0)
    run.close(0)
    database.execute("ALTER TABLE words ALTER own TYPE VARCHAR(9)", "UPDATE words SET own = 'longer'")
    run = Run(store, database, key=["word"])
    run.sink.stage(["word", "n"], [("a", 2)], 1)
    run.close(1)
    run.sink.stage(["word", "n"], [("a", 3)], 2)
    run.close(2)
    Run(store, database, key=["word"], resume_epoch=3)
    assert database.execute("SELECT * FROM words") == [("a", 2, "longer")]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_stricter_isolation(server, level):
    """That of the connection is not the sink's to choose."""
    database, store = Cut(server.database("psycopg")), Store()
    database.database.execute(
        CREATE, f"ALTER DATABASE {database.database.name} SET default_transaction_isolation = '{level}'"
    )
    story(store, database)
    story(store, database, resume_epoch=2)
    assert database.table() == expected(store)


@both
def test_a_run_that_hangs_within_a_transaction(server, module):
    """A start waits for it as long as the connection says, and blames no column."""
    database, store = server.database(module), Store()
    database.execute(CREATE)
    story(store, database)
    with contextlib.closing(server.connect("psycopg", database.name)) as other:
        other.execute("UPDATE words_recovery_owner SET execution_id = execution_id")
        database.execute(f"ALTER DATABASE {database.name} SET lock_timeout = '100ms'")
        with pytest.raises(SinkFailedError, match="lock timeout") as caught:
            Run(copy.deepcopy(store), database)
        assert "holds a lock" in caught.value.cause
    Run(store, database)


VALUES = {
    "BOOLEAN": True,
    "SMALLINT": -7,
    "INTEGER": 1 << 20,
    "BIGINT": 1 << 40,
    "REAL": 0.5,
    "DOUBLE PRECISION": math.inf,
    "NUMERIC(20, 3)": Decimal("12345678901234567.125"),
    "VARCHAR(9)": "ünïcode%",
    "TEXT": 'it\'s "quoted" \\ {x} %s',
    "JSONB": '{"a": [1, null]}',
    "UUID": "6b1d02f0-f8c2-44ee-8000-000000000000",
    "BYTEA": bytearray(b"\x00\xff"),
    "DATE": datetime.date(2024, 2, 29),
    "TIMESTAMP": datetime.datetime(2024, 3, 31, 2, 30, 0, 5),  # noqa: DTZ001
    "TIMESTAMPTZ": datetime.datetime(2024, 10, 27, 0, 30, tzinfo=datetime.UTC),
    "TEXT[]": ["a", None, "c"],
    "BIGINT[]": [1, None, 3],
}


@both
def test_values_of_spark_s_rows(server, module):
    """Each comes back as it was, and so does NULL, also after going back."""
    database, store = server.database(module), Store()
    names = [f"c{number}" for number in range(len(VALUES))]
    database.execute(
        f"CREATE TABLE words (word TEXT PRIMARY KEY, {', '.join(map(' '.join, zip(names, VALUES, strict=True)))})"
    )
    run = Run(store, database, key=["word"])
    run.sink.stage(["word", *names], [("a", *VALUES.values()), ("b", *[None] * len(names))], 0)
    run.close(0)
    first = database.execute("SELECT * FROM words ORDER BY word")
    [(_, *found), (_, *nothing)] = first
    wanted = {**VALUES, "JSONB": {"a": [1, None]}, "BYTEA": b"\x00\xff"}
    assert [str(each) if kind == "UUID" else each for kind, each in zip(wanted, found, strict=True)] == list(
        wanted.values()
    )
    assert nothing == [None] * len(names)
    run.sink.stage(["word", *names], [("b", *VALUES.values()), ("a", *[None] * len(names))], 1)
    run.close(1)
    Run(store, database, key=["word"], resume_epoch=2)
    assert database.execute("SELECT * FROM words ORDER BY word") == first


@both
@pytest.mark.parametrize(
    ("kind", "value"), [("TEXT", "nul\0inside"), ("INTEGER", 1 << 40), ("INTEGER", "x"), ("TEXT", {"a": {1}})]
)
def test_a_value_that_the_database_refuses(server, module, kind, value):
    """The error names the column."""
    database = server.database(module)
    database.execute(f"CREATE TABLE words (word TEXT PRIMARY KEY, n {kind})")
    run = Run(Store(), database, key=["word"])
    with pytest.raises(
        FlowFailedError, match=r"table words does not take a value of column n .*the row with the key word='a' has"
    ):
        run.sink.stage(["word", "n"], [("a", value)], 0)


def test_keys_that_only_the_table_takes_for_one(server):
    """Under a collation that ignores case they are one key everywhere, also to go back."""
    database, store = server.database("psycopg"), Store()
    database.execute(
        "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "CREATE TABLE words (word TEXT COLLATE nocase PRIMARY KEY, n INTEGER)",
    )
    run = Run(store, database, key=["word"])
    with pytest.raises(FlowFailedError, match="comes more than once"):
        run.sink.stage(["word", "n"], [("a", 1), ("A", 2)], 0)
    run.sink.stage(["word", "n"], [("a", 1)], 0)
    run.close(0)
    run.sink.stage(["word", "n"], [("A", 2)], 1)
    run.close(1)
    assert database.execute("SELECT * FROM words") == [("a", 2)]
    Run(store, database, key=["word"], resume_epoch=2)
    assert database.execute("SELECT * FROM words") == [("a", 1)]


class Pair:
    """A server with a standby: connections lead to whichever is in use."""

    def __init__(self, primary: postgresql.Server, module: str) -> None:
        self.server, self._module = primary, module
        self.name = primary.database(module).name
        self.execute(CREATE)

    def connect(self):
        return self.server.connect(self._module, self.name)

    def execute(self, *statements: str) -> list[tuple]:
        return self.server.administer(*statements, database=self.name)

    def table(self) -> dict:
        return {(word, part): n for word, part, n in self.execute("SELECT word, part, n FROM words")}


class TestFailover:
    """The primary is lost, and its standby becomes the primary."""

    @pytest.fixture
    def pair(self, request, tmp_path_factory):
        with postgresql.running() as primary:
            pair = Pair(primary, getattr(request, "param", "psycopg"))
            yield pair
            if pair.server is not primary:
                pair.server.stop()

    @pytest.mark.parametrize("pair", some(postgresql.MODULES, "psycopg"), indirect=True)
    def test_that_lost_nothing(self, pair):
        """The run goes on: it tries again while nothing answers, and while the standby may only read."""
        store, primary = Store(), pair.server
        run = Run(store, pair)
        run.write(0)
        run.close(0)
        run.write(1)
        standby = primary.standby(primary.home / "standby")
        primary.stop()
        switched = []

        def fail_over():
            for action in (lambda: setattr(pair, "server", standby), lambda: standby.administer("SELECT pg_promote()")):
                time.sleep(0.3)
                action()
                switched.append(action)

        thread = threading.Thread(target=fail_over)
        thread.start()
        run.close(1)
        assert len(switched) >= 1
        thread.join()
        story(store, pair)
        assert pair.table() == expected(store)

    def test_that_lost_epochs(self, pair):
        """No epoch is closed without the rows that are gone; the next start names the epoch that both know, and the
        run from there is exact."""
        store, primary = Store(past=[]), pair.server
        story(store, pair)
        run = Run(store, pair)
        known = len(store.closed)
        standby = primary.standby(primary.home / "standby")
        standby.stop(signal.SIGINT)
        run.write(run.closed_batch + 1)
        run.close(run.closed_batch + 1)
        run.write(run.closed_batch + 1)
        primary.stop()
        standby.start()
        standby.administer("SELECT pg_promote()")
        pair.server = standby
        before = pair.table()
        with pytest.raises(SinkFailedError, match=f"the database does not know that epoch {known + 1} was published"):
            run.close(run.closed_batch + 1)
        with pytest.raises(OutputMismatchError, match=f"it does not know epoch {known + 1}") as caught:
            Run(copy.deepcopy(store), pair)
        assert f"--resume-after {known}. " in caught.value.remedy
        assert pair.table() == before
        Run(store, pair, resume_epoch=known + 1)
        story(store, pair)
        assert pair.table() == expected(store)

    @pytest.mark.long
    def test_that_lost_staged_rows(self, pair):
        """The epoch is not prepared without them."""
        store, primary = Store(), pair.server
        run = Run(store, pair)
        run.write(0, "ab")
        standby = primary.standby(primary.home / "standby")
        standby.stop(signal.SIGINT)
        run.write(1, "xyz")
        primary.stop()
        standby.start()
        standby.administer("SELECT pg_promote()")
        pair.server = standby
        with pytest.raises(SinkFailedError, match="all rows of micro-batch 1: it has 0 of 3"):
            run.close(1)
        assert store.closed == []
        story(store, pair)
        assert pair.table() == expected(store)


def test_a_database_that_lost_more_than_is_held(server):
    """Then only another start from nothing helps, and that is what the error says."""
    database, store = Cut(server.database("psycopg")), Store()
    database.database.execute(CREATE)
    for _ in range(3):
        story(store, database)
    assert store.floor > 0
    database.database.execute("DELETE FROM words_recovery_epochs")
    with pytest.raises(OutputMismatchError, match="it does not know epoch") as caught:
        Run(store, database)
    assert f"both know is 0, and the partitions go back to {store.floor} only" in caught.value.remedy
    assert "--resume-after" not in caught.value.remedy


class Hindered:
    """A database that others hinder: before a statement that has a word in it, they do something once."""

    def __init__(self, database: postgresql.Database, word: str, hinder) -> None:
        self.database, self.word, self.hinder = database, word, hinder

    def table(self) -> dict:
        return {(word, part): n for word, part, n in self.database.execute("SELECT word, part, n FROM words")}

    def connect(self):
        connection, hindered = self.database.connect(), self

        class Cursor(type(connection.cursor())):
            def execute(self, sql, *arguments):
                if hindered.hinder is not None and hindered.word in sql:
                    hinder, hindered.hinder = hindered.hinder, None
                    hinder(connection)
                return super().execute(sql, *arguments)

        connection.cursor = lambda: Cursor(connection)
        return connection


class TestTriedAgain:
    """A step that fails for a reason that passes."""

    @one
    def test_a_deadlock(self, server, module):
        """Another transaction writes the rows in the opposite order. Both take effect."""
        database, store, others = server.database(module), Store(), []
        database.execute(CREATE, "INSERT INTO words VALUES ('a', 0, 0), ('z', 0, 0)")
        # PostgreSQL looks for deadlocks once, so late: the other transaction waits by then.
        database.execute(f"ALTER DATABASE {database.name} SET deadlock_timeout = '2s'")

        def write_in_the_other_order(_):
            first = server.connect("psycopg", database.name)
            first.execute("SET deadlock_timeout = '60s'")
            first.execute("UPDATE words SET own = 'theirs' WHERE word = 'z'")

            def end():
                # It waits for the sink's row, and the sink for this one's.
                waiting = (
                    f"SELECT 1 FROM pg_stat_activity WHERE datname = '{database.name}' AND wait_event_type = 'Lock'"
                )
                while not database.execute(waiting):
                    time.sleep(0.01)
                first.execute("UPDATE words SET own = 'theirs' WHERE word = 'a'")
                first.commit()
                first.close()

            others.append(threading.Thread(target=end))
            others[0].start()

        hindered = Hindered(database, "ON CONFLICT", None)
        run = Run(store, hindered)
        run.write(0, "az")
        hindered.hinder = write_in_the_other_order
        run.close(0)
        others[0].join()
        assert hindered.table() == expected(store)
        assert database.execute("SELECT DISTINCT own FROM words") == [("theirs",)]

    @one
    def test_a_deadlock_that_stays(self, server, module, monkeypatch):
        """The error has PostgreSQL's own words, says how often it was tried, and blames no row."""
        monkeypatch.setattr(retry, "FIRST_WAIT_S", 0.001)
        database, store = server.database(module), Store()
        database.execute(
            CREATE,
            "CREATE FUNCTION refuse() RETURNS TRIGGER LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END $$",
            "CREATE TRIGGER refuse BEFORE INSERT ON words FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        run = Run(store, database)
        run.write(0)
        with pytest.raises(SinkFailedError, match=r"(?s)deadlock detected.* \(tried 10 times in \d") as caught:
            run.close(0)
        assert "in another order than that of their keys" in caught.value.cause
        assert "constraint" not in caught.value.cause
        database.execute("DROP TRIGGER refuse ON words")
        story(store, database := Cut(database))
        assert database.table() == expected(store)

    @one
    @pytest.mark.parametrize("level", ["repeatable read", "serializable"])
    def test_a_conflict_under_a_stricter_isolation(self, server, module, level):
        """Another transaction changes a row that the sink has read."""
        database, store = server.database(module), Store()
        database.execute(CREATE, f"ALTER DATABASE {database.name} SET default_transaction_isolation = '{level}'")
        hindered = Hindered(database, "ON CONFLICT", None)
        run = Run(store, hindered)
        for batch in range(2):
            run.write(batch)
            run.close(batch)
        run.write(2)
        hindered.hinder = lambda _: database.execute("UPDATE words SET own = 'theirs'")
        run.close(2)
        assert hindered.hinder is None
        assert hindered.table() == expected(store)
        assert database.execute("SELECT DISTINCT own FROM words") == [("theirs",)]

    @one
    def test_an_answer_to_a_commit_that_is_lost(self, server, module, monkeypatch):
        """Whether the commit took effect or not: each step looks, and nothing is written twice."""
        monkeypatch.setattr(retry, "FIRST_WAIT_S", 0.01)
        database, store = server.database(module), Store()
        database.execute(CREATE)
        cut = Cut(database)
        run = Run(store, cut)
        for way in ("cut_at", "lose_at"):
            for _ in range(8):
                cut.healthy()
                batch = run.closed_batch + 1
                run.write(batch)
                before = cut.statements
                setattr(cut, way, before + random.Random(batch).randrange(1, 30))
                run.close(batch)
                assert cut.table() == expected(store)
        [(epochs,)] = database.execute("SELECT count(*) FROM words_recovery_epochs WHERE published = 1")
        assert epochs == len(store.closed)


@one
@first("kind", ["PRIMARY KEY (word, part) DEFERRABLE", "UNIQUE (part, word) DEFERRABLE INITIALLY DEFERRED"])
def test_a_key_that_is_checked_at_the_commit(server, module, kind):
    """PostgreSQL cannot find a row's predecessor by it. It is refused before anything is made; that of other columns
    is not."""
    database, store = server.database(module), Store()
    database.execute(f"CREATE TABLE words (word TEXT, part INTEGER, n INTEGER, {kind}, UNIQUE (n) DEFERRABLE)")
    with pytest.raises(ConfigurationError, match=r"on the key \(word, part\) is deferrable") as caught:
        Run(store, database)
    assert "without DEFERRABLE" in caught.value.remedy
    assert database.execute("SELECT relname FROM pg_class WHERE relname LIKE 'words_recovery%'") == []
    database.execute("DROP TABLE words", "CREATE TABLE words (word TEXT, part INTEGER, n INTEGER UNIQUE DEFERRABLE, "
                     "PRIMARY KEY (word, part) INCLUDE (n))")  # fmt: skip
    Run(store, database)


@one
def test_a_start_that_waits_for_a_lock(server, module):
    """It has a limit, and says for whom it waited; the table is untouched."""
    database, store = Cut(server.database(module)), Store()
    database.database.execute(CREATE)
    story(store, database)
    name = database.database.name
    sink = UpsertSink(database.connect, "words", ["word", "part"], patience_s=0.3)
    with contextlib.closing(server.connect("psycopg", name)) as other:
        other.execute("SET application_name = 'night report'")
        other.execute("UPDATE words_recovery_owner SET execution_id = execution_id")
        [(pid,)] = other.execute("SELECT pg_backend_pid()").fetchall()
        began_s = time.monotonic()
        with pytest.raises(SinkFailedError, match="lock timeout") as caught:
            sink.check(copy.deepcopy(store).begin())
        assert time.monotonic() - began_s < 30
    found = caught.value.found
    assert f"process {pid} of user {postgresql.SUPERUSER}, application 'night report', idle in transaction" in found
    assert re.search(r"holds locks in a transaction, which began \d+ s ago: SELECT pg_backend_pid\(\)", found)
    assert database.table() == expected(store)
    sink.check(store.begin())


class Pooled(Cut):
    """A database behind a pooler."""

    def __init__(self, database: postgresql.Database, pooler: postgresql.Pooler) -> None:
        super().__init__(database)
        self.pooler = pooler

    def connect(self):
        return self.pooler.connect(self.database.module, self.database.name)


class TestPooler:
    """PgBouncer in transaction mode: a session of the server belongs to one connection for a transaction only."""

    @pytest.fixture
    def pooler(self, own):
        program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            pytest.skip("no PgBouncer is installed: apt-get install pgbouncer")
        pooler = postgresql.Pooler(own, program)
        yield pooler
        pooler.stop()
        shutil.rmtree(pooler.home)

    @one
    def test_runs_and_rewinds(self, own, pooler, module):
        """Two flows at the same time, whose transactions meet in the same sessions."""
        pairs = []
        for _ in range(2):
            database = Pooled(own.database(module), pooler)
            database.database.execute(CREATE)
            pairs.append((Store(), database))
        database = pairs[0][1]
        runs = [Run(store, each) for store, each in pairs]
        for _ in range(8):
            for run in runs:
                run.write(run.closed_batch + 1, "abcxyz")
            for run in runs:
                run.close(run.closed_batch + 1)
        for store, each in pairs:
            story(store, each, resume_epoch=2)
            assert each.table() == expected(store)

    @one
    def test_a_statement_that_was_prepared_by_others(self, own, pooler, module):
        """Statements of other programs in the same session do not get in the way."""
        database, store = Pooled(own.database(module), pooler), Store()
        database.database.execute(CREATE)
        run = Run(store, database)
        with contextlib.closing(pooler.connect("psycopg", database.database.name)) as other:
            other.autocommit = True
            for number in range(9):
                other.execute("SELECT 1", prepare=number > 2)
                other.execute("SELECT 2, %s::int", [number], prepare=True)
        rows = [(number, f"k{number}", 0) for number in range(3000)]
        run.sink.stage(["n", "word", "part"], rows, 0)
        run.written[0] = rows
        run.close(0)
        assert database.table() == expected(store)

    def test_a_server_that_restarts(self, own, pooler):
        """PgBouncer's own words for it count as those of the server."""
        database, store = Pooled(own.database("psycopg"), pooler), Store()
        database.database.execute(CREATE)
        run = Run(store, database)
        run.write(0)
        own.stop()
        thread = threading.Thread(target=lambda: (time.sleep(0.5), own.start()))
        thread.start()
        run.close(0)
        thread.join()
        assert database.table() == expected(store)
