"""The input of `update`: convert the columns of a record batch to rows, named tuples of Python values.

Arrow's timestamps and dates have a wider range than Python's, which cover only the years 1 to 9999. A value outside
does not stop a flow that never uses it: its row holds an `Unfit` in its place, which raises an error when it is used.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, tzinfo
from decimal import Decimal
from functools import lru_cache, partial
from itertools import pairwise, repeat
from operator import add
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa

from recovery.errors import StateValueError, shortened
from recovery.values.tables import text_of

Convert: TypeAlias = Callable[[pa.Array], Iterable[Any]]
"""A function that returns the Python values of an array without NULL. For a value that Python cannot represent the
function raises what Arrow does, ValueError or OverflowError."""

_FIRST_DAY = date(1970, 1, 1).toordinal()


class Unfit:
    """A value that Python cannot represent. Any use of such a value raises StateValueError, which names the value."""

    __slots__ = ("_found",)

    def __init__(self, name: str, column: pa.Array, place: int) -> None:
        self._found = f"column {name!r} has a value that Python cannot represent, of type {column.type}: " + text_of(
            column, place
        )

    def refuse(self, *_: Any) -> NoReturn:
        """Raises StateValueError."""
        raise StateValueError(
            self._found,
            cause="Python's dates have the years 1 to 9999, in the session's time zone. Other systems write the year 1 "
            "in UTC for no time at all, or a year after 9999 for the end of time.",
            remedy="Replace or filter it before the step, as in F.when(F.year(column).between(2, 9998), column), or "
            "cast the column to string. A stateful_arrow step is given such values as Arrow has them.",
        )

    def __repr__(self) -> str:
        return f"<{self._found}>"

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __bool__ = refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __iter__ = __len__ = __getitem__ = __contains__ = __getattr__ = refuse


class RowMaker:
    """Makes the rows of a step's input."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._row = _row_type(columns)

    def rows(
        self, step_id: str, names: Sequence[str], columns: Sequence[pa.Array], known: Mapping[int, list[Any]]
    ) -> list[Any]:
        """Return one named tuple per row. known: the Python values of columns, by their places, that need no
        conversion. Raises StateValueError for text that is not valid UTF-8."""
        given = enumerate(zip(names, columns, strict=True))
        values = [known[at] if at in known else values_of(step_id, name, column) for at, (name, column) in given]
        rows: list[Any] = list(map(tuple.__new__, repeat(self._row), zip(*values, strict=True)))
        for place in {place for column in values for place in _unfit(column)}:
            rows[place] = tuple.__new__(_guarded(self._row), rows[place])
        return rows


class Values(list[Any]):
    """The values of a column with Unfit values."""


def values_of(step_id: str, name: str, column: pa.Array) -> list[Any]:
    """Return the values of an input column, with Unfit for those that Python cannot represent. Raises StateValueError
    for text that is not valid UTF-8."""
    try:
        return _to_python(column)
    except UnicodeDecodeError as error:
        raise not_text(f"step {step_id!r}: column {name!r}") from error
    except (ValueError, OverflowError):
        return Values(_value(step_id, name, column, place) for place in range(len(column)))


def key_values(step_id: str, texts: Sequence[str], names: Sequence[str], columns: Sequence[pa.Array]) -> Sequence[Any]:
    """Return the keys for `update`: the values of the key's column, or tuples for several columns.

    Raises StateValueError, with the key's text, also for a value that Python cannot represent: every call of `update`
    gets its key."""
    values = [values_of(step_id, name, column) for name, column in zip(names, columns, strict=True)]
    for column in values:
        for place in _unfit(column):
            try:
                column[place].refuse()
            except StateValueError as error:
                found = f"step {step_id!r}, key {shortened(texts[place])!r}: {error.found}"
                raise StateValueError(found, cause=error.cause, remedy=error.remedy) from error
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


def repeated(values: Sequence[Any], ends: pa.Array) -> list[Any]:
    """Return each value once for each row of its run: run number i has the rows from ends[i - 1] up to ends[i]."""
    given = np.empty(len(values), object)
    given[:] = values
    return list(np.repeat(given, np.diff(ends.to_numpy(), prepend=0)).tolist())


