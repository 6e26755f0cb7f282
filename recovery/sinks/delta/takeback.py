"""What a run has to take back from a Delta table: the rows of epochs that are no longer closed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from recovery.errors import OutputMismatchError
from recovery.sinks.delta.table import Commit, Record
from recovery.sinks.forks import check_not_of_origin
from recovery.sinks.protocol import Resume


@dataclass(frozen=True)
class TakeBack:
    """What to undo: files to remove from the table, or a version to restore; neither if there is nothing."""

    taken_back: tuple[tuple[str, int], ...] = ()
    remove: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    restore: int | None = None

    def undo(self, table: Any, properties: Any) -> None:
        """Commit it, as one commit, which may be empty."""
        if self.restore is not None:
            table.restore(self.restore, commit_properties=properties)
            return
        from deltalake.transaction import RemoveAction

        now_ms = int(time.time() * 1000)
        removed = [
            RemoveAction(file["path"], True, now_ms, file["size_bytes"], file["partition"]) for file in self.remove
        ]
        columns = list(table.metadata().partition_columns)
        table.create_write_transaction(
            removed, "append", table.schema(), partition_by=columns or None, commit_properties=properties
        )


def plan_take_back(table: Any, history: Iterable[Commit], resume: Resume, uri: str) -> TakeBack:
    """Return how to take back what this store, or one whose place it takes, committed for epochs that are not closed on
    the resumed timeline.

    Raises OutputMismatchError if that is impossible: the rows of a closed epoch were taken back before, or somebody
    else changed rows after ones that can only be removed by restoring an older version.
    """
    done: set[tuple[str, int]] = set()
    abandoned: list[tuple[int, Record]] = []
    foreign = 0
    for commit in history:
        record = commit.record
        if record is None or record.store not in resume.stores:
            if record is not None:
                check_not_of_origin(resume, record.store, uri, "DeltaSink(NEW_TABLE, fresh=True)")
            foreign = max(foreign, 0 if commit.harmless or commit.version == 0 else commit.version)
            continue
        done.update(record.taken_back)
        undone = record.epoch == 0 or (record.execution, record.epoch) in done
        if not undone and not resume.closed(record.epoch, record.execution):
            abandoned.append((commit.version, record))
    resurrected = [epoch for execution, epoch in done if resume.closed(epoch, execution)]
    if resurrected:
        raise OutputMismatchError(
            f"the rows of epoch {min(resurrected)} were taken back from the table, and the partitions hold that epoch",
            path=uri,
            cause="The partitions are a copy from before a run that went back.",
            remedy="Use the newer partitions; or go back before that epoch (--resume-after), or write to a new table.",
        )
    if not abandoned:
        return TakeBack()
    taken_back = tuple((record.execution, record.epoch) for _, record in abandoned)
    files = [file for _, record in abandoned for file in _files_of(table, record)]
    if all(record.files for _, record in abandoned) and len(files) == sum(record.files for _, record in abandoned):
        return TakeBack(taken_back, remove=tuple(files))
    first = min(version for version, _ in abandoned)
    if foreign > first:
        raise OutputMismatchError(
            f"version {foreign} of the table is a change by somebody else, after version {first} with rows of epochs "
            "that are abandoned",
            path=uri,
            cause="Those rows were merged or compacted, so that only restoring the version before takes them back.",
            remedy=f"Take the rows back yourself (restore version {first - 1}, repeat the other changes), and give the "
            "sink a new table; or resume without going back.",
        )
    return TakeBack(taken_back, restore=first - 1)


def _files_of(table: Any, record: Record) -> list[Mapping[str, Any]]:
    """Return the files of an epoch that the table has."""
    prefix = f"recovery-{record.store}/{record.execution}/"
    import pyarrow as pa

    rows = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    found: list[Mapping[str, Any]] = []
    for row in rows:
        # Given as the log has it, in which special characters are escaped.
        path = unquote(row["path"])
        if path.startswith(prefix) and record.first_batch <= int(path.removeprefix(prefix)[:8]) <= record.last_batch:
            found.append({"path": path, "size_bytes": row["size_bytes"], "partition": _texts(row.get("partition"))})
    return found


def _texts(partition: Mapping[str, Any] | None) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in (partition or {}).items()}
