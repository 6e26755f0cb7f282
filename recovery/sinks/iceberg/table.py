"""An Iceberg table, through the package `pyiceberg`.

A commit is refused unless the table's newest snapshot is the one that the commit was made for. A property of the table,
which each commit sets together with its snapshot, says for each store which execution owns its output and what was
committed (`_State`). So whoever commits has seen the property, and no snapshot need be kept for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from recovery.base.untrusted_json import decode_json
from recovery.errors import OutputMismatchError, SinkFailedError, SinkRefusedError
from recovery.host.durable import sync
from recovery.sinks.iceberg.columns import has_type, schema_of, types_of, unmapped
from recovery.sinks.iceberg.partitions import data_files, refused
from recovery.sinks.protocol import Resume
from recovery.sinks.tables.columns import check_columns
from recovery.sinks.tables.commits import (
    RECORD,
    AddedFile,
    Change,
    Commit,
    CommitHistory,
    Mark,
    Proposal,
    app_of,
    execution_of,
    files_of,
)
from recovery.sinks.tables.log import TAKEN_OVER, TableLog, spark_uri
from recovery.sinks.targets import ASKS, said

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_MAPPING = "schema.name-mapping.default"
_RETRIES = "commit.retry.num-retries"


class _State(msgspec.Struct, frozen=True):
    """A store's output in the table. execution: the number of its owner. snapshot: the store's newest one, and its
    sequence number, 0 if it is not known. committed: by application, the newest version."""

    execution: int = 0
    snapshot: int = 0
    committed: dict[str, int] = {}
    sequence: int = 0


class IcebergLog(TableLog):
    """One Iceberg table. name: as the catalog has it. properties: of the catalog, beside those in its configuration."""

    kind = "Iceberg"
    forgets = "snapshots"

    def __init__(self, name: str, catalog: str, properties: Mapping[str, str]) -> None:
        self.name, self.local = name, None
        self._catalog_name, self._properties = catalog, dict(properties)
        self._kept_catalog: Any = None
        self._io: Any = None
        self._location = ""

    @property
    def warehouse(self) -> str:
        """Where the catalog keeps its tables, by the catalog's properties and configuration; empty if the catalog alone
        knows."""
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

    def check_able(self, table: Any, partition_by: Sequence[str], *, merges: bool) -> None:
        """Raise if the table has required columns, partitions, or format version 1; see `TableLog`."""
        required = ", ".join(field.name for field in table.schema().fields if field.required)
        version, partition = table.metadata.format_version, refused(table)
        if version != 2:
            self._refuse(f"format version {version}", "upgrade it to version 2" if version < 2 else "use version 2")
        elif partition is not None:
            self._refuse(f"the partition field {partition}", "drop the field from its partition spec")
        elif required:
            self._refuse(f"columns that must not be NULL ({required})", "make them optional")

    def check_removable(self, table: Any) -> None:
        """Do nothing: rows can be taken out of every table."""

    def check_fits(self, table: Any, schema: str) -> None:
        """Raise if the table has other columns; see `TableLog`."""
        written = schema_of(schema)
        check_columns(self.name, types_of(table.schema()), types_of(written), "table.update_schema().add_column")
        unknown = unmapped(table, written)
        if unknown is not None:
            self._refuse(f"a name mapping without {unknown}", "remove the property schema.name-mapping.default")

    def _refuse(self, found: str, change: str) -> NoReturn:
        raise SinkRefusedError(
            f"the table has {found}",
            path=self.name,
            cause="IcebergSink adds files that Spark wrote, and they do not fit this.",
            remedy=f"Change the table ({change}), or write to another table; then run again: nothing is lost or "
            "written "
            "twice.",
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

    def version(self, table: Any) -> int:
        """Return the number of the table's newest change."""
        return int(getattr(table.metadata, "last_sequence_number", 0))

    def mark(self, table: Any, resume: Resume, application: str) -> int:
        """Return the version that an application has, 0 if there is none."""
        return self._state(table, resume).committed.get(application, 0)

    def executions(self, table: Any, resume: Resume) -> Iterator[tuple[str, str]]:
        """Yield store and execution of all executions that have epochs in the table since the newest start."""
        yield from filter(None, map(execution_of, self._state(table, resume).committed))

    def owner(self, table: Any, resume: Resume) -> int:
        """Return the number of the newest execution of the store that has begun to write to the table; 0: none."""
        return self._state(table, resume).execution

    def history(self, table: Any, resume: Resume) -> CommitHistory:
        """Return the snapshots that were not expired. Snapshots that do not lead to the current one are undone."""
        standing = _ancestors(table)
        leading = {each.snapshot_id for each in standing}
        commits = []
        for snapshot in sorted(table.snapshots(), key=lambda each: each.sequence_number or 0, reverse=True):
            summary = snapshot.summary
            said = {} if summary is None else summary.additional_properties
            commits.append(
                Commit(
                    snapshot.sequence_number or 0,
                    self.record_of(said.get(RECORD)),
                    "an overwrite" if summary is None else f"the operation {summary.operation.value}",
                    harmless=summary is not None and summary.operation.value == "replace",
                    replaces=_replaces_all(said),
                    undone_by=None if snapshot.snapshot_id in leading else "a rollback",
                )
            )
        # pyiceberg forgets the parent of a snapshot when it expires the parent.
        whole = not standing or (standing[-1].parent_snapshot_id is None and standing[-1].sequence_number == 1)
        return CommitHistory(tuple(commits), whole, self._lost(table, standing, resume))

    def _lost(self, table: Any, standing: Sequence[Any], resume: Resume) -> str:
        """Return what shows that the store's newest snapshot was rolled back, although it has expired."""
        state = self._state(table, resume)
        if not state.snapshot or table.snapshot_by_id(state.snapshot) is not None:
            return ""
        older = [each.sequence_number for each in standing if 0 < (each.sequence_number or 0) < state.sequence]
        if standing and not older:
            return ""
        return f"a rollback to before snapshot {state.snapshot}, which has expired since"

    def touched(self, table: Any, resume: Resume, since: int) -> bool:
        """Whether the newest snapshot is not one of the store."""
        newest = table.metadata.current_snapshot_id
        return bool(newest != self._state(table, resume).snapshot)

    def paths(self, table: Any) -> Iterator[tuple[str, Any]]:
        """Yield the path of each file below the table, and the file."""
        for task in table.scan().plan_files():
            if task.file.file_path.startswith(f"{self._location}/"):
                yield task.file.file_path.removeprefix(f"{self._location}/"), task.file

    def append(self, files: Sequence[AddedFile], partition_by: Sequence[str]) -> Change:
        """Return the snapshot that adds files."""
        paths = [f"{self._location}/{each.path}" for each in files]

        def change(transaction: Any, summary: Any) -> None:
            metadata = transaction.table_metadata
            if not metadata.spec().fields:
                transaction.add_files(paths, summary, check_duplicate_files=False)
                return
            if metadata.name_mapping() is None:
                transaction.set_properties({_MAPPING: metadata.schema().name_mapping.model_dump_json()})
            with transaction.update_snapshot(summary).fast_append() as snapshot:
                for each in self._in_partitions(metadata, paths):
                    snapshot.append_data_file(each)

        return change

    def check_partitions(self, table: Any, files: Sequence[AddedFile]) -> None:
        """Raise OutputMismatchError unless each file has rows of one partition of the table."""
        if table.spec().fields:
            for _ in self._in_partitions(table.metadata, [f"{self._location}/{each.path}" for each in files]):
                pass

    def _in_partitions(self, metadata: Any, paths: Sequence[str]) -> Iterator[Any]:
        try:
            yield from data_files(metadata, self._io, paths)
        except ValueError as error:
            raise OutputMismatchError(
                f"files of the flow do not fit the table's partitions: {error}",
                path=self.name,
                cause="The partition spec was changed after the rows were written.",
                remedy="Run the same command again. If that is refused too, set the partition spec back, or go back to "
                "the epoch before (--resume-after).",
            ) from error

    def remove(self, files: Sequence[Any]) -> Change:
        """Return the snapshot that removes files, or an empty one."""

        def change(transaction: Any, summary: Any) -> None:
            update = transaction.update_snapshot(summary)
            with update.overwrite() if files else update.fast_append() as snapshot:
                for file in files:
                    snapshot.delete_data_file(file)

        return change

    def check_restorable(self, table: Any, version: int) -> None:
        """Do nothing: a snapshot that has not expired has its files."""

    def restore(self, version: int) -> Change:
        """Return the rollback to a snapshot of the history, with an empty one behind it: so nobody who has seen that
        snapshot as the newest one can commit."""

        def change(transaction: Any, summary: Any) -> None:
            from pyiceberg.table.update.snapshot import ManageSnapshots

            target = next(each for each in _ancestors(transaction) if each.sequence_number == version)
            ManageSnapshots(transaction).rollback_to_snapshot(target.snapshot_id).commit()
            with transaction.update_snapshot(summary).fast_append():
                pass

        return change

    def apply(self, table: Any, resume: Resume, proposal: Proposal, once: Mark) -> bool:
        """Commit a change and the store's state as one; return False if somebody else committed first."""
        from pyiceberg.exceptions import CommitFailedException

        record, before = proposal.record, table.metadata_location
        committed = self._state(table, resume).committed
        # Another try needs another look at who owns the output, which pyiceberg's own tries do not take.
        settings = {**table.metadata.properties, _RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": settings})
        transaction = _transaction(table)
        proposal.change(transaction, {RECORD: msgspec.json.encode(record).decode()})
        if record.epoch == 0:
            closed = _closed(resume)
            committed = {app: min(each, closed.get(app, each)) for app, each in committed.items() if app in closed}
        committed = {app: each for app, each in {**committed, **self.marks(resume, proposal, once)}.items() if each}
        made = transaction.table_metadata.current_snapshot_id
        sequence = transaction.table_metadata.last_sequence_number
        state = _State(resume.execution.number, made, committed, sequence)
        states = {resume.store_id: state, **{other: _State(TAKEN_OVER) for other in resume.line[1:]}}
        transaction.set_properties({_property(each): msgspec.json.encode(states[each]).decode() for each in states})
        # pyiceberg removes what it wrote for a commit that the catalog refuses. But a catalog may refuse the repetition
        # of a commit that succeeded and whose answer was lost: then readers need these files.
        transaction._snapshot_producers = []
        try:
            transaction.commit_transaction()
        except CommitFailedException as error:
            now = self.open()
            if now is not None and now.metadata_location == before:
                passes = "lock" in str(error).lower()
                raise (SinkFailedError if passes else SinkRefusedError)(
                    f"the catalog of the Iceberg table {self.name} does not take a commit, and nobody else committed: "
                    f"{said(error)}",
                    cause="Another process holds the catalog's lock on the table."
                    if passes
                    else "The catalog protects the table or its branch, or asks something of a commit that this commit "
                    "does not fulfil.",
                    remedy=None if passes else ASKS.remedy,
                ) from error
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
            raise SinkFailedError(
                f"the Iceberg table {self.name}: the snapshot that was just committed is gone",
                cause="Somebody rolled the table back, or expired the snapshot, at the same time.",
            )
        made = [each.manifest_path for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot_id]
        paths = [Path(_plain(each)) for each in (table.metadata_location, snapshot.manifest_list, *made)]
        for each in [*paths, *{path.parent for path in paths}]:
            sync(each)


def _transaction(table: Any) -> Any:
    """Return a transaction of a table that asks for the table's metadata once for each of its changes: pyiceberg's own
    copies all snapshots of the table some twenty times for one commit."""
    from pyiceberg.table import Transaction

    class Remembering(Transaction):  # type: ignore[misc] # pyiceberg ships no types for mypy here
        _known: tuple[Any, Any, Any] | None = None

        @property
        def table_metadata(self) -> Any:
            now = self._table.metadata, self._updates
            if self._known is None or self._known[0] is not now[0] or self._known[1] is not now[1]:
                self._known = *now, super().table_metadata
            return self._known[2]

    return Remembering(table)


def _plain(location: str) -> str:
    """Return a local path without a scheme; another address as it is."""
    return location.removeprefix("file://").removeprefix("file:")


def _property(store_id: str) -> str:
    return f"recovery.{store_id}"


def _closed(resume: Resume) -> dict[str, int]:
    """Return the newest closed epoch of each execution on the timeline, by its application; and, for the one that says
    how many files it has added, no bound."""
    closed: dict[str, int] = {}
    for part in resume.timeline:
        for store_id in resume.line:
            app = app_of(store_id, part.execution.id)
            closed[app] = max(part.last, closed.get(app, 0))
            closed[files_of(store_id, part.execution.id)] = TAKEN_OVER
    return closed


def _replaces_all(summary: Mapping[str, str]) -> bool:
    """Whether a snapshot put other rows in the place of all: an overwrite of partitions that left no older file. Other
    overwrites cannot be told from an UPDATE, which rewrites files too."""
    added, left = summary.get("added-data-files", "0"), summary.get("total-data-files")
    return summary.get("replace-partitions") == "true" and added == left


def _ancestors(table: Any) -> list[Any]:
    """Return the snapshots that lead to the newest one, newest first. table: a table or a transaction on one."""
    from pyiceberg.table.snapshots import ancestors_of

    metadata = getattr(table, "table_metadata", None) or table.metadata
    return list(ancestors_of(metadata.current_snapshot(), metadata))
