"""Partitions of an Iceberg table: which can be written, how rows are divided into files, and the partition of a file.

Each file may have rows of one partition only. Spark has no functions for Iceberg's transforms without Iceberg's own
package. So rows are divided by expressions of Spark's that differ at least where the transform does, and by whether
there is a value. The transform itself then gives the partition of a file, from one of its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

GROUP = "__recovery_partition"
"""The column by whose values Spark divides rows into files. The column is in the names of directories only."""
_MICROS = {"day": 86_400_000_000, "hour": 3_600_000_000}
_DATES = {"year": "year({0})", "month": "year({0}) * 12 + month({0})", "day": "{0}"}
_WHOLE = ("int", "long", "string", "boolean", "date", "timestamp", "timestamptz", "binary")


def refused(table: Any) -> str | None:
    """Return the first partition field that cannot be written, with its transform; None if all can."""
    columns = {field.field_id: field for field in table.schema().fields}
    for field in table.spec().fields:
        column = columns.get(field.source_id)
        if column is None or not _expressions("x", str(field.transform), str(column.field_type)):
            return f"{field.name} ({field.transform} of {table.schema().find_column_name(field.source_id)})"
    return None


def grouping(table: Any, written: Collection[str]) -> str:
    """Return the expression of Spark's SQL by whose values the rows of a table are divided; empty without partitions.

    written: the columns that the flow writes. Two partitions have one value only if their hashes are equal, which
    `data_files` finds.
    """
    columns = {field.field_id: field for field in table.schema().fields}
    parts: list[str] = []
    for field in table.spec().fields:
        column = columns[field.source_id]
        if str(field.transform) != "void" and column.name in written:
            name = "`" + column.name.replace("`", "``") + "`"
            parts += [f"{name} IS NULL", *_expressions(name, str(field.transform), str(column.field_type))]
    return f"xxhash64({', '.join(parts)})" if parts else ""


def _expressions(name: str, transform: str, kind: str) -> list[str]:
    """Return expressions of a column that differ where a transform of it does; none if there are none."""
    if transform == "void":
        return ["NULL"]
    if transform == "identity":
        return [name] if kind in _WHOLE or kind.startswith("decimal(") else []
    if transform.startswith("truncate["):
        width = int(transform[9:-1])
        if kind in ("int", "long"):
            return [f"try_subtract(CAST({name} AS BIGINT), pmod(CAST({name} AS BIGINT), {width}L))"]
        return [f"substring({name}, 1, {width})"] if kind == "string" else []
    if kind == "timestamptz" and transform in ("year", "month", "day", "hour"):
        # In UTC, whatever the session's time zone is.
        size = _MICROS["hour" if transform == "hour" else "day"]
        micros = f"unix_micros({name})"
        start = f"({micros} - pmod({micros}, {size}L))"
        day = f"date_from_unix_date(CAST({start} DIV {size}L AS INT))"
        return [start if transform == "hour" else _DATES[transform].format(day)]
    if kind in ("date", "timestamp") and transform in _DATES:
        return [_DATES[transform].format(f"CAST({name} AS DATE)")]
    return [f"CAST({name} AS DATE)", f"hour({name})"] if kind == "timestamp" and transform == "hour" else []


def data_files(metadata: Any, io: Any, paths: Sequence[str]) -> Iterator[Any]:
    """Yield the entries for a table's manifest of Parquet files, with their partitions. Raises ValueError if a file has
    rows of two partitions."""
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    position = _position_of_partition()
    for path in paths:
        file = parquet_file_to_data_file(io=io, table_metadata=metadata, file_path=path)
        # pyiceberg takes the partition from a column's statistics, of which it may have none.
        file[position] = _partition(metadata, io, path)
        yield file


def _position_of_partition() -> int:
    from pyiceberg.manifest import DATA_FILE_TYPE

    return [field.name for field in DATA_FILE_TYPE[2].fields].index("partition")


def _partition(metadata: Any, io: Any, path: str) -> Any:
    """Return the partition of a file by its first row. A column that the file lacks is NULL."""
    import pyarrow.parquet as pq
    from pyiceberg.partitioning import partition_record_value
    from pyiceberg.typedef import Record

    schema, fields = metadata.schema(), metadata.spec().fields
    names = {field.source_id: schema.find_column_name(field.source_id) for field in fields}
    with io.new_input(path).open() as opened:
        file = pq.ParquetFile(opened)
        there = [name for name in set(names.values()) if name in file.schema_arrow.names]
        row = next(file.iter_batches(batch_size=1, columns=there)).to_pylist()[0] if there else {}
    values = []
    for field in fields:
        value = partition_record_value(field, row.get(names[field.source_id]), schema)
        values.append(field.transform.transform(schema.find_type(field.source_id))(value))
    return Record(*values)
