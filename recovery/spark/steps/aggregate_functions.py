"""The table of aggregate functions: what a step makes of each function of `recovery.aggregates`.

To add a function, give it a name and a signature in `recovery.aggregates` and an entry in FUNCTIONS, and a kernel in
`recovery.values.kernels` if none there fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_
from typing import TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.internal import InternalFunction
from pyspark.sql.pandas.types import to_arrow_type

from recovery.aggregates import Aggregate
from recovery.errors import ConfigurationError
from recovery.spark.steps.combine import AggregatePart, counted
from recovery.values.kernels import HALF, Count, Different, Distinct, Extreme, Kernel, Mean, Ranked, Sum, Variance

_COMPARED = (T.NumericType, T.DateType, T.TimestampType, T.TimestampNTZType)
_LONG, _DOUBLE = T.LongType(), T.DoubleType()
MOST_LISTED = 100
"""Longest arrays that Spark combines rows to: it has the array of one key outside of the memory that it bounds."""


@dataclass(frozen=True)
class MadeAggregate:
    """An aggregate for inputs of known types: its kernel, states and result."""

    kernel: Kernel
    states: tuple[T.StructField, ...]
    result: T.DataType


@dataclass(frozen=True)
class _Accepted:
    """The types of input that a function accepts, and their names for an error. by_bytes: no strings whose collation
    makes equal what has other bytes."""

    types: tuple[type[T.DataType], ...]
    names: str
    by_bytes: bool = False

    def takes(self, kind: T.DataType) -> bool:
        """Whether the function accepts a type."""
        return isinstance(kind, self.types) and not (self.by_bytes and not _goes_by_bytes(kind))


_ANY = _Accepted((T.DataType,), "any type")
_NUMBERS = _Accepted((T.NumericType,), "numbers")
_ORDERED = _Accepted(
    (*_COMPARED, T.StringType, T.BooleanType, T.BinaryType),
    "numbers, strings, booleans, binary, dates and timestamps",
)

_EXACT = _Accepted(
    (T.IntegralType, T.DecimalType, T.StringType, T.BooleanType, T.BinaryType, T.DateType, T.TimestampType,
     T.TimestampNTZType),
    "integers, decimals, strings without a collation, booleans, binary, dates and timestamps", by_bytes=True,
)  # fmt: skip

Make: TypeAlias = Callable[[str, Aggregate, Sequence[T.DataType]], MadeAggregate]
Cast: TypeAlias = Callable[[T.DataType], T.DataType | None]
Inputs: TypeAlias = Sequence[tuple[Column, T.DataType]]
Parts: TypeAlias = tuple[AggregatePart, ...] | None


def _no_parts(_: Aggregate, __: Inputs) -> Parts:
    return None


def _unchanged(inputs: Inputs) -> list[Column]:
    return [value for value, _ in inputs]


@dataclass(frozen=True)
class Function:
    """One aggregate function. An input is a column with its type; all but `cast` take inputs after the cast.

    make: returns the kernel, states and result of an output column, by its name, its aggregate and the input's types.
    accepts: the types that its inputs may have.
    cast: returns the type to cast an input to; None: no cast.
    parts: returns the parts to which Spark can combine a key's rows, for `AddingKernel.add`, by the aggregate and its
    inputs; None if it cannot.
    passed: returns the columns that the kernel gets if rows are not combined.
    """

    make: Make
    accepts: _Accepted
    cast: Cast = lambda kind: None
    parts: Callable[[Aggregate, Inputs], Parts] = _no_parts
    passed: Callable[[Inputs], list[Column]] = _unchanged


def plan_aggregate(
    step_id: str, name: str, each: Aggregate, kinds: Sequence[T.DataType]
) -> tuple[list[T.DataType | None], MadeAggregate]:
    """Return the types to cast an aggregate's inputs to (None: no cast), and its kernel, states and result.

    Raises ConfigurationError for an input of a type that the function does not accept.
    """
    function = FUNCTIONS[each.function]
    for kind in kinds:
        if not function.accepts.takes(kind):
            raise ConfigurationError(
                f"step {step_id!r}: {name}={each} is of a column of type {kind.simpleString()}",
                cause=f"The function takes {function.accepts.names}.",
                remedy="Cast the column, or aggregate a part of it.",
            )
    casts = [function.cast(kind) for kind in kinds]
    cast_kinds = [kind if to is None else to for kind, to in zip(kinds, casts, strict=True)]
    return casts, function.make(name, each, cast_kinds)


def _made(kernel: Kernel, states: dict[str, T.DataType], result: T.DataType) -> MadeAggregate:
    return MadeAggregate(kernel, tuple(T.StructField(name, kind) for name, kind in states.items()), result)


# count


def _count(name: str, each: Aggregate, kinds: Sequence[T.DataType]) -> MadeAggregate:
    return _made(Count(), {name: _LONG}, _LONG)


def _count_parts(_: Aggregate, inputs: Inputs) -> Parts:
    return (counted(*(value for value, _ in inputs)),)


def _count_passed(inputs: Inputs) -> list[Column]:
    """Return only whether values are NULL, because count accepts types that a step cannot get."""
    return [F.when(value.isNotNull(), F.lit(True)) for value, _ in inputs]


# sum and mean


def _sum(name: str, each: Aggregate, kinds: Sequence[T.DataType]) -> MadeAggregate:
    kind = _sum_type(kinds[0])
    return _made(Sum(to_arrow_type(kind)), {name: kind}, kind)


def _sum_type(kind: T.DataType) -> T.DataType:
    if isinstance(kind, T.DecimalType):
        return T.DecimalType(min(38, kind.precision + 10), kind.scale)
    return _LONG if isinstance(kind, T.IntegralType) else _DOUBLE


def _sum_cast(kind: T.DataType) -> T.DataType | None:
    return None if isinstance(kind, T.DecimalType) else _sum_type(kind)


def _sum_parts(_: Aggregate, inputs: Inputs) -> Parts:
    [(value, kind)] = inputs
    if isinstance(kind, T.DecimalType):
        # Ten more digits than the values have suffice for the rows of a micro-batch.
        if kind.precision > 28:
            return None
        value = value.cast(T.DecimalType(kind.precision + 10, kind.scale))
    if not isinstance(kind, T.LongType):
        return (AggregatePart(value, lambda parts: F.sum(parts[0])),)
    return (
        AggregatePart(F.shiftright(value, HALF), lambda parts: F.sum(parts[0])),
        AggregatePart(value.bitwiseAND(F.lit((1 << HALF) - 1)), lambda parts: F.sum(parts[1])),
    )


def _mean(name: str, each: Aggregate, kinds: Sequence[T.DataType]) -> MadeAggregate:
    states = {f"{name}.sum": kinds[0], f"{name}.count": _LONG}
    return _made(Mean(to_arrow_type(kinds[0])), states, _DOUBLE)


def _mean_cast(kind: T.DataType) -> T.DataType:
    return _DOUBLE if isinstance(kind, T.DecimalType) else _sum_type(kind)


def _mean_parts(each: Aggregate, inputs: Inputs) -> Parts:
    sums = _sum_parts(each, inputs)
    return None if sums is None else (*sums, counted(inputs[0][0]))


# variance and stddev


def _variance(name: str, each: Aggregate, kinds: Sequence[T.DataType], *, sample: bool, root: bool) -> MadeAggregate:
    states: dict[str, T.DataType] = {f"{name}.count": _LONG, f"{name}.mean": _DOUBLE, f"{name}.m2": _DOUBLE}
    return _made(Variance(sample, root), states, _DOUBLE)


def _moments(_: Aggregate, inputs: Inputs) -> Parts:
    """Return the parts count, mean and sum of squared differences. `combine` accepts only values not yet combined."""
    [(value, _)] = inputs
    return (
        AggregatePart(counted(value).row, lambda parts: F.sum(parts[0])),
        AggregatePart(value, lambda parts: F.avg(parts[1])),
        AggregatePart(F.lit(0.0), lambda parts: F.coalesce(F.var_pop(parts[1]) * F.count(parts[1]), F.lit(0.0))),
    )


def _of_variance(*, sample: bool, root: bool) -> Function:
    return Function(partial(_variance, sample=sample, root=root), _NUMBERS, cast=lambda kind: _DOUBLE, parts=_moments)


# first, last, top_k and collect; min and max, also of types that Arrow does not compare in groups


def _ranked(name: str, each: Aggregate, kinds: Sequence[T.DataType], *, descending: bool) -> MadeAggregate:
    states = {name: kinds[0], f"{name}.by": kinds[-1]} if len(kinds) > 1 else {name: kinds[0]}
    listed = each.limit > 0
    if listed:
        states = {one: T.ArrayType(kind) for one, kind in states.items()}
    return _made(Ranked(each.limit or 1, descending, listed, reverse=each.newest), states, states[name])


def _ranked_parts(each: Aggregate, inputs: Inputs, *, descending: bool) -> Parts:
    if not all(map(_goes_by_bytes, (kind for _, kind in inputs))):
        return None
    if each.limit == 0:
        return _best_parts(inputs, descending=descending)
    return _listed_parts(each.limit, inputs, descending=descending) if each.limit <= MOST_LISTED else None


def _goes_by_bytes(kind: T.DataType) -> bool:
    """Whether bytes decide which strings are equal, and their order, as they do in Arrow. True for other types."""
    return not isinstance(kind, T.StringType) or kind.isUTF8BinaryCollation()


def _best_parts(inputs: Inputs, *, descending: bool) -> Parts:
    """Return the value in the best row, and what it is ordered by if that is another column."""
    best = F.max if descending else F.min
    if len(inputs) == 1:
        return (AggregatePart(inputs[0][0], lambda parts: best(parts[0])),)
    (value, kind), (order, order_kind) = inputs

    def row(parts: Sequence[Column]) -> Column:
        value, order = parts
        # Of rows with the same order, one with NaN comes behind all with a number, and one with NULL behind both. To
        # Spark, NULL is the least value, and NaN the greatest.
        behind = F.when(value.isNull(), 2).when(_is_nan(value, kind), 1).otherwise(0)
        whole = F.struct(
            order.alias("order"), (-behind if descending else behind).alias("behind"), value.alias("value")
        )
        return best(F.when(_is_kept(order, order_kind), whole))

    return (
        AggregatePart(value, lambda parts: row(parts)["value"]),
        AggregatePart(order, lambda parts: row(parts)["order"]),
    )


def _listed_parts(limit: int, inputs: Inputs, *, descending: bool) -> Parts:
    """Return an array of the values in the best rows, and of what they are ordered by if that is another column."""
    names = ("value", "order")[: len(inputs)]

    def kept(parts: Sequence[Column]) -> Column:
        return reduce(and_, (_is_kept(part, kind) for part, (_, kind) in zip(parts, inputs, strict=True)))

    def rows(parts: Sequence[Column]) -> Column:
        whole = F.struct(*(part.alias(name) for part, name in reversed([*zip(parts, names, strict=True)])))
        return InternalFunction.collect_top_k(F.when(kept(parts), whole), limit, not descending)

    def part(place: int) -> AggregatePart:
        return AggregatePart(
            inputs[place][0],
            lambda parts: rows(parts)[names[place]],
            lambda parts: F.when(kept(parts), F.array(parts[place])),
        )

    return tuple(map(part, range(len(inputs))))


def _is_kept(value: Column, kind: T.DataType) -> Column:
    """Whether a row with this value counts: it is neither NULL nor NaN."""
    return value.isNotNull() & ~_is_nan(value, kind)


def _is_nan(value: Column, kind: T.DataType) -> Column:
    return F.isnan(value) if isinstance(kind, T.FloatType | T.DoubleType) else F.lit(False)


def _of_ranks(*, descending: bool) -> Function:
    make, parts = partial(_ranked, descending=descending), partial(_ranked_parts, descending=descending)
    return Function(make, _ORDERED, parts=parts)


def _extreme(name: str, each: Aggregate, kinds: Sequence[T.DataType], *, greatest: bool) -> MadeAggregate:
    [kind] = kinds
    if not isinstance(kind, _COMPARED):
        return _ranked(name, each, kinds, descending=greatest)
    return _made(Extreme("max" if greatest else "min"), {name: kind}, kind)


def _extreme_parts(each: Aggregate, inputs: Inputs, *, greatest: bool) -> Parts:
    [(value, kind)] = inputs
    if not isinstance(kind, _COMPARED):
        return _ranked_parts(each, inputs, descending=greatest)
    if isinstance(kind, T.FloatType | T.DoubleType) and greatest:
        # NaN is the greatest number in Spark; here it is skipped as long as there is another number.
        return (AggregatePart(value, lambda parts: -F.min(-parts[0])),)
    return (AggregatePart(value, lambda parts: (F.max if greatest else F.min)(parts[0])),)


def _of_extreme(*, greatest: bool) -> Function:
    make, parts = partial(_extreme, greatest=greatest), partial(_extreme_parts, greatest=greatest)
    return Function(make, _ORDERED, parts=parts)


# count_distinct and approx_distinct


def _different(name: str, each: Aggregate, kinds: Sequence[T.DataType]) -> MadeAggregate:
    return _made(Different(), {name: T.ArrayType(kinds[0])}, _LONG)


def _distinct(name: str, each: Aggregate, kinds: Sequence[T.DataType]) -> MadeAggregate:
    return _made(Distinct(each.limit), {name: T.ArrayType(_LONG)}, _LONG)


def _hashes(inputs: Inputs) -> list[Column]:
    """Return the hash of each value. Spark's hash skips NULL in a struct or an array, so hash their JSON as well."""
    [(value, kind)] = inputs
    hashed = [value]
    if isinstance(kind, T.StructType | T.ArrayType):
        hashed.append(F.to_json(F.struct(value), {"ignoreNullFields": "false", "timeZone": "UTC"}))
    return [F.when(value.isNotNull(), F.xxhash64(*hashed))]


FUNCTIONS: dict[str, Function] = {
    "count": Function(_count, _ANY, parts=_count_parts, passed=_count_passed),
    "sum": Function(_sum, _NUMBERS, cast=_sum_cast, parts=_sum_parts),
    "mean": Function(_mean, _NUMBERS, cast=_mean_cast, parts=_mean_parts),
    "var_samp": _of_variance(sample=True, root=False),
    "var_pop": _of_variance(sample=False, root=False),
    "stddev_samp": _of_variance(sample=True, root=True),
    "stddev_pop": _of_variance(sample=False, root=True),
    "min": _of_extreme(greatest=False),
    "max": _of_extreme(greatest=True),
    "first": _of_ranks(descending=False),
    "last": _of_ranks(descending=True),
    "top_k": _of_ranks(descending=True),
    "collect_first": _of_ranks(descending=False),
    "collect_last": _of_ranks(descending=True),
    "count_distinct": Function(_different, _EXACT),
    "approx_distinct": Function(_distinct, _ANY, passed=_hashes),
}
"""The functions by `Aggregate.function`."""
