"""Vectorised steps: the step's function gets Arrow tables with many keys instead of one key at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T

from recovery.errors import ConfigurationError, StateValueError
from recovery.spark.steps.definition import HELPERS, Hold, Keys, OnError, OrderBy, TableUpdate, Transform, arrow_schema
from recovery.spark.steps.input_keys import locate_key
from recovery.spark.steps.replayed import replayed
from recovery.spark.steps.stateful import check_step, define, hold_of, register, struct, time_zone
from recovery.values.declaration import Form
from recovery.values.migration import Migrate
from recovery.values.state_table import StateTable


def stateful_arrow(
    step_id: str,
    *,
    key: Keys,
    update: TableUpdate,
    state_schema: str | T.StructType,
    output: str | T.StructType,
    order_by: OrderBy = None,
    migrate: Migrate | None = None,
    on_error: OnError = "fail",
    hold: Hold = "key",
) -> Transform:
    """Return a keyed step whose function gets Arrow tables, for `DataFrame.transform`.

    `update(rows, states) -> (new_states, output)` is called for about ten thousand rows at a time, and always gets all
    rows of a key. `rows` is a `pyarrow.Table`, sorted by key: the input's columns, and `_group`, the number, from 0, of
    the row's key in `states`. `states` has one row per key: the key's columns, the columns of `state_schema`, and
    `_exists` (whether the key has a state; if not, its columns are NULL), `_start` (its first row in `rows`) and
    `_rows` (its number of rows).

    new_states: a table of the key's columns and those of `state_schema`, with rows in any order. A key that is left out
    keeps its state; a key with true in a column `_discard` is discarded. None changes nothing. output: a table of the
    columns of `output`, or None. Tables may come from Arrow, Polars, pandas or DuckDB, or be dicts of columns. Returned
    tables may still contain the columns that the step added.

    state_schema: booleans, numbers, decimals, strings, binary, dates, timestamps, and arrays of those. Columns that
    are added later are NULL in older states. order_by, migrate: as in `stateful`; `migrate` returns a dict of the
    columns, and may return values in the form in which it got them. on_error, hold: as in `stateful`; a call that fails
    is repeated by halves, until the keys that fail are found. Raises ConfigurationError.
    """
    check_step(step_id, update, migrate)
    held = hold_of(step_id, on_error, hold)

    def transform(frame: DataFrame) -> DataFrame:
        schema = struct(step_id, state_schema, "state_schema")
        form = form_of_schema(schema)
        return apply_arrow(frame, step_id, key, update, schema, output, order_by, migrate, form, hold=held)

    return transform


def apply_arrow(
    frame: DataFrame,
    step_id: str,
    key: Keys,
    update: TableUpdate,
    state_schema: T.StructType,
    output: str | T.StructType,
    order_by: OrderBy,
    migrate: Migrate | None,
    form: Form,
    weight: str | None = None,
    hold: Hold | None = None,
    inputs: Mapping[str, Column] | None = None,
) -> DataFrame:
    """Return the frame with a vectorised step applied to it. inputs: columns that Spark computes for `update`, beside
    those of the frame. Raises ConfigurationError."""
    zone = time_zone(frame)
    given, inputs = frame, inputs or {}
    frame, keyed = locate_key(frame, step_id, key)
    frame = frame.select("*", *(column.alias(name) for name, column in inputs.items())) if inputs else frame
    _check_names(step_id, keyed.columns, keyed.names, state_schema)
    try:
        table = StateTable(arrow_schema(state_schema, zone))
    except ValueError as error:
        raise ConfigurationError(
            f"step {step_id!r}: state_schema: {error}",
            remedy="Use booleans, numbers, decimals, strings, binary, dates, timestamps, and arrays of those.",
        ) from error
    definition = define(
        frame, step_id, keyed, update, output, order_by, state_schema=state_schema, weight=weight, hold=hold,
        inputs=tuple(inputs), replayed=replayed(given, step_id, keyed.columns, inputs, zone) if inputs else None,
    )  # fmt: skip
    return register(frame, definition, order_by, form, None if migrate is None else _checked(migrate, table))


def form_of_schema(schema: T.StructType) -> Form:
    """Return the form of states of this schema. Columns may be added later; they are NULL in older states."""
    return {"struct": "columns", "fields": [[each.name, each.dataType.simpleString(), False] for each in schema]}


def _check_names(step_id: str, columns: Sequence[str], keys: Sequence[str], schema: T.StructType) -> None:
    names = [*keys, *schema.names]
    twice = sorted({name for name in names if names.count(name) > 1})
    helpers = sorted({*names, *columns} & {*HELPERS})
    if not schema.names:
        raise ConfigurationError(f"step {step_id!r}: state_schema has no column")
    if twice:
        raise ConfigurationError(
            f"step {step_id!r}: key and state_schema both have {', '.join(map(repr, twice))}, or one has it twice",
            remedy="The states have the key's columns already: name the others differently.",
        )
    if helpers:
        raise ConfigurationError(
            f"step {step_id!r}: {', '.join(map(repr, helpers))} names a column that the step adds itself",
            remedy="Rename it before the step.",
        )


def _checked(migrate: Migrate, table: StateTable) -> Migrate:
    """Return a migrate function that checks new states against the table's schema and converts them to it."""

    def migrated(old: Any) -> Any:
        new = migrate(old)
        if new is None:
            return None
        unknown = set(new) - set(table.schema.names) if isinstance(new, dict) else True
        if unknown:
            raise StateValueError(f"{new!r} is not a dict of the columns {', '.join(table.schema.names)}")
        return json_value(table, _row(table, new))

    return migrated


def _row(table: StateTable, new: dict[str, Any]) -> pa.Table:
    """Return a state as a table of one row. Text is read in its stored form, so `migrate` can return what it got."""
    texts = {name: value for name, value in new.items() if _has_text(value)}
    read = dict(zip(table.schema.names, table.decode([msgspec.json.encode(texts).decode()]), strict=True))
    columns = [
        read[field.name] if field.name in texts else pa.array([new.get(field.name)], field.type)
        for field in table.schema
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _has_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and any(map(_has_text, value)))


def json_value(table: StateTable, row: pa.Table) -> Any:
    """Return the state of a table of one row as plain data."""
    [text] = table.encode([column.combine_chunks() for column in row.columns]).to_pylist()
    return msgspec.json.decode(text)
