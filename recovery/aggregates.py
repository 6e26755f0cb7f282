"""The aggregates that `recovery.aggregate` can compute over a key's rows: functions to use in its keyword arguments.

    from recovery import aggregate
    from recovery.aggregates import count, max_, sum_

    orders.transform(aggregate("spent", key="user", n=count(), total=sum_("price"), highest=max_("price")))

A column is given by name, or as a Spark `Column`, which Spark computes. Functions skip NULL, as in SQL, unless their
docstring says otherwise. No result depends on the order in which rows arrive, except for the last digits of
floating-point sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from recovery.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column

Input: TypeAlias = "str | Column"

__all__ = [
    "Aggregate",
    "approx_distinct",
    "collect",
    "count",
    "count_distinct",
    "first",
    "last",
    "max_",
    "mean",
    "min_",
    "stddev",
    "sum_",
    "top_k",
    "variance",
]


@dataclass(frozen=True)
class Aggregate:
    """One column to aggregate: made by the functions of this module, given to `recovery.aggregate`.

    inputs: the columns that it is computed from. limit: how many values it keeps per key. newest: it keeps the last
    values in order instead of the first.
    """

    function: str
    inputs: tuple[Input, ...] = ()
    limit: int = 0
    newest: bool = False

    def __str__(self) -> str:
        parts = [each if isinstance(each, str) else str(each) for each in self.inputs]
        if self.limit:
            parts.append(str(self.limit))
        return f"{self.function}({', '.join(parts)})"


def count(value: Input | None = None) -> Aggregate:
    """How many rows the key has had; with a column, how many rows in which it is not NULL. A bigint."""
    return Aggregate("count", _given(value))


def sum_(value: Input) -> Aggregate:
    """The sum. For integers a bigint, and an error if that overflows, so cast to decimal(38,0) what may become larger;
    for a decimal(p,s) a decimal(p+10,s); for float and double a double, whose last digits depend on the order of the
    rows."""
    return Aggregate("sum", (value,))


def min_(value: Input) -> Aggregate:
    """The least value of a column that has an order."""
    return Aggregate("min", (value,))


def max_(value: Input) -> Aggregate:
    """The greatest value of a column that has an order."""
    return Aggregate("max", (value,))


def mean(value: Input) -> Aggregate:
    """The arithmetic mean, a double. Kept as sum and count: for integers the mean is exact until the division."""
    return Aggregate("mean", (value,))


def variance(value: Input, *, population: bool = False) -> Aggregate:
    """The variance of a sample, or of the whole population; a double. Kept as count, mean and the sum of squared
    differences, merged with the method of Chan, Golub and LeVeque. NULL for a sample of one."""
    return Aggregate("var_pop" if population else "var_samp", (value,))


def stddev(value: Input, *, population: bool = False) -> Aggregate:
    """The standard deviation: the square root of `variance`."""
    return Aggregate("stddev_pop" if population else "stddev_samp", (value,))


def first(value: Input, by: Input) -> Aggregate:
    """The value, or NULL, in the row with the least `by`; of rows with the same `by`, the least value."""
    return Aggregate("first", (value, by))


def last(value: Input, by: Input) -> Aggregate:
    """The value, or NULL, in the row with the greatest `by`; of rows with the same `by`, the greatest value."""
    return Aggregate("last", (value, by))


def top_k(value: Input, k: int, *, by: Input | None = None) -> Aggregate:
    """An array of the `k` greatest values, or of the values in the rows with the `k` greatest `by`; greatest first."""
    return Aggregate("top_k", (value, *_given(by)), _limit("top_k", "k", k))


def collect(value: Input, limit: int, *, by: Input | None = None, keep: str = "first") -> Aggregate:
    """An array of at most `limit` values, in the order of `by`, or of the values themselves.

    keep: which values stay if there are more: the "first" or the "last" in order.
    """
    if keep not in ("first", "last"):
        raise ConfigurationError(f"collect(keep={keep!r}): it must be 'first' or 'last'")
    return Aggregate(f"collect_{keep}", (value, *_given(by)), _limit("collect", "limit", limit), keep == "last")


def approx_distinct(value: Input, *, error: float = 0.05) -> Aggregate:
    """The approximate number of different values, a bigint.

    The state is the smallest hashes that occurred, about 1/error² of them (a bottom-k sketch): exact up to that many
    values, with a standard error of `error` beyond.
    """
    if not 0.005 <= error <= 0.5:
        raise ConfigurationError(f"approx_distinct(error={error!r}): it must be a number from 0.005 to 0.5")
    return Aggregate("approx_distinct", (value,), math.ceil(1 / error**2) + 2)


def count_distinct(value: Input) -> Aggregate:
    """The number of different values of a column that is not float or double, a bigint; exact. The state is an array of
    them all, which is written whole when one is added: for more than some thousands, use `approx_distinct`."""
    return Aggregate("count_distinct", (value,))


def _given(value: Input | None) -> tuple[Input, ...]:
    return () if value is None else (value,)


def _limit(function: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100_000:
        raise ConfigurationError(f"{function}({name}={value!r}): it must be a number from 1 to 100000")
    return value
