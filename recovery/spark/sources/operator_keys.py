"""The keys of one of Spark's own operators, with their state, timeouts, timers and lifetimes, read by Spark's own
`statestore` source from a checkpoint of this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from functools import reduce
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recovery.base.ids import StepId
from recovery.checkpoint.state_stores.operators import StatefulOperator
from recovery.errors import ConfigurationError, RecoveryError, StateValueError, UnsupportedPlanError, shown
from recovery.operators.choose import WantedState
from recovery.operators.into_step import OperatorKeys, ReadKeys
from recovery.operators.mapping import SparkKey
from recovery.spark.clusters import check_one_host
from recovery.spark.jvm.connect_sessions import check_classic
from recovery.spark.sources.operator_state import SPARK_ERRORS, first_line, reader_of
from recovery.spark.steps.input_keys import key_text, locate_key
from recovery.spark.steps.state_columns import state_type
from recovery.spark.tasks.input_values import not_text
from recovery.values.codec import StateType

STATE, TIMEOUT = "groupState", "timeoutTimestamp"
PLACE = "partition_id"
VALUE, EXPIRES = "value", "ttlExpirationMs"
LIST, MAP = "ListState", "MapState"
EMPTY: dict[str, Callable[[], Any]] = {LIST: list, MAP: dict}

Convert = Callable[[Any], Any]


def keys_reader(spark: SparkSession, now_ms: int) -> ReadKeys:
    """Return what reads the keys of an operator with this session. now_ms: values whose lifetime has passed by then
    count as absent, as in Spark's next micro-batch.

    It raises UnsupportedPlanError for state that it does not know, ConfigurationError for keys that a step cannot have,
    and StateValueError for what Spark cannot read.
    """
    check_classic(spark)
    check_one_host(spark.sparkContext.master, "checkpoint import --into-step")

    def read(checkpoint: Path, operator: StatefulOperator, step: StepId) -> OperatorKeys:
        location = f"file:{checkpoint}"
        try:
            if operator.variables or operator.timers:
                return _of_processor(spark, location, operator, step, now_ms)
            return _of_groups(spark, location, operator, step)
        except SPARK_ERRORS as error:
            raise _unreadable(operator, error) from error

    return read


@dataclass(frozen=True, slots=True)
class _Variable:
    """A state variable of transformWithState. kind: "ValueState", LIST or MAP. ends: whether values have a
    lifetime."""

    name: str
    kind: str
    ends: bool


def _of_groups(spark: SparkSession, location: str, operator: StatefulOperator, step: StepId) -> OperatorKeys:
    """Return the keys of applyInPandasWithState, or of Scala's flatMapGroupsWithState."""
    frame = reader_of(spark, WantedState(operator.number), by_key=True).load(location)
    kind = frame.schema["value"].dataType
    names = kind.names if isinstance(kind, T.StructType) else []
    if STATE not in names:
        raise UnsupportedPlanError(
            f"operator {operator.number} ({operator.name}) has state of format version 1",
            cause="The job began with spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion=1, or with Spark "
            "2.3 or older.",
            remedy="Without --into-step, the import takes the operator as it is.",
        )
    assert isinstance(kind, T.StructType)
    schema = kind[STATE].dataType
    convert = converter(schema)
    at = F.col(f"value.{TIMEOUT}") if TIMEOUT in names else F.lit(None)
    frame = frame.select("key", F.col(f"value.{STATE}").alias("state"), at.cast("long").alias("at"), PLACE)

    def parts(row: Row) -> tuple[Any, tuple[int, ...]]:
        return convert(row.state), (row.at,) if row.at is not None and row.at >= 0 else ()

    return _keys(frame, step, operator, _kept(step, schema), None, parts)


