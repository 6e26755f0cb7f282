"""What UpsertSink makes of each state of a database: real states of a PostgreSQL server and of files. Without Spark."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
import threading
import time
from dataclasses import dataclass, field

import psycopg
import pytest

from recovery import UpsertSink
from recovery.errors import ConfigurationError, FlowFailedError, RecoveryError, SinkFailedError, SinkRefusedError
from recovery.sinks.upsert import reasons, retry
from recovery.sinks.upsert.reasons import REASONS, Again, Reason, reason_of
from tests.shares import some
from tests.sinks import postgresql
from tests.sinks.support import Store
from tests.sinks.test_upsert import Run
from tests.waiting import wait_until

both = pytest.mark.parametrize("module", postgresql.MODULES)
one = pytest.mark.parametrize("module", some(postgresql.MODULES, "psycopg"))
"""Where what is tested is the pooler."""


@dataclass
class State:
    """A state of a database, which statements bring about and end, or another session holds."""

    reason: Reason
    found: str
    make: list[str] = field(default_factory=list)
    undo: list[str] = field(default_factory=list)
    error: type[RecoveryError] | None = None
    holds: str = ""


REFUSE = """CREATE FUNCTION refuse() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN
IF NEW.n > 9 THEN RAISE EXCEPTION 'not in {database}' USING ERRCODE = '%s'; END IF; RETURN NEW; END $$"""
TRIGGER = "CREATE TRIGGER refuse BEFORE INSERT ON words FOR EACH ROW EXECUTE FUNCTION refuse()"
NO_TRIGGER = "DROP TRIGGER refuse ON words"
SET, RESET = "ALTER DATABASE {database} SET ", "ALTER DATABASE {database} RESET "
HOLD = "UPDATE words SET n = n"
ROW = r".*; the row with the key word='b' has n=77, other=0"

STATES = {
    "a lock timeout": State(
        reasons.LOCKED, r"lock timeout.*tried \d+ times", [SET + "lock_timeout = '50ms'"], [RESET + "lock_timeout"],
        holds=HOLD,
    ),
    "a statement timeout": State(
        reasons.OVERTIME, r"statement timeout.*tried \d+ times", [SET + "statement_timeout = '200ms'"],
        [RESET + "statement_timeout"], holds=HOLD,
    ),
    "a deadlock": State(
        reasons.CONFLICT, r"not in .*tried \d+ times", [REFUSE % "40P01", TRIGGER], [NO_TRIGGER]
    ),
    "a full disk": State(reasons.FULL, r"not in .*tried \d+ times", [REFUSE % "53100", TRIGGER], [NO_TRIGGER]),
    "a server that reads only": State(
        reasons.READ_ONLY, "in a read-only transaction", [SET + "default_transaction_read_only = on"],
        ["SET default_transaction_read_only = off", RESET + "default_transaction_read_only"],
    ),
    "no connection left": State(
        reasons.OUTAGE, "too many connections for database", ["ALTER DATABASE {database} CONNECTION LIMIT 0"],
        ["ALTER DATABASE {database} CONNECTION LIMIT -1"],
    ),
    "a user who may not connect any more": State(
        reasons.LOGIN, "is not permitted to log in", ["ALTER ROLE {role} NOLOGIN"], ["ALTER ROLE {role} LOGIN"]
    ),
    "a right that was revoked": State(
        reasons.RIGHTS, "permission denied for table words", ["REVOKE UPDATE ON words FROM {role}"],
        ["GRANT UPDATE ON words TO {role}"],
    ),
    "a table that was renamed": State(
        reasons.ABSENT, ' cannot be read: .*relation "words" does not exist',
        ["ALTER TABLE words RENAME TO others"], ["ALTER TABLE others RENAME TO words"],
    ),
    "a table beside it that was dropped": State(
        reasons.ABSENT, 'relation "words_recovery_staged" does not exist',
        ["ALTER TABLE words_recovery_staged RENAME TO gone"], ["ALTER TABLE gone RENAME TO words_recovery_staged"],
    ),
    "a column that was renamed": State(
        reasons.SHAPE, 'does not take the rows of epoch 1: .*column "n" of relation "words" does not exist',
        ["ALTER TABLE words RENAME n TO m"], ["ALTER TABLE words RENAME m TO n"],
    ),
    "a key that was dropped": State(
        reasons.SHAPE, "does not take the rows of epoch 1: .*no unique or exclusion constraint",
        ["ALTER TABLE words DROP CONSTRAINT words_pkey"], ["ALTER TABLE words ADD PRIMARY KEY (word)"],
    ),
    "a column that became generated": State(
        reasons.SHAPE, "does not take the rows of epoch 1: .*n",
        ["ALTER TABLE words RENAME n TO m", "ALTER TABLE words ADD n INTEGER GENERATED ALWAYS AS (m) STORED"],
        ["ALTER TABLE words DROP n", "ALTER TABLE words RENAME m TO n"],
    ),
    "a check": State(
        reasons.VALUE, f"violates check constraint.*Failing row contains{ROW}",
        ["ALTER TABLE words ADD CONSTRAINT small CHECK (n < 9)"], ["ALTER TABLE words DROP CONSTRAINT small"],
        FlowFailedError,
    ),
    "a foreign key": State(
        reasons.VALUE, f"violates foreign key constraint.*is not present{ROW}",
        ["CREATE TABLE known (n INTEGER PRIMARY KEY)", "INSERT INTO known VALUES (1), (2), (5)",
         "ALTER TABLE words ADD CONSTRAINT known FOREIGN KEY (n) REFERENCES known"],
        ["ALTER TABLE words DROP CONSTRAINT known"], FlowFailedError,
    ),
    "a second unique column": State(
        reasons.VALUE, rf"duplicate key value .*Key \(other\)=\(0\) already exists{ROW}",
        ["ALTER TABLE words ADD CONSTRAINT once UNIQUE (other)"], ["ALTER TABLE words DROP CONSTRAINT once"],
        FlowFailedError,
    ),
    "a column that became narrower": State(
        reasons.VALUE, f"numeric field overflow{ROW}",
        ["ALTER TABLE words ALTER n TYPE NUMERIC(1)"],
        ["ALTER TABLE words ALTER n TYPE INTEGER"], FlowFailedError,
    ),
    "a trigger that refuses a row": State(
        reasons.VALUE, f"not in .*{ROW}", [REFUSE % "P0001", TRIGGER], [NO_TRIGGER], FlowFailedError
    ),
}  # fmt: skip


@pytest.fixture
def database(server, module):
    """A database whose user may do what the sink needs, and no more."""
    database = server.database(module)
    database.user = f"role_{database.name}"
    database.execute(
        "CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER, other INTEGER)",
        "INSERT INTO words VALUES ('kept', 5, 7)",
        f"CREATE ROLE {database.user} LOGIN",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON words TO {database.user}",
        f"GRANT CREATE ON SCHEMA public TO {database.user}",
    )
    return database


def rows_of(database) -> list:
    return database.execute("SELECT * FROM words ORDER BY word")


def staged(run: Run) -> Run:
    run.sink.stage(["word", "n", "other"], [("a", 1, 0), ("b", 77, 0), ("c", 2, 1)], 0)
    return run


@one
@pytest.mark.parametrize("name", STATES)
def test_a_state_in_which_an_epoch_cannot_be_closed(database, name, monkeypatch):
    """The error is that of the state, and says what PostgreSQL says; nothing is seen or closed. When the state has
    passed, the next run goes on."""
    monkeypatch.setattr(retry, "TRIES", 2)
    monkeypatch.setattr(retry, "FIRST_WAIT_S", 0.01)
    state = STATES[name]
    names = {"database": database.name, "role": database.user}
    store = Store()
    run = staged(Run(store, database, key=["word"]))
    with contextlib.ExitStack() as others:
        database.execute(*(each.format(**names) for each in state.make))
        if state.holds:
            other = others.enter_context(contextlib.closing(psycopg.connect(host=str(database.server.home),
                                         dbname=database.name, user=postgresql.SUPERUSER)))  # fmt: skip
            other.execute("SET statement_timeout = 0")
            other.execute("UPDATE words_recovery_owner SET execution_id = execution_id")
        with pytest.raises(state.error or state.reason.error, match=f"(?s)table words.*(?:{state.found})") as caught:
            run.close(0)
    assert reason_of(caught.value if state.error is None else caught.value.__cause__) is state.reason
    assert caught.value.remedy
    assert state.error or state.reason is reasons.ABSENT or caught.value.cause == state.reason.cause
    database.execute(*(each.format(**names) for each in state.undo))
    assert rows_of(database) == [("kept", 5, 7)]
    assert store.closed == []
    staged(Run(store, database, key=["word"])).close(0)
    assert rows_of(database) == [("a", 1, 0), ("b", 77, 0), ("c", 2, 1), ("kept", 5, 7)]


@one
def test_a_transaction_that_waits_too_long_for_rows(database):
    """The modules do not pass on why the connection was cut: the error names the limit as one of the causes."""
    run = Run(Store(), database, key=["word"])
    database.execute(f"ALTER DATABASE {database.name} SET idle_in_transaction_session_timeout = '100ms'")

    def rows():
        yield "a", 1, 0
        sessions = f"SELECT 1 FROM pg_stat_activity WHERE usename = '{database.user}'"
        wait_until(lambda: not database.execute(sessions))

    with pytest.raises(SinkFailedError, match="the database says") as caught:
        run.sink.stage(["word", "n", "other"], rows(), 0)
    assert "idle_in_transaction_session_timeout" in caught.value.cause


@one
def test_the_first_of_many_rows_that_a_table_refuses(database):
    """It is found among thousands, and so is a row that only the rows before it make wrong."""
    database.execute("ALTER TABLE words ADD CONSTRAINT small CHECK (n < 4000)")
    run = Run(Store(), database, key=["word"])
    rows = [(f"k{number:04}", number, number) for number in range(5000)]
    run.sink.stage(["word", "n", "other"], rows, 0)
    with pytest.raises(FlowFailedError, match=r"the row with the key word='k4000' has n=4000, other=4000\n"):
        run.close(0)
    database.execute("ALTER TABLE words DROP CONSTRAINT small", "ALTER TABLE words ADD UNIQUE (other)")
    run.sink.stage(["word", "n", "other"], [(word, n, n % 3000) for word, n, _ in rows if word != "k0007"], 0)
    with pytest.raises(FlowFailedError, match=r"the row with the key word='k3000' has n=3000, other=0\n"):
        run.close(0)


@both
def test_a_closed_epoch_that_the_table_does_not_take_any_more(database):
    """The table was changed in between: it is the target that refuses, and the way out names the epoch."""
    store = Store()
    run = staged(Run(store, database, key=["word"]))
    prepare = run.sink.prepare

    def changed_after(output):
        note = prepare(output)
        database.execute("ALTER TABLE words ADD CONSTRAINT small CHECK (n < 9)")
        return note

    run.sink.prepare = changed_after
    for step in (lambda: run.close(0), lambda: Run(store, database, key=["word"])):
        with pytest.raises(SinkRefusedError, match=r"the rows of closed epoch 1: .*violates check") as caught:
            step()
        assert "--resume-epoch 1" in caught.value.remedy
    database.execute("ALTER TABLE words DROP CONSTRAINT small")
    Run(store, database, key=["word"])
    assert len(rows_of(database)) == 4


@both
def test_rows_of_others_that_hinder_going_back(database):
    """Another table refers to a row that would be removed: no row of the flow is blamed, and nothing is changed."""
    database.execute(f"GRANT REFERENCES ON words TO {database.user}")
    store = Store()
    run = Run(store, database, key=["word"])
    run.close(0)
    staged(run)
    run.closed_batch = -1
    run.sink.stage(["word", "n", "other"], [("a", 1, 0)], 1)
    run.close(1)
    database.execute("CREATE TABLE refers (word TEXT REFERENCES words)", "INSERT INTO refers VALUES ('a')")
    before = rows_of(database)
    with pytest.raises(SinkRefusedError, match=r"is still referenced from table") as caught:
        Run(store, database, key=["word"], resume_epoch=2)
    assert rows_of(database) == before
    assert "constraint" in caught.value.cause


class TestStarts:
    """A connection that cannot be made: the class says whether a person must correct something, or the cause passes."""

    def refused(self, connect, error, reason, found="", **options) -> None:
        sink = UpsertSink(connect, "words", ["word"], **options)
        began_s = time.monotonic()
        with pytest.raises(error, match=f"table words.*{found}") as caught:
            sink.check(Store().begin())
        assert reason_of(caught.value) is reason
        assert caught.value.cause == reason.cause
        assert "tried" not in caught.value.found or reason.again is Again.ALWAYS
        assert time.monotonic() - began_s < 30

    @both
    def test_no_database_and_no_role(self, server, module):
        """pg8000 drops what the server says when it closes the connection; the sink does not."""
        self.refused(lambda: server.connect(module, "nope"), SinkRefusedError, reasons.NO_DATABASE, '"nope" does not')
        unknown = lambda: server.connect(module, "postgres", "nobody")  # noqa: E731
        self.refused(unknown, SinkRefusedError, reasons.LOGIN, 'role "nobody"')

    @both
    def test_a_wrong_password_and_a_host_that_is_not_admitted(self, module):
        """Both are the server's words."""
        with postgresql.running() as own:
            own.administer("CREATE ROLE locked LOGIN PASSWORD 'right'", "CREATE ROLE barred LOGIN")
            rules = own.home / "data" / "pg_hba.conf"
            known = rules.read_text()
            rules.write_text(f"local all locked scram-sha-256\nlocal all barred reject\n{known}")
            own.administer("SELECT pg_reload_conf()")
            at = {"unix_sock": str(own.home / ".s.PGSQL.5432"), "ssl_context": False}

            def connect(user):
                if module == "psycopg":
                    return psycopg.connect(host=str(own.home), dbname="postgres", user=user, password="wrong")
                import pg8000.dbapi

                return pg8000.dbapi.connect(user, database="postgres", password="wrong", **at)

            deadline_s = time.monotonic() + 30
            while time.monotonic() < deadline_s:
                with contextlib.suppress(Exception):
                    connect("locked").close()
                    time.sleep(0.05)
                    continue
                break
            self.refused(lambda: connect("locked"), SinkRefusedError, reasons.LOGIN, "password authentication failed")
            self.refused(lambda: connect("barred"), SinkRefusedError, reasons.LOGIN, "pg_hba.conf rejects")

    @both
    def test_no_server(self, module, tmp_path):
        """An unknown host, a port at which nobody listens, and no socket."""
        import pg8000.dbapi

        with contextlib.closing(socket.socket()) as held:
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
            for host in ("host.invalid", "127.0.0.1"):
                if module == "psycopg":
                    connect = lambda host=host: psycopg.connect(host=host, port=port)  # noqa: E731
                else:
                    connect = lambda host=host: pg8000.dbapi.connect("user", host=host, port=port)  # noqa: E731
                self.refused(connect, SinkFailedError, reasons.OUTAGE)

    @both
    def test_a_server_without_tls(self, module):
        """It answers "N" to the request."""
        import pg8000.dbapi

        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
            port = server.getsockname()[1]

            def answer():
                with contextlib.suppress(OSError):
                    while True:
                        connection, _ = server.accept()
                        connection.recv(8)
                        connection.sendall(b"N")
                        connection.close()

            threading.Thread(target=answer, daemon=True).start()
            if module == "psycopg":
                connect = lambda: psycopg.connect(host="127.0.0.1", port=port, sslmode="require")  # noqa: E731
            else:
                connect = lambda: pg8000.dbapi.connect("u", host="127.0.0.1", port=port, ssl_context=True)  # noqa: E731
            self.refused(connect, SinkRefusedError, reasons.TLS)
            server.shutdown(socket.SHUT_RDWR)

    @pytest.mark.parametrize(
        ("connect", "error", "found"),
        [
            (lambda: os.environ["NO_SUCH_VARIABLE"], FlowFailedError,
             r"`connect` failed: KeyError: 'NO_SUCH_VARIABLE' \(test_reasons\.py, line \d+\)"),
            (lambda: sqlite3.connect(), FlowFailedError, r"`connect` failed: TypeError: .*\(test_reasons\.py"),
            (lambda: None, ConfigurationError, "`connect` returned None, which is no connection"),
        ],
    )  # fmt: skip
    def test_a_function_that_fails(self, connect, error, found):
        """The database is not blamed for it."""
        with pytest.raises(error, match=found):
            UpsertSink(connect, "words", ["word"]).check(Store().begin())


