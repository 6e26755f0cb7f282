"""The key of a step in its input: where it is, the types that it may have, and its text as a Spark expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recovery.errors import ConfigurationError
from recovery.spark.jvm.session import is_on
from recovery.spark.steps.column_types import check_known
from recovery.spark.steps.definition import PREFIX, Keys
from recovery.values.keys import ESCAPE

_KEY_TYPES = (
    T.StringType,
    T.BinaryType,
    T.BooleanType,
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)


_NUL = "cast(X'00' AS string)"
"""SQL text of the character NUL, also where a session takes no escapes in literals."""


@dataclass(frozen=True)
class KeyedInput:
    """The location of a step's key: the input's own columns, and positions, names and types of the key's columns."""

    columns: tuple[str, ...]
    positions: tuple[int, ...]
    names: tuple[str, ...]
    types: tuple[T.DataType, ...]
    in_place: bool


def locate_key(frame: DataFrame, step_id: str, key: Keys) -> tuple[DataFrame, KeyedInput]:
    """Return the frame with a column for each part of the key, and their location. Raises ConfigurationError."""
    columns = checked_columns(frame, step_id)
    keys = [key] if isinstance(key, str | Column) else list(key)
    fields = _key_fields(frame, step_id, keys)
    types = tuple(field.dataType for field in fields)
    in_place = len(keys) == 1 and isinstance(keys[0], str) and types == (T.StringType(),)
    positions = []
    for number, one in enumerate(keys):
        if not isinstance(one, str):
            name = f"{PREFIX}key_{number}"
            frame = frame.withColumn(name, one)
            keys[number] = name
        positions.append(frame.columns.index(str(keys[number])))
    names = tuple(field.name for field in fields)
    return frame, KeyedInput(columns, tuple(positions), names, types, in_place)


def checked_columns(frame: DataFrame, step_id: str) -> tuple[str, ...]:
    """Return the names of the input's columns. Raises ConfigurationError for names that a step cannot have."""
    check_known(frame, step_id)
    columns = tuple(frame.columns)
    if len(set(columns)) != len(columns) or any(name.startswith(PREFIX) for name in columns):
        raise ConfigurationError(
            f"step {step_id!r}: its input has columns of the same name, or named {PREFIX}…: {columns}",
            remedy="Rename them with select or withColumnRenamed before the step.",
        )
    if any("." in name or "`" in name for name in columns):
        raise ConfigurationError(
            f"step {step_id!r}: its input has columns with a dot or a backtick in their names: {columns}",
            cause="PySpark's mapInArrow, which runs the step, takes such a name apart.",
            remedy="Rename them with toDF or withColumnRenamed before the step.",
        )
    return columns


def position_of(frame: DataFrame, step_id: str, name: str) -> int:
    """Return the position of a column of the input. Raises ConfigurationError if the input has no column of that
    name."""
    if name not in frame.columns:
        raise ConfigurationError(f"step {step_id!r}: its input has no column {name!r}, only {frame.columns}")
    return int(frame.columns.index(name))


def key_text(columns: Sequence[str], types: Sequence[T.DataType]) -> str:
    """Return the SQL text that computes the state key from these SQL texts of its parts; recovery.values.keys has the
    same encoding in Python."""
    texts = [_part_text(column, kind) for column, kind in zip(columns, types, strict=True)]
    if len(texts) > 1:
        return f"to_json(array({', '.join(texts)}))"
    [text] = texts
    if isinstance(types[0], T.StringType):
        # instr() goes through the string character by character and takes six times as long.
        special = f"contains({text}, '{ESCAPE}') OR contains({text}, {_NUL})"
        replaced = f"replace(replace({text}, '{ESCAPE}', '{ESCAPE * 2}'), {_NUL}, '{ESCAPE}0')"
        text = f"CASE WHEN {special} THEN {replaced} ELSE {text} END"
    return f"coalesce({text}, '{ESCAPE}')"


def _part_text(column: str, kind: T.DataType) -> str:
    if isinstance(kind, T.TimestampType):
        # The cast to string depends on the session's time zone; microseconds since 1970 do not.
        return f"cast(unix_micros({column}) AS string)"
    if isinstance(kind, T.BinaryType):
        # Bytes need not be text, and SQLite keeps keys as text.
        return f"hex({column})"
    if isinstance(kind, T.FractionalType) and not isinstance(kind, T.DecimalType):
        column = f"{column} + 0.0D"  # -0.0 and 0.0 are one key
    return column if kind == T.StringType() else f"cast({column} AS string)"


def _key_fields(frame: DataFrame, step_id: str, keys: Sequence[str | Column]) -> list[T.StructField]:
    if not keys:
        raise ConfigurationError(f"step {step_id!r} has no key column")
    for one in keys:
        if isinstance(one, str):
            position_of(frame, step_id, one)
    fields: list[T.StructField] = frame.select(
        *(F.col(f"`{k}`") if isinstance(k, str) else k for k in keys)
    ).schema.fields
    for field in fields:
        if not isinstance(field.dataType, _KEY_TYPES):
            raise ConfigurationError(
                f"step {step_id!r}: key column {field.name!r} has the type {field.dataType.simpleString()}",
                cause="A key is a string, number, boolean, date, timestamp or binary, or several of those columns.",
                remedy="Cast it, for instance with to_json.",
            )
        if isinstance(field.dataType, T.StringType) and not field.dataType.isUTF8BinaryCollation():
            raise ConfigurationError(
                f"step {step_id!r}: key column {field.name!r} has the type {field.dataType.simpleString()}",
                cause="State is stored by the bytes of its key: values that this collation calls equal would be "
                "several keys.",
                remedy="Cast it to string, and bring equal values to one form, as F.lower(column) does.",
            )
        if _is_fine(field.dataType) and not is_on(frame.sparkSession, "spark.sql.ansi.enabled"):
            raise ConfigurationError(
                f"step {step_id!r}: key column {field.name!r} has the type {field.dataType.simpleString()}, and "
                "Spark's ANSI mode is off",
                cause="Small numbers would have another text than with it (1.0E-7), so they would be other keys.",
                remedy="Leave spark.sql.ansi.enabled on, or cast the column to a string.",
            )
    return fields


def _is_fine(kind: T.DataType) -> bool:
    """Return whether a decimal type has enough decimal places that Java writes some values with an exponent."""
    return isinstance(kind, T.DecimalType) and kind.scale > 6
