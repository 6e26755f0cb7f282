"""What a step is to its tasks and to the driver: its definition, its columns, and how it reaches a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from recovery.base.ids import StepId
from recovery.group_state import GroupState
from recovery.host import private
from recovery.planning.steps import FlowStep
from recovery.values.codec import StateType
from recovery.values.declaration import Declaration
from recovery.values.migration import Migrate, converter, misread, typed_decoder
from recovery.values.state_table import StateTable

PREFIX = "__recovery_"
KEY = PREFIX + "key"
HASH = PREFIX + "hash"
NOW = PREFIX + "now"
PLACE = PREFIX + "place"
TICK = PREFIX + "tick"
UDF_NAME = "recovery_step:"
HASH_BITS = 32
"""PLACE, the last column that a task sees, holds the key's hash in these bits and above them the Spark partition,
EVERYWHERE or UNHASHED."""
EVERYWHERE = -1
"""In place of the Spark partition: one task has the rows of all recovery partitions."""
UNHASHED = -2
"""The same, and the keys' hashes are left to the task."""
Update: TypeAlias = Callable[[Any, list[Any], GroupState], Iterable[tuple[Any, ...]] | None]
TableUpdate: TypeAlias = Callable[[pa.Table, pa.Table], tuple[Any, Any]]
Mapper: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]
Keys: TypeAlias = "str | Column | Sequence[str | Column]"
Transform: TypeAlias = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class StepDefinition:
    """What the tasks of a step know: picklable, and the same in every run of the plan.

    columns: the input's columns, in order. key_columns: positions of the key's columns among them.
    key_in_place: the key is one string column, so its text is that column. sorted_by_spark: the rows of a key have an
    order, so Spark sorts them; the tasks do it otherwise. state_schema: the columns of the states of
    a step whose `update` sees tables; None for one that is called key by key. time_zone: the session's, which Arrow's
    timestamps carry. weight: the column that says for how many rows of the step's input a row stands; None for one.
    """

    step_id: StepId
    token: str
    update: Update | TableUpdate
    state_type: StateType
    state_schema: T.StructType | None
    timeouts: bool
    needs_time: bool
    columns: tuple[str, ...]
    key_columns: tuple[int, ...]
    key_names: tuple[str, ...]
    key_types: tuple[T.DataType, ...]
    key_in_place: bool
    sorted_by_spark: bool
    output: T.StructType
    time_zone: str
    weight: str | None = None

    @property
    def key_text(self) -> str:
        """The column that holds the state keys, or what they are before they are escaped."""
        return self.columns[self.key_columns[0]] if self.key_in_place else KEY

    @property
    def hash_column(self) -> str:
        """The column by whose values rows are spread; by its name the planner knows the step's exchange."""
        return f"{HASH}_{self.token}"

    @property
    def mailbox(self) -> Path:
        """The file through which the driver tells the step's tick source what is due."""
        return private.home() / f"recovery-ticks-{self.token}.json"


@dataclass(frozen=True)
class RegisteredStep:
    """What the driver knows of a step besides: how rows are ordered within a key, what the step declares of its
    state, and how it migrates states of another form."""

    definition: StepDefinition
    order_by: tuple[Column, ...]
    declaration: Declaration
    migrate: Migrate | None

    @property
    def planned(self) -> FlowStep:
        """The step as planning sees it."""
        definition, migrate = self.definition, self.migrate
        if migrate is None:
            return FlowStep(self.declaration)
        return FlowStep(
            self.declaration, lambda old: converter(definition.step_id, migrate, definition.state_type, old)
        )

    def misread(self, states: Iterable[tuple[str, str]]) -> str | None:
        """The first of the states, given with their keys, that the step cannot read, and why; None when it can."""
        definition = self.definition
        if definition.state_schema is None:
            return misread(typed_decoder(definition.state_type), states)
        schema = to_arrow_schema(definition.state_schema, timezone=definition.time_zone)
        return misread(StateTable(schema).decode, states)


registered: dict[str, RegisteredStep] = {}
"""Steps by token: the name of a step's function in the plan carries it."""


GROUP = "_group"
EXISTS = "_exists"
START = "_start"
ROWS = "_rows"
DISCARD = "_discard"
HELPERS = (GROUP, EXISTS, START, ROWS, DISCARD)


def arrow_schema(schema: T.StructType, zone: str) -> pa.Schema:
    """The Arrow schema of the states."""
    return to_arrow_schema(schema, timezone=zone)


ADDRESS_PROPERTY = "recovery.address"
TASKS_PROPERTY = "recovery.tasks"
BATCH_PROPERTY = "streaming.sql.batchId"
