"""DeltaSink: a Delta table that holds every record of the closed epochs once. `tables.sink` has the protocol.

In mode "merge" a commit merges the rows of an epoch by key, instead of adding files. VACUUM removes files that no
commit names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal

from recovery.base.outside import Answers, Checked, Moment, Question
from recovery.errors import ConfigurationError
from recovery.sinks.delta.merge import check_keys, merge_rows, newest_rows
from recovery.sinks.delta.table import PARTITION_TYPES, DeltaLog
from recovery.sinks.tables.columns import names_of
from recovery.sinks.tables.commits import AddedFile, Change
from recovery.sinks.tables.sink import TableNote, TableSink


class DeltaSink(TableSink):
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

    answers: ClassVar[Answers] = {
        Question.SAME: Checked(
            "the id in the table's metadata, with that in the note of the newest closed epoch",
            (Moment.START, Moment.GOING_BACK, Moment.CLOSING, Moment.PUBLISHING),
        ),
        Question.THERE: Checked(
            "each file of a closed epoch that is not committed yet, by its size; to restore a version, its files",
            (Moment.START, Moment.GOING_BACK, Moment.PUBLISHING),
        ),
        Question.CHANGED: Checked(
            "restores and overwrites of the whole table, by the operations in the log. Rows that DELETE, UPDATE, MERGE "
            "or an overwrite by a condition removed count as meant. What the log has forgotten is not seen",
            (Moment.START, Moment.GOING_BACK, Moment.PUBLISHING),
        ),
        Question.ABLE: Checked(
            "partition columns, features of the protocol, constraints, generated, identity and NOT NULL columns; to "
            "take rows back: delta.appendOnly, and whether the log or the paths of the files show these rows",
            (Moment.START, Moment.GOING_BACK, Moment.CLOSING),
        ),
        Question.OWNER: Checked(
            "store and execution in the records of the commits, and in application transactions, which outlast the log",
            (Moment.START, Moment.GOING_BACK, Moment.PUBLISHING),
        ),
    }
    points = ("delta.1", "delta.2", "delta.3", "delta.4")
    partition_types = PARTITION_TYPES

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
        keys, partitions = names_of(key), names_of(partition_by)
        if (mode == "merge") != bool(keys) or (mode == "merge" and partitions):
            raise ConfigurationError(
                f"DeltaSink: mode={mode!r} with key={keys} and partition_by={partitions}",
                remedy="Give key=[...] with mode='merge' alone, and partition_by=[...] with mode='append' alone.",
            )
        # Not imported yet: a run with --if-new-input takes an import in the flow's code for one that may read files.
        if find_spec("deltalake") is None:
            raise ConfigurationError("DeltaSink needs the package deltalake", remedy="pip install 'deltalake>=1.6'")
        text = os.fspath(uri)
        self.uri = text if "://" in text else os.path.abspath(text)  # noqa: PTH100 - a Path would resolve "://" too
        self.mode = mode
        log = DeltaLog(self.uri, storage_options or {})
        super().__init__(log, key=keys, partition_by=partitions, options=options, fresh=fresh)

    def __repr__(self) -> str:
        key = f", key={list(self.key)!r}" if self.key else ""
        return f"DeltaSink({self.uri!r}, mode={self.mode!r}{key})"

    def _publish(self, note: TableNote) -> None:
        super()._publish(note)
        if self.mode == "merge":
            for directory in {PurePosixPath(file.path).parent for file in note.files}:
                self._log.remove_directory(str(directory))

    def _change(self, note: TableNote) -> Change:
        if self.mode == "append":
            return super()._change(note)
        return lambda table, properties: merge_rows(
            table, newest_rows(self._log.files(), note.files, self.key), self.key, properties
        )

    def _number_of(self, files: Sequence[AddedFile]) -> int:
        return len(files) if self.mode == "append" else 0

    def _check_rows(self, table: Any, files: Sequence[AddedFile]) -> None:
        if self.mode == "merge":
            check_keys(self._log.files(), files, self.key)
