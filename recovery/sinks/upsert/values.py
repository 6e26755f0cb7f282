"""Convert values of Spark's rows to what a database accepts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Any

from recovery.errors import StateValueError

Change = Callable[[Any], Any]


def in_utc(kind: Any) -> Change | None:
    """Return a function that converts the moments in values of a Spark type to UTC, at every depth; None if it has
    none.

    Spark gives moments in this machine's local time, in which an hour can occur twice.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

    if isinstance(kind, TimestampType):
        return _moment_in_utc
    if isinstance(kind, ArrayType):
        each = in_utc(kind.elementType)
        return each and _unless_null(lambda values: [each(value) for value in values])
    if isinstance(kind, StructType):
        changes = changes_of(kind)
        return _unless_null(lambda values: _like(values, changed(values, changes))) if changes else None
    if isinstance(kind, MapType):
        key, value = in_utc(kind.keyType), in_utc(kind.valueType)
        if key or value:
            of_key, of_value = key or _unchanged, value or _unchanged
            return _unless_null(lambda values: {of_key(k): of_value(v) for k, v in values.items()})
    return None


def rows_of(batch: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a Spark frame as tuples. Raises StateValueError, with column and value, for a time that Python
    cannot represent."""
    try:
        yield from map(tuple, batch.toLocalIterator(prefetchPartitions=True))
    except (ValueError, OverflowError) as error:
        raise StateValueError(
            f"the sink was given a value that Python cannot represent: {_far_value(batch) or error}",
            cause="Python's dates have the years 1 to 9999, and the rows go through Python to the database.",
            remedy="Replace or filter it in the flow, as in F.when(F.year(column).between(2, 9998), column), or cast "
            "the column to string.",
        ) from error


def _far_value(batch: Any) -> str | None:
    """Return the first time in a top-level column whose year Python cannot represent in every time zone."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

    for field in batch.schema.fields:
        if isinstance(field.dataType, DateType | TimestampNTZType | TimestampType):
            column = F.col(f"`{field.name}`")
            found = batch.where(~F.year(column).between(2, 9998)).select(column.cast("string").alias("text")).first()
            if found is not None:
                return f"{found.text}, in column {field.name!r}"
    return None


def changes_of(schema: Any) -> list[tuple[int, Change]]:
    """Return the positions of a schema's columns that have moments, each with its conversion to UTC."""
    found = [(place, in_utc(field.dataType)) for place, field in enumerate(schema.fields)]
    return [(place, change) for place, change in found if change]


def changed(row: Sequence[Any], changes: Sequence[tuple[int, Change]]) -> list[Any]:
    """Return the row with some of its values changed."""
    values = list(row)
    for place, change in changes:
        values[place] = change(values[place])
    return values


def for_sqlite(row: Sequence[Any]) -> list[Any]:
    """Return values as SQLite stores them: dates and moments as texts that sort, moments in UTC without a zone; NaN
    becomes NULL."""
    values = list(row)
    for place, each in enumerate(row):
        if isinstance(each, datetime):
            values[place] = (each.astimezone(UTC) if each.tzinfo else each).replace(tzinfo=None).isoformat(" ")
        elif isinstance(each, date):
            values[place] = each.isoformat()
        elif isinstance(each, float) and math.isnan(each):
            values[place] = None
    return values


def _moment_in_utc(moment: datetime | None) -> datetime | None:
    """Convert a moment to UTC. The last hours of the year 9999, which mean the end of time, may overflow and stay
    unchanged."""
    if moment is not None:
        with contextlib.suppress(OverflowError, ValueError):
            return moment.astimezone(UTC)
    return moment


def _unless_null(change: Change) -> Change:
    return lambda value: None if value is None else change(value)


def _unchanged(value: Any) -> Any:
    return value


def _like(row: Any, values: list[Any]) -> Any:
    """Return a struct with the same fields."""
    from pyspark.sql import Row

    return Row(*row.__fields__)(*values)
