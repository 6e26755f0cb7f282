"""Declared aggregation: a vectorised step whose function is built from `recovery.aggregates`.

Spark evaluates the inputs and, where it can, combines the rows of a key within each partition before the exchange
(`recovery.spark.steps.combine`). Each task sorts its rows, reduces them to one row per key in Arrow and NumPy, and
merges those with the states of the same keys. Only the result reaches the state table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recovery.aggregates import Aggregate
from recovery.errors import ConfigurationError, StateValueError
from recovery.spark.steps.aggregate_functions import FUNCTIONS, MadeAggregate, plan_aggregate
from recovery.spark.steps.arrow import apply_arrow
from recovery.spark.steps.combine import AggregatePart, combined, counted
from recovery.spark.steps.definition import GROUP, ROWS, START, Hold, Keys, OnError, arrow_schema
from recovery.spark.steps.input_keys import KeyedInput, locate_key
from recovery.spark.steps.key_columns import parse_keys
from recovery.spark.steps.stateful import check_step, hold_of, time_zone
from recovery.values.declaration import lambdas_numbered
from recovery.values.kernels import AddingKernel, Count, Groups, Kernel, Mean, OverflowAt
from recovery.values.migration import Migrate
from recovery.values.state_table import StateTable
from recovery.values.tables import value_at

_INPUT = "_input_"
"""Prefix of the names of columns that Spark computes for the aggregates."""


@dataclass(frozen=True)
class PlannedAggregate:
    """One aggregated column: the kernel, the names of its inputs in `rows` and its columns in `states`. combined: the
    inputs are parts of combined rows, not values of single rows."""

    name: str
    kernel: Kernel
    inputs: tuple[str, ...]
    states: tuple[T.StructField, ...]
    result: T.DataType
    combined: bool = False

    def merge(self, groups: Groups, inputs: Sequence[pa.Array], states: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the new states."""
        if self.combined:
            return cast(AddingKernel, self.kernel).add(groups, inputs, states)
        return self.kernel.merge(groups, inputs, states)


@dataclass(frozen=True)
class Aggregation:
    """The update function of an aggregation step, with all its aggregates."""

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
                # Encoding the state refuses values outside the range of doubles.
                with np.errstate(all="ignore"):
                    merged = each.merge(groups, inputs, held)
                    output[each.name] = each.kernel.result(merged)
            except OverflowAt as error:
                parts = tuple(value_at(states[name].combine_chunks(), error.place) for name in self.keys)
                key = parts[0] if len(parts) == 1 else parts
                raise StateValueError(
                    f"key {key!r}: the sum of {each.name!r} overflows: {error.what}",
                    cause="The sum of the key's values is larger than its type.",
                    remedy=_wider(each),
                ) from error
            new.update(zip((field.name for field in each.states), merged, strict=True))
        return pa.table(new), pa.table(output)


def _wider(each: PlannedAggregate) -> str:
    """Return the remedy for an overflow: how to continue the step's sums in a larger type."""
    name, kind = each.states[0].name, each.states[0].dataType
    same = "with aggregate(..., migrate=lambda old: old)"
    if isinstance(each.kernel, Mean):
        casts = "in mean(...) to double, with --keep-step"
    elif not isinstance(kind, T.DecimalType):
        casts = f"in sum_(...) to decimal(38,0), {same}, or to double, with --keep-step"
    elif kind.precision < 38:
        casts = f"in sum_(...) to decimal(38,{kind.scale}), {same}"
    else:
        new = f"{{**old, {name!r}: old[{name!r}] and float(old[{name!r}])}}"
        casts = f"in sum_(...) to double, with aggregate(..., migrate=lambda old: {new})"
    return f"Keep the step's id and cast the column {casts}: its sums go on from where they are."


