"""What DeltaSink does to a Delta table: read its history, and commit under the name of one execution.

Each commit carries two application transactions. One names the output, so that it is committed once. The other names
the store, with the number of the execution: of two commits that carry the same one, Delta refuses the later unless it
has seen the earlier. So an execution whose successor has begun cannot commit any more.

Each commit also records in its metadata what it did (`Record`). By these records a run finds what it has to take back.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from recovery.base.untrusted_json import decode_json
from recovery.errors import ConfigurationError, LeaseLostError, OutputMismatchError
from recovery.host.durable import sync
from recovery.sinks.protocol import Resume

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

RECORD = "recovery"
"""The field of a commit's metadata that holds its record."""
_HARMLESS = {"OPTIMIZE", "VACUUM START", "VACUUM END", "FSCK"}
"""Operations of others that change no row."""
_KNOWN_FEATURES = {"appendOnly", "invariants", "timestampNtz", "changeDataFeed", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of a table that files written by Spark fit without further ado."""
TAKEN_OVER = 2**62
"""In place of the number of a store's newest execution: another store has taken its place."""
_ATTEMPTS = 5


class AddedFile(msgspec.Struct, frozen=True):
    """A Parquet file of the table. path: below the table. modified_ms: milliseconds since 1970."""

    path: str
    size_bytes: int
    rows: int
    modified_ms: int
    partition: dict[str, str | None] = {}


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one of the sink's commits did: it committed an epoch, began an execution, or took epochs back.

    first_batch, last_batch: the micro-batches of the epoch. files: how many files it added; 0 if it merged rows.
    taken_back: execution and epoch of each commit whose rows this one removed.
    """

    store: str
    execution: str
    epoch: int = 0
    first_batch: int = 0
    last_batch: int = 0
    files: int = 0
    taken_back: tuple[tuple[str, int], ...] = ()


class Commit(msgspec.Struct, frozen=True):
    """A version of the table. record: None if somebody else made it. harmless: whether it changed no row."""

    version: int
    record: Record | None
    harmless: bool


class DeltaLog:
    """One Delta table. uri: a local path, a share as file:///path, or an address that `deltalake` knows."""

    def __init__(self, uri: str, storage_options: Mapping[str, str]) -> None:
        self.uri = uri
        local = uri.removeprefix("file://")
        self.local = None if "://" in local else Path(local)
        self._options = dict(storage_options)

    def open(self) -> Any | None:
        """Return the newest version of the table (a `deltalake.DeltaTable`), or None if there is no table."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self.uri, storage_options=self._options or None)
        except TableNotFoundError:
            return None

    def create(self, schema: str, partition_by: Sequence[str]) -> None:
        """Create an empty table, unless it exists. schema: as JSON, which Delta and Spark write alike."""
        from deltalake import DeltaTable, Schema

        DeltaTable.create(
            self.uri,
            schema=Schema.from_json(schema),
            partition_by=list(partition_by) or None,
            mode="ignore",
            storage_options=self._options or None,
        )
        self._sync_log()

    def files(self) -> FileSystem:
        """Return the file system below the table."""
        from pyarrow.fs import LocalFileSystem, PyFileSystem, SubTreeFileSystem

        if self.local is not None:
            return SubTreeFileSystem(str(self.local), LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return PyFileSystem(DeltaStorageHandler(self.uri, self._options or None))

    def commit(self, resume: Resume, attempt: Callable[[Any, Any], None], record: Record, once: tuple[str, int]) -> Any:
        """Commit in the name of an execution, unless this was done already; return the table as it is then.

        attempt: is called with the table and the properties of the commit. once: application and version that name
        what is committed. Raises LeaseLostError if a later execution has begun.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        app, owners = Transaction(*once), [Transaction(_owner(resume.store_id), resume.execution.number)]
        owners += [Transaction(_owner(former), TAKEN_OVER) for former in resume.stores[1:]]
        for left in reversed(range(_ATTEMPTS)):
            table = self.open()
            if table is None:
                raise OutputMismatchError(
                    "the table is gone", path=self.uri, cause="Somebody removed it during the run."
                )
            self.check_owner(table, resume)
            known = table.transaction_version(app.app_id)
            if known is not None and known >= app.version:
                return table
            properties = CommitProperties(
                custom_metadata={RECORD: msgspec.json.encode(record).decode()},
                app_transactions=[app, *owners],
            )
            try:
                attempt(table, properties)
            except CommitFailedError:
                if not left:
                    raise
                continue
            self._sync_log(table.version())
            return self.open()
        raise AssertionError

    def check_owner(self, table: Any, resume: Resume) -> None:
        """Raise LeaseLostError if a later execution of the store has begun to write to the table, and
        OutputMismatchError if a store that takes its place has."""
        number = table.transaction_version(_owner(resume.store_id))
        if number == TAKEN_OVER:
            raise OutputMismatchError(
                "a store that this one was repartitioned to writes to the table",
                path=self.uri,
                cause="The flow was run on the new recovery directory, and then on the old one.",
                remedy="Run it on the new one, or write to a table of its own.",
            )
        if number is not None and number > resume.execution.number:
            raise LeaseLostError(f"execution {number} writes to the table now", path=self.uri)

    def history(self, table: Any) -> Iterator[Commit]:
        """Yield the table's commits, newest first, as far back as its log goes."""
        for entry in table.history():
            text = entry.get(RECORD)
            record = None if text is None else decode_json(text, self._unreadable, Record)
            yield Commit(entry["version"], record, entry.get("operation") in _HARMLESS)

    def _unreadable(self, why: str) -> OutputMismatchError:
        return OutputMismatchError(
            f"a commit of the table has a record that is not one of this package: {why}", path=self.uri
        )

    def _sync_log(self, after: int = -1) -> None:
        """Make a local table's log durable from the version behind `after` on. Object stores are so by themselves."""
        if self.local is not None:
            log = self.local / "_delta_log"
            for each in log.glob("*.json"):
                if each.stem.isdecimal() and int(each.stem) > after:
                    sync(each)
            for directory in (log, self.local, self.local.parent):
                sync(directory)

    def sync_files(self, paths: Sequence[str]) -> None:
        """Make files below a local table durable, with their names."""
        if self.local is not None:
            directories: set[Path] = set()
            for path in paths:
                sync(self.local / path)
                directories.update(Path(path).parents)
            for each in directories:
                sync(self.local / each)

    def remove_directory(self, path: str) -> None:
        """Remove a directory below the table, if it exists."""
        with contextlib.suppress(OSError):
            self.files().delete_dir(path)


def _owner(store_id: str) -> str:
    """Return the name under which executions of a store own their commits."""
    return f"recovery-{store_id}"


def check_table(table: Any, uri: str, partition_by: Sequence[str], schema: str) -> None:
    """Raise if files with this schema (JSON, see `nullable`) cannot be added to the table as they are."""
    wanted = list(table.metadata().partition_columns)
    if wanted != list(partition_by):
        raise ConfigurationError(
            f"DeltaSink: the table {uri} has the partition columns {wanted}, and partition_by is {list(partition_by)}",
            remedy=f"Give partition_by={wanted}.",
        )
    protocol, settings = table.protocol(), table.metadata().configuration
    asked = {*(protocol.writer_features or ()), *(protocol.reader_features or ())} - _KNOWN_FEATURES
    asked.update(name for name in settings if name.startswith("delta.constraints."))
    if settings.get("delta.columnMapping.mode", "none") != "none":
        asked.add("columnMapping")
    if asked:
        raise OutputMismatchError(
            f"the table has {', '.join(sorted(asked))}",
            path=uri,
            cause="DeltaSink adds files that Spark wrote, and they do not fit this.",
            remedy="Drop the feature or the constraint, or write to another table.",
        )
    known = {
        field["name"]: field["type"] for field in msgspec.json.decode(nullable(table.schema().to_json()))["fields"]
    }
    for field in msgspec.json.decode(schema)["fields"]:
        name = field["name"]
        if name not in known:
            raise OutputMismatchError(
                f"the table has no column {name!r}, and the flow writes one",
                path=uri,
                cause="The flow's output has changed.",
                remedy="Add the column (DeltaTable(...).alter.add_columns), or leave it out of the output.",
            )
        if known[name] != field["type"]:
            raise OutputMismatchError(
                f"column {name!r} has the type {known[name]} in the table, and {field['type']} in the flow",
                path=uri,
                cause="The flow's output has changed, or the table was made with other types.",
                remedy="Cast the column in the flow.",
            )


def nullable(schema: str) -> str:
    """Return a schema (JSON) in which everything may be NULL, without metadata of columns."""

    def loose(part: Any) -> Any:
        if isinstance(part, dict):
            kept = {name: loose(value) for name, value in part.items() if name != "metadata"}
            flags = {name: True for name in ("nullable", "containsNull", "valueContainsNull") if name in kept}
            return {**kept, **flags, **({"metadata": {}} if "metadata" in part else {})}
        return [*map(loose, part)] if isinstance(part, list) else part

    return msgspec.json.encode(loose(msgspec.json.decode(schema))).decode()


def statistics(rows: int) -> str:
    """Return the statistics of a file, as Delta writes them."""
    return msgspec.json.encode({"numRecords": rows}).decode()


def spark_uri(uri: str) -> str:
    """Return the address by which Spark writes to a table. Hadoop takes a local path literally."""
    if "://" not in uri:
        return f"file:{os.fspath(uri)}"
    return "s3a://" + uri.removeprefix("s3://") if uri.startswith("s3://") else uri
