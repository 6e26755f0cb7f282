"""What `update` gives as output, as arrays of the declared types.

Arrow would take a value that does not fit for another one: it cuts 2.75 to 2, passes over a misspelt field of a struct,
and reads times without a zone as UTC. So what is not plainly of the declared type is looked at value by value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from numbers import Number
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_NUMBERS = {int, type(None)}
_GREATEST_FLOAT = float(np.finfo(np.float32).max)
_OFFSET = re.compile(r"(?:GMT|UTC|UT)?([+-])(\d{1,2})(?::?(\d\d))?")


def to_array(column: Sequence[Any], kind: pa.DataType, time_zone: str) -> pa.Array[Any]:
    """The values as an array. Times without a zone are those of `time_zone`, the session's, as they are in Spark's
    functions; where a time without a zone is declared, one that has one becomes that of the session's clocks.

    Raises what Arrow raises, also for a value that would be changed: ArrowInvalid, ArrowTypeError, OverflowError.
    """
    if pa.types.is_float32(kind):
        wide = pa.array(column, pa.float64())
        array = wide.cast(kind)
        if pc.any(pc.and_not(pc.is_inf(array), pc.is_inf(wide))).as_py():
            raise pa.ArrowInvalid("a number is too great")
        return array
    if not _is_delicate(kind) or (pa.types.is_integer(kind) and _NUMBERS.issuperset(map(type, column))):
        return pa.array(column, kind)
    if pa.types.is_timestamp(kind) and kind.tz and all(getattr(each, "tzinfo", None) for each in column):
        return pa.array(column, kind)
    zone = zone_of(time_zone)
    return pa.array([_fitted(value, kind, zone) for value in column], kind)


@lru_cache
def zone_of(name: str) -> tzinfo:
    """A time zone by Spark's name for it, which may be GMT+8 and the like."""
    offset = _OFFSET.fullmatch(name)
    if offset is None:
        return ZoneInfo({"Z": "UTC"}.get(name, name))
    span = timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
    return timezone(-span if offset[1] == "-" else span)


@lru_cache(256)
def _is_delicate(kind: pa.DataType) -> bool:
    """Whether Arrow might take a value of this type, or in it, for another one."""
    if pa.types.is_struct(kind):
        return True
    if pa.types.is_map(kind):
        return bool(_is_delicate(kind.key_type) or _is_delicate(kind.item_type))
    if _is_list(kind):
        return bool(_is_delicate(kind.value_type))
    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_timestamp(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _fitted(value: Any, kind: pa.DataType, zone: tzinfo) -> Any:
    """A value that Arrow takes as it is meant, or refuses."""
    if value is None:
        return None
    if pa.types.is_integer(kind):
        return _whole(value)
    if pa.types.is_float32(kind):
        if isinstance(value, Number) and _GREATEST_FLOAT < abs(float(value)) < math.inf:  # type: ignore[arg-type]
            raise pa.ArrowInvalid("a number is too great")
        return value
    if pa.types.is_timestamp(kind):
        return _moment(value, bool(kind.tz), zone)
    if pa.types.is_struct(kind):
        return _struct(value, kind, zone)
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(_fitted(key, kind.key_type, zone), _fitted(item, kind.item_type, zone)) for key, item in pairs]
    if _is_list(kind):
        elements = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(elements, list | tuple):
            return value
        return [_fitted(element, kind.value_type, zone) for element in elements]
    return value


def _whole(value: Any) -> Any:
    if type(value) is int or not isinstance(value, Number):
        return value
    try:
        whole = int(value)  # type: ignore[call-overload]
    except (ValueError, OverflowError, TypeError):
        return value
    if whole != value:
        raise pa.ArrowInvalid(f"{value!r} is no whole number")
    return value if isinstance(value, bool | np.bool_) else whole


def _moment(value: Any, zoned: bool, zone: tzinfo) -> Any:
    if not isinstance(value, datetime) or (value.tzinfo is not None) == zoned:
        return value
    # In the hour that comes twice it is the first one; one that is left out is as long after the change.
    return value.replace(tzinfo=zone) if zoned else value.astimezone(zone).replace(tzinfo=None)


def _struct(value: Any, kind: pa.DataType, zone: tzinfo) -> Any:
    fields = [kind.field(index) for index in range(kind.num_fields)]
    if isinstance(value, Mapping):
        unknown = [name for name in value if name not in {field.name for field in fields}]
        if unknown:
            raise pa.ArrowInvalid(f"there is no field {unknown[0]!r} in {kind}")
        return {field.name: _fitted(value.get(field.name), field.type, zone) for field in fields}
    if isinstance(value, tuple) and len(value) == len(fields):
        return tuple(_fitted(each, field.type, zone) for each, field in zip(value, fields, strict=True))
    return value
