"""UpsertSink: rows of the closed epochs, by key, in a table of a database; each row takes effect once.

Everything is in the user's database, in tables beside the user's: what is staged, which epochs were prepared and
published, and what each epoch replaced, so that it can be taken back. So every step is one transaction there, and a
crash leaves nothing between two steps:

1. `write`: stage the micro-batch's rows.
2. `prepare`: try whether the staged rows up to a micro-batch can be published, and record that they are the epoch's.
3. `publish`: keep what the epoch's rows will replace, write them into the table, record that the epoch is published.
4. `rollback`: put back what abandoned epochs replaced, publish closed epochs that are only prepared, forget the rest.

Each step checks the execution's right to write inside its transaction. The names upsert.1 to upsert.4 are crash points:
that step was committed.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from recovery.base import faults
from recovery.errors import (
    ConfigurationError,
    FlowFailedError,
    LeaseLostError,
    OutputMismatchError,
    SinkFailedError,
)
from recovery.sinks.database import (
    PLACE,
    PLACEHOLDERS,
    Session,
    listed,
    quoted,
    quoted_table,
    says_absent,
    says_locked,
    says_unfit,
    session,
)
from recovery.sinks.forks import check_not_of_origin
from recovery.sinks.protocol import EpochOutput, Resume
from recovery.sinks.values import changed, changes_of, for_sqlite, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_PER_CALL = 1000
MARKS = ("recovery_execution", "recovery_batch")
"""The additional columns of a staged row."""
HISTORY = ("recovery_epoch", "recovery_had")
"""The additional columns of a replaced row."""
RANK = "recovery_rank"
"""The additional column of both in statements that select the last or the first of a key's rows."""
BESIDE = ("_recovery_owner", "_recovery_epochs", "_recovery_staged", "_recovery_replaced")
"""The suffixes of the tables beside the user's."""

CREATE_OWNER = """
CREATE TABLE {owner} (
    sink VARCHAR(64) NOT NULL, store_id VARCHAR(64) NOT NULL, flow_id TEXT NOT NULL,
    execution_id VARCHAR(64) NOT NULL, history_from BIGINT NOT NULL
)
"""
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
UPSERT = "INSERT INTO {table} ({columns}) SELECT {columns} FROM ({rows}) AS s WHERE 1 = 1 ON CONFLICT ({key}) {action}"

# The state of a key before the first of the epochs that are taken back; recovery_had is 0 for keys that did not exist.
BEFORE = """
SELECT {columns} FROM (
    SELECT {columns}, recovery_had, row_number() OVER (PARTITION BY {key} ORDER BY recovery_epoch) AS recovery_rank
    FROM {replaced} WHERE recovery_epoch > {p}
) AS ranked WHERE recovery_rank = 1 AND recovery_had = {p}
"""
REMOVE = "DELETE FROM {table} AS t WHERE EXISTS (SELECT 1 FROM ({rows}) AS s WHERE {same_key})"
# The columns of an SQLite table's unique indexes that do not compare byte by byte.
COLLATED = """
SELECT x.name, x.coll FROM pragma_index_list({p}) AS l, pragma_index_xinfo(l.name) AS x
WHERE l."unique" AND x.key AND x.coll <> 'BINARY'
"""
TWICE = """
SELECT {key} FROM {staged} WHERE recovery_execution = {p} AND recovery_batch = {p}
GROUP BY {key} HAVING count(*) > 1 LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class UpsertNote:
    """The note in the partitions: the newest epoch that was written to the table."""

    upsert: str
    epoch: int
    execution: str
    table: str


@dataclass(frozen=True, slots=True)
class _Plan:
    """What going back has to do: `last` is the newest epoch that stays. known: whether the sink's own tables exist."""

    known: bool
    last: int
    takes_back: bool


