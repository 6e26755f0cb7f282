"""A Delta table, through the package `deltalake`.

Each commit carries two application transactions. One application transaction names the output, so that the output is
committed once. The other application transaction names the store, with the number of the execution: of two commits that
carry the same one, Delta refuses the later unless it has seen the earlier. So an execution whose successor has begun
cannot commit any more.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product, starmap
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from recovery.base.untrusted_json import decode_json
from recovery.errors import ConfigurationError, OutputMismatchError, SinkRefusedError
from recovery.host.durable import sync
from recovery.sinks.delta.features import check_able, check_removable
from recovery.sinks.delta.operations import commits_of, is_restore, replaces
from recovery.sinks.protocol import Resume
from recovery.sinks.tables.columns import check_columns, fields_of, is_made_of, nullable
from recovery.sinks.tables.commits import RECORD, AddedFile, Change, CommitHistory, Mark, Proposal, written_by
from recovery.sinks.tables.log import BY_HAND, TAKEN_OVER, TableLog, spark_uri
from recovery.sinks.targets import ASKS, AWAY, refusal_of, said

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

PARTITION_TYPES = frozenset({"string", "byte", "short", "integer", "long", "boolean", "date"})
_TYPES = PARTITION_TYPES | {"float", "double", "binary", "timestamp", "timestamp_ntz"}
_LOG = "_delta_log"
_LOG_ENTRY = re.compile(r"([0-9]{20})\.json")


class DeltaLog(TableLog):
    """One Delta table. name: a local path, a share as file:///path, or an address that `deltalake` knows."""

    kind = "Delta"
    forgets = "log entries"

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
        except TableNotFoundError as error:
            if refusal_of(error) is not AWAY:
                # `deltalake` says so of a table that this user may not read, too.
                raise
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

    def check_able(self, table: Any, partition_by: Sequence[str], *, merges: bool) -> None:
        """Raise if the table has other partition columns, or asks more of a writer; see `TableLog`."""
        wanted = list(table.metadata().partition_columns)
        if wanted != list(partition_by):
            raise ConfigurationError(
                f"DeltaSink: the table {self.name} has the partition columns {wanted}, and partition_by is "
                f"{list(partition_by)}",
                remedy=f"Give partition_by={wanted}.",
            )
        check_able(self.name, table, merges=merges)

    def check_removable(self, table: Any) -> None:
        """Raise SinkRefusedError if the table is append-only."""
        check_removable(self.name, table)

    def check_fits(self, table: Any, schema: str) -> None:
        """Raise if the table lacks a column, or has it with another type; see `TableLog`."""
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

    def version(self, table: Any) -> int:
        """Return the version of the table."""
        return int(table.version())

    def mark(self, table: Any, resume: Resume, application: str) -> int:
        """Return the version of an application transaction, 0 if there is none."""
        return table.transaction_version(application) or 0

    def executions(self, table: Any, resume: Resume) -> Iterator[tuple[str, str]]:
        """Yield store and execution of the executions that the partitions know; of all that have files, if the run may
        have to take back what others have shown."""
        known = {part.execution.id for part in resume.timeline} | (resume.executions or frozenset())
        yield from product(resume.line, known)
        if resume.loses or resume.executions is None:
            written = (written_by(path) for path, _ in self.paths(table))
            yield from (by[:2] for by in written if by is not None and by[0] in resume.line)

    def owner(self, table: Any, resume: Resume) -> int:
        """Return the number of the newest execution of the store that has begun to write to the table; 0: none."""
        return table.transaction_version(_owner(resume.store_id)) or 0

    def history(self, table: Any, resume: Resume) -> CommitHistory:
        """Return the table's commits, as far back as its log goes."""
        entries = self._entries(table)
        commits = commits_of(entries, self.record_of, RECORD, lambda version: self._same_as(version, entries[-1][0]))
        return CommitHistory(tuple(commits), bool(entries) and entries[-1][0] == 0)

    def touched(self, table: Any, resume: Resume, since: int) -> bool:
        """Whether somebody has restored or overwritten the table since a version."""
        count = self.version(table) - since
        newer = table.history(count) if count > 0 else []
        return len(newer) != max(count, 0) or any(is_restore(each) or replaces(each) for each in newer)

    def _entries(self, table: Any) -> list[tuple[int, Mapping[str, Any]]]:
        """Return the version of each commit in the log, newest first, with what it says of itself."""
        from pyarrow.fs import FileSelector

        files = self.files()
        found = (
            _LOG_ENTRY.fullmatch(PurePosixPath(info.path).name) for info in files.get_file_info(FileSelector(_LOG))
        )
        there, versions = {int(each[1]) for each in found if each is not None}, list[int]()
        for version in range(self.version(table), -1, -1):
            if version not in there:
                break
            versions.append(version)
        entries = table.history()
        if len(entries) == len(versions):
            return list(zip(versions, entries, strict=True))
        # `deltalake` leaves out a commit that says nothing of itself, and then numbers the older ones wrongly.
        return [(version, self._commit_info(files, version)) for version in versions]

    def _commit_info(self, files: FileSystem, version: int) -> Mapping[str, Any]:
        with files.open_input_file(f"{_LOG}/{version:020}.json") as opened:
            actions = [
                decode_json(line.decode(), self._unreadable, dict[str, Any]) for line in opened.read().splitlines()
            ]
        return next((each["commitInfo"] for each in actions if "commitInfo" in each), {})

    def _same_as(self, version: int, oldest: int) -> int:
        """Return the newest version before `version` that has the same files; the version before `oldest` if none
        has."""
        from deltalake.exceptions import DeltaError

        try:
            files = self._paths_at(version).keys()
            older = range(version - 1, oldest - 1, -1)
            return next((each for each in older if self._paths_at(each).keys() == files), oldest - 1)
        except DeltaError as error:
            raise OutputMismatchError(
                f"somebody restored the table in version {version} to an earlier time, and it is unknown which rows "
                f"the table has since then: {said(error)}",
                path=self.name,
                cause="The log has lost what older versions were.",
                remedy="Write to a new table.",
            ) from error

    def _paths_at(self, version: int) -> dict[str, Any]:
        """Return the files of a version, by their paths."""
        from deltalake import DeltaTable

        return dict(self.paths(DeltaTable(self.name, version, self._options or None)))

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

    def check_restorable(self, table: Any, version: int) -> None:
        """Raise OutputMismatchError if the log has forgotten the version, or if its files were removed."""
        from deltalake.exceptions import DeltaError

        try:
            then = self._paths_at(version)
        except DeltaError as error:
            found = f"version {version} cannot be read any more ({error})"
        else:
            now = {path for path, _ in self.paths(table)}
            gone = sorted(then.keys() - now - self.sizes([*then.keys() - now]).keys())
            if not gone:
                return
            found = f"version {version} cannot be restored any more: {gone[0]} is gone"
        raise OutputMismatchError(
            found,
            path=self.name,
            cause="Rows of abandoned epochs were merged or compacted, so that only restoring this version takes them "
            "back, and VACUUM or the age of the log has removed what it needs.",
            remedy=BY_HAND,
        )

    def restore(self, version: int) -> Change:
        """Return the commit that restores a version."""
        return lambda table, properties: table.restore(version, commit_properties=properties)

    def apply(self, table: Any, resume: Resume, proposal: Proposal, once: Mark) -> bool:
        """Commit a change, durably; return False if it conflicts with what somebody else committed."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaProtocolError

        owners = [Transaction(_owner(resume.store_id), resume.execution.number)]
        owners += [Transaction(_owner(other), TAKEN_OVER) for other in resume.line[1:]]
        properties = CommitProperties(
            custom_metadata={RECORD: msgspec.json.encode(proposal.record).decode()},
            app_transactions=[*starmap(Transaction, self.marks(resume, proposal, once).items()), *owners],
        )
        before = table.version()
        try:
            proposal.change(table, properties)
        except (CommitFailedError, DeltaProtocolError) as error:
            now = self.open()
            if now is not None:
                check_able(self.name, now, merges=False)
                if now.version() == before:
                    raise SinkRefusedError(
                        f"the Delta table {self.name} does not take a commit after version {before}, and nobody else "
                        f"committed: {said(error)}",
                        cause=ASKS.cause,
                        remedy=ASKS.remedy,
                    ) from error
            return False
        self._sync_log(before)
        return True

    def _sync_log(self, after: int = -1) -> None:
        """Make a local table's log durable from the version behind `after` on. Object stores are durable by
        themselves."""
        if self.local is not None:
            log = self.local / _LOG
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
