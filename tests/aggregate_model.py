"""What declared aggregates must give, in plain Python, and random rows for them."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
import statistics
from typing import Any

import pyarrow as pa

from recovery.aggregates import (
    Aggregate,
    approx_distinct,
    collect,
    count,
    count_distinct,
    first,
    last,
    max_,
    mean,
    min_,
    stddev,
    sum_,
    top_k,
    variance,
)

COMBINED = {
    "n": count(), "n_v": count("v"), "total": sum_("v"), "total_i": sum_("i"), "total_x": sum_("x"),
    "total_d": sum_("d"), "mean": mean("v"), "mean_d": mean("d"), "var": variance("x"),
    "dev": stddev("v", population=True), "low": min_("v"), "high": max_("x"), "low_d": min_("d"), "low_f": min_("f"),
    "high_f": max_("f"), "high_day": max_("day"), "low_s": min_("s"), "high_s": max_("s"), "high_flag": max_("flag"),
    "low_bytes": min_("bytes"), "first": first("s", by="at"), "last": last("v", by="at"), "by_f": last("s", by="f"),
    "last_moment": last("moment", by="d"), "last_day": last("day", by="s"), "first_flag": first("flag", by="bytes"),
    "last_bytes": last("bytes", by="flag"), "first_by_f": first("d", by="f"), "top": top_k("v", 3),
    "top_s": top_k("s", 2, by="at"), "top_f": top_k("f", 3), "moments": top_k("moment", 2, by="f"),
    "some": collect("s", 4), "flags": collect("flag", 3), "early": collect("v", 3, by="at"),
    "late": collect("v", 3, by="at", keep="last"), "days": collect("day", 100, by="moment"),
    "late_d": collect("d", 2, keep="last"),
}  # fmt: skip
"""Of all functions of which Spark can combine rows, by the names of their columns."""
COLUMNS = {**COMBINED, "distinct": approx_distinct("h", error=0.2), "different": count_distinct("s")}
SCHEMA = pa.schema([
    ("key", pa.string()), ("v", pa.int64()), ("i", pa.int32()), ("x", pa.float64()), ("f", pa.float64()),
    ("d", pa.decimal128(8, 2)), ("s", pa.string()), ("bytes", pa.binary()), ("flag", pa.bool_()), ("day", pa.date32()),
    ("at", pa.int64()), ("moment", pa.timestamp("us", "UTC")), ("h", pa.int64()),
])  # fmt: skip
ROUNDED = {"mean_d", "var", "dev"}
"""The aggregates whose last digits depend on the order of the rows."""


def random_row(generator: random.Random) -> dict[str, Any]:
    """Many NULLs, many ties; sums of x are exact; f has NaN."""

    def maybe(value: Any) -> Any:
        return None if generator.random() < 0.25 else value

    return {
        "key": maybe(generator.choice("abcdefgh")), "v": maybe(generator.randrange(-5, 6)),
        "i": maybe(generator.randrange(-5, 6)), "x": maybe(generator.randrange(-40, 40) / 4),
        "f": maybe(generator.choice([math.nan, -1.5, 0.0, 0.25])),
        "d": maybe(decimal.Decimal(generator.randrange(-999, 999)) / 100),
        "s": maybe(generator.choice(["", "a", 'q"', "zz", "é", "😀", "\uffff"])),
        "bytes": maybe(generator.choice([b"", b"\x00", b"\x7f", b"\xff"])), "flag": maybe(generator.random() < 0.5),
        "day": maybe(dt.date(2024, 2, 27) + dt.timedelta(generator.randrange(5))),
        "at": maybe(generator.randrange(6)),
        "moment": maybe(dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=generator.randrange(-3, 3))),
        "h": maybe(generator.randrange(9)),
    }  # fmt: skip


def expected(rows: list[dict[str, Any]], columns: dict[str, Aggregate] = COLUMNS) -> dict[str, Any]:
    """The columns of a key with these rows."""
    return {name: _value(each, rows) for name, each in columns.items()}


def _value(each: Aggregate, rows: list[dict[str, Any]]) -> Any:
    values = [row[each.inputs[0]] for row in rows] if each.inputs else rows
    there = [value for value in values if value is not None]
    match each.function:
        case "count":
            return len(there)
        case "approx_distinct" | "count_distinct":
            return len(set(there))
        case "sum":
            return sum(there) if there else None
        case "mean":
            return float(sum(there)) / len(there) if there else None
        case "var_samp":
            return statistics.variance(there) if len(there) > 1 else None
        case "stddev_pop":
            return statistics.pstdev(there) if there else None
        case "min":
            return min(filter(_is_ordered, there), default=None)
        case "max":
            return max(filter(_is_ordered, there), default=None)
    found = _ranked(each, rows)
    if not each.limit:
        return found[0] if found else None
    kept = found[: each.limit]
    return (kept[::-1] if each.newest else kept) or None


def _ranked(each: Aggregate, rows: list[dict[str, Any]]) -> list[Any]:
    """The values in their order. Of rows that another column orders alike, the least or greatest value comes first, as
    the column's does; NaN comes behind numbers, and NULL behind all."""
    name, by = each.inputs[0], each.inputs[-1]
    from_end = each.function in ("last", "top_k", "collect_last")
    rows = [row for row in rows if _is_ordered(row[by]) and (_is_ordered(row[name]) or not each.limit)]
    found = sorted((row for row in rows if _is_ordered(row[name])), key=lambda row: row[name], reverse=from_end)
    found += [row for row in rows if row[name] is not None and not _is_ordered(row[name])]
    found += [row for row in rows if row[name] is None]
    return [row[name] for row in sorted(found, key=lambda row: row[by], reverse=from_end)]


def _is_ordered(value: Any) -> bool:
    """Whether it is neither NULL nor NaN."""
    return value is not None and value == value