def _of_processor(
    spark: SparkSession, location: str, operator: StatefulOperator, step: StepId, now_ms: int
) -> OperatorKeys:
    """Return the keys of transformWithState, each with all its variables and timers."""
    variables, time_mode = _described(spark, location, operator)

    def loaded(variable: str | None = None) -> DataFrame:
        wanted = WantedState(operator.number, variable=variable, timers=variable is None)
        return reader_of(spark, wanted, by_key=True).load(location)

    frames, converters = [], []
    for place, each in enumerate(variables):
        frame = loaded(each.name)
        [name] = [name for name in frame.columns if name not in ("key", PLACE)]
        converters.append(_variable_converter(each, frame.schema[name].dataType, now_ms))
        frames.append(frame.select("key", F.struct(name).alias(f"v{place}"), PLACE))
    if operator.timers:
        frames.append(loaded().select("key", F.col("expiration_timestamp_ms").alias("at"), PLACE))
    states = [F.first(f"v{place}", ignorenulls=True).alias(f"v{place}") for place in range(len(variables))]
    whole = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    times = F.collect_set("at") if operator.timers else F.array().cast("array<long>")
    whole = whole.groupBy("key", PLACE).agg(*states, times.alias("times"))
    single = len(variables) == 1

    def parts(row: Row) -> tuple[Any, tuple[int, ...]]:
        found = [(None, ()) if row[f"v{n}"] is None else made(row[f"v{n}"][0]) for n, made in enumerate(converters)]
        ends = {*row.times, *(end for _, every in found for end in every)}
        absent = all(value is None for value, _ in found)
        values = {
            each.name: EMPTY.get(each.kind, lambda: None)() if value is None else value
            for each, (value, _) in zip(variables, found, strict=True)
        }
        state = None if absent else next(iter(values.values())) if single else values
        return state, tuple(sorted(ends))

    kept = None
    if single and variables[0].kind not in EMPTY:
        kept = _kept(step, _value_type(variables[0], loaded(variables[0].name).schema["value"].dataType))
    return _keys(whole, step, operator, kept, time_mode == "EventTime", parts)


def _described(spark: SparkSession, location: str, operator: StatefulOperator) -> tuple[list[_Variable], str]:
    """Return the variables of an operator, in the order of their names, and its time mode, as Spark says them."""
    rows = spark.read.format("state-metadata").load(location).where(F.col("operatorId") == operator.number).collect()
    try:
        found = json.loads(rows[0].operatorProperties)
        variables = [
            _Variable(each["stateName"], each["stateVariableType"], bool(each["ttlEnabled"]))
            for each in sorted(found["stateVariables"], key=lambda each: str(each["stateName"]))
            if each["stateName"] in operator.variables
        ]
        return variables, str(found["timeMode"])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnsupportedPlanError(
            f"operator {operator.number} ({operator.name}) does not describe its variables as PySpark "
            f"{pyspark.__version__} does: {error}",
            cause="The checkpoint is of another version of Spark.",
            remedy="Import it with the version of PySpark that wrote it.",
        ) from error


def _variable_converter(variable: _Variable, kind: T.DataType, now_ms: int) -> Callable[[Any], tuple[Any, Any]]:
    """Return what makes the value of a variable, without what has ended, and the times at which its parts end."""
    if not variable.ends:
        convert = converter(kind)
        return lambda value: (convert(value), ())
    if variable.kind == LIST:
        assert isinstance(kind, T.ArrayType)
        element = converter(_inner(kind.elementType))

        def of_list(value: Any) -> tuple[Any, Any]:
            left = [each for each in value if not _ended(each, now_ms)]
            return ([element(each[VALUE]) for each in left] or None), _ends(left)

        return of_list
    if variable.kind == MAP:
        assert isinstance(kind, T.MapType)
        of_key, of_value = converter(kind.keyType), converter(_inner(kind.valueType))

        def of_map(value: Any) -> tuple[Any, Any]:
            left = {key: each for key, each in value.items() if not _ended(each, now_ms)}
            return ({of_key(key): of_value(each[VALUE]) for key, each in left.items()} or None), _ends(left.values())

        return of_map
    inner = converter(_inner(kind))
    return lambda value: (None, ()) if _ended(value, now_ms) else (inner(value[VALUE]), _ends([value]))


def _ended(value: Row, now_ms: int) -> bool:
    return value[EXPIRES] is not None and 0 <= value[EXPIRES] <= now_ms


def _ends(values: Any) -> tuple[int, ...]:
    return tuple(each[EXPIRES] for each in values if each[EXPIRES] is not None and each[EXPIRES] >= 0)


def _inner(kind: T.DataType) -> T.DataType:
    """Return the type of a value without its lifetime."""
    assert isinstance(kind, T.StructType)
    return kind[VALUE].dataType


def _value_type(variable: _Variable, kind: T.DataType) -> T.DataType:
    return _inner(kind) if variable.ends else kind


def _kept(step: StepId, schema: T.DataType) -> StateType:
    """Return the type of a step's states with these columns; None if a step cannot have them."""
    with suppress(ConfigurationError):
        return state_type(step, schema) if isinstance(schema, T.StructType) else None
    return None


