"""Tasks of a vectorised step: like `StepTask`, but states are columns, and one call of `update` handles all keys of a
chunk.

No Python object is created per value between SQLite and `update`: Arrow's compiled kernels convert texts to columns and
back. The task checks what `update` returns before it uses any of it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recovery.base.wording import counted
from recovery.errors import StateValueError, shown
from recovery.spark.steps.definition import DISCARD, EXISTS, GROUP, HELPERS, ROWS, START, TableUpdate, arrow_schema
from recovery.spark.tasks.changes import common_length
from recovery.spark.tasks.input_values import is_text, not_text
from recovery.spark.tasks.step_task import KeyGroups, StepTask
from recovery.storage.seam import FIELD_SEPARATOR, Changes
from recovery.values.state_table import StateTable
from recovery.values.tables import as_table, columns_of, value_at

FLAG = pa.schema([(DISCARD, pa.bool_())])


class ArrowStepTask(StepTask):
    """One task of a step whose `update` gets tables."""

    @cached_property
    def _states(self) -> pa.Schema:
        assert self._definition.state_schema is not None
        return arrow_schema(self._definition.state_schema, self._definition.time_zone)

    @cached_property
    def _table(self) -> StateTable:
        return StateTable(self._states)

    def _process(self, chunk: pa.RecordBatch) -> pa.RecordBatch | None:
        """Call update for a chunk of whole keys, sorted."""
        runs = self._runs(chunk)
        assert runs is not None
        return self._call_tables(runs)

    def _call_tables(self, runs: KeyGroups) -> pa.RecordBatch | None:
        """Call update for some keys with their rows; spool the states that changed, and return the output."""
        chunk = runs.chunk
        definition = self._definition
        stored = self._read(runs.texts)
        ends = runs.ends.to_numpy().astype(np.int64)
        starts = np.concatenate(([0], ends[:-1]))
        keys = self._key_columns(runs, starts)
        known = [*keys, *self._decode(runs, stored)]
        counts = ends - starts
        states = pa.table(
            [*known, pc.is_valid(pa.array(stored, pa.string())), pa.array(starts), pa.array(counts)],
            names=[*definition.key_names, *self._states.names, EXISTS, START, ROWS],
        )
        group = np.repeat(np.arange(len(starts)), counts)
        own = [chunk.column(index) for index in range(len(definition.columns))]
        computed = [chunk.column(name) for name in definition.inputs]
        rows = pa.table([*own, *computed, pa.array(group)], names=[*definition.columns, *definition.inputs, GROUP])
        self._rows += len(rows) if definition.weight is None else pc.sum(rows[definition.weight]).as_py()
        new_states, output = self._update(rows, states)
        try:
            if new_states is not None:
                self._keep(new_states, states, runs.texts, stored)
            return None if output is None else self._output(output)
        except StateValueError as error:
            raise self._naming_step(error) from error

    def _update(self, rows: pa.Table, states: pa.Table) -> tuple[Any, Any]:
        definition = self._definition
        try:
            result = cast(TableUpdate, definition.update)(rows, states)
        except StateValueError as error:
            raise self._naming_step(error) from error
        except Exception as error:
            self._raise_noted(error, counted(len(states), "key"))
        if not isinstance(result, tuple) or len(result) != 2:
            raise StateValueError(
                f"step {definition.step_id!r}: update gave a {type(result).__name__}",
                cause="update returns two tables, the new states and the output; None stands for an empty one.",
                remedy="Write `return states, output`.",
            )
        return result

    def _key_columns(self, runs: KeyGroups, starts: Any) -> list[pa.Array]:
        first = pa.array(starts)
        return [runs.chunk.column(position).take(first) for position in self._definition.key_columns]

    def _decode(self, runs: KeyGroups, stored: list[str | None]) -> list[pa.Array]:
        try:
            return self._table.decode(stored)
        except ValueError:
            pass
        for key, text in zip(runs.raw, stored, strict=True):
            try:
                self._table.decode([text])
            except ValueError as error:
                raise StateValueError(
                    f"step {self._definition.step_id!r}, key {shown(key)}: its state {shown(text)} does not fit the "
                    f"columns {', '.join(self._states.names)}: {error}",
                    cause="The state was edited, or written by another kind of step under the same id.",
                    remedy="Correct it with `recovery state`, or start again with --drop-step.",
                ) from error
        raise StateValueError(f"step {self._definition.step_id!r}: its states cannot be read together")

    def _keep(self, given: Any, states: pa.Table, texts: list[str], stored: list[str | None]) -> None:
        """Check the states that update returned, and spool those that changed."""
        width = len(self._definition.key_names)
        keys = pa.schema([states.schema.field(index) for index in range(width)])
        table = self._checked(given, "states")
        with _named_table("states"):
            wanted = pa.schema([*keys, *self._states])
            columns = columns_of(table, wanted, HELPERS)
            discard = columns_of(table.select([DISCARD]), FLAG)[0] if DISCARD in table.column_names else None
        given_keys = columns[:width]
        own_keys = [states.column(index).combine_chunks() for index in range(width)]
        names, before = pa.array(texts, pa.string()), pa.array(stored, pa.string())
        if not all(mine.equals(theirs) for mine, theirs in zip(own_keys, given_keys, strict=True)):
            places = _places(own_keys, given_keys)
            names, before = names.take(places), before.take(places)
        encoded = self._table.encode(columns[width:], names)
        if discard is not None:
            # A discarded key has no text, like a key without state.
            encoded = pc.if_else(discard.fill_null(False), pa.scalar(None, pa.string()), encoded)
        same = pc.or_(pc.fill_null(pc.equal(encoded, before), False), pc.and_(encoded.is_null(), before.is_null()))
        values, key_chars = encoded.fill_null(""), common_length(texts)
        pair, separator = ((names, values), "") if key_chars else ((values, names), FIELD_SEPARATOR)
        packed = pc.binary_join_element_wise(*pair, separator)
        changed = pc.invert(same)
        try:
            changes = packed.filter(changed).to_pylist()
        except UnicodeDecodeError as error:
            bad = next(name for name, column in zip(wanted.names, columns, strict=True) if not is_text(column))
            raise not_text(f"state column {bad!r}") from error
        self._keys += len(changes)
        if self._partition is not None:
            if changes:
                self._keep_changes(self._partition, Changes(tuple(changes), False, key_chars))
            return
        for partition, places in self._divided(names.filter(changed).to_pylist()):
            self._keep_changes(partition, Changes(tuple(map(changes.__getitem__, places)), False, key_chars))

    def _output(self, given: Any) -> pa.RecordBatch | None:
        table = self._checked(given, "output")
        with _named_table("output"):
            columns = columns_of(table, self._schema, HELPERS)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema) if len(table) else None

    def _checked(self, given: Any, what: str) -> pa.Table:
        with _named_table(what):
            return as_table(given)

    def _naming_step(self, error: StateValueError) -> StateValueError:
        return StateValueError(
            f"step {self._definition.step_id!r}: {error.found}", cause=error.cause, remedy=error.remedy
        )


class _named_table:  # noqa: N801 - reads as a phrase
    """Context manager that turns a ValueError about a table into a StateValueError that names the table."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError) and not isinstance(error, StateValueError):
            raise StateValueError(
                f"update gave, as {self._what}, {error}",
                cause="The table does not have the declared columns.",
                remedy="Select and cast its columns, or change what is declared.",
            ) from error


