"""TableSink: the part of DeltaSink and IcebergSink that is the same. A table holds every record of the closed epochs
once.

Spark's tasks write a micro-batch's Parquet files to their final place below the table, where no commit names them yet.
Nothing is copied or renamed later, so an object store serves as well as a disk. In the order of events:

1. `write`: files under `recovery-<store>/<execution>/<micro-batch>-<random>/`. Each file that a task reports must be
there.
2. `prepare`: make the epoch's files durable. The note in the partitions lists the files.
3. `publish`: one commit adds the files.
4. `rollback`, when a run starts: in one commit, take back what abandoned epochs committed, and make this execution the
   output's owner, so that no other one commits any more; then commit what the note lists, if that was not done.

An abandoned epoch's files are removed from the table by a commit of their own, and rows of others stay. Where that is
impossible, since somebody compacted the files or they were merged, a commit restores the version before; this needs
that nobody else has changed rows since. No history is deleted. Files that no commit names are left to the table's own
maintenance.

Before 2 to 4 change anything, the sink looks whether somebody else has changed the table: `docs/delta.md` lists what is
asked, and `answers` of each sink how the format answers.

The crash points are 1: written, 2: prepared, 3 and 4: before and after the commit with which a run begins.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from recovery.base import faults
from recovery.base.ids import Epoch
from recovery.base.untrusted_json import decode_json
from recovery.errors import ConfigurationError, OutputLostError, OutputMismatchError, RecoveryError
from recovery.hadoop.reports import host_of_task
from recovery.hadoop.writing import write_files
from recovery.planning.timeline import TimelinePart
from recovery.sinks.protocol import EpochOutput, Resume
from recovery.sinks.tables.columns import fields_of, nullable
from recovery.sinks.tables.commits import AddedFile, Change, Mark, Proposal, Record, files_of, start_of
from recovery.sinks.tables.log import TableLog
from recovery.sinks.tables.takeback import plan_take_back
from recovery.sinks.targets import said, target_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TableNote(msgspec.Struct, frozen=True):
    """What the partitions hold for an epoch. table: its identity, empty if there was none. once: the mark of the
    epoch's commit. before: that of the newest earlier epoch that had rows, None if there was none."""

    table: str
    record: Record
    once: Mark
    files: tuple[AddedFile, ...]
    before: Mark | None

    @property
    def last(self) -> Mark | None:
        """The mark of the newest commit up to this epoch."""
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
        self._last: Mark | None = None
        self._note: TableNote | None = None
        self._table = ""
        self._total = 0
        self._looked = 0

    @property
    def keeps_plan(self) -> bool:
        """Whether `write` runs the micro-batch's plan unchanged, as far as is known after `check`."""
        return not self.partition_by

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
        self._table, self._total = "", 0
        with self._translated():
            table, note, resume = self._plan(resume)
            self._resume = resume
            self._last = None if note is None else note.last
            if table is None:
                return
            self._table = self._log.identity(table)
            waits = note is not None and self._waits(table, resume, note)
            given_up = resume.accepts_loss and waits and note is not None and bool(self._lost(note.files))
            faults.reach(self.points[2])
            self._claim(note, given_up=given_up)
            faults.reach(self.points[3])
            if note is not None and note.files and not given_up:
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
        divided, columns = self._divided(batch)
        write_files(divided, address, "parquet", {**_PARQUET, **self._options}, columns)
        with self._translated():
            self._files[batch_id] = self._log.written(directory, partial(host_of_task, batch))
        faults.reach(self.points[0])

    def _divided(self, batch: DataFrame) -> tuple[DataFrame, Sequence[str]]:
        """Return the rows to write, and the columns by whose values they are divided into files."""
        return batch, self.partition_by

    def prepare(self, output: EpochOutput) -> str:
        """Make the epoch's files durable; see `EpochSink`."""
        batches = sorted(batch for batch in list(self._files) if batch <= output.batch)
        files = tuple(file for batch in batches for file in self._files[batch])
        once = output.app_id, output.version
        first, last = batches[0] if batches else 0, output.batch
        total = self._total + (self._number_of(files) or bool(files))
        number = self._number_of(files)
        record = Record(
            output.store_id, output.execution.id, output.epoch, first, last, number, total=total,
            formers=self.resume.formers,
        )  # fmt: skip
        with self._translated():
            table = self._log.open()
            if self._last is not None:
                self._check_same(table, self._table, "this run began with")
            if files:
                assert self._schema is not None
                if table is None:
                    self._log.create(self._schema, self.partition_by)
                    table = self._log.open()
                self._check_fits(table, self._schema)
                self._check_rows(table, files)
                self._log.sync_files([file.path for file in files])
            self._table = "" if table is None else self._log.identity(table)
            self._note = TableNote(self._table, record, once, files, self._last)
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
        self._last, self._total = note.last, note.record.total
        for batch in [batch for batch in list(self._files) if batch <= output.batch]:
            del self._files[batch]

    def _publish(self, note: TableNote) -> None:
        """Commit the epoch of a note, unless this was done already."""
        record = note.record
        marks = ((files_of(record.store, record.execution), record.total),)

        def propose(table: Any) -> Proposal:
            self._check_same(table, note.table, f"epoch {record.epoch} was closed for")
            if self._log.touched(table, self.resume, self._looked):
                plan_take_back(self._log, table, self._now(note), record)
            self._looked = self._log.version(table)
            self._check_files(note)
            return Proposal(record, self._change(note), marks)

        self._log.commit(self.resume, note.once, propose)

    def _now(self, note: TableNote) -> Resume:
        """Return where an execution would start that goes on from the epoch before the note's."""
        resume, epoch = self.resume, note.record.epoch
        own = TimelinePart(resume.execution, resume.epoch, Epoch(epoch - 1))
        return replace(resume, epoch=Epoch(epoch), timeline=(*resume.timeline, own), accepts_loss=False)

    def _change(self, note: TableNote) -> Change:
        """Return the commit of a note."""
        return self._log.append(note.files, self.partition_by)

    def _number_of(self, files: Sequence[AddedFile]) -> int:
        """How many files the commit of an epoch with these files adds."""
        return len(files)

    def _check_rows(self, table: Any, files: Sequence[AddedFile]) -> None:
        """Raise if rows of an epoch cannot be committed."""

    def _claim(self, note: TableNote | None = None, *, given_up: bool = False) -> None:
        """Take back what is abandoned, and commit that this execution owns the output.

        given_up: the rows of the note's epoch are lost, and count as committed.
        """
        resume = self.resume

        def propose(table: Any) -> Proposal:
            plan = plan_take_back(self._log, table, resume, None if note is None else note.record)
            self._looked = self._log.version(table)
            accepts = plan.accepts or given_up
            record = Record(
                resume.store_id, resume.execution.id, taken_back=plan.taken_back, accepts=accepts,
                formers=resume.formers,
            )  # fmt: skip
            lost = (note.once,) if note is not None and given_up else ()
            return Proposal(record, plan.change(self._log), (*plan.marks, *lost))

        once = start_of(resume.store_id, resume.execution.id), resume.execution.number
        self._resume = self._log.commit(resume, once, propose, claims=True)

    def _plan(self, resume: Resume) -> tuple[Any, TableNote | None, Resume]:
        """Return the table, the note to continue from, and where the execution starts. Changes nothing.

        Raises OutputMismatchError if the table is not the one in which the snapshot's output is, or if somebody changed
        it so that the run cannot go on; OutputLostError if files of the newest closed epoch are gone.
        """
        note = self._note_of(resume)
        table = self._log.open()
        if self._fresh and note is not None and (table is None or self._log.identity(table) != note.table):
            note = None
        if note is not None and note.last is not None:
            self._check_same(table, note.table, "earlier epochs wrote to")
        if table is None:
            return None, note, resume
        resume = self._log.taking(table, resume)
        self._log.check_able(table, self.partition_by, merges=bool(self.key))
        plan_take_back(self._log, table, resume, None if note is None else note.record)
        self._log.check(table, self._log.successor(table, resume))
        if note is not None and note.before and not self._log.committed(table, resume, note.before):
            raise self._mismatch("the table is older than the snapshot: it lacks the output of an earlier epoch")
        if note is not None and self._waits(table, resume, note):
            self._check_files(note, resume)
        return table, note, resume

    def _note_of(self, resume: Resume) -> TableNote | None:
        """Return the note that a start has; None: there is none, or a new table begins after another kind of sink.
        Raises OutputMismatchError."""
        if resume.note is None:
            return None
        try:
            return decode_json(
                resume.note,
                lambda _why: self._mismatch("the flow's output so far was written by another kind of sink"),
                TableNote,
            )
        except OutputMismatchError:
            if not self._fresh:
                raise
            return None

    def _waits(self, table: Any, resume: Resume, note: TableNote) -> bool:
        """Whether the note has rows that are not committed yet."""
        return bool(note.files) and not self._log.committed(table, resume, note.once)

    def _check_same(self, table: Any, identity: str, which: str) -> None:
        """Raise OutputMismatchError unless the table has this identity."""
        if table is None or self._log.identity(table) != identity:
            other = "there is no table" if table is None else "it is another table than the one"
            raise self._mismatch(f"{other} that {which}")

    def _lost(self, files: Sequence[AddedFile]) -> dict[str, int | None]:
        """Return the files that are missing or have another size, with the size that they have."""
        sizes = self._log.sizes([file.path for file in files])
        return {file.path: sizes.get(file.path) for file in files if sizes.get(file.path) != file.size_bytes}

    def _check_files(self, note: TableNote, resume: Resume | None = None) -> None:
        """Raise OutputLostError unless all files of a closed epoch are there. resume: says whether the user accepts
        that files are missing."""
        lost = self._lost(note.files)
        if not lost:
            return
        (path, size), epoch = min(lost.items()), note.record.epoch
        has = "is gone" if size is None else f"has {size} bytes, and not those that were written"
        found = (
            f"{len(lost)} of the {len(note.files)} files of closed epoch {epoch}, which is not in the table yet, are "
            f"not there as they were written: {path} {has}"
        )
        if resume is not None and resume.accepts_loss:
            resume.say(f"{self._log.name}: {found}; the rows of epoch {epoch} are lost")
            return
        raise OutputLostError(
            found,
            path=self._log.name,
            cause="Maintenance removed files that no commit named yet (VACUUM, remove_orphan_files), with a retention "
            "shorter than the flow stood still.",
            remedy=f"Put the files back; or go back to the epoch before, and compute it again: --resume-after "
            f"{epoch - 1}. --lose-epochs goes on without the rows of epoch {epoch}.",
        )

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
                self._check_fits(table, schema)
        self._schema = schema

    def _check_fits(self, table: Any, schema: str) -> None:
        self._log.check_able(table, self.partition_by, merges=bool(self.key))
        self._log.check_fits(table, schema)

    def _mismatch(self, found: str) -> OutputMismatchError:
        return OutputMismatchError(
            found,
            path=self._log.name,
            remedy="Put the flow's own table or former sink back, or give fresh=True to begin a new table that has the "
            "epochs from now on.",
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
            found = f"the {self._log.kind} table {self._log.name}: {type(error).__name__}: {said(error)}"
            raise target_error(error, found) from error
