"""Strict conversion of the output of `update` to Arrow arrays of the declared types.

Arrow silently changes values that do not fit: it cuts 2.75 to 2, also where a time is declared, ignores a misspelt
field of a struct, and reads times without a zone as UTC. So a column that is not plainly of the declared type is
checked value by value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from numbers import Number
from operator import itemgetter
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recovery.base.ids import StepId
from recovery.base.wording import counted
from recovery.errors import StateValueError
from recovery.spark.steps.column_types import _OFFSET, arrow_zone
from recovery.values.columns import BY_PLACE, names_of, places_of
from recovery.values.tables import refuse_null

Fit: TypeAlias = Callable[[Any], Any]
"""A function that returns a value which Arrow converts without changing it, or raises. The function is not called for
None."""

_PLAIN = {tuple, list}
_NUMBERS = {int, type(None)}
_MICROSECONDS = {"M": "datetime64[us]", "m": "timedelta64[us]"}
"""What an array of NumPy's times becomes, by its kind."""
_GREATEST_FLOAT = float(np.finfo(np.float32).max)
_LARGE = 1 << 31
"""The number of bytes from which on a column does not fit 32-bit offsets."""


def to_batch(output: list[tuple[Any, ...]], schema: pa.Schema, step_id: StepId, time_zone: str) -> pa.RecordBatch:
    """Return the rows that a step's `update` gave as arrays of the declared types: Spark does not cast. Raises
    StateValueError."""
    width, kinds = len(schema), set(map(type, output))
    if not _PLAIN.issuperset(kinds):
        output = _in_order(output, kinds, tuple(schema.names), step_id)
    if not {width}.issuperset(map(len, output)):
        raise _unfit_row(next(row for row in output if len(row) != width), schema.names, step_id)
    arrays = []
    for index, field in enumerate(schema):
        column = list(map(itemgetter(index), output))
        try:
            array = to_array(column, field.type, time_zone)
            refuse_null(array, field)
            arrays.append(array)
        except MemoryError:
            raise
        except Exception as error:
            # NumPy and the value's own class have errors of their own.
            raise StateValueError(
                f"step {step_id!r}: output column {field.name!r} ({field.type}): {error}",
                cause="update gave a value that does not fit the declared output.",
                remedy="Convert the value, or change output=.",
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _in_order(
    output: list[tuple[Any, ...]], kinds: Collection[type], names: tuple[str, ...], step_id: StepId
) -> list[tuple[Any, ...]]:
    """Return the rows in the order of the columns: the names of a row decide if it has some. kinds: the types of the
    rows. Raises StateValueError for a row that has other names, and for what is no row."""

    # The names of a named tuple are those of its type: once is enough.
    if all(kind in _PLAIN or (issubclass(kind, tuple) and names_of(kind) == names) for kind in kinds):
        return output
    before: Any = None
    places: tuple[int, ...] | None = None
    ordered: list[Any] = []
    for row in output:
        if not isinstance(row, tuple | list):
            raise _unfit_row(row, names, step_id)
        own = names_of(row)
        # Most rows have the names of the row before.
        if own is not None and own != before:
            places, before = _places_in_output(row, own, names, step_id), own
        if own is not None and places is not None:
            plain = tuple(row)
            row = tuple([plain[place] for place in places])
        ordered.append(row)
    return ordered


def _places_in_output(
    row: tuple[Any, ...], own: Sequence[str], names: tuple[str, ...], step_id: StepId
) -> tuple[int, ...] | None:
    """Return for each column the place of the part of its name; None: the parts are in order. Raises StateValueError
    for other names."""
    try:
        places = places_of(tuple(own), names)
        lacking = [name for name, place in zip(names, places or (), strict=False) if place is None]
        if lacking:
            raise ValueError(f"lacks {', '.join(map(repr, lacking))} of")
    except ValueError as error:
        raise StateValueError(
            f"step {step_id!r} gave {row!r}, which {error} the columns {', '.join(names)} of its output",
            cause="A Row and a named tuple go by their names.",
            remedy=BY_PLACE,
        ) from error
    return None if places is None else tuple(place for place in places if place is not None)


def _unfit_row(row: Any, names: Sequence[str], step_id: StepId) -> StateValueError:
    return StateValueError(
        f"step {step_id!r} gave {row!r} where its output has {counted(len(names), 'column')}",
        cause="update yields or returns single values, or tuples of another length.",
        remedy=f"Yield tuples of ({', '.join(names)}).",
    )


def to_array(column: Sequence[Any], kind: pa.DataType, time_zone: str) -> pa.Array[Any]:
    """Return the values as an array of type `kind`.

    Times without a zone are in `time_zone`, the session's, as in Spark's functions. If a time without a zone is
    declared, a time with a zone becomes the session's local time. Raises Arrow's errors, also for a value that would be
    changed: ArrowInvalid, ArrowTypeError, OverflowError.
    """
    if pa.types.is_float32(kind):
        array = pa.array(column, kind)
        if pc.any(pc.is_inf(array)).as_py():
            _refuse_new_infinities(array, pa.array(column, pa.float64()))
        return array
    fit = None if _is_plain(column, kind) else _fit_of(kind, time_zone)
    return pa.array(column if fit is None else [None if value is None else fit(value) for value in column], kind)


def in_known_zones(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows in types that Arrow can convert to Python; it cannot convert a time in GMT+8, for example.

    Strings and binary get the 32-bit offsets that states and output have, unless they need 64-bit ones."""
    schema = _known_schema(rows.schema, rows.nbytes < _LARGE)
    return rows if schema is None else rows.cast(schema)


@lru_cache
def _known_schema(schema: pa.Schema, fits: bool) -> pa.Schema | None:
    """Return the schema to cast rows to; None if they need no cast."""
    known = pa.schema([field.with_type(_known(field.type, fits)) for field in schema])
    return None if known == schema else known


def _known(kind: pa.DataType, fits: bool) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, arrow_zone(kind.tz))
    if fits and pa.types.is_large_string(kind):
        return pa.string()
    if fits and pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(_known_field(kind.value_field, fits))
    if pa.types.is_struct(kind):
        return pa.struct([_known_field(field, fits) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_known_field(kind.key_field, fits), _known_field(kind.item_field, fits))
    return kind


def _known_field(field: pa.Field, fits: bool) -> pa.Field:
    return field.with_type(_known(field.type, fits))


@lru_cache
def zone_of(name: str) -> tzinfo:
    """Return the time zone with a name that Spark uses, such as GMT+8. Raises ArrowInvalid for an unknown name."""
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        span = timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
        return timezone(-span if offset[1] == "-" else span)
    try:
        return ZoneInfo({"Z": "UTC"}.get(name, name))
    except (KeyError, ValueError) as error:
        raise pa.ArrowInvalid(f"Python does not know the session's time zone {name!r}: give times a zone") from error


def _is_plain(column: Sequence[Any], kind: pa.DataType) -> bool:
    """Return whether the values' types, or their time zones, show that Arrow converts them without changing any."""
    if pa.types.is_integer(kind):
        kinds = set(map(type, column)) - _NUMBERS
        return all(issubclass(each, np.integer) and not issubclass(each, np.timedelta64) for each in kinds)
    if pa.types.is_date(kind):
        return {date, type(None)}.issuperset(map(type, column))
    if pa.types.is_timestamp(kind):
        zoned = kind.tz is not None
        # A value without the attribute, such as NumPy's datetime64, is not plain.
        other = None if zoned else ""
        return all(value is None or (getattr(value, "tzinfo", other) is not None) == zoned for value in column)
    return False


@lru_cache(256)
def _fit_of(kind: pa.DataType, time_zone: str) -> Fit | None:
    """Return the function that checks and converts values of a type; None if Arrow never changes such values."""
    if pa.types.is_integer(kind) or pa.types.is_time(kind):
        return _whole
    if pa.types.is_duration(kind):
        return _span
    if pa.types.is_float32(kind):
        return _short
    if pa.types.is_timestamp(kind):
        return _moment(kind.tz is not None, time_zone)
    if pa.types.is_date(kind):
        return _day
    if pa.types.is_struct(kind):
        return _struct(kind, time_zone)
    if pa.types.is_map(kind):
        return _map(_fit_of(kind.key_type, time_zone), _fit_of(kind.item_type, time_zone))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list(kind.value_type, _fit_of(kind.value_type, time_zone))
    return None


def _whole(value: Any) -> Any:
    if type(value) is int or not isinstance(value, Number) or isinstance(value, bool | np.bool_):
        return value
    if isinstance(value, np.timedelta64):
        # To Python it is a number, of the unit that it happens to have.
        raise pa.ArrowInvalid(f"{value!r} is a length of time")
    try:
        whole = int(value)  # type: ignore[call-overload]
    except (ValueError, OverflowError, TypeError):
        return value
    if whole != value:
        raise pa.ArrowInvalid(f"{value!r} is not a whole number")
    return whole


def _short(value: Any) -> Any:
    if isinstance(value, Number) and _GREATEST_FLOAT < abs(float(value)) < math.inf:  # type: ignore[arg-type]
        raise pa.ArrowInvalid("a number is too great")
    return value


def _refuse_new_infinities(array: pa.Array[Any], wide: pa.Array[Any]) -> None:
    if pc.any(pc.and_not(pc.is_inf(array), pc.is_inf(wide))).as_py():
        raise pa.ArrowInvalid("a number is too great")


def _day(value: Any) -> Any:
    if isinstance(value, datetime):
        raise pa.ArrowInvalid(f"{value!r} is a moment, and a date is declared")
    return _whole(value)


def _span(value: Any) -> Any:
    if isinstance(value, np.timedelta64):
        return value.astype("timedelta64[us]", casting="same_kind").item()
    return _whole(value)


def _moment(zoned: bool, time_zone: str) -> Fit:
    def fit(value: Any) -> Any:
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[us]").item()
        if not isinstance(value, datetime):
            return _whole(value)
        if (value.tzinfo is not None) == zoned:
            return value
        # Of a repeated hour this takes the first; a time in a skipped hour becomes one as long after the change.
        zone = zone_of(time_zone)
        return value.replace(tzinfo=zone) if zoned else value.astimezone(zone).replace(tzinfo=None)

    return fit


def _list(kind: pa.DataType, inner: Fit | None) -> Fit | None:
    if inner is None:
        return None
    # Kinds of NumPy arrays that Arrow converts without changing values.
    harmless = "iu" if pa.types.is_integer(kind) else "f" if pa.types.is_float32(kind) else ""

    def fit(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            if value.dtype.kind in harmless and (value.dtype.kind != "f" or value.dtype.itemsize <= 4):
                return value
            # tolist() gives nanoseconds as plain integers, which Arrow would read as microseconds.
            unit = _MICROSECONDS.get(value.dtype.kind)
            value = (value if unit is None else value.astype(unit, casting="same_kind")).tolist()
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            return value
        elements = value if isinstance(value, list | tuple) else list(value)
        if harmless == "iu" and _NUMBERS.issuperset(map(type, elements)):
            return elements
        return [None if element is None else inner(element) for element in elements]

    return fit


def _map(key_fit: Fit | None, item_fit: Fit | None) -> Fit | None:
    if key_fit is None and item_fit is None:
        return None

    def fit(value: Any) -> Any:
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(_fitted(key_fit, key), _fitted(item_fit, item)) for key, item in pairs]

    return fit


def _struct(kind: pa.DataType, time_zone: str) -> Fit:
    fits = {field.name: _fit_of(field.type, time_zone) for field in map(kind.field, range(kind.num_fields))}
    plain, names = not any(fits.values()), tuple(fits)

    def fit(value: Any) -> Any:
        if isinstance(value, tuple):
            own = None if type(value) is tuple else names_of(value)
            if own is not None:
                value = _by_names(value, own, names, kind)
            # A tuple gives the fields by position; Arrow refuses one of another length.
            if plain or len(value) != len(fits):
                return value
            return tuple(_fitted(each, part) for each, part in zip(fits.values(), value, strict=True))
        if isinstance(value, list):
            value = dict(value)
        if not isinstance(value, Mapping):
            return value
        if not fits.keys() >= value.keys():
            unknown = next(name for name in value if name not in fits)
            raise pa.ArrowInvalid(f"there is no field {unknown!r} in {kind}")
        return value if plain else {name: _fitted(each, value.get(name)) for name, each in fits.items()}

    return fit


def _by_names(row: tuple[Any, ...], own: Sequence[str], names: tuple[str, ...], kind: pa.DataType) -> tuple[Any, ...]:
    """Return a row with names as a tuple of a struct's fields; one that the row lacks is None. Raises ArrowInvalid."""
    try:
        places = places_of(tuple(own), names)
    except ValueError as error:
        raise pa.ArrowInvalid(f"{row!r} {error} the fields of {kind}") from error
    return row if places is None else tuple(None if place is None else row[place] for place in places)


def _fitted(fit: Fit | None, value: Any) -> Any:
    return value if fit is None or value is None else fit(value)