class AggregateStep:
    """The result of `aggregate`: a function for `DataFrame.transform` that can also read the step's aggregates."""

    def __init__(
        self, step_id: str, key: Keys, migrate: Migrate | None, hold: Hold | None, columns: dict[str, Aggregate]
    ) -> None:
        self._step_id = step_id
        self._key = key
        self._migrate = migrate
        self._hold = hold
        self._columns = columns
        self._applied: AppliedAggregation | None = None

    def __call__(self, frame: DataFrame) -> DataFrame:
        result, self._applied = _apply(frame, self._step_id, self._key, self._columns, self._migrate, self._hold)
        return result

    def all_keys(self, spark: SparkSession, directory: str | Path, epoch: int | None = None) -> DataFrame:
        """Return a batch frame with the aggregates of all keys, in the columns of the step's output.

        The aggregates are as of the newest closed epoch, or as of `epoch`, which the partitions must still hold. Epoch
        0 gives no rows. Raises ConfigurationError if the step was not yet applied to a frame, from which its types
        come.
        """
        applied = self._applied
        if applied is None:
            raise ConfigurationError(
                f"step {self._step_id!r} was not applied to a frame yet, so its types are not known",
                cause="",
                remedy="Build the flow first: frame.transform(step).",
            )
        if epoch == 0:
            return spark.createDataFrame([], applied.output)
        reader = spark.read.format("recovery").option("step", self._step_id)
        states = (reader if epoch is None else reader.option("epoch", epoch)).load(str(directory))
        return states.select("key", "state").mapInArrow(applied.finish, applied.output)


