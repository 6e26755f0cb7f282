"""DeltaSink: a Delta table that holds every record of the closed epochs once.

Spark's tasks write a micro-batch's Parquet files to their final place below the table, where no commit names them yet.
Nothing is copied or renamed later, so an object store serves as well as a disk. In the order of events:

1. `write`: files under `recovery-<store>/<execution>/<micro-batch>/`.
2. `prepare`: make the epoch's files durable. The note in the partitions lists them.
3. `publish`: one commit adds them (mode "append") or merges their rows (mode "merge").
4. `rollback`, when a run starts: commit what the note lists, if that was not done; take back what abandoned epochs
   committed; commit that this execution owns the output now.

An abandoned epoch's files are removed from the table by a commit of their own, and rows of others stay. Where that is
impossible, since somebody compacted the files or they were merged, a commit restores the version before; this needs
that nobody else has changed rows since. No history is deleted. Files that no commit names are left to VACUUM.

The names delta.1 to delta.4 are crash points.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import msgspec

from recovery.base import faults
from recovery.base.untrusted_json import decode_json
from recovery.errors import ConfigurationError, OutputMismatchError, RecoveryError, SinkFailedError
from recovery.sinks.delta.merge import check_keys, merge_rows, newest_rows
from recovery.sinks.delta.table import (
    AddedFile,
    DeltaLog,
    Record,
    check_table,
    nullable,
    spark_uri,
    statistics,
)
from recovery.sinks.delta.takeback import TakeBack, plan_take_back
from recovery.sinks.protocol import EpochOutput, Resume

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARTITION_TYPES = {"string", "byte", "short", "integer", "long", "boolean", "date"}
_TYPES = {*_PARTITION_TYPES, "float", "double", "binary", "timestamp", "timestamp_ntz"}
_NULL = "__HIVE_DEFAULT_PARTITION__"


class _Note(msgspec.Struct, frozen=True):
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


class DeltaSink:
    """An EpochSink that writes to a Delta table, through the package `deltalake`.

    uri: a local path, or an address that both Spark and `deltalake` reach, such as s3://bucket/table. The table is
        created with the first rows if it does not exist.
    mode: "append", or "merge": a row replaces the row with the same `key`.
    key: the columns of the key, for mode "merge". Every row has a key, and in a micro-batch each key comes once.
    partition_by: the table's partition columns; for mode "append".
    options: options of Spark's Parquet writer, such as {"compression": "zstd"}.
    storage_options: credentials and settings of `deltalake` for an object store. Spark has its own.
    fresh: begin a new table although the flow's earlier output is in another.
    """

    single_action = True

    def __init__(
        self,
        uri: str | os.PathLike[str],
        mode: Literal["append", "merge"] = "append",
        *,
        key: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> None:
        if mode not in ("append", "merge"):
            raise ConfigurationError(f"DeltaSink: mode={mode!r}", remedy="Use 'append' or 'merge'.")
        self.key, self.partition_by = _names(key), _names(partition_by)
        if (mode == "merge") != bool(self.key) or (mode == "merge" and self.partition_by):
            raise ConfigurationError(
                f"DeltaSink: mode={mode!r} with key={self.key} and partition_by={self.partition_by}",
                remedy="Give key=[...] with mode='merge' alone, and partition_by=[...] with mode='append' alone.",
            )
        try:
            import deltalake  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                f"DeltaSink needs the package deltalake: {error}", remedy="pip install 'recovery[delta]'"
            ) from error
        text = os.fspath(uri)
        self.uri = text if "://" in text else os.path.abspath(text)  # noqa: PTH100 - a Path would resolve "://" too
        self.mode = mode
        self._options = {name: str(value) for name, value in (options or {}).items()}
        self._log = DeltaLog(self.uri, storage_options or {})
        self._fresh = fresh
        self._resume: Resume | None = None
        self._files: dict[int, list[AddedFile]] = {}
        self._schema: str | None = None
        self._last: tuple[str, int] | None = None
        self._note: _Note | None = None

    def __repr__(self) -> str:
        key = f", key={list(self.key)!r}" if self.key else ""
        return f"DeltaSink({self.uri!r}, mode={self.mode!r}{key})"

    def check(self, resume: Resume) -> None:
        """Raise if `rollback` would be impossible; see `EpochSink`."""
        with _translated(self.uri):
            self._plan(resume)

    def rollback(self, resume: Resume) -> None:
        """Leave the rows of the closed epochs in the table, and no others; see `EpochSink`."""
        self._resume, self._files, self._schema, self._note = resume, {}, None, None
        with _translated(self.uri):
            table, note, plan = self._plan(resume)
            self._last = None if note is None else note.last
            if table is None:
                return
            if note is not None and note.files:
                self._publish(note)
            faults.reach("delta.3")
            record = Record(resume.store_id, resume.execution.id, taken_back=plan.taken_back)
            once = f"recovery-{resume.store_id}-{resume.execution.id}-start", 1
            self._log.commit(resume, plan.undo, record, once)
            faults.reach("delta.4")

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Write the micro-batch's files, which no commit names yet; see `EpochSink`."""
        assert self._resume is not None, "rollback comes first"
        schema = nullable(batch.schema.json())
        if schema != self._schema:
            self._check_schema(schema)
        directory = self._directory(batch_id)
        writer = batch.write.options(**{**_PARQUET, **self._options}, **_COMMITTER)
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        writer.mode("overwrite").parquet(f"{spark_uri(self.uri)}/{directory}")
        with _translated(self.uri):
            self._files[batch_id] = self._written(directory)
        faults.reach("delta.1")

    def prepare(self, output: EpochOutput) -> str:
        """Make the epoch's files durable; see `EpochSink`."""
        batches = sorted(batch for batch in list(self._files) if batch <= output.batch)
        files = tuple(file for batch in batches for file in self._files[batch])
        once = output.app_id, output.version
        record = Record(
            output.store_id,
            output.execution.id,
            output.epoch,
            batches[0] if batches else 0,
            output.batch,
            len(files) if self.mode == "append" else 0,
        )
        with _translated(self.uri):
            table = self._log.open()
            if files:
                assert self._schema is not None
                if table is None:
                    self._log.create(self._schema, self.partition_by)
                    table = self._log.open()
                check_table(table, self.uri, self.partition_by, self._schema)
                if self.mode == "merge":
                    check_keys(self._log.files(), files, self.key)
                self._log.sync_files([file.path for file in files])
            self._note = _Note("" if table is None else str(table.metadata().id), record, once, files, self._last)
        faults.reach("delta.2")
        return msgspec.json.encode(self._note).decode()

    def publish(self, output: EpochOutput) -> None:
        """Commit the rows of a closed epoch; see `EpochSink`."""
        note = self._note
        if note is None:
            return
        with _translated(self.uri):
            if note.files:
                self._publish(note)
        self._last = note.last
        for batch in [batch for batch in list(self._files) if batch <= output.batch]:
            del self._files[batch]

    def _publish(self, note: _Note) -> None:
        """Commit the epoch of a note, unless this was done already."""
        assert self._resume is not None

        def append(table: Any, properties: Any) -> None:
            from deltalake.transaction import AddAction

            added = [
                AddAction(each.path, each.size_bytes, each.partition, each.modified_ms, True, statistics(each.rows))
                for each in note.files
            ]
            table.create_write_transaction(
                added, "append", table.schema(), partition_by=list(self.partition_by) or None,
                commit_properties=properties,
            )  # fmt: skip

        def merge(table: Any, properties: Any) -> None:
            merge_rows(table, newest_rows(self._log.files(), note.files, self.key), self.key, properties)

        self._log.commit(self._resume, append if self.mode == "append" else merge, note.record, note.once)
        if self.mode == "merge":
            for directory in {PurePosixPath(file.path).parent for file in note.files}:
                self._log.remove_directory(str(directory))

    def _plan(self, resume: Resume) -> tuple[Any, _Note | None, TakeBack]:
        """Return the table, the note to continue from, and what has to be taken back. Changes nothing."""
        note = None
        if resume.note is not None:
            note = decode_json(
                resume.note, lambda why: _mismatch(self.uri, f"the note of the sink is unreadable: {why}"), _Note
            )
        table = self._log.open()
        if self._fresh and note is not None and (table is None or str(table.metadata().id) != note.table):
            note = None
        if note is not None and note.last is not None:
            self._check_note(table, note)
        if table is None:
            return None, note, TakeBack()
        self._log.check_owner(table, resume)
        return table, note, plan_take_back(table, self._log.history(table), resume, self.uri)

    def _check_note(self, table: Any, note: _Note) -> None:
        """Raise if the table is not the one in which the snapshot's output is."""
        if table is None or str(table.metadata().id) != note.table:
            raise _mismatch(
                self.uri,
                "there is no table"
                if table is None
                else "it is another table than the one that earlier epochs wrote to",
            )
        if note.before is not None and (table.transaction_version(note.before[0]) or 0) < note.before[1]:
            raise _mismatch(self.uri, "the table is older than the snapshot: it lacks the output of an earlier epoch")

    def _check_schema(self, schema: str) -> None:
        fields = {field["name"]: field["type"] for field in msgspec.json.decode(schema)["fields"]}
        for name in (*self.key, *self.partition_by):
            if name not in fields:
                raise ConfigurationError(
                    f"DeltaSink: the flow's output has no column {name!r}", remedy=f"It has {', '.join(fields)}."
                )
        for name, kind in fields.items():
            if not _is_delta_type(kind):
                raise ConfigurationError(
                    f"DeltaSink: column {name!r} has the type {kind}, which Delta does not have",
                    remedy="Cast it in the flow, for example to a string.",
                )
        for name in self.partition_by:
            if fields[name] not in _PARTITION_TYPES:
                raise ConfigurationError(
                    f"DeltaSink: the partition column {name!r} has the type {fields[name]}",
                    remedy=f"Cast it to one of {', '.join(sorted(_PARTITION_TYPES))}.",
                )
        with _translated(self.uri):
            table = self._log.open()
            if table is not None:
                check_table(table, self.uri, self.partition_by, schema)
        self._schema = schema

    def _directory(self, batch_id: int) -> str:
        assert self._resume is not None
        return f"recovery-{self._resume.store_id}/{self._resume.execution.id}/{batch_id:08}"

    def _written(self, directory: str) -> list[AddedFile]:
        """Return the files with rows that a micro-batch has written."""
        import pyarrow.parquet as pq
        from pyarrow.fs import FileSelector, FileType

        files, found = self._log.files(), []
        for info in files.get_file_info(FileSelector(directory, recursive=True, allow_not_found=True)):
            if (
                info.type == FileType.File
                and info.path.endswith(".parquet")
                and not info.base_name.startswith(("_", "."))
            ):
                with files.open_input_file(info.path) as opened:
                    rows = pq.read_metadata(opened).num_rows
                if rows:
                    modified_ms = int((info.mtime_ns or 0) // 1_000_000)
                    path = PurePosixPath(info.path)
                    partition = dict(_partition_value(part) for part in path.parts[3:-1])
                    found.append(AddedFile(str(path), info.size, rows, modified_ms, partition))
        return sorted(found, key=lambda file: file.path)


_COMMITTER = {
    # Version 2 shows a task's files before the job is done; nothing here reads the marker file.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
_PARQUET = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


def _is_delta_type(kind: Any) -> bool:
    """Whether Delta has a type of Spark's, in the form of a schema's JSON."""
    if isinstance(kind, str):
        return kind in _TYPES or kind.startswith("decimal(")
    parts = [field["type"] for field in kind.get("fields", [])]
    parts += [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
    return kind.get("type") in ("struct", "array", "map") and all(map(_is_delta_type, parts))


def _partition_value(part: str) -> tuple[str, str | None]:
    name, _, value = part.partition("=")
    return unquote(name), None if value == _NULL else unquote(value)


def _names(names: Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _mismatch(uri: str, found: str) -> OutputMismatchError:
    return OutputMismatchError(
        found,
        path=uri,
        remedy="Put the flow's own table back, or give fresh=True to begin a new one that has the epochs from now on.",
    )


class _translated:  # noqa: N801 - reads as a phrase
    """Context manager that turns errors of `deltalake` and of the file system into this package's errors."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, RecoveryError | AssertionError):
            raise SinkFailedError(f"the Delta table {self._uri}: {type(error).__name__}: {error}") from error
