"""The Spark types that a step's columns can have: those that Arrow converts to Python values and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.errors import PySparkValueError
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from recovery.errors import ConfigurationError
from recovery.spark.jvm.connect_sessions import check_classic
from recovery.spark.jvm.versions import time_types

_PLAIN: tuple[type[T.DataType], ...] = (
    T.BooleanType,
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.StringType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.DayTimeIntervalType,
    T.NullType,
    *time_types(),
)
_CAUSE = "A step's rows go to Python and back by way of Arrow, which has no values of this type for both."
_REMEDIES: tuple[tuple[type[T.DataType], str], ...] = (
    (T.YearMonthIntervalType, "Take its months as a number, with F.expr('CAST(column AS INTERVAL MONTH)').cast('int')"),
    (T.VariantType, "Take what is needed of it, with F.variant_get, or all of it as text, with F.to_json(column)"),
    (T.CharType, "Declare it as string"),
    (T.VarcharType, "Declare it as string"),
)


def check_input(frame: DataFrame, step_id: str) -> None:
    """Check that a step can get every column of its input, used or not. Raises ConfigurationError."""
    _check(frame.schema.fields, step_id, "input")


def check_known(frame: DataFrame, step_id: str) -> None:
    """Check that PySpark knows the types of all columns, and that the frame is not one of Spark Connect. Raises
    ConfigurationError, for the first unknown type.

    With an unknown type, PySpark cannot return the frame's schema at all."""
    check_classic(frame.sparkSession)
    try:
        _ = frame.schema
    except PySparkValueError as error:
        fields = frame._jdf.schema().fields()
        found = next((field for field in fields if not _is_known(field)), None)
        if found is None:
            raise
        raise _refusal(step_id, "input", found.name(), found.dataType().simpleString(), None) from error


def check_declared(schema: T.StructType, step_id: str, what: str) -> None:
    """Check that a step can return every column of its `output` or `state_schema`. Raises ConfigurationError."""
    _check(schema.fields, step_id, what)


def _check(fields: Sequence[T.StructField], step_id: str, what: str) -> None:
    for field in fields:
        for place, kind in _unfit(field.name, field.dataType):
            raise _refusal(step_id, what, place, kind.simpleString(), kind)


def _unfit(place: str, kind: T.DataType) -> Iterator[tuple[str, T.DataType]]:
    """Yield the parts of a type that a step cannot handle: the path of each, and its type."""
    if isinstance(kind, T.UserDefinedType):
        kind = kind.sqlType()
    if isinstance(kind, T.ArrayType):
        yield from _unfit(f"{place}[]", kind.elementType)
    elif isinstance(kind, T.MapType):
        yield from _unfit(f"{place}.key", kind.keyType)
        yield from _unfit(f"{place}.value", kind.valueType)
    elif isinstance(kind, T.StructType):
        for field in kind:
            yield from _unfit(f"{place}.{field.name}", field.dataType)
    elif not isinstance(kind, _PLAIN):
        yield place, kind


def _is_known(field: Any) -> bool:
    try:
        kind = json.loads(field.dataType().json())
        T.StructType.fromJson({"fields": [{"name": "", "type": kind, "nullable": True, "metadata": {}}]})
    except PySparkValueError:
        return False
    return True


def _refusal(step_id: str, what: str, place: str, kind_text: str, kind: T.DataType | None) -> ConfigurationError:
    remedy = next((remedy for each, remedy in _REMEDIES if isinstance(kind, each)), "Cast it to a string or a number")
    drop = ", or drop the column before the step." if what == "input" else "."
    return ConfigurationError(
        f"step {step_id!r}: {what} column {place!r} has the type {kind_text}", cause=_CAUSE, remedy=remedy + drop
    )


_OFFSET = re.compile(r"(?:GMT|UTC|UT)?([+-])(\d{1,2})(?::?(\d\d))?")


def arrow_zone(name: str) -> str:
    """Return Arrow's name for a time zone of Spark's; an offset becomes one like +08:00."""
    offset = _OFFSET.fullmatch(name)
    if offset is None:
        return {"Z": "UTC"}.get(name, name)
    return f"{offset[1]}{int(offset[2]):02}:{offset[3] or '00'}"
