"""Combining the rows of declared aggregates in Spark, before the exchange: parts of aggregates as Spark columns."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from recovery.errors import UnsupportedPlanError

PLACE_NAME = "recovery_combine:"
Combine: TypeAlias = Callable[[Sequence[Column]], Column]
_declared: dict[str, Any] = {}
"""Spark's aggregate plans, by the name of the placeholder function each one replaces."""


@dataclass(frozen=True)
class AggregatePart:
    """A part of an aggregate. row: its value for one row. combine: its value for many rows, from all parts' columns."""

    row: Column
    combine: Combine


def counted(value: Column | None = None) -> AggregatePart:
    """Return the part that counts rows, or rows in which the value is not NULL."""
    one = F.lit(1) if value is None else F.when(value.isNotNull(), 1).otherwise(0)
    return AggregatePart(one.cast("long"), lambda parts: F.sum(parts[-1]))


def combined(
    frame: DataFrame, keys: Sequence[Column], parts: Mapping[tuple[str, ...], tuple[AggregatePart, ...]]
) -> DataFrame:
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
            remedy="Start the stream with recovery.start(frame, RecoveryConfig(...), sink=...) or recovery.run.",
        )

    place.__name__ = f"{PLACE_NAME}{secrets.token_hex(8)}"
    _declared[place.__name__] = aggregate._jdf.queryExecution().analyzed()
    return rows.mapInArrow(place, aggregate.schema)
