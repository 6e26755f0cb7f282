"""Convert tables that a user's function returns, in any form that Arrow reads, to the declared columns and types."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from recovery.errors import shortened

_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
"""Arrow's name for a column made from an unnamed pandas index, which holds the rows' old numbers."""


def as_table(given: Any) -> pa.Table:
    """Return `given` as an Arrow table; it may be from Arrow, Polars, pandas or DuckDB, or a dict of columns.
    Raises ValueError for anything else."""
    if isinstance(given, pa.Table):
        return given
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    if isinstance(given, dict) or hasattr(given, "__arrow_c_stream__"):
        try:
            table = pa.table(given)
            return table.drop_columns(list(filter(_UNNAMED_INDEX.fullmatch, table.column_names)))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ValueError(f"a {type(given).__name__} that is not a table: {error}") from error
    raise ValueError(f"a {type(given).__name__}, which is not a table")


def columns_of(table: pa.Table, schema: pa.Schema, ignored: Collection[str] = ()) -> list[pa.Array]:
    """Return the table's columns in the order and with the types of `schema`; `ignored` columns may be there too.

    Raises ValueError for a column that is missing, unknown or there twice, whose values might change in the declared
    type, or that has NULL where the schema does not allow it."""
    names = table.column_names
    missing = [name for name in schema.names if name not in names]
    unknown = [name for name in names if name not in schema.names and name not in ignored]
    twice = [name for name in schema.names if names.count(name) > 1]
    for what, found in (("lacks the columns", missing), ("has unknown columns", unknown), ("has twice", twice)):
        if found:
            raise ValueError(f"a table that {what} {', '.join(map(repr, found))}; wanted: {', '.join(schema.names)}")
    return [_fitted(table.column(field.name), field) for field in schema]


def _fitted(column: pa.ChunkedArray, field: pa.Field) -> pa.Array:
    given = column.type
    if given != field.type:
        if not _fits(given, field.type):
            raise ValueError(f"{field.name!r} as {given}, where {field.type} is declared")
        try:
            # Some casts need more than one step: dictionaries and views are unpacked first.
            for step in _casts(given, field.type):
                before, column = column, column.cast(step)
                if _overflows(before, column):
                    raise pa.ArrowInvalid("a number is too great")
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(f"{field.name!r} with values that do not fit {field.type}: {error}") from error
    combined = column.combine_chunks()
    array = combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)
    refuse_null(array, field)
    return array


def refuse_null(array: pa.Array[Any], field: pa.Field, name: str | None = None) -> None:
    """Check that there is no NULL where the field, or one inside it, is declared NOT NULL. Raises ValueError.

    Arrow does not check this, and Spark would read a zero or an empty string. name: the field's name in the error."""
    name = field.name if name is None else name
    kind = field.type
    if array.null_count and not field.nullable:
        raise ValueError(f"NULL in {name!r}, which is declared NOT NULL")
    if not pa.types.is_nested(kind):
        return
    # Values inside a NULL do not count.
    given = array.drop_null() if array.null_count else array
    if pa.types.is_struct(kind):
        for place, inner in enumerate(kind):
            refuse_null(given.field(place), inner, f"{name}.{inner.name}")
    elif pa.types.is_map(kind):
        start, end = (given.offsets[place].as_py() for place in (0, -1))
        for part, inner in ((given.keys, kind.key_field), (given.items, kind.item_field)):
            refuse_null(part.slice(start, end - start), inner, f"{name}.{inner.name}")
    else:
        refuse_null(given.flatten(), kind.value_field, f"{name}.{kind.value_field.name}")


def _overflows(given: pa.ChunkedArray[Any], column: pa.ChunkedArray[Any]) -> bool:
    """Return whether a cast made a number infinite: a cast to a shorter float does so silently, and rounds others."""
    if _is_list(column.type) and _is_list(given.type):
        return _overflows(pc.list_flatten(given), pc.list_flatten(column))
    if pa.types.is_struct(column.type) and pa.types.is_struct(given.type):
        fields = range(len(column.type))
        return any(_overflows(pc.struct_field(given, [each]), pc.struct_field(column, [each])) for each in fields)
    if not (pa.types.is_floating(given.type) and pa.types.is_floating(column.type)):
        return False
    return bool(pc.any(pc.and_not(pc.is_inf(column), pc.is_inf(given))).as_py())


def _casts(given: pa.DataType, wanted: pa.DataType) -> list[pa.DataType]:
    """Return the types to cast to, one after the other."""
    plain = _plain(given)
    if pa.types.is_integer(plain) and pa.types.is_decimal(wanted):
        # Any integer fits this decimal; the next cast checks whether the values fit the declared one.
        return [plain, pa.decimal128(38, min(wanted.scale, 18)), wanted]
    return [plain, wanted]


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    return pa.string() if pa.types.is_string_view(kind) else pa.binary() if pa.types.is_binary_view(kind) else kind


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether `wanted` can represent values of type `given` within its range; the cast checks the range."""
    given, wanted = _plain(given), _plain(wanted)
    if given == wanted or pa.types.is_null(given):
        return True
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    if _is_list(given) and _is_list(wanted):
        return _fits(given.value_type, wanted.value_type)
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        pairs = [(given.field(index), wanted.field(index)) for index in range(min(len(given), len(wanted)))]
        return len(given) == len(wanted) and all(a.name == b.name and _fits(a.type, b.type) for a, b in pairs)
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        # These maps can differ only in which parts may be NULL, and `refuse_null` checks the values for that.
        return bool(given.key_type == wanted.key_type and given.item_type == wanted.item_type)
    if pa.types.is_integer(given) and (pa.types.is_floating(wanted) or pa.types.is_decimal(wanted)):
        return True
    return any(test(given) and test(wanted) for test in _FAMILIES)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


_FAMILIES = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    _is_text,
    _is_bytes,
)


_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_YEAR_32000 = 947_000_000_000
"""About the seconds up to that year: Arrow writes a year as a number of 16 bits, which wraps."""


def value_at(column: pa.Array, place: int) -> Any:
    """Return a value for an error message; its text if Python cannot represent it."""
    try:
        return column[place].as_py()
    except (ValueError, OverflowError):
        return text_of(column, place)


def text_of(column: pa.Array, place: int) -> str:
    """Return a value in Arrow's own text form; a moment with a time zone in UTC, and one of a year that Arrow's text
    cannot have as a number."""
    one = column.slice(place, 1)
    if pa.types.is_timestamp(one.type):
        number = one.cast(pa.int64())[0].as_py()
        if number is not None and abs(number) > _YEAR_32000 * _PER_SECOND[one.type.unit]:
            return f"{number} {one.type.unit} since 1970"
        one = one if one.type.tz is None else one.cast(pa.timestamp(one.type.unit, "UTC"))
    try:
        return str(one.cast(pa.string())[0])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return shortened(" ".join(str(one).split()))