@dataclass(frozen=True)
class AppliedAggregation:
    """An aggregation applied to a frame, with all that is needed to turn states into output."""

    aggregation: Aggregation
    key_types: tuple[T.DataType, ...]
    states: T.StructType
    output: T.StructType
    time_zone: str

    def finish(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Convert state keys and states to the columns of the output."""
        table = StateTable(arrow_schema(self.states, self.time_zone))
        schema = arrow_schema(self.output, self.time_zone)
        for batch in batches:
            if not batch.num_rows:
                continue
            keys = parse_keys(batch.column("key").to_pylist(), self.key_types, self.time_zone)
            try:
                columns = table.decode(batch.column("state").to_pylist())
            except ValueError as error:
                raise StateValueError(
                    f"the states are not those of {', '.join(table.schema.names)}: {error}",
                    cause="They were stored before the step's aggregates were changed.",
                    remedy="Read them with the step as it was then, or as text: spark.read.format('recovery').",
                ) from error
            held = dict(zip(self.states.names, columns, strict=True))
            results = [
                each.kernel.result([held[field.name] for field in each.states]) for each in self.aggregation.columns
            ]
            yield pa.RecordBatch.from_arrays([*keys, *results], schema=schema)


def aggregate(
    step_id: str,
    *,
    key: Keys,
    migrate: Migrate | None = None,
    on_error: OnError = "fail",
    hold: Hold = "key",
    **columns: Aggregate,
) -> AggregateStep:
    """Running aggregates per key, for `DataFrame.transform`: `aggregate("spent", key="user", total=sum_("price"))`.

    columns: an aggregate from `recovery.aggregates` for each output column. The output has the key's columns and the
    aggregates, with one row for each key that had rows in the micro-batch. To output all keys each time an epoch is
    closed, use `AllKeysSink`.

    The state of a key is a JSON object of plain values, with the guarantees of any step. The next start reports an
    aggregate that was added, removed or changed under the same name; `migrate`, as in `stateful_arrow`, converts the
    states.

    on_error, hold: as in `stateful`. What belongs to the rows of a key is a sum that overflows its type, and a state
    that cannot be stored, such as one with an infinite sum. With "quarantine" Spark gives whole rows to the step, which
    wait as they are, and does not combine them before. Raises ConfigurationError.
    """
    check_step(step_id, aggregate, migrate)
    held = hold_of(step_id, on_error, hold)
    if not columns:
        raise ConfigurationError(f"step {step_id!r} aggregates nothing", remedy="Say what, as in n=count().")
    for name, each in columns.items():
        if not isinstance(each, Aggregate) or each.function not in FUNCTIONS:
            raise ConfigurationError(
                f"step {step_id!r}: {name}={each!r} is not an aggregate",
                remedy="Use the functions of recovery.aggregates, as in n=count(), total=sum_('price').",
            )

    return AggregateStep(step_id, key, migrate, held, columns)


def _apply(
    frame: DataFrame,
    step_id: str,
    key: Keys,
    columns: dict[str, Aggregate],
    migrate: Migrate | None,
    hold: Hold | None,
) -> tuple[DataFrame, AppliedAggregation]:
    _, keyed = locate_key(frame, step_id, key)
    keys = [key] if isinstance(key, str | Column) else list(key)
    taken = [
        (F.col(f"`{one}`") if isinstance(one, str) else one).alias(name)
        for one, name in zip(keys, keyed.names, strict=True)
    ]
    if any(name.startswith(_INPUT) for name in keyed.names):
        raise ConfigurationError(f"step {step_id!r}: a key is named {_INPUT}…", remedy="Rename it before the step.")
    prepared = {name: _prepare(frame, step_id, name, each) for name, each in columns.items()}
    computed: dict[str, Column] = {}
    if hold is None:
        rows, names, weight = _rows(frame, taken, keyed, prepared)
        chosen: Keys = keyed.names[0] if len(keyed.names) == 1 else keyed.names
    else:
        names = _names(prepared, whole=False)
        computed = _named_inputs(prepared, names)
        rows, weight, chosen = frame, None, key
    planned = [
        PlannedAggregate(name, each.made.kernel, names[name], each.made.states, each.made.result, weight is not None)
        for name, each in prepared.items()
    ]
    output = T.StructType(
        [T.StructField(name, kind) for name, kind in zip(keyed.names, keyed.types, strict=True)]
        + [T.StructField(each.name, each.result) for each in planned]
    )
    twice = sorted({name for name in output.names if output.names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"step {step_id!r}: {', '.join(map(repr, twice))} names a key and an aggregate")
    states = T.StructType([field for each in planned for field in each.states])
    described = [(lambdas_numbered(str(columns[each.name])), field) for each in planned for field in each.states]
    form = {
        "struct": "aggregates",
        "fields": [[field.name, f"{what} as {field.dataType.simpleString()}", True] for what, field in described],
    }
    aggregation = Aggregation(keyed.names, tuple(planned))
    result = apply_arrow(
        rows, step_id, chosen, aggregation, states, output, None, migrate, form, weight, hold, computed
    )
    return result, AppliedAggregation(aggregation, keyed.types, states, output, time_zone(frame))


@dataclass(frozen=True)
class _Prepared:
    """An aggregate over a frame. inputs: what its kernel gets. parts: what rows combine to; None if they cannot."""

    made: MadeAggregate
    inputs: tuple[Column, ...]
    parts: tuple[AggregatePart, ...] | None


def _prepare(frame: DataFrame, step_id: str, name: str, each: Aggregate) -> _Prepared:
    inputs = [F.col(f"`{one}`") if isinstance(one, str) else one for one in each.inputs]
    _check_inputs(frame, step_id, name, each)
    kinds = [field.dataType for field in frame.select(*inputs).schema] if inputs else []
    casts, made = plan_aggregate(step_id, name, each, kinds)
    cast = [
        (one, kind) if to is None else (one.cast(to), to) for one, kind, to in zip(inputs, kinds, casts, strict=True)
    ]
    function = FUNCTIONS[each.function]
    return _Prepared(made, tuple(function.passed(cast)), function.parts(each, cast))


def _rows(
    frame: DataFrame, taken: Sequence[Column], keyed: KeyedInput, prepared: dict[str, _Prepared]
) -> tuple[DataFrame, dict[str, tuple[str, ...]], str | None]:
    """Return the rows for the step, the names of each aggregate's columns in them, and the name of the column with the
    number of the frame's rows that each represents, or None if the rows cannot be combined."""
    parts = {name: each.parts for name, each in prepared.items() if each.parts is not None}
    whole = len(parts) == len(prepared)
    names = _names(prepared, whole)
    if not whole:
        inputs = [one.alias(alias) for alias, one in _named_inputs(prepared, names).items()]
        return frame.select(*taken, *inputs), names, None
    named = {names[name]: of_one for name, of_one in parts.items()}
    counts = [names[name][0] for name, each in prepared.items() if each.made.kernel == Count() and not each.inputs]
    weight = counts[0] if counts else f"{_INPUT}rows"
    if not counts:
        named[(weight,)] = (counted(),)
    return combined(frame, taken, named), names, weight


def _names(prepared: dict[str, _Prepared], whole: bool) -> dict[str, tuple[str, ...]]:
    """Return the names of each aggregate's columns in the rows. whole: the rows are combined to parts."""
    return {
        name: tuple(f"{_INPUT}{place}_{number}" for number in range(len((each.parts or ()) if whole else each.inputs)))
        for place, (name, each) in enumerate(prepared.items())
    }


def _named_inputs(prepared: dict[str, _Prepared], names: dict[str, tuple[str, ...]]) -> dict[str, Column]:
    """Return the inputs of all aggregates by their names in the rows."""
    return {alias: one for name, each in prepared.items() for one, alias in zip(each.inputs, names[name], strict=True)}


def _check_inputs(frame: DataFrame, step_id: str, name: str, each: Aggregate) -> None:
    for one in each.inputs:
        if isinstance(one, str) and one not in frame.columns:
            raise ConfigurationError(
                f"step {step_id!r}: {name}={each} is of {one!r}, which its input does not have, only {frame.columns}"
            )
