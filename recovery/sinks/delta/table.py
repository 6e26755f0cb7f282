"""A Delta table, through the package `deltalake`.

Each commit carries two application transactions. One names the output, so that it is committed once. The other names
the store, with the number of the execution: of two commits that carry the same one, Delta refuses the later unless it
has seen the earlier. So an execution whose successor has begun cannot commit any more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from recovery.errors import ConfigurationError, OutputMismatchError
from recovery.host.durable import sync
from recovery.sinks.protocol import Resume
from recovery.sinks.tables.columns import check_columns, fields_of, is_made_of, nullable
from recovery.sinks.tables.log import RECORD, TAKEN_OVER, AddedFile, Change, Commit, Record, TableLog, spark_uri

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

PARTITION_TYPES = frozenset({"string", "byte", "short", "integer", "long", "boolean", "date"})
_TYPES = PARTITION_TYPES | {"float", "double", "binary", "timestamp", "timestamp_ntz"}
_HARMLESS = {"OPTIMIZE", "VACUUM START", "VACUUM END", "FSCK"}
"""Operations of others that change no row."""
_KNOWN_FEATURES = {"appendOnly", "invariants", "timestampNtz", "changeDataFeed", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of a table that files written by Spark fit without further ado."""


class DeltaLog(TableLog):
    """One Delta table. name: a local path, a share as file:///path, or an address that `deltalake` knows."""

    kind = "Delta"

    def __init__(self, uri: str, storage_options: Mapping[str, str]) -> None:
        self.name = uri
        local = uri.removeprefix("file://")
        self.local = None if "://" in local else Path(local)
        self._options = dict(storage_options)

    def open(self) -> Any | None:
        """Return the newest version of the table (a `deltalake.DeltaTable`), or None if there is no table."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self.name, storage_options=self._options or None)
        except TableNotFoundError:
            return None

    def identity(self, table: Any) -> str:
        """Return the id in the table's metadata."""
        return str(table.metadata().id)

    def create(self, schema: str, partition_by: Sequence[str]) -> None:
        """Create an empty table, unless it exists. schema: as JSON, which Delta and Spark write alike."""
        from deltalake import DeltaTable, Schema

        DeltaTable.create(
            self.name,
            schema=Schema.from_json(schema),
            partition_by=list(partition_by) or None,
            mode="ignore",
            storage_options=self._options or None,
        )
        self._sync_log()

    def check_fits(self, table: Any, schema: str, partition_by: Sequence[str]) -> None:
        """Raise if the table has other columns, other partition columns, or asks more of a writer; see `TableLog`."""
        wanted = list(table.metadata().partition_columns)
        if wanted != list(partition_by):
            raise ConfigurationError(
                f"DeltaSink: the table {self.name} has the partition columns {wanted}, and partition_by is "
                f"{list(partition_by)}",
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
                path=self.name,
                cause="DeltaSink adds files that Spark wrote, and they do not fit this.",
                remedy="Drop the feature or the constraint, or write to another table.",
            )
        known = fields_of(nullable(table.schema().to_json()))
        check_columns(self.name, known, fields_of(schema), "DeltaTable(...).alter.add_columns")

    def has_type(self, kind: Any) -> bool:
        """Whether Delta has a type of Spark's, in the form of a schema's JSON."""
        return is_made_of(kind, _TYPES)

    def address(self) -> str:
        """Return the address by which Spark writes below the table."""
        return spark_uri(self.name)

    def files(self) -> FileSystem:
        """Return the file system below the table."""
        from pyarrow.fs import LocalFileSystem, PyFileSystem, SubTreeFileSystem

        if self.local is not None:
            return SubTreeFileSystem(str(self.local), LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return PyFileSystem(DeltaStorageHandler(self.name, self._options or None))

    def committed(self, table: Any, resume: Resume, once: tuple[str, int]) -> bool:
        """Whether the table has an application transaction of this version, or a newer one."""
        return (table.transaction_version(once[0]) or 0) >= once[1]

    def owner(self, table: Any, resume: Resume) -> int:
        """Return the number of the newest execution of the store that has begun to write to the table; 0: none."""
        return table.transaction_version(_owner(resume.store_id)) or 0

    def history(self, table: Any) -> Iterator[Commit]:
        """Yield the table's commits, newest first, as far back as its log goes."""
        for entry in table.history():
            yield Commit(entry["version"], self.record_of(entry.get(RECORD)), entry.get("operation") in _HARMLESS)

    def check_history(self, table: Any, history: Sequence[Commit], resume: Resume) -> None:
        """Delta keeps its log for a month; nothing says what came before."""

    def paths(self, table: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the path of each file of the table, and what a removal needs."""
        import pyarrow as pa

        for row in pa.table(table.get_add_actions(flatten=False)).to_pylist():
            # Given as the log has it, in which special characters are escaped.
            path = unquote(row["path"])
            yield path, {"path": path, "size_bytes": row["size_bytes"], "partition": _texts(row.get("partition"))}

    def append(self, files: Sequence[AddedFile], partition_by: Sequence[str]) -> Change:
        """Return the commit that adds files."""

        def change(table: Any, properties: Any) -> None:
            from deltalake.transaction import AddAction

            added = [
                AddAction(each.path, each.size_bytes, each.partition, each.modified_ms, True, _statistics(each.rows))
                for each in files
            ]
            _write(table, added, properties)

        return change

    def remove(self, files: Sequence[Mapping[str, Any]]) -> Change:
        """Return the commit that removes files, which may be none."""

        def change(table: Any, properties: Any) -> None:
            from deltalake.transaction import RemoveAction

            now_ms = int(time.time() * 1000)
            removed = [
                RemoveAction(file["path"], True, now_ms, file["size_bytes"], file["partition"]) for file in files
            ]
            _write(table, removed, properties)

        return change

    def restore(self, version: int) -> Change:
        """Return the commit that restores a version."""
        return lambda table, properties: table.restore(version, commit_properties=properties)

    def apply(self, table: Any, resume: Resume, record: Record, once: tuple[str, int], change: Change) -> bool:
        """Commit a change, durably; return False if it conflicts with what somebody else committed."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        owners = [Transaction(_owner(resume.store_id), resume.execution.number)]
        owners += [Transaction(_owner(other), TAKEN_OVER) for other in resume.line[1:]]
        properties = CommitProperties(
            custom_metadata={RECORD: msgspec.json.encode(record).decode()},
            app_transactions=[Transaction(*once), *owners],
        )
        before = table.version()
        try:
            change(table, properties)
        except CommitFailedError:
            return False
        self._sync_log(before)
        return True

    def _sync_log(self, after: int = -1) -> None:
        """Make a local table's log durable from the version behind `after` on. Object stores are so by themselves."""
        if self.local is not None:
            log = self.local / "_delta_log"
            for each in log.glob("*.json"):
                if each.stem.isdecimal() and int(each.stem) > after:
                    sync(each)
            for directory in (log, self.local, self.local.parent):
                sync(directory)


def _owner(store_id: str) -> str:
    """Return the name under which executions of a store own their commits."""
    return f"recovery-{store_id}"


def _write(table: Any, actions: Iterable[Any], properties: Any) -> None:
    columns = list(table.metadata().partition_columns)
    table.create_write_transaction(
        list(actions), "append", table.schema(), partition_by=columns or None, commit_properties=properties
    )


def _statistics(rows: int) -> str:
    """Return the statistics of a file, as Delta writes them."""
    return msgspec.json.encode({"numRecords": rows}).decode()


def _texts(partition: Mapping[str, Any] | None) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in (partition or {}).items()}