def _keys(
    frame: DataFrame,
    step: StepId,
    operator: StatefulOperator,
    kept: StateType,
    event_time: bool | None,
    parts: Callable[[Row], tuple[Any, tuple[int, ...]]],
) -> OperatorKeys:
    """Return the keys of a frame with the column `key`. parts: makes state and times of a row."""
    names = frame.select("key.*").columns
    _, keyed = locate_key(frame.select("key.*"), step, names)
    text = key_text([f"key.`{name}`" for name in names], keyed.types)
    convert = converter(frame.schema["key"].dataType)
    texts = (
        frame.withColumn("text", F.expr(text))
        .withColumn("is_text", is_text(frame))
        .withColumn("at_home", F.pmod(F.hash("key.*"), F.lit(operator.partitions)) == F.col(PLACE))
    )

    def rows() -> Iterator[SparkKey]:
        try:
            for row in texts.toLocalIterator():
                values = tuple(convert(row.key))
                key = values[0] if len(values) == 1 else values
                if not row.at_home:
                    raise _misplaced(operator, key)
                if not row.is_text:
                    raise not_text(f"operator {operator.number} ({operator.name}), key {shown(key)}: its key or state")
                yield SparkKey(row.text, key, *parts(row))
        except (*SPARK_ERRORS, ValueError, OverflowError) as error:
            if isinstance(error, RecoveryError):
                raise
            # Python has no dates after the year 9999, which Spark has.
            raise _unreadable(operator, error) from error

    columns = tuple((name, kind.simpleString()) for name, kind in zip(keyed.names, keyed.types, strict=True))
    return OperatorKeys(columns, kept, event_time, rows())


def is_text(frame: DataFrame) -> Column:
    """Return whether all strings of a row are valid UTF-8: Python would get other characters for them."""
    texts = [text for field in frame.schema for text in _texts(F.col(field.name), field.dataType)]
    return F.is_valid_utf8(F.struct(*texts).cast("string")) if texts else F.lit(True)


def _texts(column: Column, kind: T.DataType) -> list[Column]:
    """Return the strings in a column, however deep, without the bytes beside them, which may have any value."""
    if isinstance(kind, T.StringType):
        return [column]
    if isinstance(kind, T.StructType):
        return [text for field in kind for text in _texts(column.getField(field.name), field.dataType)]
    if isinstance(kind, T.MapType):
        parts = (F.map_keys(column), kind.keyType), (F.map_values(column), kind.valueType)
        return [text for part, inner in parts for text in _texts(part, T.ArrayType(inner))]
    if isinstance(kind, T.ArrayType) and _texts(F.lit(None), kind.elementType):
        return [F.transform(column, lambda each: F.struct(*_texts(each, kind.elementType)))]
    return []


def converter(kind: T.DataType) -> Convert:
    """Return what makes a value as a step gets such values: moments in UTC, bytes in place of a bytearray."""
    if isinstance(kind, T.TimestampType):
        return lambda value: None if value is None else value.astimezone(UTC)
    if isinstance(kind, T.BinaryType):
        return lambda value: None if value is None else bytes(value)
    if isinstance(kind, T.ArrayType):
        element = converter(kind.elementType)
        return lambda value: None if value is None else list(map(element, value))
    if isinstance(kind, T.MapType):
        of_key, of_value = converter(kind.keyType), converter(kind.valueType)
        return lambda value: None if value is None else {of_key(key): of_value(each) for key, each in value.items()}
    if isinstance(kind, T.StructType):
        named = Row(*kind.names)
        inner = [converter(field.dataType) for field in kind]
        return lambda value: (
            None if value is None else named(*(one(each) for one, each in zip(inner, value, strict=True)))
        )
    return lambda value: value


def _misplaced(operator: StatefulOperator, key: Any) -> UnsupportedPlanError:
    return UnsupportedPlanError(
        f"operator {operator.number} ({operator.name}) has state of key {shown(key)} in a partition in which Spark "
        "would not look for this key",
        cause="transformWithState of PySpark stores a moment in a key as another moment, where spark.sql.session."
        "timeZone is not the time zone of the Python workers. Or something other than Spark changed the files.",
        remedy="Without --into-step, the import takes the operator as it is.",
    )


def _unreadable(operator: StatefulOperator, error: Exception) -> StateValueError:
    return StateValueError(
        f"Spark cannot read the state of operator {operator.number} ({operator.name}): {first_line(error)}",
        cause=f"The state may be of a newer version of Spark than PySpark {pyspark.__version__}, or of a state store "
        "that its `statestore` source does not read.",
        remedy="Import it with the version of PySpark that wrote it; or without --into-step, which takes the operator "
        "as it is.",
    )
