"""The state of a step declared by columns, as PySpark's `applyInPandasWithState` does: a tuple with these parts."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any

import msgspec
from pyspark.sql import types as T

from recovery.errors import ConfigurationError
from recovery.spark.jvm.versions import time_types
from recovery.values.codec import StateType
from recovery.values.columns import Columns
from recovery.values.fits import WHOLE_BITS, limits

GREATEST_FLOAT = 3.4028234663852886e38
"""The greatest number of Spark's float."""
_PYTHON: dict[type[T.DataType], type] = {
    T.BooleanType: bool,
    T.DoubleType: float,
    T.DecimalType: Decimal,
    T.StringType: str,
    T.BinaryType: bytes,
    T.DateType: date,
    T.TimestampType: datetime,
    T.TimestampNTZType: datetime,
    T.DayTimeIntervalType: timedelta,
    **dict.fromkeys(time_types(), time),
}


def are_columns(state: StateType) -> bool:
    """Whether a state is declared by columns: a DDL string or a StructType."""
    return isinstance(state, T.StructType) or (isinstance(state, str) and state != "pickle")


def state_type(step_id: str, schema: T.StructType) -> Any:
    """Return the type of a state that is declared by columns. Raises ConfigurationError."""
    parts = [_part_type(step_id, field.dataType, field.nullable) for field in schema]
    decimals = {
        place: (field.dataType.precision, field.dataType.scale)
        for place, field in enumerate(schema)
        if isinstance(field.dataType, T.DecimalType)
    }
    return Columns.declared(parts, schema.names, decimals)


def _part_type(step_id: str, kind: T.DataType, nullable: bool) -> Any:
    """Return the type of a part's values, with the range of Spark's type; None is one if it may be NULL."""
    found = _type(step_id, kind)
    return found | None if nullable else found


def _type(step_id: str, kind: T.DataType) -> Any:
    if isinstance(kind, T.StructType):
        return Columns.within([_part_type(step_id, field.dataType, field.nullable) for field in kind], kind.names)
    if isinstance(kind, T.ArrayType):
        return list[_part_type(step_id, kind.elementType, kind.containsNull)]  # type: ignore[misc]
    if isinstance(kind, T.MapType):
        key, value = _type(step_id, kind.keyType), _part_type(step_id, kind.valueType, kind.valueContainsNull)
        return dict[key, value]  # type: ignore[valid-type]
    if (name := kind.simpleString()) in WHOLE_BITS:
        low, high = limits(name)
        return Annotated[int, msgspec.Meta(ge=low, le=high)]
    if isinstance(kind, T.FloatType):
        return Annotated[float, msgspec.Meta(ge=-GREATEST_FLOAT, le=GREATEST_FLOAT)]
    found = _PYTHON.get(type(kind))
    if found is None:
        raise ConfigurationError(
            f"step {step_id!r}: a state cannot have a part of the type {name}",
            cause="There is no Python value for this type that a state can hold.",
            remedy="Declare another type for it, such as string.",
        )
    return found