def _places(own: list[pa.Array], given: list[pa.Array]) -> pa.Array:
    """Return the index of each given key among the own keys. Raises StateValueError for an unknown or repeated key."""
    if len(own) == 1:
        places = pc.index_in(given[0], value_set=own[0])
    else:
        keys, wanted = _tuples(list(map(_exact, own))), _tuples(list(map(_exact, given)))
        if any(pa.types.is_floating(column.type) for column in own):
            keys, wanted = list(map(_equal_nans, keys)), list(map(_equal_nans, wanted))
        index = {key: place for place, key in enumerate(keys)}
        places = pa.array(list(map(index.get, wanted)), pa.int32())
    if places.null_count:
        place = pc.index(places.is_null(), True).as_py()
        raise StateValueError(
            f"update gave a state for {_key_at(given, place)!r}, a key that it was not called for",
            cause="Only the keys in `states` can be changed.",
            remedy="Keep the key columns as they are.",
        )
    if len(pc.unique(places)) != len(places):
        counts = pc.value_counts(places)
        place = counts.field("values")[pc.index(pc.greater(counts.field("counts"), 1), True).as_py()].as_py()
        raise StateValueError(
            f"update gave two states for {_key_at(own, place)!r}",
            cause="The keys of the new states come more than once.",
            remedy="Aggregate the rows to one for each key.",
        )
    return places


def _exact(column: pa.Array) -> pa.Array:
    """Return timestamps and dates as integers. Python's values lack some years, and it treats moments in the repeated
    hour of a clock change as equal."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column


def _equal_nans(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the key with one object in place of every NaN, because keys with NaN are one key."""
    return tuple(_NAN if part != part else part for part in key)


_NAN = object()


def _key_at(columns: list[pa.Array], place: int) -> Any:
    """Return a key for an error message."""
    parts = tuple(value_at(column, place) for column in columns)
    return parts[0] if len(parts) == 1 else parts


def _tuples(columns: list[pa.Array]) -> list[Any]:
    values = [column.to_pylist() for column in columns]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))