class UpsertSink:
    """An EpochSink that upserts rows into a table by key: a new key adds a row, a known key gets new values.

    connect: returns a new DB-API connection each time; one thread uses it, and it is closed.
    table: an existing table with a primary key or unique index on `key`.
    key: the key's columns. A micro-batch may have one row per key; of several micro-batches the last one counts.
    paramstyle: that of the database's module if it cannot be detected: "qmark", "format" or "pyformat".

    The rows of an epoch appear when it is closed, in one transaction with the position. Going back restores the rows
    that they replaced. Four tables beside the user's hold the data for that. The database must support INSERT … ON
    CONFLICT and window functions, as SQLite, PostgreSQL and DuckDB do.
    """

    single_action = False

    def __init__(
        self, connect: Callable[[], Any], table: str, key: Sequence[str], *, paramstyle: str | None = None
    ) -> None:
        if isinstance(key, str) or not key:
            raise ConfigurationError(f"UpsertSink: key={key!r}", remedy="Give a list of columns, like key=['word'].")
        if paramstyle is not None and paramstyle not in PLACEHOLDERS:
            raise ConfigurationError(f"UpsertSink: paramstyle={paramstyle!r}", remedy="Use qmark, format or pyformat.")
        self.table = table
        self.key = tuple(key)
        self._connect = connect
        self._paramstyle = paramstyle
        self._execution = ""
        # One transaction at a time: an epoch is closed on its own thread, while the next micro-batch is staged.
        self._lock = threading.Lock()
        self._names = {
            "table": quoted_table(table),
            **{end.rpartition("_")[2]: quoted_table(table + end) for end in BESIDE},
            "key": listed(self.key),
            "s_key": listed(self.key, "s"),
            "first": quoted(self.key[0]),
            # The sink's own column comes first: then SQLite compares with its collation, BINARY, as in the unique
            # index.
            "same_key": " AND ".join(f"s.{quoted(k)} = t.{quoted(k)}" for k in self.key),
        }

    def __repr__(self) -> str:
        return f"UpsertSink(table={self.table!r}, key={list(self.key)!r})"

    # ---- the phases

    def check(self, resume: Resume) -> None:
        """Raise if `rollback` would be impossible; see `EpochSink`."""
        with self._session() as database:
            columns = self._columns(database)
            self._lacking(columns, "table")
            self._check_names(database)
            self._check_collation(database)
            plan = self._plan(database, resume)
        self._check_writable(columns)
        self._check_rights(columns, plan)

    def rollback(self, resume: Resume) -> None:
        """Leave exactly the effect of the closed epochs; see `EpochSink`. One transaction."""
        with self._session() as database:
            owned = database.exists("owner")
        with self._session() as database:
            # Write first: SQLite does not wait for a writer that came between a read and the write.
            if owned:
                database.run("UPDATE {owner} SET execution_id = execution_id")
            columns = self._columns(database)
            plan = self._plan(database, resume)
            if not plan.known:
                self._create(database, columns, resume)
            # A store that was repartitioned loses the table to the new one.
            values = (resume.store_id, resume.execution.id)
            database.run("UPDATE {owner} SET store_id = {p}, execution_id = {p}", values)
            if plan.takes_back:
                self._upsert(database, columns, BEFORE, (plan.last, 1))
                database.run(REMOVE, (plan.last, 0), rows=BEFORE, columns=listed(columns))
                database.run("DELETE FROM {replaced} WHERE recovery_epoch > {p}", (plan.last,))
            self._renew_history(database, columns, plan.last)
            database.run("DELETE FROM {epochs} WHERE epoch > {p}", (plan.last,))
            for waiting in database.run("SELECT epoch, batch_id, execution_id FROM {epochs} WHERE published = 0"):
                self._publish(database, columns, *waiting)
            # Create it again instead of emptying it: the table may have lost columns, or have others of the same names.
            database.run("DROP TABLE {staged}")
            database.run(CREATE_STAGED, columns=listed(columns))
            database.commit()
        self._execution = resume.execution.id
        faults.reach("upsert.4")

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Stage the micro-batch's rows; see `EpochSink`. One transaction."""
        moments = changes_of(batch.schema)
        rows = rows_of(batch)
        types = [field.dataType.simpleString() for field in batch.schema.fields]
        self.stage(batch.columns, (changed(row, moments) for row in rows) if moments else rows, batch_id, types)

    def stage(
        self, columns: Sequence[str], rows: Iterable[Sequence[Any]], batch_id: int, types: Sequence[str] = ()
    ) -> None:
        """Do what `write` does, for rows that need not be Spark's. types: the flow's names of the column types, for
        errors."""
        self._refuse_own(columns)
        self._lacking(columns, "output")
        of_key = [list(columns).index(k) for k in self.key]
        mark = (self._execution, batch_id)
        all_columns = [*columns, *MARKS]
        chunks = iter(rows)
        chunk: list[Sequence[Any]] = []
        try:
            with self._session() as database:
                self._hold(database)
                self._refuse_unknown(columns, self._columns(database))
                self._make_staged(database, columns)
                database.run("DELETE FROM {staged} WHERE recovery_execution = {p} AND recovery_batch = {p}", mark)
                while chunk := list(itertools.islice(chunks, ROWS_PER_CALL)):
                    if database.is_sqlite:
                        chunk = list(map(for_sqlite, chunk))
                    for row in chunk:
                        if any(row[position] is None for position in of_key):
                            raise self._bad_row(batch_id, f"a row has NULL in its key: {tuple(row)!r}")
                    database.run_many(
                        "INSERT INTO {staged} ({columns}) VALUES ({places})",
                        [(*row, *mark) for row in chunk],
                        columns=listed(all_columns),
                        places=", ".join([PLACE] * len(all_columns)),
                    )
                for twice in database.run(TWICE, mark):
                    raise self._bad_row(
                        batch_id, f"the key {twice!r} comes more than once, and no row counts as the last"
                    )
                database.commit()
        except SinkFailedError as error:
            named = self._not_taken(columns, chunk, types) if chunk and says_unfit(error) else None
            raise named or error from error.__cause__
        faults.reach("upsert.1")

    def prepare(self, output: EpochOutput) -> str:
        """Record which staged rows are the epoch's; see `EpochSink`. One transaction, after one that is undone."""
        self._try_out(output)
        with self._session() as database:
            self._hold(database)
            database.run("DELETE FROM {epochs} WHERE epoch = {p}", (output.epoch,))
            values = (output.epoch, output.execution.id, output.batch)
            database.run("INSERT INTO {epochs} VALUES ({p}, {p}, {p}, 0)", values)
            [[sink]] = database.run("SELECT sink FROM {owner}")
            database.commit()
        faults.reach("upsert.2")
        return msgspec.json.encode(UpsertNote(sink, output.epoch, output.execution.id, self.table)).decode()

    def publish(self, output: EpochOutput) -> None:
        """Write the epoch's rows into the table; see `EpochSink`. One transaction, with the position."""
        with self._session() as database:
            self._hold(database)
            columns = self._columns(database)
            if database.run("SELECT published FROM {epochs} WHERE epoch = {p}", (output.epoch,)) == [(0,)]:
                self._publish(database, columns, output.epoch, output.batch, output.execution.id)
                self._forget(database, output.floor)
            database.commit()
        faults.reach("upsert.3")

    def _make_staged(self, database: Session, columns: Sequence[str]) -> None:
        """Give the table of staged rows these columns."""
        if database.columns("staged") != [*columns, *MARKS]:
            database.run("DROP TABLE {staged}")
            database.run(CREATE_STAGED, columns=listed(columns))

    def _not_taken(
        self, columns: Sequence[str], rows: Iterable[Sequence[Any]], types: Sequence[str]
    ) -> SinkFailedError | None:
        """Return the error that names the column whose value could not be staged; None if no value caused the failure.

        In a session of its own, which is undone: pg8000 mixes up the server's answers after a value that it could not
        send.
        """
        one = "INSERT INTO {staged} ({column}) VALUES ({value})"
        with contextlib.suppress(SinkFailedError), self._session() as database:
            self._make_staged(database, columns)
            # If even this fails, the values are not the cause.
            database.run(one, column=quoted(columns[0]), value="NULL")
            for row in rows:
                for place, (column, value) in enumerate(zip(columns, row, strict=False)):
                    try:
                        database.run(one, (value,), column=quoted(column), value=PLACE)
                    except SinkFailedError as error:
                        kind = types[place] if types else type(value).__name__
                        return SinkFailedError(
                            f"table {self.table} does not take a value of column {column} ({kind}): {error.found}",
                            cause="The database, or Python's module for it, knows no such value, or the column is of "
                            "another type.",
                            remedy="Cast it in the flow, for instance to a string (an array, a struct or a map with "
                            "to_json), or give the table's column another type; then run the same command again.",
                        )
        return None

    def _try_out(self, output: EpochOutput) -> None:
        """Write the epoch's rows and undo it. Rows that the table refuses must be known before the epoch is closed in
        the partitions: after that, nothing but these rows can follow."""
        with self._session() as database:
            self._hold(database)
            try:
                self._replace(database, self._columns(database), output.epoch, output.batch, output.execution.id)
                database.check_constraints()
            except SinkFailedError as error:
                raise SinkFailedError(
                    f"table {self.table} does not take the rows of epoch {output.epoch}: {error.found}",
                    cause="A row breaks a constraint of the table, such as CHECK, NOT NULL or a foreign key, or the "
                    "key has no unique index; or a column's type was changed since the run began; or the database is "
                    "full, failing or not reachable.",
                    remedy="Correct the flow or the table, and run again: the epoch was not closed, and its rows are "
                    "computed again.",
                ) from error

    # ---- their parts, inside a transaction

    def _plan(self, database: Session, resume: Resume) -> _Plan:
        """Return what `rollback` has to do. Raises OutputMismatchError if that is impossible."""
        note = None if resume.note is None else self._decode(resume.note)
        last = 0 if note is None else note.epoch
        if not database.exists("owner"):
            if note is not None:
                self._check_same_table(note)
                raise self._mismatch(
                    f"the snapshot says that epoch {note.epoch} was written to it, and it has no record of it",
                    "The connection leads to another database, or its tables were dropped.",
                    "Connect to the database that the run before wrote to, or restore partitions and database from "
                    f"the same backup. {self._begin_again()}",
                )
            return _Plan(False, last, False)
        [[sink, store_id, flow_id, history_from]] = database.run(
            "SELECT sink, store_id, flow_id, history_from FROM {owner}"
        )
        check_not_of_origin(resume, store_id, f"table {self.table}")
        if store_id not in resume.stores or flow_id != resume.flow_id:
            raise self._mismatch(
                f"it is written by flow {flow_id!r} on recovery directory {store_id}, "
                f"not by {resume.flow_id!r} on {resume.store_id}",
                *self._remedies(flow_id == resume.flow_id, store_id),
            )
        epochs = {epoch: rest for epoch, *rest in database.run("SELECT epoch, execution_id, published FROM {epochs}")}
        if note is not None and (note.upsert != sink or epochs.get(note.epoch, [None])[0] != note.execution):
            self._check_same_table(note)
            raise self._mismatch(
                f"it does not know epoch {note.epoch}, to which the snapshot belongs",
                "Database and partitions were restored from different times.",
            )
        abandoned = [epoch for epoch, (_, published) in epochs.items() if epoch > last and published]
        if abandoned and min(abandoned) <= history_from:
            raise self._mismatch(
                f"what epochs {min(abandoned)} to {max(abandoned)} replaced would have to be put back, and it is known "
                f"from epoch {history_from + 1} on",
                "The partitions are older than the backup interval, or the table's columns were changed.",
            )
        if abandoned and not self._has_history_of(database, self._columns(database)):
            raise self._mismatch(
                f"epochs {min(abandoned)} to {max(abandoned)} would have to be taken back, and they had other columns",
                "Columns were added or removed after those epochs.",
            )
        return _Plan(True, last, bool(abandoned))

    def _create(self, database: Session, columns: list[str], resume: Resume) -> None:
        database.run(CREATE_OWNER)
        database.run(CREATE_EPOCHS)
        database.run(CREATE_STAGED, columns=listed(columns))
        database.run(CREATE_REPLACED, columns=listed(columns))
        values = (secrets.token_hex(8), resume.store_id, resume.flow_id, resume.execution.id)
        database.run("INSERT INTO {owner} VALUES ({p}, {p}, {p}, {p}, 0)", values)

    def _hold(self, database: Session) -> None:
        """Check this execution's right to write, and keep others from taking it before the commit."""
        database.run("UPDATE {owner} SET execution_id = execution_id")
        [[execution]] = database.run("SELECT execution_id FROM {owner}")
        if execution != self._execution:
            raise LeaseLostError(f"table {self.table} is written by execution {execution} now")

    def _publish(self, database: Session, columns: list[str], epoch: int, batch: int, execution: str) -> None:
        try:
            self._replace(database, columns, epoch, batch, execution)
        except SinkFailedError as error:
            raise SinkFailedError(
                f"table {self.table} does not take the rows of closed epoch {epoch}: {error.found}",
                cause="Its constraints, the types of its columns, or the rows that it refers to were changed after it "
                "was asked; or the database is full, failing or not reachable.",
                remedy="Fix that and run again: the rows are written then. Or give the epoch up, and have it computed "
                f"again with a corrected flow: --resume-epoch {epoch}, from the snapshot after epoch {epoch - 1}, as "
                "long as that is held.",
            ) from error
        database.run(
            "DELETE FROM {staged} WHERE recovery_execution = {p} AND recovery_batch <= {p}", (execution, batch)
        )
        database.run("UPDATE {epochs} SET published = 1 WHERE epoch = {p}", (epoch,))

    def _replace(self, database: Session, columns: list[str], epoch: int, batch: int, execution: str) -> None:
        """Write an epoch's rows into the table, and keep what they replace."""
        staged = _staged(database)
        # The history lacks a column that was added since the run began; the next run starts the history again.
        had = database.columns("replaced")
        others = [column for column in columns if column not in self.key and column in had]
        database.run(
            KEEP_REPLACED,
            (epoch, execution, batch),
            rows=LAST,
            columns=listed(staged),
            others="".join(f"{quoted(column)}, " for column in others),
            t_others="".join(f"t.{quoted(column)}, " for column in others),
        )
        self._upsert(database, staged, LAST, (execution, batch))

    def _upsert(self, database: Session, columns: list[str], rows: str, values: tuple[Any, ...]) -> None:
        sets = ", ".join(f"{quoted(c)} = excluded.{quoted(c)}" for c in columns if c not in self.key)
        action = f"DO UPDATE SET {sets}" if sets else "DO NOTHING"
        database.run(UPSERT, values, rows=rows, columns=listed(columns), action=action)

    def _forget(self, database: Session, floor: int) -> None:
        """Remove what is needed only to go back below the floor; the newest epoch at or below the floor stays known."""
        database.run("DELETE FROM {replaced} WHERE recovery_epoch <= {p}", (floor,))
        database.run(
            "DELETE FROM {epochs} WHERE epoch < (SELECT max(epoch) FROM {epochs} WHERE epoch <= {p})", (floor,)
        )
        database.run("UPDATE {owner} SET history_from = {p} WHERE history_from < {p}", (floor, floor))

    def _renew_history(self, database: Session, columns: list[str], last: int) -> None:
        """Start the history again if the table's columns have changed: then nothing can be taken back beyond this
        point."""
        if not self._has_history_of(database, columns):
            database.run("DROP TABLE {replaced}")
            database.run(CREATE_REPLACED, columns=listed(columns))
            database.run("UPDATE {owner} SET history_from = {p}", (last,))

    def _has_history_of(self, database: Session, columns: list[str]) -> bool:
        """Whether the replaced rows are kept in the same columns with the same types: another type would change the
        values."""
        if database.columns("replaced") != [*columns, *HISTORY]:
            return False
        return database.types("replaced")[: len(columns)] == database.types("table")

    # ---- helpers

    @contextlib.contextmanager
    def _session(self) -> Iterator[Session]:
        with self._lock, session(self._connect, self._names, self._paramstyle) as database:
            yield database

    def _columns(self, database: Session) -> list[str]:
        try:
            columns = database.columns("table")
        except SinkFailedError as error:
            cause, remedy = error.cause, error.remedy
            if says_absent(error):
                cause = "It does not exist, or this is another database."
                remedy = "Create it first, with a primary key on the key's columns."
            raise SinkFailedError(
                f"table {self.table} cannot be read: {error.found}", cause=cause, remedy=remedy
            ) from error
        self._refuse_own(columns)
        return columns

    def _refuse_own(self, columns: Sequence[str]) -> None:
        """Refuse user columns with the names of the sink's own: statements could not tell them apart. Some databases
        ignore case in names."""
        own = [column for column in columns if column.lower() in (*MARKS, *HISTORY, RANK)]
        if own:
            raise ConfigurationError(
                f"table {self.table}: a column cannot be called {', '.join(own)}",
                cause="UpsertSink uses these names for its own columns.",
                remedy="Rename it, in the table and in the flow.",
            )

    def _refuse_unknown(self, columns: Sequence[str], known: Sequence[str]) -> None:
        unknown = [column for column in columns if column not in known]
        if unknown:
            alike = [column for column in known if column.lower() in [each.lower() for each in unknown]]
            remedy = "Add it, or select the columns that the table has."
            if alike:
                remedy = f"The table has {', '.join(alike)}: write it in the flow as it is written there."
            raise ConfigurationError(f"table {self.table} has no column {', '.join(unknown)}", remedy=remedy)

    def _check_names(self, database: Session) -> None:
        """Check that the names of the sink's tables stay different if the database cuts long names."""
        last = self.table.rpartition(".")[2]
        kept = database.kept([last, *(last + end for end in BESIDE)])
        if len(set(kept)) < len(kept):
            # One letter after the last underscore distinguishes them.
            longest = max(len(name.encode()) for name in kept) - len("_recovery_") - 1
            raise ConfigurationError(
                f"table {self.table}: its name is too long",
                cause=f"The database would cut the names of {self._tables_beside(self.table)} to the same text.",
                remedy=f"Give the table a name of at most {longest} bytes.",
            )

    def _check_collation(self, database: Session) -> None:
        """Refuse a collation under which keys that differ here are equal in the table: such rows could not be put
        back."""
        if not database.is_sqlite:
            return
        for name, collation in database.run(COLLATED, (self.table.rpartition(".")[2],)):
            if name in self.key:
                raise ConfigurationError(
                    f"table {self.table}: the key's column {name} has the collation {collation}",
                    cause="The table treats different keys as equal, so which of them counts is undefined.",
                    remedy="Take a column with the collation BINARY, and let the flow write lower case into it.",
                )

    def _check_writable(self, columns: Sequence[str]) -> None:
        """Refuse columns that only the database may write, before anything depends on it: going back puts back rows
        with all columns."""
        with self._session() as database:
            try:
                database.run(
                    "EXPLAIN INSERT INTO {table} ({columns}) SELECT {columns} FROM {table}", columns=listed(columns)
                )
            except SinkFailedError as error:
                if says_locked(error):
                    raise
                raise ConfigurationError(
                    f"table {self.table}: its rows could not be put back: {error.found}",
                    cause="It has a column that only the database may write, such as a generated one, or this user may "
                    "not insert into it.",
                    remedy="Take a table without it, and compute it in a view or in the flow; or grant the right.",
                ) from error

    def _check_rights(self, columns: Sequence[str], plan: _Plan) -> None:
        """Try what `rollback` needs a right for, and undo it: afterwards the partitions have gone back already."""
        with self._session() as database:
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

    def _lacking(self, columns: Sequence[str], where: str) -> None:
        lacking = [k for k in self.key if k not in columns]
        if lacking:
            raise ConfigurationError(
                f"UpsertSink: the {where} has no column {', '.join(lacking)}; it has {', '.join(columns)}",
                remedy="Name the key's columns as they are called in the table and in the flow's output.",
            )

    def _decode(self, text: str) -> UpsertNote:
        try:
            return msgspec.json.decode(text, type=UpsertNote)
        except (ValueError, RecursionError):
            raise self._mismatch(
                "the flow's output so far was written by another kind of sink",
                "The sink was changed.",
                "Take the former sink. To begin again with this one, take a new recovery directory.",
            ) from None

    def _bad_row(self, batch_id: int, found: str) -> FlowFailedError:
        return FlowFailedError(
            f"UpsertSink, micro-batch {batch_id}: {found}",
            cause="An upsert needs a key in every row, and one row per key and micro-batch.",
            remedy="Let the flow give one row per key, or make the column that tells them apart a part of the key.",
        )

    def _check_same_table(self, note: UpsertNote) -> None:
        if note.table != self.table:
            raise self._mismatch(
                f"the snapshot says that epoch {note.epoch} was written to table {note.table}",
                "The sink was given another table.",
                f"Give it {note.table} again; if that was renamed, rename {self._tables_beside(note.table)} likewise. "
                f"To begin again in {self.table}, take a new recovery directory.",
            )

    def _remedies(self, same_flow: bool, store_id: str) -> tuple[str, str]:
        """Return cause and remedy for a table that belongs to another flow or store."""
        if not same_flow:
            return "Two flows use one table.", "Give each flow its own table."
        return (
            "The flow was run on two recovery directories, or its own was created a second time.",
            f"Run it on recovery directory {store_id}, or give it another table. If that directory is given up for "
            f"good, drop the tables {self._tables_beside(self.table)}: what it wrote to {self.table} stays.",
        )

    def _begin_again(self) -> str:
        beside = self._tables_beside(self.table)
        return f"To begin again, drop the tables {beside} where they are, and take a new recovery directory."

    @staticmethod
    def _tables_beside(table: str) -> str:
        """Return the names of the tables beside a table, as a text."""
        first, *others, last = [table + BESIDE[0], *(end.removeprefix("_recovery") for end in BESIDE[1:])]
        return f"{', '.join([first, *others])} and {last}"

    def _mismatch(self, found: str, cause: str, remedy: str = "") -> OutputMismatchError:
        restored = f"Restore partitions and database from the same backup. {self._begin_again()}"
        return OutputMismatchError(f"table {self.table}: {found}", cause=cause, remedy=remedy or restored)


def _staged(database: Session) -> list[str]:
    """Return the columns that the flow writes."""
    return [column for column in database.columns("staged") if column not in MARKS]
