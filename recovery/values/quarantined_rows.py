"""The rows of an entry in quarantine as text: an Arrow stream with their types, in base64."""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from recovery.base.untrusted_json import Refusal
from recovery.values.tables import value_at

MOST_DATA_BYTES = 64 << 20
"""The most bytes of rows of one entry that has several rows; base64 makes a third more of them."""
MOST_ROWS = 1_000_000
"""The most rows of one entry."""
MOST_FIELDS = 100_000
"""The most columns, and parts of columns, of the rows of one entry."""


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


def unpacked(data: str, refuse: Refusal, rows: int | None = None) -> pa.Table:
    """Return the rows in the text of an entry; raises the error that `refuse` makes for anything else. rows: how many
    the entry says that it has; None: any number.

    The file may be anybody's. So nothing is read that `packed` does not write and that takes much more memory than the
    text: compressed buffers, values that several rows share, and rows or elements without bytes of their own.
    """
    try:
        stream = pa.py_buffer(base64.b64decode(data, validate=True))
        for message in pa.ipc.MessageReader.open_stream(stream):
            _check_message(message, refuse)
        reader = pa.ipc.open_stream(stream)
        _check_types(reader.schema, refuse)
        table = reader.read_all()
        most = max(MOST_ROWS, 8 * len(stream))
        for column in table.columns:
            for chunk in column.chunks:
                # Arrow reads what the offsets say. Text need not be valid UTF-8.
                chunk.view(_as_bytes(chunk.type)).validate(full=True)
                _check_lengths(chunk, most, refuse)
    except (binascii.Error, pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise refuse(f"its rows are no Arrow stream: {error}") from error
    if len(table) > MOST_ROWS or rows not in (None, len(table)):
        raise refuse(f"it has {len(table):,} rows, where {MOST_ROWS if rows is None else rows:,} may be")
    return table


def schema_of(data: str, refuse: Refusal) -> pa.Schema:
    """Return the types of the rows in the text of an entry, without reading the rows; raises what `unpacked` raises."""
    try:
        schema = pa.ipc.open_stream(pa.py_buffer(base64.b64decode(data, validate=True))).schema
    except (binascii.Error, pa.ArrowException, OSError, ValueError) as error:
        raise refuse(f"its rows are no Arrow stream: {error}") from error
    _check_types(schema, refuse)
    return schema


def _check_message(message: pa.Message, refuse: Refusal) -> None:
    """Refuse values that rows share, and compressed ones: a megabyte of them may have gigabytes."""
    if message.type == "dictionary":
        raise refuse("its rows share values")
    if message.type == "record batch":
        # Arrow itself has no option that refuses them. This is its format, in the form of FlatBuffers: a table refers
        # to the places of its fields, 0 for a field that is missing.
        metadata = message.metadata.to_pybytes()
        root = struct.unpack_from("<I", metadata)[0]
        header = root + _field(metadata, root, 2)
        batch = header + struct.unpack_from("<I", metadata, header)[0]
        if _field(metadata, batch, 3):
            raise refuse("its rows are compressed")


def _field(metadata: bytes, table: int, number: int) -> int:
    """Return where a table has a field, from its begin; 0: the field is missing."""
    fields = table - struct.unpack_from("<i", metadata, table)[0]
    place, size = 4 + 2 * number, struct.unpack_from("<H", metadata, fields)[0]
    return int(struct.unpack_from("<H", metadata, fields + place)[0]) if place < size else 0


_PLAIN = (
    pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal,
    pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_temporal,
    pa.types.is_interval,
)  # fmt: skip
_NESTED = (pa.types.is_struct, pa.types.is_list, pa.types.is_large_list, pa.types.is_map)


def _check_types(schema: pa.Schema, refuse: Refusal) -> None:
    """Refuse types that rows of Spark do not have."""
    fields = list(schema)
    if len(fields) > MOST_FIELDS:
        raise refuse(f"its rows have {len(fields):,} columns, where {MOST_FIELDS:,} may be")
    seen = 0
    while fields:
        kind = fields.pop().type
        seen += 1
        if any(of(kind) for of in _NESTED):
            fields += [kind.field(place) for place in range(kind.num_fields)]
        elif not any(of(kind) for of in _PLAIN):
            raise refuse(f"its rows have values of type {kind!s:.80}")
        if seen + len(fields) > MOST_FIELDS:
            raise refuse(f"its rows have more than {MOST_FIELDS:,} columns and parts of columns")


def _check_lengths(values: pa.Array[Any], most: int, refuse: Refusal) -> None:
    """Refuse more elements than so many, in lists too: elements without bytes cost nothing in the text."""
    parts: list[Any] = [values]
    while parts:
        part = parts.pop()
        if len(part) > most:
            raise refuse(f"its rows have {len(part):,} elements, where {most:,} may be")
        if pa.types.is_struct(part.type):
            parts += [part.field(place) for place in range(part.type.num_fields)]
        elif pa.types.is_map(part.type):
            parts += [part.keys, part.items]
        elif pa.types.is_list(part.type) or pa.types.is_large_list(part.type):
            parts.append(part.values)


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


def texts(column: str, rows: pa.Table) -> list[str | None]:
    """Return the values of a column as text: those of JSON, and a text as it is; None for NULL."""
    values = [each[column] for each in json_rows(rows.select([column]))]
    return [each if each is None or isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in values]


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
    """Divide rows so that each piece has at most so many bytes, or a single row, and at most `MOST_ROWS` rows."""
    if len(rows) < 2 or (rows.nbytes <= most_bytes and len(rows) <= MOST_ROWS):
        yield rows
        return
    middle = len(rows) // 2
    yield from pieces(rows.slice(0, middle), most_bytes)
    yield from pieces(rows.slice(middle), most_bytes)
