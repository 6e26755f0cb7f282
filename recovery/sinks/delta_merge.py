"""Merge an epoch's rows into a Delta table by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recovery.errors import FlowFailedError
from recovery.sinks.delta_table import AddedFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

_BATCH, _ROW = "__recovery_batch", "__recovery_row"


def newest_rows(files: FileSystem, written: Sequence[AddedFile], key: Sequence[str]) -> pa.Table:
    """Return the last row of each key. Raises FlowFailedError for a NULL key, or two rows of one micro-batch with one.

    written: Parquet files in `<execution>/<micro-batch>/` directories. Their rows have to fit in memory.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    tables = []
    for file in written:
        with files.open_input_file(file.path) as opened:
            rows = pq.read_table(opened)
        batch = int(file.path.split("/")[2])
        tables.append(rows.append_column(_BATCH, pa.array([batch] * len(rows), pa.int64())))
    rows = pa.concat_tables(tables)
    for name in key:
        if rows.column(name).null_count:
            raise FlowFailedError(
                f"DeltaSink: a row has no value in the key column {name!r}",
                cause="In SQL, NULL equals nothing, so such a row would never be replaced.",
                remedy="Filter these rows out, or give them a value.",
            )
    once = rows.group_by([*key, _BATCH]).aggregate([([], "count_all")])
    double = once.filter(pc.greater(once.column("count_all"), 1))
    if len(double):
        found = double.select([*key]).slice(0, 1).to_pylist()[0]
        raise FlowFailedError(
            f"DeltaSink: two rows of one micro-batch have the key {found}",
            cause="Neither of them is the last one.",
            remedy="Reduce the output to one row for each key, or add the columns that tell them apart to key.",
        )
    rows = rows.append_column(_ROW, pa.array(range(len(rows)), pa.int64()))
    rows = rows.sort_by([(_BATCH, "ascending"), (_ROW, "ascending")])
    rows = rows.set_column(rows.column_names.index(_ROW), _ROW, pa.array(range(len(rows)), pa.int64()))
    last = rows.group_by([*key]).aggregate([(_ROW, "max")]).column(f"{_ROW}_max")
    return rows.take(last).drop_columns([_BATCH, _ROW])


def merge_rows(table: Any, rows: pa.Table, key: Sequence[str], properties: Any) -> None:
    """Commit: replace the rows of the table that have these keys, and insert the others."""
    columns = [name.replace('"', '""') for name in key]
    same = " AND ".join(f'target."{name}" = source."{name}"' for name in columns)
    merger = table.merge(rows, same, "source", "target", commit_properties=properties)
    merger.when_matched_update_all().when_not_matched_insert_all().execute()
