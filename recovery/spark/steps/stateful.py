"""Stateful steps that call `update` once per key.

A step sends every row to the task of its key's recovery partition. There are as many tasks as Spark runs in parallel,
and at most one per partition. The number of partitions is unknown while a plan is built, so the exchange is a
placeholder, which `recovery.spark.planner.bind` replaces when a run starts. A small micro-batch needs no exchange: see
`recovery.spark.tuning.gathering`. `recovery.spark.tasks.run_tasks` does the work of a task.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from datetime import date
from decimal import Decimal
from types import CodeType
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recovery.base.credentials.task_key import task_key
from recovery.base.ids import StepId
from recovery.errors import ConfigurationError
from recovery.group_state import GroupState
from recovery.spark.jvm.versions import repartition_by_id
from recovery.spark.steps.column_types import arrow_zone, check_declared, check_input, check_known
from recovery.spark.steps.definition import (
    HASH_BITS,
    KEY,
    NOW,
    ROUTE,
    TICK,
    UDF_NAME,
    Hold,
    Keys,
    Mapper,
    OnError,
    OrderBy,
    RegisteredStep,
    StepDefinition,
    TableUpdate,
    Transform,
    Update,
    registered,
    replaying,
)
from recovery.spark.steps.input_keys import KeyedInput, key_text, locate_key, position_of
from recovery.spark.steps.picklable import check_sendable
from recovery.spark.steps.sent import sent
from recovery.spark.steps.state_columns import are_columns, state_type
from recovery.values.codec import StateCodec, StateType, make_portable
from recovery.values.declaration import Declaration, Form, form_of
from recovery.values.functions import check_runs
from recovery.values.migration import Migrate

if TYPE_CHECKING:
    from recovery.values.quarantined_rows import Replayed

_TIMEOUT_MEMBERS = frozenset({"setTimeoutDuration", "setTimeoutTimestamp"})
_TIME_MEMBERS = frozenset({"getCurrentProcessingTimeMs"})


def stateful(
    step_id: str,
    *,
    key: Keys,
    update: Update,
    output: str | T.StructType,
    state: StateType = None,
    order_by: OrderBy = None,
    timeout: bool | None = None,
    migrate: Migrate | None = None,
    on_error: OnError = "fail",
    hold: Hold = "key",
) -> Transform:
    """Return a keyed step with state, for `DataFrame.transform`.

    `update(key, rows, state)` is called once per key and micro-batch. `key` is the value of the key column, or a tuple
    for several columns; `rows` are the key's rows as named tuples of the input's columns; `state` is a `GroupState`.
    `update` yields or returns tuples in the order of `output` (a DDL string or StructType), or returns None for no
    rows.

    state: None keeps plain JSON-like values; a dataclass, NamedTuple or other type keeps values of that type, and
    fields added later need defaults; columns, as a DDL string or StructType, keep tuples with these parts; "pickle"
    keeps any object, unreadable and unsafe to open from untrusted files.
    order_by: columns that order a key's rows; without it their order may differ when a task runs again.
    timeout: whether `update` sets timeouts or asks for the processing time; None finds out from its code.
    migrate: gets a stored state as plain data and returns the new one, or None to discard the key. Called once for
        every key, before the first micro-batch, if the stored states have a form that `state` does not read.
    on_error: "fail" ends the run when `update` raises. "quarantine" stores the rows of that key in the micro-batch with
        the error, in the snapshot, and goes on: the key's state stays as before, and no output of the call appears.
    hold: with "quarantine", "key" lets later rows and timeouts of a key wait behind those in quarantine; "no" lets them
        pass.

    The step id names the state in the recovery partitions: keep it when the code changes. Raises ConfigurationError.
    """
    check_step(step_id, update, migrate)
    _check_state(state)
    held = hold_of(step_id, on_error, hold)

    def transform(frame: DataFrame) -> DataFrame:
        return _apply(frame, step_id, key, update, output, state, order_by, timeout, migrate, held)

    return transform


def stateful_map(
    step_id: str,
    *,
    key: Keys,
    value: str | Sequence[str],
    mapper: Mapper,
    output: str | T.StructType,
    state: StateType = None,
    order_by: OrderBy = None,
    migrate: Migrate | None = None,
    on_error: OnError = "fail",
    hold: Hold = "key",
) -> Transform:
    """Return a keyed step in Bytewax's form: `mapper(state_or_None, value) -> (state_or_None, out)`, once per row.

    `value` names the column given to the mapper; several columns are given as a tuple. The output has the key's
    columns first, then `out`: one value for one column, a tuple for several. Returning None as state discards the key.
    on_error, hold: as in `stateful`; an error in one row stores all rows of its key in the micro-batch.
    """
    check_step(step_id, mapper, migrate, "mapper")
    _check_state(state)
    held = hold_of(step_id, on_error, hold)
    single = isinstance(value, str)
    names = (value,) if isinstance(value, str) else tuple(value)
    composite = not isinstance(key, str | Column) and len(key) > 1

    def transform(frame: DataFrame) -> DataFrame:
        check_known(frame, step_id)
        positions = [position_of(frame, step_id, name) for name in names]
        width = len(struct(step_id, output)) - (1 if isinstance(key, str | Column) else len(key))

        def update(key: Any, rows: list[Any], state: GroupState) -> Iterator[tuple[Any, ...]]:
            current = state.getOption
            head = key if composite else (key,)
            for row in rows:
                given = row[positions[0]] if single else tuple(row[position] for position in positions)
                current, out = mapper(current, given)
                yield (*head, _copied(out)) if width == 1 else (*head, *map(_copied, out))
            if current is None:
                state.remove()
            else:
                state.update(current)

        return _apply(frame, step_id, key, update, output, state, order_by, False, migrate, held)

    return transform


def _apply(
    frame: DataFrame,
    step_id: str,
    key: Keys,
    update: Update,
    output: str | T.StructType,
    state: StateType,
    order_by: OrderBy,
    timeout: bool | None,
    migrate: Migrate | None,
    hold: Hold | None,
) -> DataFrame:
    timeouts = _names_any(update, _TIMEOUT_MEMBERS) if timeout is None else timeout
    state = stored_type(step_id, state)
    frame, keyed = locate_key(frame, step_id, key)
    definition = define(
        frame,
        step_id,
        keyed,
        update,
        output,
        order_by,
        state_type=state,
        timeouts=timeouts,
        needs_time=timeouts or _names_any(update, _TIME_MEMBERS),
        hold=hold,
    )
    return register(frame, definition, order_by, form_of(state), migrate)


def stored_type(step_id: str, state: StateType) -> StateType:
    """Return the type of the states of a step with `state=state`. Raises ConfigurationError."""
    return state_type(step_id, struct(step_id, state, "state")) if are_columns(state) else state


def hold_of(step_id: str, on_error: str, hold: str) -> Hold | None:
    """Return what a definition has as `hold`. Raises ConfigurationError."""
    if on_error not in get_args(OnError):
        raise ConfigurationError(f"step {step_id!r}: on_error={on_error!r}", remedy='Use "fail" or "quarantine".')
    if hold not in get_args(Hold):
        raise ConfigurationError(f"step {step_id!r}: hold={hold!r}", remedy='Use "key" or "no".')
    return None if on_error == "fail" else cast(Hold, hold)


def _check_state(state: StateType) -> None:
    """Raise ConfigurationError for a state that cannot be stored. Columns are checked when Spark can parse them."""
    if not are_columns(state):
        StateCodec(state)


def define(
    frame: DataFrame,
    step_id: str,
    keyed: KeyedInput,
    update: Update | TableUpdate | None,
    output: str | T.StructType,
    order_by: OrderBy,
    *,
    state_type: StateType = None,
    state_schema: T.StructType | None = None,
    timeouts: bool = False,
    needs_time: bool = False,
    weight: str | None = None,
    hold: Hold | None = None,
    inputs: tuple[str, ...] = (),
    replayed: Replayed | None = None,
    when: str | None = None,
) -> StepDefinition:
    """Return the definition of a step over `frame`, with a new token. Raises ConfigurationError."""
    replays = hold is not None and replaying.get()(StepId(step_id)) is not None
    return StepDefinition(
        step_id=StepId(step_id),
        token=secrets.token_hex(8),
        update=update,
        state_type=state_type,
        state_schema=state_schema,
        timeouts=timeouts,
        needs_time=needs_time,
        columns=keyed.columns,
        key_columns=keyed.positions,
        key_names=keyed.names,
        key_types=keyed.types,
        # Rows of the tick source have no columns but the key's text.
        key_in_place=keyed.in_place and not timeouts and not replays,
        sorted_by_spark=order_by is not None,
        output=struct(step_id, output),
        time_zone=time_zone(frame),
        weight=weight,
        task_key=task_key(),
        hold=hold,
        replays=replays,
        inputs=inputs,
        replayed=replayed,
        when=when,
    )


def register(
    frame: DataFrame,
    definition: StepDefinition,
    order_by: OrderBy,
    form: Form,
    migrate: Migrate | None,
) -> DataFrame:
    """Register the step under its token, and return the frame with the step applied to it."""
    note_step(frame, definition, order_by, form, migrate)
    columns = frame.columns
    names = [f"`{columns[position]}`" for position in definition.key_columns]
    return _plan(frame, definition, key_text(names, definition.key_types))


def note_step(
    frame: DataFrame, definition: StepDefinition, order_by: OrderBy, form: Form, migrate: Migrate | None
) -> None:
    """Register the step under its token."""
    check_input(frame, definition.step_id)
    ordering = [] if order_by is None else [order_by] if isinstance(order_by, str | Column) else list(order_by)
    key = zip(definition.key_names, definition.key_types, strict=True)
    registered[definition.token] = RegisteredStep(
        definition,
        tuple(F.col(c) if isinstance(c, str) else c for c in ordering),
        Declaration(tuple((name, kind.simpleString()) for name, kind in key), form),
        migrate,
    )


def time_zone(frame: DataFrame) -> str:
    """Return the session's time zone by Arrow's name for it."""
    return arrow_zone(str(frame.sparkSession.conf.get("spark.sql.session.timeZone")))


def _plan(frame: DataFrame, definition: StepDefinition, text: str) -> DataFrame:
    """Build the plan: input → key text and hash → placeholder exchange → batch time and route → step function. text:
    the SQL text of the key."""
    own = [f"`{name}`" for name in frame.columns]
    hashed = f"crc32(cast({text} AS binary))"
    passed = own if definition.key_in_place and not definition.ticks else [*own, KEY]
    if definition.ticks:
        from recovery.spark.steps.ticks import read_ticks

        ticks = read_ticks(frame.sparkSession, definition.mailbox)
        frame = frame.withColumn(KEY, F.expr(text)).unionByName(ticks, allowMissingColumns=True)
        hashed = f"coalesce(cast({TICK} AS bigint), crc32(cast({KEY} AS binary)))"
        own = passed
    elif not definition.key_in_place:
        own = [*own, f"{text} AS {KEY}"]
    return exchanged(frame.selectExpr(*own, f"{hashed} AS {definition.hash_column}"), definition, passed)


def exchanged(keyed: DataFrame, definition: StepDefinition, passed: Sequence[str]) -> DataFrame:
    """Return the output of a step whose rows are spread by the column of their hashes. passed: the SQL texts of the
    columns that its tasks get, beside time and route."""
    # A placeholder with one partition: `planner.bind` sets the number of partitions.
    spread = repartition_by_id(keyed, 1, F.lit(0))
    # The time becomes a literal in the generated code, so Spark compiles that code again for every micro-batch.
    time = [f"unix_millis(current_timestamp()) AS {NOW}"] if definition.needs_time else []
    route = f"shiftleft(cast(spark_partition_id() AS bigint), {HASH_BITS}) | {definition.hash_column} AS {ROUTE}"
    placed = spread.selectExpr(*passed, *time, route)

    make_portable(definition.state_type)
    check_sendable(definition.step_id, definition, definition.update)
    return placed.mapInArrow(sent(definition, f"{UDF_NAME}{definition.token}"), definition.output)


_UNCHANGING = (str, bytes, bool, int, float, Decimal, date, np.generic)


def _copied(value: Any) -> Any:
    """Return a copy of a mutable value. Output is read after all of the key's rows, and the mapper may change it."""
    return value if value is None or isinstance(value, _UNCHANGING) else deepcopy(value)


