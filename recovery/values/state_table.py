"""Convert states of many keys between columns of a declared schema and the JSON texts that SQLite holds.

Each key's state is one JSON object of the schema's columns. The object stays readable, and a column that is added later
is NULL in older states. Reading and writing run in Arrow's compiled kernels and create no Python object per key. Every
value decodes to an equal value, or `encode` refuses it.

    bool, integers, float, double   JSON's own form; NaN and infinity have none and are refused
    string                          a string
    binary                          a base64 string
    date, timestamp                 ISO 8601; a timestamp is in UTC and ends with Z, one without time zone does not
    decimal                         a string, so that no reader parses it as a double
    array                           an array of the types above
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from recovery.base.wording import counted
from recovery.errors import StateValueError, shortened

BLOCK_BYTES = 1 << 30
"""The most bytes for one call of the JSON reader, which counts in 32 bits."""
_CONTROL = "[\\x00-\\x1f]"
_NULL = "null"
_YEARS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""First and last microsecond since 1970 of the years 1 to 9999, which ISO 8601 writes with four digits."""


class StateTable:
    """Encodes and decodes states of one schema. Raises ValueError if the schema has a type that cannot be stored."""

    def __init__(self, schema: pa.Schema) -> None:
        for field in schema:
            if not _storable(field.type):
                raise ValueError(f"column {field.name!r} is a {field.type}, which has no form in JSON")
        self.schema = schema
        self._stored = pa.schema([(field.name, _stored_type(field.type)) for field in schema])
        names = _string(pa.array(schema.names, pa.string())).to_pylist()
        self._heads = [f"{',' if number else '{'}{name}:" for number, name in enumerate(names)]

    def encode(self, columns: Sequence[pa.Array], keys: pa.Array | None = None) -> pa.Array:
        """Return one text per key; `columns` must have the schema's types. Raises StateValueError for a value that
        cannot be stored, and names its key if `keys` are given."""
        parts: list[Any] = []
        for field, head, column in zip(self.schema, self._heads, columns, strict=True):
            try:
                parts += (head, _texts(column))
            except ValueError as error:
                place = _first_unfit(column)
                key = "" if keys is None else f" of key {shortened(keys[place].as_py())!r}"
                raise StateValueError(
                    f"state column {field.name!r} ({field.type}){key}: {error}: {_shown(column, place)}",
                    cause="State is kept as JSON, which has no form for this value.",
                    remedy="Keep it out of the state, or store NULL in its place.",
                ) from error
        return pc.binary_join_element_wise(*parts, "}", "")

    def decode(self, texts: Sequence[str | None]) -> list[pa.Array]:
        """Return the schema's columns with one row per text; a row is all NULL if its text is None. Raises ValueError
        for texts that do not fit the schema."""
        # The reader crashes if its first value is NULL (pyarrow 26).
        lines = "\n".join(["{}", *[text or "{}" for text in texts]]).encode()
        if len(lines) > BLOCK_BYTES and len(texts) > 1:
            middle = len(texts) // 2
            halves = self.decode(texts[:middle]), self.decode(texts[middle:])
            return [pa.concat_arrays(both) for both in zip(*halves, strict=True)]
        found = pyarrow.json.read_json(
            pa.BufferReader(lines),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=self._stored, unexpected_field_behavior="ignore", newlines_in_values=True
            ),
        )
        if len(found) != len(texts) + 1 or _NULL in texts:
            raise ValueError(f"the texts of {counted(len(texts), 'state')} are not as many JSON objects")
        columns = zip(found.columns, self.schema, strict=True)
        return [_restore(column.combine_chunks(), field.type).slice(1) for column, field in columns]


def _first_unfit(column: pa.Array) -> int:
    """Return the index of the first value that cannot be stored."""
    for place in range(len(column)):
        try:
            _texts(column.take(pa.array([place])))
        except ValueError:
            return place
    return 0


