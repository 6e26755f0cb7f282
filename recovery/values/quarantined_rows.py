"""The rows of an entry in quarantine as text: an Arrow stream with their types, in base64."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from recovery.base.untrusted_json import Refusal
from recovery.values.tables import value_at

MOST_DATA_BYTES = 64 << 20
"""The most bytes of rows of one entry that has several rows; base64 makes a third more of them."""


ENTRY = "__recovery_entry"
"""The column with the index of an entry."""


@dataclass(frozen=True)
class Replayed:
    """The columns that Spark computes for rows of entries that are replayed. places: key and number of each entry whose
    rows fit the input as it is now. data: an Arrow stream with the columns, and the index of each row's place."""

    places: tuple[tuple[str, int], ...]
    data: bytes

    def by_place(self) -> Mapping[tuple[str, int], pa.RecordBatch]:
        """Return the computed columns of each entry, in the order of its rows."""
        if not self.places:
            return {}
        table = pa.ipc.open_stream(self.data).read_all().combine_chunks()
        indexes, rows = table[ENTRY].to_pylist(), table.drop_columns([ENTRY]).to_batches()[0]
        found, start = {}, 0
        for end in range(1, len(indexes) + 1):
            if end == len(indexes) or indexes[end] != indexes[start]:
                found[self.places[indexes[start]]] = rows.slice(start, end - start)
                start = end
        return found


def packed(rows: pa.RecordBatch) -> str:
    """Return rows as text: an Arrow stream in base64."""
    # A slice would bring the text of all rows around it.
    rows = rows.take(pa.array(range(len(rows)), pa.int64()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return base64.b64encode(memoryview(sink.getvalue())).decode()


def unpacked(data: str, refuse: Refusal) -> pa.Table:
    """Return the rows in the text of an entry; raises the error that `refuse` makes for anything else."""
    try:
        table = pa.ipc.open_stream(pa.py_buffer(base64.b64decode(data, validate=True))).read_all()
        for column in table.columns:
            for chunk in column.chunks:
                # Arrow reads what the offsets say; the file may be anybody's. Text need not be valid UTF-8.
                chunk.view(_as_bytes(chunk.type)).validate(full=True)
    except (binascii.Error, pa.ArrowException, OSError, ValueError) as error:
        raise refuse(f"its rows are no Arrow stream: {error}") from error
    return table


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    """Return a type with bytes in place of text."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([_field_as_bytes(each) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_field_as_bytes(kind.key_field), _field_as_bytes(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(_field_as_bytes(kind.value_field))
    return kind


def _field_as_bytes(field: pa.Field) -> pa.Field:
    return field.with_type(_as_bytes(field.type))


def json_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows as JSON values, for people: bytes in base64, and what JSON does not have as text."""
    columns = [rows.column(place).combine_chunks() for place in range(rows.num_columns)]
    return [
        {name: _plain(_value(column, place)) for name, column in zip(rows.column_names, columns, strict=True)}
        for place in range(len(rows))
    ]


def _value(column: pa.Array[Any], place: int) -> Any:
    try:
        return value_at(column, place)
    except UnicodeDecodeError:
        if not pa.types.is_string(column.type):
            return "(text that is not valid UTF-8)"
        return column.cast(pa.binary())[place].as_py().decode(errors="backslashreplace")
    except Exception as error:
        # The libraries of each type have errors of their own, as for a decimal with too many digits.
        return f"(a value of type {column.type} that cannot be shown: {type(error).__name__})"


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def pieces(rows: pa.RecordBatch, most_bytes: int = MOST_DATA_BYTES) -> Iterable[pa.RecordBatch]:
    """Divide rows so that each piece has at most so many bytes, or a single row."""
    if len(rows) < 2 or rows.nbytes <= most_bytes:
        yield rows
        return
    middle = len(rows) // 2
    yield from pieces(rows.slice(0, middle), most_bytes)
    yield from pieces(rows.slice(middle), most_bytes)