def struct(step_id: str, output: str | T.StructType, what: str = "output") -> T.StructType:
    """Return `output` as a schema. Raises ConfigurationError if `output` is not a schema, has no columns or two of the
    same name, or has a column whose type has no values in Python."""
    try:
        parsed = output if isinstance(output, T.StructType) else T.StructType.fromDDL(output)
    except Exception as error:
        raise ConfigurationError(f"step {step_id!r}: {what}={output!r} is not a schema: {error}") from error
    if not isinstance(parsed, T.StructType):
        raise ConfigurationError(
            f"step {step_id!r}: {what}={output!r} is one type, and no columns",
            remedy=f'Name the column: "value {output}".',
        )
    twice = [name for name, count in Counter(parsed.names).items() if count > 1]
    if twice or not parsed.names:
        raise ConfigurationError(
            f"step {step_id!r}: {what} has {f'two columns {twice[0]!r}' if twice else 'no columns'}",
            remedy="Give each column a name of its own." if twice else 'Name at least one, like "word string".',
        )
    check_declared(parsed, step_id, what)
    return parsed


def check_id(step_id: str) -> None:
    """Raise ConfigurationError for what cannot be a step's id."""
    if not isinstance(step_id, str) or not step_id or step_id.startswith("$") or "\0" in step_id:
        raise ConfigurationError(
            f"{step_id!r} is not a step id", remedy="Use a name that does not begin with $, like 'count'."
        )


def check_step(step_id: str, function: object, migrate: object, name: str = "update") -> None:
    """Check a step's id and functions. Raises ConfigurationError."""
    check_id(step_id)
    if not callable(function):
        raise ConfigurationError(f"step {step_id!r}: {name}={function!r} is not a function")
    if migrate is not None and not callable(migrate):
        raise ConfigurationError(f"step {step_id!r}: migrate={migrate!r} is not a function")
    check_runs(f"{name} of step {step_id!r}", function, may_yield=name == "update")
    check_runs(f"migrate of step {step_id!r}", migrate)


def _names_any(function: Any, members: frozenset[str], depth: int = 3) -> bool:
    """Return whether the code of `function`, or of functions that it uses from its module, names one of `members`."""
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if code is None:
        return False
    names = set(_names(code))
    if names & members:
        return True
    if depth == 0:
        return False
    scope = getattr(function, "__globals__", {})
    called = [scope[name] for name in names if name in scope and hasattr(scope[name], "__code__")]
    called += [
        c.cell_contents for c in getattr(function, "__closure__", None) or () if hasattr(c.cell_contents, "__code__")
    ]
    return any(_names_any(each, members, depth - 1) for each in called)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
