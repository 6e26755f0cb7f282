"""UpsertSink: rows of the closed epochs, by key, in a table of a database; each row takes effect once.

Everything is in the user's database, in tables beside the user's: what is staged, which epochs were prepared and
published, and what each epoch replaced, so that it can be taken back. So every step is one transaction there, and a
crash leaves nothing between two steps:

1. `write`: stage the micro-batch's rows.
2. `prepare`: try whether the staged rows up to a micro-batch can be published, and record that they are the epoch's.
3. `publish`: keep what the epoch's rows will replace, write them into the table, record that the epoch is published.
4. `rollback`: restore what abandoned epochs replaced, publish closed epochs that are only prepared, forget the rest.

Each step checks inside its transaction the execution's right to write, and that the tables still hold what the steps
before have committed. A step that fails for a reason that passes is tried again: see `retry`. The names upsert.1 to
upsert.4 are crash points: at each, the step of that number was committed.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from recovery.base import faults
from recovery.base.outside import Answers, CannotTell, Checked, Moment, Question
from recovery.errors import ConfigurationError, FlowFailedError, LeaseLostError, SinkFailedError, SinkRefusedError
from recovery.sinks.protocol import EpochOutput, Resume
from recovery.sinks.upsert.checks import check_collation, check_names, check_unique, check_writable, try_rights
from recovery.sinks.upsert.culprits import described, refused_row, refused_value
from recovery.sinks.upsert.database import PLACE, PLACEHOLDERS, Transaction, listed, session
from recovery.sinks.upsert.effects import (
    forget,
    keep_replaced,
    make_staged,
    publish_epoch,
    renew_history,
    take_back,
    write_rows,
)
from recovery.sinks.upsert.going_back import UpsertNote, plan_going_back
from recovery.sinks.upsert.holders import holders_of
from recovery.sinks.upsert.reasons import DATABASE_ERRORS, LOCKED, SHAPE, VALUE, reason_of, says_unfit
from recovery.sinks.upsert.retry import Result, with_retries
from recovery.sinks.upsert.table import CREATE_STAGED, MARKS, UpsertTable, create_tables, take_over
from recovery.sinks.upsert.values import changed, changes_of, for_sqlite, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_PER_CALL = 1000
STAGED = """
SELECT recovery_batch, count(*) FROM {staged} WHERE recovery_execution = {p} AND recovery_batch <= {p}
GROUP BY recovery_batch
"""
TWICE = """
SELECT {key} FROM {staged} WHERE recovery_execution = {p} AND recovery_batch = {p}
GROUP BY {key} HAVING count(*) > 1 LIMIT 1
"""


class UpsertSink:
    """An EpochSink that upserts rows into a table by key: a new key adds a row, a known key gets new values.

    connect: returns a new DB-API connection each time; one thread uses it, and it is closed.
    table: an existing table with a primary key or unique index on `key`.
    key: the key's columns. A micro-batch may have one row per key; of several micro-batches the last one counts.
    paramstyle: that of the database's module if it cannot be detected: "qmark", "format" or "pyformat".
    patience_s: for how long a step is tried again that failed by a deadlock, a cut connection or a failover, and how
        long a start waits for a lock if the connection sets no limit.

    The rows of an epoch appear when it is closed, in one transaction with the position. Going back restores the rows
    that abandoned epochs replaced. Four tables beside the user's hold the data for going back. The database must
    support INSERT … ON CONFLICT and window functions, as SQLite, PostgreSQL and DuckDB do.
    """

    single_action = False
    keeps_plan = False
    answers: ClassVar[Answers] = {
        Question.SAME: Checked(
            "the random id beside the table with that in the snapshot's note", (Moment.START, Moment.GOING_BACK)
        ),
        Question.THERE: Checked(
            "the number of staged rows of an epoch, and the record of the newest epoch that this run has committed",
            (Moment.START, Moment.GOING_BACK, Moment.CLOSING, Moment.PUBLISHING),
        ),
        Question.CHANGED: CannotTell(
            "others may change the table's rows: the record of epochs beside the table is compared with the snapshot's "
            "note, and the rows are not"
        ),
        Question.ABLE: Checked(
            "the table, its unique key, columns and names; every right that going back needs, in a transaction that is "
            "undone; and the rows of an epoch against the table's constraints, likewise",
            (Moment.START, Moment.GOING_BACK, Moment.CLOSING),
        ),
        Question.OWNER: Checked(
            "store, flow and last execution beside the table, and the epochs that the execution has shown",
            (Moment.START, Moment.GOING_BACK, Moment.CLOSING, Moment.PUBLISHING),
        ),
    }

    def __init__(
        self,
        connect: Callable[[], Any],
        table: str,
        key: Sequence[str],
        *,
        paramstyle: str | None = None,
        patience_s: float = 60,
    ) -> None:
        if isinstance(key, str) or not key:
            raise ConfigurationError(f"UpsertSink: key={key!r}", remedy="Give a list of columns, like key=['word'].")
        if paramstyle is not None and paramstyle not in PLACEHOLDERS:
            raise ConfigurationError(f"UpsertSink: paramstyle={paramstyle!r}", remedy="Use qmark, format or pyformat.")
        if isinstance(patience_s, bool) or not isinstance(patience_s, int | float) or not 0 <= patience_s < math.inf:
            raise ConfigurationError(f"UpsertSink: patience_s={patience_s!r}", remedy="Give a number of seconds.")
        self.table = table
        self.key = tuple(key)
        self._connect = connect
        self._paramstyle = paramstyle
        self._patience_s = patience_s
        self._execution = ""
        self._former: frozenset[str] = frozenset()
        """The executions before this one."""
        self._reached = False
        """Whether the database was reached, and could be written to."""
        self._newest: tuple[int, str, int] | None = None
        """The newest epoch that the tables know: epoch, execution, and 1 if it is published."""
        self._staged: dict[int, int] = {}
        """The number of staged rows by micro-batch."""
        # One transaction at a time: an epoch is closed on its own thread, while the next micro-batch is staged.
        self._lock = threading.Lock()
        self._table = UpsertTable(table, self.key)
        self._names = self._table.names()

    def __repr__(self) -> str:
        return f"UpsertSink(table={self.table!r}, key={list(self.key)!r})"

    # ---- the phases

    def check(self, resume: Resume) -> None:
        """Raise if `rollback` would be impossible; see `EpochSink`."""
        self._starting(lambda: self._check(resume))
        self._reached = True

    def rollback(self, resume: Resume) -> None:
        """Leave exactly the effect of the closed epochs; see `EpochSink`. One transaction."""
        self._newest = self._starting(lambda: self._go_back(resume))
        self._execution, self._former, self._staged = resume.execution.id, resume.executions or frozenset(), {}
        faults.reach("upsert.4")

    def _check(self, resume: Resume) -> None:
        with self._session(starts=True) as database:
            columns = self._table.columns(database)
            self._table.require_key(columns, "table")
            check_names(self._table, database)
            check_collation(self._table, database)
            plan = plan_going_back(self._table, database, resume)
        with self._session(starts=True) as database:
            check_writable(self._table, database, columns)
        with self._session(starts=True) as database:
            check_unique(self._table, database)
        # Not committed.
        with self._session(starts=True) as database:
            try_rights(database, columns, plan)

    def _go_back(self, resume: Resume) -> tuple[int, str, int] | None:
        """Do what `rollback` does; return the newest epoch that the tables then know."""
        with self._session(starts=True) as database:
            owned = database.exists("owner")
        with self._session(starts=True) as database:
            # Write first: SQLite does not wait for a writer that came between a read and the write.
            if owned:
                database.run("UPDATE {owner} SET execution_id = execution_id")
            columns = self._table.columns(database)
            plan = plan_going_back(self._table, database, resume)
            if not plan.known:
                create_tables(database, columns, resume)
            take_over(database, resume)
            if plan.takes_back:
                take_back(self._table, database, columns, plan.last)
            renew_history(database, columns, plan.last)
            database.run("DELETE FROM {epochs} WHERE epoch > {p}", (plan.last,))
            for waiting in database.run("SELECT epoch, batch_id, execution_id FROM {epochs} WHERE published = 0"):
                publish_epoch(self._table, database, columns, *waiting)
            # Create it again instead of emptying it: the table may have lost columns, or have others of the same names.
            database.run("DROP TABLE {staged}")
            database.run(CREATE_STAGED, columns=listed(columns))
            known = database.run("SELECT epoch, execution_id, published FROM {epochs} ORDER BY epoch DESC LIMIT 1")
            database.commit()
        return next(((epoch, execution, published) for epoch, execution, published in known), None)

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Stage the micro-batch's rows; see `EpochSink`. One transaction."""
        moments = changes_of(batch.schema)
        types = [field.dataType.simpleString() for field in batch.schema.fields]

        def stage() -> None:
            rows = rows_of(batch)
            self.stage(batch.columns, (changed(row, moments) for row in rows) if moments else rows, batch_id, types)

        self._again(stage)

    def stage(
        self, columns: Sequence[str], rows: Iterable[Sequence[Any]], batch_id: int, types: Sequence[str] = ()
    ) -> None:
        """Do what `write` does, once, for rows that need not be Spark's. types: the flow's names of the column types,
        for errors."""
        self._table.refuse_own(columns)
        self._table.require_key(columns, "output")
        of_key = [list(columns).index(k) for k in self.key]
        mark = (self._execution, batch_id)
        all_columns = [*columns, *MARKS]
        chunks = iter(rows)
        chunk: list[Sequence[Any]] = []
        count = 0
        try:
            with self._session() as database:
                self._hold(database)
                self._table.refuse_unknown(columns, self._table.columns(database))
                make_staged(database, columns)
                database.run("DELETE FROM {staged} WHERE recovery_execution = {p} AND recovery_batch = {p}", mark)
                while chunk := list(itertools.islice(chunks, ROWS_PER_CALL)):
                    count += len(chunk)
                    if database.is_sqlite:
                        chunk = list(map(for_sqlite, chunk))
                    for row in chunk:
                        if any(row[position] is None for position in of_key):
                            raise self._bad_row(
                                batch_id, f"a row has NULL in its key: {described(self._table, columns, row)}"
                            )
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
        except DATABASE_ERRORS as error:
            unfit = bool(chunk) and says_unfit(error)
            named = refused_value(self._table, self._session, columns, chunk, types) if unfit else None
            if named is None:
                raise
            raise named from None
        self._staged[batch_id] = count
        faults.reach("upsert.1")

    def prepare(self, output: EpochOutput) -> str:
        """Record which staged rows are the epoch's; see `EpochSink`. Stage the rows in one transaction, after a trial
        that is undone."""
        self._again(lambda: self._try_out(output))
        sink = self._again(lambda: self._record(output))
        self._newest = output.epoch, output.execution.id, 0
        faults.reach("upsert.2")
        rows = sum(count for batch, count in list(self._staged.items()) if batch <= output.batch)
        return msgspec.json.encode(UpsertNote(sink, output.epoch, output.execution.id, self.table, rows)).decode()

    def _record(self, output: EpochOutput) -> str:
        """Record which staged rows are the epoch's; return the sink's id."""
        with self._session() as database:
            self._hold(database)
            self._check_staged(database, output)
            database.run("DELETE FROM {epochs} WHERE epoch = {p}", (output.epoch,))
            values = (output.epoch, output.execution.id, output.batch)
            database.run("INSERT INTO {epochs} VALUES ({p}, {p}, {p}, 0)", values)
            [[sink]] = database.run("SELECT sink FROM {owner}")
            database.commit()
        return str(sink)

    def publish(self, output: EpochOutput) -> None:
        """Write the epoch's rows into the table; see `EpochSink`. Publishes in one transaction, with the position."""
        self._again(lambda: self._publish(output))
        self._newest = output.epoch, output.execution.id, 1
        for batch in [batch for batch in list(self._staged) if batch <= output.batch]:
            del self._staged[batch]
        faults.reach("upsert.3")

    def _publish(self, output: EpochOutput) -> None:
        with self._session() as database:
            self._hold(database)
            columns = self._table.columns(database)
            if database.run("SELECT published FROM {epochs} WHERE epoch = {p}", (output.epoch,)) == [(0,)]:
                self._check_staged(database, output)
                publish_epoch(self._table, database, columns, output.epoch, output.batch, output.execution.id)
                forget(database, output.floor)
            database.commit()

    def _try_out(self, output: EpochOutput) -> None:
        """Write the epoch's rows and undo it. Rows that the table refuses must be known before the epoch is closed in
        the partitions: after that, no other rows can take their place."""
        epoch, batch, execution = output.epoch, output.batch, output.execution.id
        try:
            with self._session() as database:
                self._hold(database)
                self._check_staged(database, output)
                keep_replaced(self._table, database, self._table.columns(database), epoch, batch, execution)
                write_rows(self._table, database, batch, execution)
                database.check_constraints()
        except DATABASE_ERRORS as error:
            found = f"table {self.table} does not take the rows of epoch {epoch}: {error.found}"
            again = "and run again: the epoch was not closed, and its rows are computed again."
            if reason_of(error) is SHAPE:
                raise SinkRefusedError(
                    found, cause=error.cause, remedy=f"Correct the table or the flow, {again}"
                ) from error
            if reason_of(error) is not VALUE or isinstance(error, SinkFailedError):
                raise
            row = refused_row(self._table, self._session, batch, execution, self._patience_s)
            raise FlowFailedError(
                found + row,
                cause="A row breaks a constraint of the table, such as CHECK, NOT NULL or a foreign key, or a trigger "
                "refuses it.",
                remedy=f"Correct the flow or the table, {again}",
            ) from error

    def _hold(self, database: Transaction) -> None:
        """Check this execution's right to write, and keep others from taking it before the commit; check that the
        tables know the newest epoch that this execution has committed."""
        database.run("UPDATE {owner} SET execution_id = execution_id")
        [[execution]] = database.run("SELECT execution_id FROM {owner}")
        if execution in self._former:
            raise self._lost(f"that execution {self._execution} has begun")
        if execution != self._execution:
            raise LeaseLostError(f"table {self.table} is written by execution {execution} now")
        if self._newest is not None:
            epoch, by, published = self._newest
            known = database.run("SELECT execution_id, published FROM {epochs} WHERE epoch = {p}", (epoch,))
            if not any(each == by and done >= published for each, done in known):
                raise self._lost(f"that epoch {epoch} was {'published' if published else 'prepared'}")

    def _check_staged(self, database: Transaction, output: EpochOutput) -> None:
        """Check that all rows that an epoch staged are still there."""
        mark = (output.execution.id, output.batch)
        held = dict(database.run(STAGED, mark))
        for batch, count in list(self._staged.items()):
            if batch <= output.batch and held.get(batch, 0) != count:
                raise self._lost(f"all rows of micro-batch {batch}: it has {held.get(batch, 0)} of {count}")

    def _lost(self, what: str) -> SinkFailedError:
        return SinkFailedError(
            f"table {self.table}: the database does not know {what}",
            cause="Another server answers that lacks the newest transactions, as after a failover; or the database was "
            "restored, or the tables beside the table were changed, during the run.",
            remedy="Run the same command again: the start says whether database and partitions fit, and if not, from "
            "which epoch they do.",
        )

    def _again(self, step: Callable[[], Result]) -> Result:
        """Do a step, and try it again if it fails for a reason that passes. The error names the table."""
        try:
            return with_retries(step, lambda: self._reached, self._patience_s)
        except DATABASE_ERRORS as error:
            if error.found.startswith(f"table {self.table}"):
                raise
            found = f"table {self.table}: {error.found}"
            raise type(error)(found, cause=error.cause, remedy=error.remedy) from error.__cause__

    def _starting(self, step: Callable[[], Result]) -> Result:
        """Do a step with which a run starts. The error says who holds a lock that the start waits for."""
        try:
            return self._again(step)
        except SinkFailedError as error:
            if reason_of(error) is not LOCKED:
                raise
            holders = ""
            with contextlib.suppress(*DATABASE_ERRORS), self._session() as database:
                holders = holders_of(self._table, database)
            raise SinkFailedError(
                f"{error.found}{holders}", cause=error.cause, remedy=error.remedy
            ) from error.__cause__

    @contextlib.contextmanager
    def _session(self, *, starts: bool = False) -> Iterator[Transaction]:
        """starts: as a part of a start, whose waits have a limit."""
        with self._lock, session(self._connect, self._names, self._paramstyle) as database:
            if starts and self._patience_s > 0:
                database.limit_waits(self._patience_s)
            yield database

    def _bad_row(self, batch_id: int, found: str) -> FlowFailedError:
        return FlowFailedError(
            f"UpsertSink, micro-batch {batch_id}: {found}",
            cause="An upsert needs a key in every row, and one row per key and micro-batch.",
            remedy="Let the flow give one row per key, or make the column that tells them apart a part of the key.",
        )