class TestPgBouncer:
    """It refuses by words of its own, most of them under one SQLSTATE."""

    @pytest.fixture
    def pooled(self, request):
        program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            pytest.skip("no PgBouncer is installed: apt-get install pgbouncer")
        with postgresql.running() as own:
            own.administer("CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER)")
            pooler = postgresql.Pooler(own, program, getattr(request, "param", ""))
            yield pooler
            pooler.stop()

    def refused(self, connect, error, reason, found) -> None:
        sink = UpsertSink(connect, "words", ["word"])
        with pytest.raises(error, match=found) as caught:
            sink.check(Store().begin())
        assert reason_of(caught.value) is reason

    @one
    @pytest.mark.parametrize("pooled", ["pool_mode = statement"], indirect=True)
    def test_a_mode_that_does_not_work(self, pooled, module):
        """Each statement would have another session."""
        connect = lambda: pooled.connect(module, "postgres")  # noqa: E731
        self.refused(connect, SinkRefusedError, reasons.POOLER, "not allowed in statement pooling mode")

    def test_options(self, pooled):
        """The remedy says where they can be set."""
        at = {"host": str(pooled.home), "port": 6432, "user": postgresql.SUPERUSER, "dbname": "postgres"}
        connect = lambda: psycopg.connect(**at, options="-c lock_timeout=1s")  # noqa: E731
        self.refused(connect, SinkRefusedError, reasons.POOLER, "unsupported startup parameter: options")

    @one
    def test_no_such_database(self, pooled, module):
        """The server's word through PgBouncer."""
        self.refused(
            lambda: pooled.connect(module, "nope"), SinkRefusedError, reasons.NO_DATABASE, '"nope" does not exist'
        )

    @pytest.mark.long
    @one
    @pytest.mark.parametrize("pooled", ["query_wait_timeout = 1\ndefault_pool_size = 1"], indirect=True)
    def test_no_session_left(self, pooled, module):
        """That passes."""
        with contextlib.closing(pooled.connect("psycopg", "postgres")) as other:
            other.execute("SELECT 1")
            connect = lambda: pooled.connect(module, "postgres")  # noqa: E731
            self.refused(connect, SinkFailedError, reasons.OUTAGE, "query_wait_timeout")

    @one
    @pytest.mark.parametrize("pooled", ["server_login_retry = 1\nquery_wait_timeout = 1"], indirect=True)
    def test_a_server_that_is_away(self, pooled, module):
        """That passes, too."""
        pooled.server.stop()
        connect = lambda: pooled.connect(module, "postgres")  # noqa: E731
        self.refused(connect, SinkFailedError, reasons.OUTAGE, "server login has been failing|query_wait_timeout")


