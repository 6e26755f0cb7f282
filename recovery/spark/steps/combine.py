"""Combining the rows of declared aggregates in Spark, before the exchange: parts of aggregates as Spark columns."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recovery.errors import UnsupportedPlanError

PLACE_NAME = "recovery_combine:"
Combine: TypeAlias = Callable[[Sequence[Column]], Column]
_declared: dict[str, tuple[Any, Any]] = {}
"""By the name of a placeholder function, the two plans that may replace it: Spark's aggregate, and a projection that
gives each row the form of a combined one."""


@dataclass(frozen=True)
class AggregatePart:
    """A part of an aggregate. row: what a single row contributes. combine: the part's value for many rows, from the
    columns `row` of all parts of the aggregate. alone: its value for one row, from the same columns; None: `row`."""

    row: Column
    combine: Combine
    alone: Combine | None = None


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
    grouping = [F.col(f"`{name}`") for name in rows.columns[: len(keys)]]
    columns = {name: F.col(name) for name, _, _ in named}
    alone = rows.select(
        *grouping,
        *(
            (columns[name] if part.alone is None else part.alone([columns[each] for each in of_one])).alias(name)
            for name, part, of_one in named
        ),
    )
    types = {field.name: field.dataType for field in alone.schema}
    together = [
        part.combine([columns[each] for each in of_one]).cast(types[name]).alias(name) for name, part, of_one in named
    ]
    aggregate = rows.groupBy(*grouping).agg(*together)
    # Spark's code does not look for NULL in a column that is declared to have none.
    both = zip(aggregate.schema, alone.schema, strict=True)
    schema = T.StructType([T.StructField(one.name, one.dataType, one.nullable or two.nullable) for one, two in both])

    def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise UnsupportedPlanError(
            "an aggregate runs outside a recovery run",
            cause="The streaming frame was started with writeStream.",
            remedy="Start the stream with recovery.start(frame, RecoveryConfig(...), sink=...) or recovery.run.",
        )

    place.__name__ = f"{PLACE_NAME}{secrets.token_hex(8)}"
    _declared[place.__name__] = (
        aggregate._jdf.queryExecution().analyzed(),
        alone._jdf.queryExecution().analyzed(),
    )
    return rows.mapInArrow(place, schema)
