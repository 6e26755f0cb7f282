"""Declared aggregation: a vectorised step whose function is made of `recovery.aggregates`.

Spark evaluates the inputs and sorts the rows; each task reduces them to one row per key in Arrow and NumPy, merges
those with the states of the same keys, and only that reaches the state table. (Spark's own partial aggregation cannot
stand below a step: in a streaming plan it becomes a stateful operator, with a state store of its own.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from recovery.aggregates import Aggregate
from recovery.errors import ConfigurationError, StateValueError
from recovery.kernels import Count, Distinct, Extreme, Groups, Kernel, Mean, OverflowAt, Ranked, Sum, Variance
from recovery.migration import Migrate
from recovery.spark.arrow_step import GROUP, ROWS, START, apply_arrow
from recovery.spark.step import Keys, Transform, check_step, locate_key

_COMPARED = (T.NumericType, T.DateType, T.TimestampType, T.TimestampNTZType)
_ORDERED = (*_COMPARED, T.StringType, T.BooleanType, T.BinaryType)


@dataclass(frozen=True)
class PlannedAggregate:
    """One aggregated column: the kernel, the names of its inputs in `rows` and of its columns in `states`."""

    name: str
    kernel: Kernel
    inputs: tuple[str, ...]
    states: tuple[T.StructField, ...]
    result: T.DataType


@dataclass(frozen=True)
class Aggregation:
    """The update function: all aggregates of a step."""

    keys: tuple[str, ...]
    columns: tuple[PlannedAggregate, ...]

    def __call__(self, rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
        groups = Groups(states[START].to_numpy(), states[ROWS].to_numpy(), rows[GROUP].to_numpy())
        new = {name: states[name] for name in self.keys}
        output = dict(new)
        for each in self.columns:
            inputs = [rows[name].combine_chunks() for name in each.inputs]
            held = [states[field.name].combine_chunks() for field in each.states]
            try:
                # What leaves the range of doubles is refused as a state.
                with np.errstate(all="ignore"):
                    merged = each.kernel.merge(groups, inputs, held)
                    output[each.name] = each.kernel.result(merged)
            except OverflowAt as error:
                parts = tuple(states[name][error.place].as_py() for name in self.keys)
                key = parts[0] if len(parts) == 1 else parts
                raise StateValueError(
                    f"key {key!r}: the sum of {each.name!r} overflows: {error.what}",
                    cause="The sum of the key's values is larger than its type.",
                    remedy="Cast the column to decimal(38,0), or to double, in sum_(...), and give the step a new id.",
                ) from error
            new.update(zip((field.name for field in each.states), merged, strict=True))
        return pa.table(new), pa.table(output)


def aggregate(step_id: str, *, key: Keys, migrate: Migrate | None = None, **columns: Aggregate) -> Transform:
    """Running aggregates per key, for `DataFrame.transform`: `aggregate("spent", key="user", total=sum_("price"))`.

    columns: what to compute, by the name of the output column, of the functions in `recovery.aggregates`. The output
    has the key's columns and these, one row for each key that had rows in the micro-batch.

    The state of a key is a JSON object of plain values, with the guarantees of any step. Another aggregate under the
    same name, one more or one less is told at the next start; `migrate`, as in `stateful_arrow`, converts the
    states. Raises ConfigurationError.
    """
    check_step(step_id, aggregate, migrate)
    if not columns:
        raise ConfigurationError(f"step {step_id!r} aggregates nothing", remedy="Say what, as in n=count().")
    for name, each in columns.items():
        if not isinstance(each, Aggregate):
            raise ConfigurationError(
                f"step {step_id!r}: {name}={each!r} is no aggregate",
                remedy="Use the functions of recovery.aggregates, as in n=count(), total=sum_('price').",
            )

    def transform(frame: DataFrame) -> DataFrame:
        return _apply(frame, step_id, key, columns, migrate)

    return transform


def _apply(
    frame: DataFrame, step_id: str, key: Keys, columns: dict[str, Aggregate], migrate: Migrate | None
) -> DataFrame:
    _, keyed = locate_key(frame, step_id, key)
    keys = [key] if isinstance(key, str | Column) else list(key)
    taken = [
        (F.col(f"`{one}`") if isinstance(one, str) else one).alias(name)
        for one, name in zip(keys, keyed.names, strict=True)
    ]
    planned: list[PlannedAggregate] = []
    for name, each in columns.items():
        inputs = [F.col(f"`{one}`") if isinstance(one, str) else one for one in each.inputs]
        _check_inputs(frame, step_id, name, each)
        kinds = [field.dataType for field in frame.select(*inputs).schema] if inputs else []
        cast, made = plan_aggregate(step_id, name, each, kinds)
        names = tuple(f"{name}.{number}" for number in range(len(inputs)))
        if each.function == "approx_distinct":
            inputs = [F.when(inputs[0].isNotNull(), F.xxhash64(inputs[0]))]
        taken += [
            (one if to is None else one.cast(to)).alias(alias)
            for one, to, alias in zip(inputs, cast, names, strict=True)
        ]
        planned.append(PlannedAggregate(name, made.kernel, names, made.states, made.result))
    output = T.StructType(
        [T.StructField(name, kind) for name, kind in zip(keyed.names, keyed.types, strict=True)]
        + [T.StructField(each.name, each.result) for each in planned]
    )
    twice = sorted({name for name in output.names if output.names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"step {step_id!r}: {', '.join(map(repr, twice))} names a key and an aggregate")
    fields = [field for each in planned for field in each.states]
    form = {
        "struct": "aggregates",
        "fields": [
            [field.name, f"{columns[each.name]} as {field.dataType.simpleString()}", True]
            for each in planned
            for field in each.states
        ],
    }
    aggregation = Aggregation(keyed.names, tuple(planned))
    return apply_arrow(
        frame.select(*taken), step_id, list(keyed.names) if len(keyed.names) > 1 else keyed.names[0], aggregation,
        T.StructType(fields), output, None, migrate, form,
    )  # fmt: skip


@dataclass(frozen=True)
class MadeAggregate:
    """An aggregate for inputs of known types."""

    kernel: Kernel
    states: tuple[T.StructField, ...]
    result: T.DataType


def plan_aggregate(
    step_id: str, name: str, each: Aggregate, kinds: Sequence[T.DataType]
) -> tuple[list[T.DataType | None], MadeAggregate]:
    """What an aggregate's inputs are cast to (None: nothing), its kernel, its states and its result."""
    function = each.function
    long, double = T.LongType(), T.DoubleType()
    if function == "count":
        return [None] * len(kinds), _made(Count(), {name: long}, long)
    kind = kinds[0]
    _check_kind(step_id, name, each, kinds)
    if function == "sum":
        to = _sum_type(kind)
        return [None if isinstance(kind, T.DecimalType) else to], _made(Sum(to_arrow_type(to)), {name: to}, to)
    if function == "mean":
        to = double if isinstance(kind, T.DecimalType) else _sum_type(kind)
        states = {f"{name}.sum": to, f"{name}.count": long}
        return [to], _made(Mean(to_arrow_type(to)), states, double)
    if function == "approx_distinct":
        return [None], _made(Distinct(each.limit), {name: T.ArrayType(long)}, long)
    if function.startswith(("var", "stddev")):
        states = {f"{name}.count": long, f"{name}.mean": double, f"{name}.m2": double}
        return [double], _made(Variance(function.endswith("samp"), function.startswith("stddev")), states, double)
    if function in ("min", "max") and isinstance(kind, _COMPARED):
        return [None], _made(Extreme(function), {name: kind}, kind)
    listed = each.limit > 0
    states = {name: kind, f"{name}.by": kinds[-1]} if len(kinds) > 1 else {name: kind}
    if listed:
        states = {one: T.ArrayType(held) for one, held in states.items()}
    descending = function in ("max", "last", "top_k") or each.newest
    kernel = Ranked(each.limit or 1, descending, listed, reverse=each.newest)
    return [None] * len(kinds), _made(kernel, states, states[name])


