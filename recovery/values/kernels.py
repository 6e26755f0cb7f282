"""Aggregation in Arrow and NumPy: merge the rows of many keys into the states of those keys.

A kernel processes all keys in one call. A kernel's states and result are columns; no function here runs per key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

INT64_END = 2**63
HALF = 32
"""Bits in the lower half of an int64 that is summed as two halves."""
HASHES = 2.0**64


class OverflowAt(Exception):  # noqa: N818 - becomes an error where the key is known
    """The sum of the key at index `place` exceeds the range of its type."""

    def __init__(self, place: int, what: str) -> None:
        super().__init__(place, what)
        self.place = place
        self.what = what


@dataclass(frozen=True)
class Groups:
    """Rows grouped by key. starts: each key's first row. counts: each key's number of rows. group: each row's key."""

    starts: Any
    counts: Any
    group: Any

    def __len__(self) -> int:
        return len(self.starts)


class Kernel(Protocol):
    """One aggregate function, for inputs of one type."""

    def merge(self, groups: Groups, inputs: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the new states. `states` are NULL for keys without a state."""
        ...

    def result(self, states: Sequence[pa.Array]) -> pa.Array:
        """Return the value of the aggregate for each state."""
        ...


class AddingKernel(Kernel, Protocol):
    """A kernel that also accepts rows which Spark has already combined."""

    def add(self, groups: Groups, parts: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the new states from combined rows: `parts` are those of the function's entry in
        `recovery.spark.steps.aggregate_functions`."""
        ...


@dataclass(frozen=True)
class Count:
    """The number of rows, or of rows in which the input is not NULL."""

    def merge(self, groups: Groups, inputs: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        found = _valid(groups, inputs[0]) if inputs else groups.counts
        return [pc.add(states[0].fill_null(0), pa.array(found))]

    def add(self, groups: Groups, parts: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        """Add up one part, the number of rows."""
        found = np.add.reduceat(parts[0].to_numpy(), groups.starts)
        return [pc.add(states[0].fill_null(0), pa.array(found))]

    def result(self, states: Sequence[pa.Array]) -> pa.Array:
        return states[0]


@dataclass(frozen=True)
class Sum:
    """The sum of int64, double or decimal; NULL as long as every input was NULL."""

    kind: pa.DataType

    def merge(self, groups: Groups, inputs: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        values, held = inputs[0], states[0]
        if pa.types.is_decimal(self.kind):
            return [_decimal_sums(groups, values, held, self.kind)]
        zero = 0 if pa.types.is_integer(self.kind) else 0.0
        numbers = values.fill_null(zero).to_numpy(zero_copy_only=False)
        before = held.fill_null(zero).to_numpy(zero_copy_only=False)
        if pa.types.is_integer(self.kind):
            _check_int64(groups, numbers, before)
        sums = np.add.reduceat(numbers, groups.starts) + before
        if not values.null_count:
            return [pa.array(sums)]
        return [pa.array(sums, mask=~_seen(groups, values, held))]

    def add(self, groups: Groups, parts: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        """Add up one part, or the upper and lower halves of an int64, neither of which overflows."""
        if len(parts) == 1:
            return self.merge(groups, parts, states)
        upper, lower = (np.add.reduceat(part.fill_null(0).to_numpy(), groups.starts) for part in parts)
        before = states[0].fill_null(0).to_numpy()
        if max(_largest(upper) << HALF, _largest(lower), _largest(before)) >= INT64_END // 4:
            _check_halves(upper, lower, before)
        # Intermediate sums may wrap around: the total is still right.
        sums = pa.array((upper << HALF) + lower + before, mask=~_seen(groups, parts[0], states[0]))
        return [sums]

    def result(self, states: Sequence[pa.Array]) -> pa.Array:
        return states[0]


@dataclass(frozen=True)
class Mean:
    """The mean of int64 or double, kept as sum and count."""

    kind: pa.DataType

    def merge(self, groups: Groups, inputs: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        return Sum(self.kind).merge(groups, inputs, states[:1]) + Count().merge(groups, inputs, states[1:])

    def add(self, groups: Groups, parts: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        """Add up the parts of a sum, followed by the part of a count."""
        return Sum(self.kind).add(groups, parts[:-1], states[:1]) + Count().add(groups, parts[-1:], states[1:])

    def result(self, states: Sequence[pa.Array]) -> pa.Array:
        # Integers beyond 2**53 lose their last digits only in this division.
        total = states[0].cast(pa.float64(), safe=False)
        return pc.divide(total, pc.replace_with_mask(states[1], pc.equal(states[1], 0), pa.scalar(1)).cast("double"))


@dataclass(frozen=True)
class Variance:
    """Variance, or with `root` standard deviation, of doubles, kept as count, mean and sum of squared differences."""

    sample: bool
    root: bool

    def merge(self, groups: Groups, inputs: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        counts = inputs[0].is_valid().cast(pa.int64())
        return self.add(groups, [counts, inputs[0], pa.array(np.zeros(len(counts)))], states)

    def add(self, groups: Groups, parts: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        """Merge parts of the same columns as the states."""
        n_a, mean_a, m2_a = (state.fill_null(0).to_numpy(zero_copy_only=False) for state in states)
        n, mean, m2 = (part.fill_null(0).to_numpy(zero_copy_only=False) for part in parts)
        n_b = np.add.reduceat(n, groups.starts)
        mean_b = np.add.reduceat(n * mean, groups.starts) / np.maximum(n_b, 1)
        m2_b = np.add.reduceat(m2 + n * (mean - mean_b[groups.group]) ** 2, groups.starts)
        both = n_a + n_b
        share = n_b / np.maximum(both, 1)
        delta = mean_b - mean_a
        return [pa.array(both), pa.array(mean_a + delta * share), pa.array(m2_a + m2_b + delta * delta * n_a * share)]

    def result(self, states: Sequence[pa.Array]) -> pa.Array:
        n = states[0].to_numpy(zero_copy_only=False) - self.sample
        found = states[2].to_numpy(zero_copy_only=False) / np.maximum(n, 1)
        return pa.array(np.sqrt(found) if self.root else found, mask=~(n > 0))


@dataclass(frozen=True)
class Extreme:
    """The least or greatest value, of types that Arrow compares in groups, such as numbers and dates."""

    function: str

    def merge(self, groups: Groups, inputs: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        # A state counts as one more row of its key. group_by keeps the order of the keys.
        both = pa.table({
            "group": np.concatenate([groups.group, np.arange(len(groups))]),
            "value": pa.concat_arrays([inputs[0], states[0]]),
        })  # fmt: skip
        found = both.group_by("group", use_threads=False).aggregate([("value", self.function)])
        column = found.column(f"value_{self.function}").combine_chunks()
        # The extreme of a key is NaN only if all its values so far were NaN.
        return [_without_nan(column)]

    add = merge

    def result(self, states: Sequence[pa.Array]) -> pa.Array:
        return states[0]


@dataclass(frozen=True)
class Ranked:
    """The first `limit` rows of each key, ordered by the last input; ties are ordered by the other input.

    inputs and states: the values and, if something else orders them, the column to order by. Rows whose order is NULL
    or NaN are skipped. listed: states are arrays, and NULL and NaN values are skipped too. reverse: the result has the
    reverse order.
    """

    limit: int
    descending: bool
    listed: bool
    reverse: bool = False

    def merge(self, groups: Groups, inputs: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        return self._merged(len(groups), groups.group, inputs, states)

    def add(self, groups: Groups, parts: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        """Merge parts that are like the inputs, or arrays of those if states are arrays."""
        if not self.listed:
            return self.merge(groups, parts, states)
        group = groups.group[pc.list_parent_indices(parts[0]).to_numpy()]
        return self._merged(len(groups), group, [pc.list_flatten(part) for part in parts], states)

    def result(self, states: Sequence[pa.Array]) -> pa.Array:
        values = states[0]
        if not self.reverse:
            return values
        # Keep the offsets, and take the values of each array from its end to its start.
        offsets = values.offsets.to_numpy()
        counts = np.diff(offsets)
        places = np.repeat(offsets[1:] + offsets[:-1] - 1, counts) - np.arange(offsets[0], offsets[-1])
        starts = pa.array((offsets - offsets[0]).astype(np.int32))
        taken = values.values.take(pa.array(places))
        return pa.ListArray.from_arrays(starts, taken, type=values.type, mask=values.is_null())

    def _merged(self, keys: int, group: Any, inputs: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the new states of so many keys, from rows of which `group` has the key."""
        held_group, held = self._held(states)
        group = pa.array(np.concatenate([group, held_group]))
        columns = [pa.concat_arrays([new, old]) for new, old in zip(inputs, held, strict=True)]
        # A state cannot hold NaN, so skip NaN whatever other rows the micro-batch holds.
        columns[-1] = order = _without_nan(columns[-1])
        if self.listed:
            columns[0] = _without_nan(columns[0])
        if order.null_count or (self.listed and columns[0].null_count):
            wanted = pc.and_(order.is_valid(), columns[0].is_valid()) if self.listed else order.is_valid()
            group, columns = group.filter(wanted), [column.filter(wanted) for column in columns]
        group, columns = self._first(group, columns)
        counts = np.bincount(group, minlength=keys)
        ends = np.cumsum(counts)
        if self.listed:
            offsets = pa.array(np.concatenate(([0], ends)).astype(np.int32))
            empty = pa.array(counts == 0)
            return [
                pa.ListArray.from_arrays(offsets, column, type=state.type, mask=empty)
                for column, state in zip(columns, states, strict=True)
            ]
        places = pa.array(ends - 1, mask=counts == 0)
        return [column.take(places) for column in columns]

    def _held(self, states: Sequence[pa.Array]) -> tuple[Any, list[pa.Array]]:
        """Return the states as rows: each row's key, and the columns."""
        if not self.listed:
            return np.arange(len(states[0])), list(states)
        return pc.list_parent_indices(states[0]).to_numpy(), [pc.list_flatten(state) for state in states]

    def _first(self, group: pa.Array, columns: list[pa.Array]) -> tuple[Any, list[pa.Array]]:
        """Return the first `limit` rows of every key, in order: each row's key, and the columns."""
        names = ["value", "order"][: len(columns)]
        table = pa.table([group, *map(_sortable, columns)], names=["group", *names])
        way = "descending" if self.descending else "ascending"
        keys = [("group", "ascending"), *((name, way) for name in reversed(names))]
        order = pc.sort_indices(table, sort_keys=keys)  # NULL last
        ordered = group.take(order).to_numpy()
        kept = _rank(ordered) < self.limit
        chosen = order.filter(pa.array(kept))
        return ordered[kept], [column.take(chosen) for column in columns]


@dataclass(frozen=True)
class Different:
    """The number of different values, which are kept as sorted arrays; of types without NaN."""

    def merge(self, groups: Groups, inputs: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        group = np.concatenate([groups.group, pc.list_parent_indices(states[0]).to_numpy()])
        table = pa.table({"group": group, "value": pa.concat_arrays([inputs[0], pc.list_flatten(states[0])])})
        once = table.filter(pc.is_valid(table["value"])).group_by(["group", "value"], use_threads=False).aggregate([])
        values = once["value"].combine_chunks()
        order = pc.sort_indices(
            pa.table({"group": once["group"], "value": _sortable(values)}),
            sort_keys=[("group", "ascending"), ("value", "ascending")],
        )
        ends = np.cumsum(np.bincount(once["group"].to_numpy(), minlength=len(groups)))
        offsets = pa.array(np.concatenate(([0], ends)).astype(np.int32))
        return [pa.ListArray.from_arrays(offsets, values.take(order), type=states[0].type)]

    def result(self, states: Sequence[pa.Array]) -> pa.Array:
        return pc.list_value_length(states[0]).cast(pa.int64())


@dataclass(frozen=True)
class Distinct:
    """Distinct count, estimated from the `limit` smallest distinct hashes of each key.

    The more distinct values there were, the closer together those hashes lie."""

    limit: int

    def merge(self, groups: Groups, inputs: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        valid = inputs[0].is_valid().to_numpy(zero_copy_only=False)
        given = inputs[0].fill_null(0).to_numpy(zero_copy_only=False)[valid]
        hashes = np.concatenate([given, pc.list_flatten(states[0]).to_numpy()])
        group = np.concatenate([groups.group[valid], pc.list_parent_indices(states[0]).to_numpy()])
        order = np.lexsort((hashes, group))
        hashes, group = hashes[order], group[order]
        fresh = np.ones(len(hashes), bool)
        fresh[1:] = (hashes[1:] != hashes[:-1]) | (group[1:] != group[:-1])
        hashes, group = hashes[fresh], group[fresh]
        kept = _rank(group) < self.limit
        ends = np.cumsum(np.bincount(group[kept], minlength=len(groups)))
        offsets = pa.array(np.concatenate(([0], ends)).astype(np.int32))
        return [pa.ListArray.from_arrays(offsets, pa.array(hashes[kept]), type=states[0].type)]

    def result(self, states: Sequence[pa.Array]) -> pa.Array:
        offsets = states[0].offsets.to_numpy()
        counts = np.diff(offsets)
        hashes = states[0].values.to_numpy()
        full = counts >= self.limit
        greatest = hashes[np.where(full, offsets[1:] - 1, 0)] if len(hashes) else np.zeros(len(counts))
        share = (greatest.astype(np.float64) + HASHES / 2) / HASHES
        estimate = np.rint((self.limit - 1) / np.maximum(share, 1 / HASHES)).astype(np.int64)
        return pa.array(np.where(full, estimate, counts).astype(np.int64))


def _without_nan(column: pa.Array) -> pa.Array:
    """Return the column with NULL in place of NaN."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)


def _valid(groups: Groups, values: pa.Array) -> Any:
    """Return each key's number of values that are not NULL."""
    if not values.null_count:
        return groups.counts
    return np.add.reduceat(values.is_valid().to_numpy(zero_copy_only=False).astype(np.int64), groups.starts)


def _seen(groups: Groups, values: pa.Array, held: pa.Array) -> Any:
    """Return, for each key, whether it has or had a value that is not NULL."""
    return (_valid(groups, values) > 0) | held.is_valid().to_numpy(zero_copy_only=False)


def _largest(numbers: Any) -> int:
    """Return the largest absolute value; 0 for no values."""
    return max(abs(int(numbers.min())), abs(int(numbers.max()))) if len(numbers) else 0


def _rank(group: Any) -> Any:
    """Return each row's number within its key, from 0; the rows must be sorted by key."""
    places = np.arange(len(group))
    fresh = np.ones(len(group), bool)
    fresh[1:] = group[1:] != group[:-1]
    return places - np.maximum.accumulate(np.where(fresh, places, 0))


def _check_int64(groups: Groups, values: Any, before: Any) -> None:
    """Check that no sum exceeds int64; intermediate sums may wrap around. Raises OverflowAt."""
    if not len(values):
        return
    if _largest(values) * int(groups.counts.max()) + _largest(before) >= INT64_END:
        _check_exact(np.add.reduceat(values.astype(object), groups.starts) + before.astype(object))


def _check_halves(upper: Any, lower: Any, before: Any) -> None:
    _check_exact(upper.astype(object) * (1 << HALF) + lower.astype(object) + before.astype(object))


def _check_exact(totals: Any) -> None:
    for place, total in enumerate(totals):
        if not -INT64_END <= total < INT64_END:
            raise OverflowAt(place, f"{total} is not a bigint")


def _decimal_sums(groups: Groups, values: pa.Array, held: pa.Array, kind: pa.DataType) -> pa.Array:
    both = pa.concat_arrays([values.cast(kind), held])
    group = np.concatenate([groups.group, np.arange(len(groups))])
    # 128 bits hold little more than 38 digits, so a large sum may wrap. Detect sums near the limit in floating point.
    sizes = pc.abs(both).fill_null(0).cast(pa.float64()).to_numpy(zero_copy_only=False)
    near = np.bincount(group, weights=sizes, minlength=len(groups))
    limit = 10.0 ** (kind.precision - kind.scale)
    if near.max(initial=0.0) < limit * 0.999:
        table = pa.table({"group": group, "value": both})
        found = table.group_by("group", use_threads=False).aggregate([("value", "sum")])
        return found.column("value_sum").combine_chunks().cast(kind)
    return _exact_decimal_sums(group, both, len(groups), kind)


def _exact_decimal_sums(group: Any, values: pa.Array, count: int, kind: pa.DataType) -> pa.Array:
    """Return the sums computed with Python's decimals, for sums near the limit. Raises OverflowAt."""
    import decimal

    sums: list[Any] = [None] * count
    with decimal.localcontext(decimal.Context(prec=100)):
        for place, value in zip(group.tolist(), values.to_pylist(), strict=True):
            if value is not None:
                sums[place] = value if sums[place] is None else sums[place] + value
        for place, total in enumerate(sums):
            if total is not None and abs(total) >= decimal.Decimal(10) ** (kind.precision - kind.scale):
                raise OverflowAt(place, f"{total} is not a decimal({kind.precision},{kind.scale})")
    return pa.array(sums, kind)


def _sortable(column: pa.Array) -> pa.Array:
    return column.cast(pa.uint8()) if pa.types.is_boolean(column.type) else column
