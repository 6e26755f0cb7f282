"""Merge an epoch's rows into a Delta table by key."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from recovery.errors import FlowFailedError
from recovery.sinks.tables.commits import AddedFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

_ROW = "__recovery_row"


def check_keys(files: FileSystem, written: Sequence[AddedFile], key: Sequence[str]) -> None:
    """Raise FlowFailedError for a NULL key, or two rows of one micro-batch with one key.

    written: Parquet files in `<store>/<execution>/<micro-batch>/` directories. The files' keys have to fit in memory.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for _, of_batch in groupby(written, lambda file: file.path.split("/")[2]):
        rows = pa.concat_tables([_read(files, file, key) for file in of_batch])
        for name in key:
            if rows.column(name).null_count:
                raise FlowFailedError(
                    f"DeltaSink: a row has no value in the key column {name!r}",
                    cause="In SQL, NULL equals nothing, so such a row would never be replaced.",
                    remedy="Filter these rows out, or give them a value.",
                )
        once = rows.group_by([*key]).aggregate([([], "count_all")])
        double = once.filter(pc.greater(once.column("count_all"), 1))
        if len(double):
            found = double.select([*key]).slice(0, 1).to_pylist()[0]
            raise FlowFailedError(
                f"DeltaSink: two rows of one micro-batch have the key {found}",
                cause="Neither row is the last one.",
                remedy="Reduce the output to one row for each key, or add the columns that tell them apart to key.",
            )


def newest_rows(files: FileSystem, written: Sequence[AddedFile], key: Sequence[str]) -> pa.Table:
    """Return the last row of each key. written: files in the order of micro-batches. The rows must fit in memory."""
    import pyarrow as pa

    rows = pa.concat_tables([_read(files, file) for file in written])
    numbered = rows.select([*key]).append_column(_ROW, pa.array(range(len(rows)), pa.int64()))
    return rows.take(numbered.group_by([*key]).aggregate([(_ROW, "max")]).column(f"{_ROW}_max"))


def _read(files: FileSystem, file: AddedFile, columns: Sequence[str] | None = None) -> pa.Table:
    import pyarrow.parquet as pq

    with files.open_input_file(file.path) as opened:
        return pq.read_table(opened, columns=None if columns is None else [*columns])


def merge_rows(table: Any, rows: pa.Table, key: Sequence[str], properties: Any) -> None:
    """Commit: replace the rows of the table that have these keys, and insert all other rows."""
    columns = [name.replace('"', '""') for name in key]
    same = " AND ".join(f'target."{name}" = source."{name}"' for name in columns)
    merger = table.merge(rows, same, "source", "target", commit_properties=properties)
    merger.when_matched_update_all().when_not_matched_insert_all().execute()