def _shown(column: pa.Array, place: int) -> str:
    """Return a value in Arrow's own text form."""
    text = " ".join(str(column.slice(place, 1)).split())
    return shortened(text.removeprefix("[ ").removesuffix(" ]"))


def _storable(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _storable(kind.value_type)
    return any(test(kind) for test, _, _ in _FORMS)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with which the JSON reader reads stored values of type `kind`."""
    if pa.types.is_list(kind):
        return pa.list_(_stored_type(kind.value_type))
    plain = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return kind if plain else pa.string()


def _texts(column: pa.Array) -> pa.Array:
    """Return the JSON texts of the values; "null" for NULL."""
    if pa.types.is_list(column.type):
        inner = pa.ListArray.from_arrays(column.offsets, _texts(column.values))
        texts = pc.binary_join_element_wise("[", pc.binary_join(inner, ","), "]", "")
        return pc.if_else(column.is_valid(), texts, _NULL) if column.null_count else texts
    texts = _form(column.type)[1](column)
    return texts.fill_null(_NULL) if column.null_count else texts


def _restore(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pa.types.is_list(kind):
        values = _restore(column.values, kind.value_type)
        return pa.ListArray.from_arrays(column.offsets, values, type=kind, mask=column.is_null())
    return _form(kind)[2](column, kind)


def _form(kind: pa.DataType) -> tuple[Any, Callable[[pa.Array], pa.Array], Callable[[pa.Array, pa.DataType], pa.Array]]:
    return next(form for form in _FORMS if form[0](kind))


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


def _same(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column.cast(kind)


def _float(column: pa.Array) -> pa.Array:
    finite = pc.is_finite(column)
    if not pc.all(finite).as_py() and pc.any(pc.invert(finite)).as_py():
        raise ValueError("NaN and infinity cannot be stored")
    return column.cast(pa.string())


def _quoted(column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', column, '"', "")


def _string(column: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(column, '[\\\\"\\x00-\\x1f]')).as_py():
        column = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
        if pc.any(pc.match_substring_regex(column, _CONTROL)).as_py():
            for code in range(32):
                column = pc.replace_substring(column, chr(code), f"\\u{code:04x}")
    return _quoted(column)


def _binary(column: pa.Array) -> pa.Array:
    texts = [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
    return _quoted(pa.array(texts, pa.string()))


def _from_base64(column: pa.Array, kind: pa.DataType) -> pa.Array:
    found = [None if text is None else base64.b64decode(text, validate=True) for text in column.to_pylist()]
    return pa.array(found, kind)


def _moment(column: pa.Array) -> pa.Array:
    micros = column.cast(pa.timestamp("us", column.type.tz if pa.types.is_timestamp(column.type) else None))
    edges = pc.min_max(micros.cast(pa.int64())).as_py()
    if edges["min"] is not None and (edges["min"] < _YEARS[0] or edges["max"] > _YEARS[1]):
        raise ValueError("only the years 1 to 9999 can be stored")
    if pa.types.is_timestamp(column.type):
        zone = None if column.type.tz is None else "UTC"
        column = pc.replace_substring(micros.cast(pa.timestamp("us", zone)).cast(pa.string()), " ", "T")
        return _quoted(column)
    return _quoted(column.cast(pa.string()))


def _to_moment(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column.cast(pa.timestamp(kind.unit, None if kind.tz is None else "UTC")).cast(kind)


def _decimal(column: pa.Array) -> pa.Array:
    return _quoted(column.cast(pa.string()))


_FORMS = (
    (pa.types.is_boolean, _plain, _same),
    (pa.types.is_integer, _plain, _same),
    (pa.types.is_floating, _float, _same),
    (pa.types.is_string, _string, _same),
    (pa.types.is_binary, _binary, _from_base64),
    (pa.types.is_date, _moment, _same),
    (pa.types.is_timestamp, _moment, _to_moment),
    (pa.types.is_decimal128, _decimal, _same),
)
"""Per type: its test, the function from values to JSON texts, and the function from strings back to values."""
