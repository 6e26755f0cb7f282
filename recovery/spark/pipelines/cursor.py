"""The cursor of an incremental load: the column by which a load orders rows and finds those above its mark."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recovery.errors import ConfigurationError, HighWaterMarkError
from recovery.operational import text_order

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_FIELDS = "HhKkmsSaAnN"
_ZONE_FIELDS = "VzOXxZ"
_QUOTED = re.compile(r"'[^']*'")
_KINDS = (T.NumericType, T.StringType, T.BinaryType, T.TimestampType, T.TimestampNTZType, T.DateType)


class Cursor(NamedTuple):
    """The column that decides what is newer. value: NULL for a row without a place in the order, because its column is
    NULL, NaN or infinite."""

    key: str
    name: str
    value: Column
    kind: T.DataType


def cursor(source: DataFrame, key: str, column: str, fallback: str | None, date_format: str | None) -> Cursor:
    """Return the cursor of a load. Raises ConfigurationError for a column without an ascending order."""
    if date_format is not None and not isinstance(_kind(source, F.col(column)), T.StringType):
        raise bad(key, f"date_format is for text, and column {column!r} is none", "Leave date_format out.")
    value = _placed(source, column, date_format)
    if fallback is not None:
        value = F.coalesce(value, _placed(source, fallback, date_format))
    kind = _kind(source, value)
    _check_kind(key, column, kind)
    found = Cursor(key, column, value, kind)
    if date_format is not None:
        _check_parsed(source, found, [column, *([fallback] if fallback is not None else [])], date_format)
    return found


def check_text(found: Cursor, source: DataFrame, before: Any) -> None:
    """Check that texts sort in the order of the dates or numbers that they spell. Raises ConfigurationError if not,
    because the load would then skip newer rows."""
    if not isinstance(found.kind, T.StringType):
        return
    text = found.value
    shaped = text.rlike(text_order.SHAPED)
    offset = F.regexp_extract(text, text_order.OFFSET, 1)
    shape = F.concat(
        F.regexp_replace(text, "[0-9]", "0"), F.when(offset == "", "").otherwise(F.concat(F.lit("|"), offset))
    )
    prefix = F.regexp_extract(text, text_order.PREFIX, 1)
    [row] = source.agg(
        F.max(F.when(text.rlike(text_order.UNORDERED), text)).alias("unordered"),
        *(end(F.when(shaped, each)).alias(f"{name}_{end.__name__}")
          for name, each in (("shape", shape), ("prefix", prefix)) for end in (F.min, F.max)),
        F.min_by(text, F.when(shaped, shape)).alias("one"),
        F.max_by(text, F.when(shaped, shape)).alias("other"),
    ).collect()  # fmt: skip
    if row.unordered is not None:
        raise _unordered(found, f"it has {row.unordered!r:.80}")
    if row.shape_min is None:
        return
    mark = text_order.shape(before) if isinstance(before, str) else None
    if row.prefix_min == row.prefix_max and row.shape_min != row.shape_max:
        raise _unordered(found, f"it has {row.one!r:.80} and {row.other!r:.80}")
    if mark is not None and mark[0] == row.prefix_min == row.prefix_max and mark[1] != row.shape_min:
        raise _unordered(found, f"it has {row.one!r:.80}, and the mark is {before!r:.80}")


def collected(found: Cursor, value: Column) -> Column:
    """Return a column for collecting a value, in a form that depends on no time zone and that Python can represent."""
    if isinstance(found.kind, T.TimestampType):
        return F.unix_micros(value)
    return value.cast("string") if isinstance(found.kind, T.DateType | T.TimestampNTZType) else value


def python_value(found: Cursor, value: Any) -> Any:
    """Return a collected value as a mark. Raises HighWaterMarkError for a time that Python cannot represent."""
    if value is None:
        return None
    try:
        if isinstance(found.kind, T.TimestampType):
            return EPOCH + timedelta(microseconds=value)
        if isinstance(found.kind, T.DateType):
            return date.fromisoformat(value)
        if isinstance(found.kind, T.TimestampNTZType):
            return datetime.fromisoformat(value)
    except (ValueError, OverflowError) as error:
        shown = f"{value} microseconds after 1970" if isinstance(value, int) else value
        raise HighWaterMarkError(
            f"the highest value of column {found.name!r} is {shown}, and no mark can be later than the year 9999",
            cause="A row holds a placeholder instead of a real time, such as the year 9999 for never.",
            remedy="Leave such rows out in the reader, or make them NULL.",
        ) from error
    return value


def bad(key: str, what: str, remedy: str) -> ConfigurationError:
    """Return the error for a load that cannot be done."""
    return ConfigurationError(f"the load of {key!r:.80} cannot be done: {what}", cause="", remedy=remedy)


def _placed(source: DataFrame, column: str, date_format: str | None) -> Column:
    value = F.col(column)
    kind = _kind(source, value)
    if isinstance(kind, T.FloatType | T.DoubleType):
        # NaN and infinity are above every number, so a mark there would skip all later rows.
        return F.when(~F.isnan(value) & (F.abs(value) != float("inf")), value)
    if date_format is not None and isinstance(kind, T.StringType):
        return _parsed(value, date_format)
    return value


def _parsed(value: Column, date_format: str) -> Column:
    """Return a text as the date or time that it spells; NULL if it spells none."""
    fields = _QUOTED.sub("", date_format)
    time = F.try_to_timestamp(value, F.lit(date_format))
    if any(field in fields for field in _ZONE_FIELDS):
        return time
    if any(field in fields for field in _TIME_FIELDS):
        # Without a zone in the format, the value must not depend on the session's time zone.
        return F.when(time.isNotNull(), F.to_timestamp_ntz(value, F.lit(date_format)))
    return time.cast("date")


def _check_parsed(source: DataFrame, found: Cursor, columns: list[str], date_format: str) -> None:
    texts = [F.col(each) for each in columns if isinstance(_kind(source, F.col(each)), T.StringType)]
    wrong = [F.max(F.when(_parsed(text, date_format).isNull(), text)) for text in texts]
    [row] = source.agg(F.coalesce(*wrong).alias("wrong")).collect()
    if row.wrong is not None:
        raise bad(found.key, f"{row.wrong!r:.80} in column {found.name!r} is not a date by {date_format!r:.80}",
                  "Correct date_format, or make such values NULL in the reader.")  # fmt: skip


def _check_kind(key: str, column: str, kind: T.DataType) -> None:
    if isinstance(kind, T.StringType) and kind.collation != "UTF8_BINARY":
        raise bad(key, f"column {column!r} has the collation {kind.collation}, whose order is not that of marks",
                  f"Give it in the reader as collate({column}, 'UTF8_BINARY').")  # fmt: skip
    if isinstance(kind, T.BooleanType):
        raise bad(key, f"column {column!r} is true or false, and nothing is newer than true", "Use another column.")
    if not isinstance(kind, _KINDS):
        raise bad(key, f"column {column!r} of {kind.simpleString()} has no order that a mark needs",
                  "Use a number, text, a date or a timestamp.")  # fmt: skip


def _unordered(found: Cursor, what: str) -> ConfigurationError:
    what = f"the texts in column {found.name!r} do not sort in the order of the values that they spell: {what}"
    error = bad(found.key, what, text_order.DATE_REMEDY)
    error.cause = "Dates that do not begin with the year, and numbers of different lengths, sort wrongly as text."
    return error


def _kind(source: DataFrame, value: Column) -> T.DataType:
    return source.select(value.alias("value")).schema[0].dataType