class TestFiles:
    """SQLite and DuckDB name their states by results and classes of exceptions."""

    def made(self, real, module):
        database = real(module)
        database.execute("CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER)")
        return database

    @pytest.mark.parametrize("module", ["sqlite3", "duckdb"])
    def test_a_file_that_is_no_database(self, real, module, tmp_path):
        """A person has to restore it."""
        database = real(module)
        (tmp_path / "db").write_bytes(b"not a database, but long enough for a header" * 500)
        with pytest.raises(SinkRefusedError, match=r"not a (valid DuckDB )?database") as caught:
            Run(Store(), database, key=["word"])
        assert reason_of(caught.value) is reasons.DAMAGED

    def test_a_file_that_may_only_be_read(self, real, tmp_path):
        """By its mode for SQLite, by `connect` for DuckDB."""
        self.made(real, "sqlite3")
        sink = UpsertSink(lambda: sqlite3.connect(f"file:{tmp_path}/db?mode=ro", uri=True), "words", ["word"])
        with pytest.raises(SinkRefusedError, match="readonly database") as caught:
            sink.check(Store().begin())
        assert reason_of(caught.value) is reasons.READ_ONLY_FILE

    def test_a_duckdb_that_may_only_be_read(self, real, tmp_path):
        """Its words for that."""
        import duckdb

        self.made(real, "duckdb")
        sink = UpsertSink(lambda: duckdb.connect(str(tmp_path / "db"), read_only=True), "words", ["word"])
        with pytest.raises(SinkRefusedError, match="read-only mode") as caught:
            sink.check(Store().begin())
        assert reason_of(caught.value) is reasons.READ_ONLY_FILE

    @pytest.mark.parametrize("module", ["sqlite3", "duckdb"])
    def test_a_column_that_was_renamed_during_a_run(self, real, module):
        """It is the table that does not fit."""
        database = self.made(real, module)
        run = Run(Store(), database, key=["word"])
        run.sink.stage(["word", "n"], [("a", 1)], 0)
        database.execute("ALTER TABLE words RENAME n TO m")
        with pytest.raises(SinkRefusedError, match="does not take the rows of epoch 1") as caught:
            run.close(0)
        assert reason_of(caught.value) is reasons.SHAPE

    @pytest.mark.parametrize("module", ["sqlite3", "duckdb"])
    def test_words_of_other_states_in_a_value(self, real, module):
        """A value is not taken for the state whose words it has."""
        database = real(module)
        database.execute("CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER CHECK (n < 9))")
        run = Run(Store(), database, key=["word"])
        run.sink.stage(["word", "n"], [("the disk is full, the database is locked", 9)], 0)
        with pytest.raises(FlowFailedError, match="the row with the key word='the disk is full"):
            run.close(0)

    def test_a_text_that_is_no_number(self, real):
        """DuckDB repeats the value in its message."""
        run = Run(Store(), self.made(real, "duckdb"), key=["word"])
        with pytest.raises(FlowFailedError, match=r"does not take a value of column n .*has n='database is locked'"):
            run.sink.stage(["word", "n"], [("a", "database is locked")], 0)


def test_each_state_has_one_row():
    """No SQLSTATE is in two rows, and only what passes is tried again."""
    codes = [code for each in REASONS for code in each.codes]
    assert len(codes) == len(set(codes))
    assert all(each.error.restart for each in REASONS if each.again is not Again.NEVER)
    assert {each.error for each in REASONS} == {SinkFailedError, SinkRefusedError}
    assert ConfigurationError not in {each.error for each in REASONS}
