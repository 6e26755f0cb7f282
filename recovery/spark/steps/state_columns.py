"""The state of a step declared by columns, as PySpark's `applyInPandasWithState` does: a tuple with these parts."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

from recovery.errors import ConfigurationError
from recovery.spark.jvm.versions import time_types
from recovery.values.codec import StateType

_PYTHON: dict[type[T.DataType], type] = {
    T.BooleanType: bool,
    T.ByteType: int,
    T.ShortType: int,
    T.IntegerType: int,
    T.LongType: int,
    T.FloatType: float,
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


def python_type(step_id: str, kind: T.DataType) -> Any:
    """Return the type of a state's values: for a struct a tuple with one part for each column, which may be None.

    Raises ConfigurationError.
    """
    if isinstance(kind, T.StructType):
        return tuple[tuple(python_type(step_id, field.dataType) | None for field in kind)]  # type: ignore[misc]
    if isinstance(kind, T.ArrayType):
        return list[python_type(step_id, kind.elementType) | None]  # type: ignore[misc]
    if isinstance(kind, T.MapType):
        return dict[python_type(step_id, kind.keyType), python_type(step_id, kind.valueType) | None]  # type: ignore[misc]
    found = _PYTHON.get(type(kind))
    if found is None:
        raise ConfigurationError(
            f"step {step_id!r}: a state cannot have a part of the type {kind.simpleString()}",
            cause="There is no Python value for it that a state can hold.",
            remedy="Declare another type for it, such as string.",
        )
    return found
