"""An Iceberg table, through the package `pyiceberg`.

A commit is refused unless the table's newest snapshot is the one that the commit was made for. A property of the table,
which each commit sets together with its snapshot, says for each store which execution owns its output and what was
committed (`_State`). So whoever commits has seen the property, and no snapshot need be kept for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from recovery.base.untrusted_json import decode_json
from recovery.errors import OutputMismatchError, SinkFailedError
from recovery.host.durable import sync
from recovery.sinks.iceberg.columns import has_type, schema_of, types_of, unmapped
from recovery.sinks.protocol import Resume
from recovery.sinks.tables.columns import check_columns
from recovery.sinks.tables.log import (
    RECORD,
    TAKEN_OVER,
    AddedFile,
    Change,
    Commit,
    Record,
    TableLog,
    app_of,
    spark_uri,
)

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_RETRIES = "commit.retry.num-retries"


class _State(msgspec.Struct, frozen=True):
    """A store's output in the table. execution: the number of its owner. snapshot: the store's newest one. committed:
    by application, the newest version."""

    execution: int = 0
    snapshot: int = 0
    committed: dict[str, int] = {}


class IcebergLog(TableLog):
    """One Iceberg table. name: as the catalog has it. properties: of the catalog, beside those in its configuration."""

    kind = "Iceberg"

    def __init__(self, name: str, catalog: str, properties: Mapping[str, str]) -> None:
        self.name, self.local = name, None
        self._catalog_name, self._properties = catalog, dict(properties)
        self._kept_catalog: Any = None
        self._io: Any = None
        self._location = ""

    @property
    def warehouse(self) -> str:
        """Where the catalog keeps its tables, by its properties and its configuration; empty if it alone knows."""
        from pyiceberg.utils.config import Config

        configured: Mapping[str, Any] = Config().get_catalog_config(self._catalog_name) or {}
        return str({**configured, **self._properties}.get("warehouse", ""))

    def location(self) -> str:
        """Return where the table is, as its catalog has it; empty if there is no table."""
        table = self.open()
        return "" if table is None else str(table.location())

    @property
    def _catalog(self) -> Any:
        if self._kept_catalog is None:
            from pyiceberg.catalog import load_catalog

            self._kept_catalog = load_catalog(self._catalog_name, **self._properties)
        return self._kept_catalog

    def open(self) -> Any | None:
        """Return the table (a `pyiceberg.table.Table`) as it is now, or None if there is none."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            table = self._catalog.load_table(self.name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        self._io, self._location = table.io, f"{table.location().rstrip('/')}/data"
        local = _plain(self._location)
        self.local = None if "://" in local else Path(local)
        return table

    def identity(self, table: Any) -> str:
        """Return the table's UUID."""
        return str(table.metadata.table_uuid)

    def create(self, schema: str, partition_by: Sequence[str]) -> None:
        """Create an empty table and its namespace, unless they exist."""
        from pyiceberg.exceptions import TableAlreadyExistsError

        self._catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
        try:
            self._catalog.create_table(self.name, schema=schema_of(schema))
        except TableAlreadyExistsError:
            return

    def check_fits(self, table: Any, schema: str, partition_by: Sequence[str]) -> None:
        """Raise if the table has other columns, required ones, or partitions; see `TableLog`."""
        written = schema_of(schema)
        check_columns(self.name, types_of(table.schema()), types_of(written), "table.update_schema().add_column")
        required = ", ".join(field.name for field in table.schema().fields if field.required)
        unknown = unmapped(table, written)
        if table.metadata.format_version == 1:
            found, remedy = "format version 1", "upgrade it to version 2"
        elif table.spec().fields:
            found, remedy = f"partitions ({', '.join(each.name for each in table.spec().fields)})", "drop them"
        elif required:
            found, remedy = f"columns that must not be NULL ({required})", "make them optional"
        elif unknown is not None:
            found, remedy = f"a name mapping without {unknown}", "remove the property schema.name-mapping.default"
        else:
            return
        raise OutputMismatchError(
            f"the table has {found}",
            path=self.name,
            cause="IcebergSink adds files that Spark wrote, and they do not fit this.",
            remedy=f"Change the table ({remedy}), or write to another one.",
        )

    def has_type(self, kind: Any) -> bool:
        """Whether Iceberg has a type of Spark's, in the form of a schema's JSON."""
        return has_type(kind)

    def address(self) -> str:
        """Return the address by which Spark writes below the table."""
        return spark_uri(_plain(self._location))

    def files(self) -> FileSystem:
        """Return the file system below the table."""
        from pyarrow.fs import SubTreeFileSystem
        from pyiceberg.io.pyarrow import PyArrowFileIO

        io = PyArrowFileIO(self._io.properties)
        scheme, host, path = io.parse_location(self._location, self._io.properties)
        return SubTreeFileSystem(path, io.fs_by_scheme(scheme, host))

    def committed(self, table: Any, resume: Resume, once: tuple[str, int]) -> bool:
        """Whether the table has what an application committed under this version, or a newer one."""
        return self._state(table, resume).committed.get(once[0], 0) >= once[1]

    def owner(self, table: Any, resume: Resume) -> int:
        """Return the number of the newest execution of the store that has begun to write to the table; 0: none."""
        return self._state(table, resume).execution

    def check(self, table: Any, resume: Resume) -> None:
        """Raise if a later execution has begun, or if somebody has rolled the table back behind this store's output."""
        super().check(table, resume)
        newest = self._state(table, resume).snapshot
        known = newest != 0 and table.snapshot_by_id(newest) is not None
        if known and all(each.snapshot_id != newest for each in _ancestors(table)):
            raise OutputMismatchError(
                f"somebody rolled the table back to a snapshot before {newest}, which has output of the flow",
                path=self.name,
                cause="Rows of closed epochs are no longer in the table.",
                remedy=f"Set the table's current snapshot to {newest} again, or to one after it; or write to another "
                "table.",
            )

    def history(self, table: Any) -> list[Commit]:
        """Return the snapshots that lead to the current one, newest first, as far as they were not expired."""
        snapshots = _ancestors(table)
        found = []
        for version, snapshot in zip(range(len(snapshots), 0, -1), snapshots, strict=True):
            summary = snapshot.summary
            record = None if summary is None else self.record_of(summary.additional_properties.get(RECORD))
            found.append(Commit(version, record, summary is not None and summary.operation.value == "replace"))
        return found

    def check_history(self, table: Any, history: Sequence[Commit], resume: Resume) -> None:
        """Raise OutputMismatchError if snapshots have expired in which abandoned epochs were committed."""
        snapshots = _ancestors(table)
        # pyiceberg forgets the parent of a snapshot when it expires the parent.
        if not snapshots or (snapshots[-1].parent_snapshot_id is None and snapshots[-1].sequence_number == 1):
            return
        seen = {
            app_of(each.record.store, each.record.execution)
            for each in history
            if each.record and (each.record.epoch == 0 or resume.closed(each.record.epoch, each.record.execution))
        }
        closed = _closed(resume)
        for app, version in self._state(table, resume).committed.items():
            if version > closed.get(app, 0) and app.endswith("-epoch") and app not in seen:
                raise OutputMismatchError(
                    f"the snapshots are gone from which abandoned epochs, up to {version}, could be taken back",
                    path=self.name,
                    cause="They were expired since.",
                    remedy="Resume without going back; or take the rows back yourself, and give the sink a new table.",
                )

    def paths(self, table: Any) -> Iterator[tuple[str, Any]]:
        """Yield the path of each file below the table, and the file."""
        for task in table.scan().plan_files():
            if task.file.file_path.startswith(f"{self._location}/"):
                yield task.file.file_path.removeprefix(f"{self._location}/"), task.file

    def append(self, files: Sequence[AddedFile], partition_by: Sequence[str]) -> Change:
        """Return the snapshot that adds files."""
        paths = [f"{self._location}/{each.path}" for each in files]
        return lambda transaction, summary: transaction.add_files(paths, summary, check_duplicate_files=False)

    def remove(self, files: Sequence[Any]) -> Change:
        """Return the snapshot that removes files, or an empty one."""

        def change(transaction: Any, summary: Any) -> None:
            update = transaction.update_snapshot(summary)
            with update.overwrite() if files else update.fast_append() as snapshot:
                for file in files:
                    snapshot.delete_data_file(file)

        return change

    def restore(self, version: int) -> Change:
        """Return the rollback to a snapshot of the history, with an empty one behind it: so nobody who has seen that
        snapshot as the newest one can commit."""

        def change(transaction: Any, summary: Any) -> None:
            from pyiceberg.table.update.snapshot import ManageSnapshots

            snapshots = _ancestors(transaction)[::-1]
            if version < 1:
                raise OutputMismatchError(
                    "the snapshot before abandoned epochs is gone",
                    path=self.name,
                    cause="It was expired since, and their rows were compacted, so that nothing else takes them back.",
                    remedy="Resume without going back; or take the rows back yourself, and give the sink a new table.",
                )
            ManageSnapshots(transaction).rollback_to_snapshot(snapshots[version - 1].snapshot_id).commit()
            with transaction.update_snapshot(summary).fast_append():
                pass

        return change

    def apply(self, table: Any, resume: Resume, record: Record, once: tuple[str, int], change: Change) -> bool:
        """Commit a change and the store's state as one; return False if somebody else committed first."""
        from pyiceberg.exceptions import CommitFailedException

        state = self._state(table, resume)
        # Another try needs another look at who owns the output, which pyiceberg's own tries do not take.
        settings = {**table.metadata.properties, _RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": settings})
        transaction = table.transaction()
        change(transaction, {RECORD: msgspec.json.encode(record).decode()})
        committed = state.committed
        if record.epoch == 0:
            closed = _closed(resume)
            committed = {app: min(each, closed[app]) for app, each in committed.items() if app in closed}
        made = transaction.table_metadata.current_snapshot_id
        state = _State(resume.execution.number, made, {**committed, once[0]: once[1]})
        states = {resume.store_id: state, **{other: _State(TAKEN_OVER) for other in resume.line[1:]}}
        transaction.set_properties({_property(each): msgspec.json.encode(states[each]).decode() for each in states})
        try:
            transaction.commit_transaction()
        except CommitFailedException:
            return False
        self._sync(made)
        return True

    def _state(self, table: Any, resume: Resume) -> _State:
        """Return the store's output: before its first commit, and when it takes the output back from another store,
        what the other stores of its line have committed."""
        properties, committed, snapshot, own = table.metadata.properties, dict[str, int](), 0, 0
        for store_id in resume.line:
            text = properties.get(_property(store_id))
            found = _State() if text is None else decode_json(text, self._unreadable, _State)
            if store_id == resume.store_id:
                own = found.execution
                if own not in (0, TAKEN_OVER):
                    return found
            committed, snapshot = {**found.committed, **committed}, snapshot or found.snapshot
        return _State(own, snapshot, committed)

    def _sync(self, snapshot_id: int) -> None:
        """Make the files of a local table's newest commit durable."""
        table = self.open()
        if table is None or self.local is None:
            return
        snapshot = table.snapshot_by_id(snapshot_id)
        if snapshot is None:
            raise SinkFailedError(f"the Iceberg table {self.name}: a snapshot vanished that was just committed")
        made = [each.manifest_path for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot_id]
        paths = [Path(_plain(each)) for each in (table.metadata_location, snapshot.manifest_list, *made)]
        for each in [*paths, *{path.parent for path in paths}]:
            sync(each)


def _plain(location: str) -> str:
    """Return a local path without a scheme; another address as it is."""
    return location.removeprefix("file://").removeprefix("file:")


def _property(store_id: str) -> str:
    return f"recovery.{store_id}"


def _closed(resume: Resume) -> dict[str, int]:
    """Return the newest closed epoch of each execution on the timeline, by its application."""
    closed: dict[str, int] = {}
    for part in resume.timeline:
        for store_id in resume.stores:
            app = app_of(store_id, part.execution.id)
            closed[app] = max(part.last, closed.get(app, 0))
    return closed


def _ancestors(table: Any) -> list[Any]:
    """Return the snapshots that lead to the newest one, newest first. table: a table or a transaction on one."""
    from pyiceberg.table.snapshots import ancestors_of

    metadata = getattr(table, "table_metadata", None) or table.metadata
    return list(ancestors_of(metadata.current_snapshot(), metadata))