def _made(kernel: Kernel, states: dict[str, T.DataType], result: T.DataType) -> MadeAggregate:
    return MadeAggregate(kernel, tuple(T.StructField(name, kind) for name, kind in states.items()), result)


def _sum_type(kind: T.DataType) -> T.DataType:
    if isinstance(kind, T.DecimalType):
        return T.DecimalType(min(38, kind.precision + 10), kind.scale)
    return T.LongType() if isinstance(kind, T.IntegralType) else T.DoubleType()


def _check_inputs(frame: DataFrame, step_id: str, name: str, each: Aggregate) -> None:
    for one in each.inputs:
        if isinstance(one, str) and one not in frame.columns:
            raise ConfigurationError(
                f"step {step_id!r}: {name}={each} is of {one!r}, which its input does not have, only {frame.columns}"
            )


def _check_kind(step_id: str, name: str, each: Aggregate, kinds: Sequence[T.DataType]) -> None:
    if each.function == "approx_distinct":
        return
    numeric = each.function in ("sum", "mean") or each.function.startswith(("var", "stddev"))
    takes = "numbers" if numeric else "numbers, strings, booleans, binary, dates and timestamps"
    for kind in kinds:
        if not isinstance(kind, T.NumericType if numeric else _ORDERED):
            raise ConfigurationError(
                f"step {step_id!r}: {name}={each} is of a column of type {kind.simpleString()}",
                cause=f"It takes {takes}.",
                remedy="Cast the column, or aggregate a part of it.",
            )