def is_text(column: pa.Array) -> bool:
    """Return whether a column's strings are valid UTF-8, which Spark does not check."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def not_text(what: str) -> StateValueError:
    """Return the error for a column with a string that is not valid UTF-8."""
    return StateValueError(
        f"{what} has a string that is not valid UTF-8",
        cause="Bytes in another encoding were read or cast as a string, which Spark does not check.",
        remedy="Fix the column before the step, with F.make_valid_utf8(column).",
    )


def _to_python(column: pa.Array) -> list[Any]:
    """Return the column's Python values: those of `to_pylist`, which takes up to thirty times as long for times."""
    convert = _conversion(column.type, column.null_count > 0)
    if convert is None:
        return list(column.to_pylist())
    if not column.null_count:
        return list(convert(column))
    found = iter(convert(column.drop_null()))
    return [next(found) if valid else None for valid in column.is_valid().to_pylist()]


@lru_cache
def _conversion(kind: pa.DataType, with_null: bool) -> Convert | None:
    """Return a conversion of values of this type that is faster than Arrow's; None if there is none."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return None if with_null else _numbers
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return partial(_moments, zone=None if kind.tz is None else pa.lib.string_to_tzinfo(kind.tz))
    if pa.types.is_date32(kind):
        return _days
    if pa.types.is_decimal128(kind):
        return _decimals
    if pa.types.is_list(kind) and _gains(kind.value_type):
        return _lists
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        # Arrow refuses two fields of one name.
        if len({field.name for field in fields}) == len(fields) and any(_gains(field.type) for field in fields):
            return _structs
    return None


def _gains(kind: pa.DataType) -> bool:
    """Return whether values inside others are worth a conversion of their own."""
    return _conversion(kind, False) not in (None, _numbers)


def _numbers(column: pa.Array) -> Iterable[Any]:
    values: list[Any] = column.to_numpy().tolist()
    return values


def _moments(column: pa.Array, zone: tzinfo | None) -> Iterable[datetime]:
    """Return moments as local times of the zone, or without a zone."""
    since = column.cast(pa.int64()).to_numpy().view("timedelta64[us]")
    if np.isnat(since).any():
        # NumPy takes the smallest number, which Spark allows, for no time at all.
        raise OverflowError("date value out of range")
    moments = map(add, repeat(datetime(1970, 1, 1, tzinfo=zone)), since.tolist())
    return moments if zone is None or column.type.tz == "UTC" else map(zone.fromutc, moments)


def _days(column: pa.Array) -> Iterable[date]:
    return map(date.fromordinal, (column.cast(pa.int32()).to_numpy().astype(np.int64) + _FIRST_DAY).tolist())


def _decimals(column: pa.Array) -> Iterable[Decimal]:
    return map(Decimal, column.cast(pa.string()).to_pylist())


def _lists(column: pa.Array) -> Iterable[list[Any]]:
    values, offsets = _to_python(column.flatten()), column.offsets.to_numpy()
    return (values[start:end] for start, end in pairwise((offsets - offsets[0]).tolist()))


def _structs(column: pa.Array) -> Iterable[dict[str, Any]]:
    names = [field.name for field in column.type]
    return (dict(zip(names, values, strict=True)) for values in zip(*map(_to_python, column.flatten()), strict=True))


def _value(step_id: str, name: str, column: pa.Array, place: int) -> Any:
    try:
        return column[place].as_py()
    except UnicodeDecodeError as error:
        raise not_text(f"step {step_id!r}: column {name!r}") from error
    except (ValueError, OverflowError):
        return Unfit(name, column, place)


def _unfit(values: list[Any]) -> Iterator[int]:
    """Yield the indices of the Unfit values. A list that is not a `Values` has no unfit value and is not searched."""
    if isinstance(values, Values):
        yield from (place for place, value in enumerate(values) if type(value) is Unfit)


@lru_cache
def _row_type(columns: tuple[str, ...]) -> type:
    """Return the named tuple type of the input's columns; names that Python does not allow become _0, _1 … as
    attributes. By their own names the values go into a state or an output of columns."""
    made = namedtuple("Row", columns, rename=True)  # type: ignore[misc]
    made.__fields__ = columns  # type: ignore[attr-defined]
    return made


@lru_cache
def _guarded(row: Any) -> Any:
    """Return a subtype of the named tuple whose access to an Unfit value raises its error."""

    def item(self: Any, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return tuple(map(_used, found)) if isinstance(index, slice) else _used(found)

    def items(self: Any) -> Iterator[Any]:
        return map(_used, tuple.__iter__(self))

    members = {name: property(partial(_item_at, place)) for place, name in enumerate(row._fields)}
    return type(row.__name__, (row,), {**members, "__slots__": (), "__getitem__": item, "__iter__": items})


def _item_at(place: int, row: Any) -> Any:
    return _used(tuple.__getitem__(row, place))


def _used(value: Any) -> Any:
    return value.refuse() if type(value) is Unfit else value
