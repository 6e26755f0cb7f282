"""TableSink: the part of DeltaSink and IcebergSink that is the same. A table holds every record of the closed epochs
once.

Spark's tasks write a micro-batch's Parquet files to their final place below the table, where no commit names them yet.
Nothing is copied or renamed later, so an object store serves as well as a disk. In the order of events:

1. `write`: files under `recovery-<store>/<execution>/<micro-batch>-<random>/`. Each that a task reports must be there.
2. `prepare`: make the epoch's files durable. The note in the partitions lists them.
3. `publish`: one commit adds them.
4. `rollback`, when a run starts: in one commit, take back what abandoned epochs committed, and make this execution the
   output's owner, so that no other one commits any more; then commit what the note lists, if that was not done.

An abandoned epoch's files are removed from the table by a commit of their own, and rows of others stay. Where that is
impossible, since somebody compacted the files or they were merged, a commit restores the version before; this needs
that nobody else has changed rows since. No history is deleted. Files that no commit names are left to the table's own
maintenance.

The crash points are 1: written, 2: prepared, 3 and 4: before and after the commit with which a run begins.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from recovery.base import faults
from recovery.base.untrusted_json import decode_json
from recovery.errors import ConfigurationError, OutputMismatchError, RecoveryError, SinkFailedError
from recovery.hadoop.reports import host_of_task
from recovery.hadoop.writing import write_files
from recovery.sinks.protocol import EpochOutput, Resume
from recovery.sinks.tables.columns import fields_of, nullable
from recovery.sinks.tables.log import AddedFile, Change, Record, TableLog, start_of
from recovery.sinks.tables.takeback import TakeBack, plan_take_back

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Note(msgspec.Struct, frozen=True):
    """What the partitions hold for an epoch. once: application and version of its commit. before: those of the newest
    earlier epoch that had rows, None if there was none."""

    table: str
    record: Record
    once: tuple[str, int]
    files: tuple[AddedFile, ...]
    before: tuple[str, int] | None

    @property
    def last(self) -> tuple[str, int] | None:
        """Application and version of the newest commit up to this epoch."""
        return self.once if self.files else self.before


class TableSink:
    """An EpochSink that writes to a table of a format that has atomic commits.

    key: columns that each row must have. fresh: begin a new table although the flow's earlier output is in another.
    """

    single_action = True
    points: ClassVar[tuple[str, str, str, str]]
    """The names of the crash points."""
    partition_types: ClassVar[frozenset[str]] = frozenset()
    """The types that a partition column may have."""

    def __init__(
        self,
        log: TableLog,
        *,
        key: tuple[str, ...] = (),
        partition_by: tuple[str, ...] = (),
        options: Mapping[str, Any] | None = None,
        fresh: bool = False,
    ) -> None:
        self.key, self.partition_by = key, partition_by
        self._options = {name: str(value) for name, value in (options or {}).items()}
        self._log = log
        self._fresh = fresh
        self._resume: Resume | None = None
        self._files: dict[int, list[AddedFile]] = {}
        self._schema: str | None = None
        self._last: tuple[str, int] | None = None
        self._note: Note | None = None

    @property
    def resume(self) -> Resume:
        """Where the execution started."""
        assert self._resume is not None, "rollback comes first"
        return self._resume

    def check(self, resume: Resume) -> None:
        """Raise if `rollback` would be impossible; see `EpochSink`."""
        with self._translated():
            self._plan(resume)

    def rollback(self, resume: Resume) -> None:
        """Leave the rows of the closed epochs in the table, and no others; see `EpochSink`."""
        self._resume, self._files, self._schema, self._note = resume, {}, None, None
        with self._translated():
            table, note, self._resume = self._plan(resume)
            self._last = None if note is None else note.last
            if table is None:
                return
            faults.reach(self.points[2])
            self._claim()
            faults.reach(self.points[3])
            if note is not None and note.files:
                self._publish(note)

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Write the micro-batch's files, which no commit names yet; see `EpochSink`."""
        schema = nullable(batch.schema.json())
        if schema != self._schema:
            self._check_schema(schema)
        # A name that no earlier attempt has used: Spark writes only where nothing is.
        name = f"{batch_id:08}-{secrets.token_hex(4)}"
        directory = f"recovery-{self.resume.store_id}/{self.resume.execution.id}/{name}"
        address = f"{self._log.address()}/{directory}"
        write_files(batch, address, "parquet", {**_PARQUET, **self._options}, self.partition_by)
        with self._translated():
            self._files[batch_id] = self._log.written(directory, partial(host_of_task, batch))
        faults.reach(self.points[0])

    def prepare(self, output: EpochOutput) -> str:
        """Make the epoch's files durable; see `EpochSink`."""
        batches = sorted(batch for batch in list(self._files) if batch <= output.batch)
        files = tuple(file for batch in batches for file in self._files[batch])
        once = output.app_id, output.version
        first, last = batches[0] if batches else 0, output.batch
        record = Record(
            output.store_id, output.execution.id, output.epoch, first, last, self._number_of(files),
            formers=self.resume.formers,
        )  # fmt: skip
        with self._translated():
            table = self._log.open()
            if files:
                assert self._schema is not None
                if table is None:
                    self._log.create(self._schema, self.partition_by)
                    table = self._log.open()
                self._log.check_fits(table, self._schema, self.partition_by)
                self._check_rows(files)
                self._log.sync_files([file.path for file in files])
            identity = "" if table is None else self._log.identity(table)
            self._note = Note(identity, record, once, files, self._last)
        faults.reach(self.points[1])
        return msgspec.json.encode(self._note).decode()

    def publish(self, output: EpochOutput) -> None:
        """Commit the rows of a closed epoch; see `EpochSink`."""
        note = self._note
        if note is None:
            return
        with self._translated():
            if note.files:
                self._publish(note)
        self._last = note.last
        for batch in [batch for batch in list(self._files) if batch <= output.batch]:
            del self._files[batch]

    def _publish(self, note: Note) -> None:
        """Commit the epoch of a note, unless this was done already."""
        self._log.commit(self.resume, note.once, lambda _: (note.record, self._change(note)))

    def _change(self, note: Note) -> Change:
        """Return the commit of a note."""
        return self._log.append(note.files, self.partition_by)

    def _number_of(self, files: Sequence[AddedFile]) -> int:
        """How many files the commit of an epoch with these files adds."""
        return len(files)

    def _check_rows(self, files: Sequence[AddedFile]) -> None:
        """Raise if rows of an epoch cannot be committed."""

    def _claim(self) -> None:
        """Take back what is abandoned, and commit that this execution owns the output."""
        resume = self.resume

        def propose(table: Any) -> tuple[Record, Change]:
            plan = self._plan_take_back(table, resume)
            record = Record(resume.store_id, resume.execution.id, taken_back=plan.taken_back, formers=resume.formers)
            return record, plan.change(self._log)

        once = start_of(resume.store_id, resume.execution.id), resume.execution.number
        self._resume = self._log.commit(resume, once, propose, claims=True)

    def _plan(self, resume: Resume) -> tuple[Any, Note | None, Resume]:
        """Return the table, the note to continue from, and where the execution starts. Changes nothing. Raises
        OutputMismatchError if it is not the table in which the snapshot's output is."""
        note = None
        if resume.note is not None:
            note = decode_json(
                resume.note, lambda why: self._mismatch(f"the note of the sink is unreadable: {why}"), Note
            )
        table = self._log.open()
        if self._fresh and note is not None and (table is None or self._log.identity(table) != note.table):
            note = None
        earlier = None if note is None or note.last is None else note
        if earlier is not None and (table is None or self._log.identity(table) != earlier.table):
            other = "there is no table" if table is None else "it is another table than the one"
            raise self._mismatch(f"{other} that earlier epochs wrote to")
        if table is None:
            return None, note, resume
        resume = self._log.taking(table, resume)
        self._plan_take_back(table, resume)
        self._log.check(table, self._log.successor(table, resume))
        if earlier and earlier.before and not self._log.committed(table, resume, earlier.before):
            raise self._mismatch("the table is older than the snapshot: it lacks the output of an earlier epoch")
        return table, note, resume

    def _plan_take_back(self, table: Any, resume: Resume) -> TakeBack:
        history = list(self._log.history(table))
        self._log.check_history(table, history, resume)
        return plan_take_back(self._log, table, history, resume)

    def _check_schema(self, schema: str) -> None:
        kind, fields = self._log.kind, fields_of(schema)
        for name in (*self.key, *self.partition_by):
            if name not in fields:
                raise ConfigurationError(
                    f"{kind}Sink: the flow's output has no column {name!r}", remedy=f"It has {', '.join(fields)}."
                )
        for name, each in fields.items():
            if not self._log.has_type(each):
                raise ConfigurationError(
                    f"{kind}Sink: column {name!r} has the type {each}, which {kind} does not have",
                    remedy="Cast it in the flow, for example to a string.",
                )
        for name in self.partition_by:
            if fields[name] not in self.partition_types:
                raise ConfigurationError(
                    f"{kind}Sink: the partition column {name!r} has the type {fields[name]}",
                    remedy=f"Cast it to one of {', '.join(sorted(self.partition_types))}.",
                )
        with self._translated():
            table = self._log.open()
            if table is not None:
                self._log.check_fits(table, schema, self.partition_by)
        self._schema = schema

    def _mismatch(self, found: str) -> OutputMismatchError:
        return OutputMismatchError(
            found,
            path=self._log.name,
            remedy="Put the flow's own table back, or give fresh=True to begin a new one that has the epochs from now "
            "on.",
        )

    def _translated(self) -> _Translated:
        return _Translated(self._log)


_PARQUET = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


class _Translated:
    """Context manager that turns errors of a format's library and of the file system into this package's errors."""

    def __init__(self, log: TableLog) -> None:
        self._log = log

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, RecoveryError | AssertionError):
            raise SinkFailedError(
                f"the {self._log.kind} table {self._log.name}: {type(error).__name__}: {error}"
            ) from error
