"""The parts of a declared aggregate that Spark can combine before the exchange, as Spark columns."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recovery.aggregates import Aggregate
from recovery.errors import UnsupportedPlanError
from recovery.values.kernels import HALF

PLACE_NAME = "recovery_combine:"
Combine: TypeAlias = Callable[[Sequence[Column]], Column]
_declared: dict[str, Any] = {}
"""Spark's aggregate plans, by the name of the placeholder function each one replaces."""


@dataclass(frozen=True)
class Part:
    """A part of an aggregate. row: its value for one row. combine: its value for many rows, from all parts' columns."""

    row: Column
    combine: Combine


def counted(value: Column | None = None) -> Part:
    """Return the part that counts rows, or rows in which the value is not NULL."""
    one = F.lit(1) if value is None else F.when(value.isNotNull(), 1).otherwise(0)
    return Part(one.cast("long"), lambda parts: F.sum(parts[-1]))


def parts_of(each: Aggregate, inputs: Sequence[tuple[Column, T.DataType]]) -> tuple[Part, ...] | None:
    """Return the parts to which Spark can combine an aggregate's rows, for `AddingKernel.add`; None if it cannot.

    The inputs are columns already cast as the aggregate needs them, each with its type after the cast.
    """
    function = each.function
    if function == "count":
        return (counted(*(value for value, _ in inputs)),)
    value, kind = inputs[0]
    if function == "sum":
        return _sum(value, kind)
    if function == "mean":
        sums = _sum(value, kind)
        return None if sums is None else (*sums, counted(value))
    if function.startswith(("var", "stddev")):
        return _moments(value)
    if function in ("min", "max"):
        return _extreme(value, function, kind)
    return None


def combined(frame: DataFrame, keys: Sequence[Column], parts: Mapping[tuple[str, ...], tuple[Part, ...]]) -> DataFrame:
    """Return a frame of the keys and the named `parts`. Once the plan is bound, Spark combines each partition's rows of
    a key to one row."""
    named = [(name, part, of_one) for of_one in parts for name, part in zip(of_one, parts[of_one], strict=True)]
    rows = frame.select(*keys, *(part.row.alias(name) for name, part, _ in named))
    types = {field.name: field.dataType for field in rows.schema}
    together = [
        part.combine([F.col(each) for each in of_one]).cast(types[name]).alias(name) for name, part, of_one in named
    ]
    grouping = [F.col(f"`{name}`") for name in rows.columns[: len(keys)]]
    aggregate = rows.groupBy(*grouping).agg(*together)

    def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise UnsupportedPlanError(
            "an aggregate runs outside a recovery run",
            cause="The streaming frame was started with writeStream.",
            remedy="Start it with recovery.start(frame, RecoveryConfig(...), sink=...) or recovery.run.",
        )

    place.__name__ = f"{PLACE_NAME}{secrets.token_hex(8)}"
    _declared[place.__name__] = aggregate._jdf.queryExecution().analyzed()
    return rows.mapInArrow(place, aggregate.schema)


def _sum(value: Column, kind: T.DataType) -> tuple[Part, ...] | None:
    if isinstance(kind, T.DecimalType):
        # Ten more digits than the values have suffice for the rows of a micro-batch.
        if kind.precision > 28:
            return None
        value = value.cast(T.DecimalType(kind.precision + 10, kind.scale))
    if not isinstance(kind, T.LongType):
        return (Part(value, lambda parts: F.sum(parts[0])),)
    return (
        Part(F.shiftright(value, HALF), lambda parts: F.sum(parts[0])),
        Part(value.bitwiseAND(F.lit((1 << HALF) - 1)), lambda parts: F.sum(parts[1])),
    )


def _moments(value: Column) -> tuple[Part, ...]:
    """Return the parts count, mean and sum of squared differences. `combine` accepts only values not yet combined."""
    return (
        Part(counted(value).row, lambda parts: F.sum(parts[0])),
        Part(value, lambda parts: F.avg(parts[1])),
        Part(F.lit(0.0), lambda parts: F.coalesce(F.var_pop(parts[1]) * F.count(parts[1]), F.lit(0.0))),
    )


def _extreme(value: Column, function: str, kind: T.DataType) -> tuple[Part, ...] | None:
    if isinstance(kind, T.FloatType | T.DoubleType) and function == "max":
        # NaN is the greatest number in Spark; here it is skipped as long as there is another number.
        return (Part(value, lambda parts: -F.min(-parts[0])),)
    if isinstance(kind, T.NumericType | T.DateType | T.TimestampType | T.TimestampNTZType):
        return (Part(value, lambda parts: (F.max if function == "max" else F.min)(parts[0])),)
    return None
