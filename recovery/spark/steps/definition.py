"""The definition of a step for its tasks and for the driver, and the names of the columns and properties it uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T

from recovery.base.ids import StepId
from recovery.base.reserved import quarantine_of
from recovery.group_state import GroupState
from recovery.host import private
from recovery.planning.steps import FlowStep
from recovery.spark.jvm.versions import to_arrow_schema
from recovery.values.codec import StateType
from recovery.values.declaration import Declaration
from recovery.values.migration import Migrate, converter, misread, typed_decoder
from recovery.values.state_table import StateTable

if TYPE_CHECKING:
    from recovery.values.quarantine import Entry
    from recovery.values.quarantined_rows import Replayed

PREFIX = "__recovery_"
KEY = PREFIX + "key"
HASH = PREFIX + "hash"
NOW = PREFIX + "now"
ROUTE = PREFIX + "route"
WHEN = PREFIX + "when"
TICK = PREFIX + "tick"
UDF_NAME = "recovery_step:"
HASH_BITS = 32
"""The number of low bits of ROUTE, a task's last column, that hold the key's hash. The bits above hold the Spark
partition, EVERYWHERE or UNHASHED."""
EVERYWHERE = -1
"""Replaces the Spark partition when one task has the rows of all recovery partitions."""
UNHASHED = -2
"""Like EVERYWHERE, and the task computes the keys' hashes."""
Update: TypeAlias = Callable[[Any, list[Any], GroupState], Iterable[tuple[Any, ...]] | None]
TableUpdate: TypeAlias = Callable[[pa.Table, pa.Table], tuple[Any, Any]]
Mapper: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]
Keys: TypeAlias = "str | Column | Sequence[str | Column]"
OrderBy: TypeAlias = "str | Column | Sequence[str | Column] | None"
Transform: TypeAlias = Callable[[DataFrame], DataFrame]
OnError: TypeAlias = Literal["fail", "quarantine"]
Hold: TypeAlias = Literal["key", "no"]


@dataclass(frozen=True)
class StepDefinition:
    """The facts that a step's tasks need: picklable, and the same in every run of the plan.

    columns: the input's columns, in order. key_columns: positions of the key's columns among them.
    key_in_place: the key is one string column, which holds the key's text. sorted_by_spark: Spark sorts the rows,
    because a key's rows have an order; otherwise the tasks sort them. state_schema: the state's columns, if `update`
    gets tables; None if it is called per key. time_zone: the session's, which Arrow's timestamps carry. weight: the
    column with the number of input rows that a row represents; None if each row represents one. task_key: proves a task
    to the process that has its partitions, where that is another host's. hold: what an error of `update` for a key
    means: with None the run fails; with "key" the rows go to quarantine, and later rows of the key wait behind them;
    with "no" later rows pass. most_waiting: the number of rows that a task may put into quarantine; None: any. replays:
    rows in quarantine are to be replayed, so partitions without new rows are woken, too. inputs: the columns that Spark
    computes for the step, beside the input's own, which alone go to quarantine. replayed: those columns for rows that
    are to be replayed; None if nothing is, or where there are no such columns. when: of a step that only puts rows
    aside, the condition in one line; it has no key.
    """

    step_id: StepId
    token: str
    update: Update | TableUpdate | None
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
    task_key: bytes = field(default=b"", repr=False)
    hold: Hold | None = None
    most_waiting: int | None = None
    replays: bool = False
    inputs: tuple[str, ...] = ()
    replayed: Replayed | None = field(default=None, repr=False)
    when: str | None = None

    @property
    def key_text(self) -> str:
        """The column that holds the state keys, or their texts before escaping."""
        return self.columns[self.key_columns[0]] if self.key_in_place else KEY

    @property
    def hash_column(self) -> str:
        """The column whose values distribute the rows. The planner recognizes the step's exchange by its name."""
        return f"{HASH}_{self.token}"

    @property
    def ticks(self) -> bool:
        """Whether the step has a tick source, which wakes partitions without new rows."""
        return self.timeouts or self.replays

    @property
    def quarantine(self) -> StepId:
        """The id under which the step's quarantined rows are stored."""
        return quarantine_of(self.step_id)

    @property
    def mailbox(self) -> Path:
        """The file through which the driver tells the step's tick source when the next timeout is due."""
        return private.home() / f"recovery-ticks-{self.token}.json"


@dataclass(frozen=True)
class RegisteredStep:
    """A step as the driver knows it: its definition, the order of rows within a key, its declaration, and its
    migration of states of another form."""

    definition: StepDefinition
    order_by: tuple[Column, ...]
    declaration: Declaration
    migrate: Migrate | None

    @property
    def planned(self) -> FlowStep:
        """The step in the form that planning takes."""
        definition, migrate = self.definition, self.migrate
        if migrate is None:
            return FlowStep(self.declaration)
        return FlowStep(
            self.declaration, lambda old: converter(definition.step_id, migrate, definition.state_type, old)
        )

    def misread(self, states: Iterable[tuple[str, str]]) -> str | None:
        """Return a sentence with the first state that the step cannot read, and why; None if it reads all. `states` are
        pairs of key and text."""
        definition = self.definition
        if definition.state_schema is None:
            return misread(typed_decoder(definition.state_type), states)
        schema = to_arrow_schema(definition.state_schema, definition.time_zone)
        return misread(StateTable(schema).decode, states)


Waiting: TypeAlias = "Iterable[tuple[str, int, Entry]]"
"""The key, number and content of entries in quarantine."""

replaying: ContextVar[Callable[[StepId], Waiting | None]] = ContextVar("replaying", default=lambda step: None)
"""While a run builds its flow: returns the entries in the quarantine of a step that are to be replayed; None: there are
none. They are read when they are asked for."""

registered: dict[str, RegisteredStep] = {}
"""Steps by token. The name of a step's function in the plan contains the token."""


GROUP = "_group"
EXISTS = "_exists"
START = "_start"
ROWS = "_rows"
DISCARD = "_discard"
HELPERS = (GROUP, EXISTS, START, ROWS, DISCARD)


def arrow_schema(schema: T.StructType, zone: str) -> pa.Schema:
    """Return the Arrow schema for a Spark schema, such as that of the states."""
    return to_arrow_schema(schema, zone)


ADDRESS_PROPERTY = "recovery.address"
TASKS_PROPERTY = "recovery.tasks"
BATCH_PROPERTY = "streaming.sql.batchId"
QUARANTINE_PROPERTY = "recovery.quarantine"
"""How many rows a task may put into quarantine; unset: no step of the flow has one."""
