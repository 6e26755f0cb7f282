"""The work of a stateful step on a recovery partition: sort rows by key, call `update`, apply the changed states.

Memory stays bounded. Rows are sorted by key, past a limit on disk. A chunk of about ten thousand rows holds whole keys;
only a key with more rows makes its chunk larger. Changed states are spooled to disk past a limit.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recovery.base.ids import BatchId, PartitionIndex
from recovery.errors import RecoveryError, StateValueError, UnsupportedPlanError, shown, with_path
from recovery.group_state import CallFacts, GroupState, group_states
from recovery.spark.jvm.versions import to_arrow_schema
from recovery.spark.steps.definition import (
    HASH_BITS,
    NOW,
    ROUTE,
    UNHASHED,
    StepDefinition,
    Update,
)
from recovery.spark.steps.key_columns import parse_keys
from recovery.spark.tasks.changes import CHUNK_ROWS, by_value, common_length, in_chunks, too_large
from recovery.spark.tasks.chunks import Width, partitions_of, whole_key_chunks
from recovery.spark.tasks.input_values import RowMaker, is_text, key_values, not_text, repeated, values_of
from recovery.spark.tasks.output_values import in_known_zones, to_batch
from recovery.spark.tasks.sorting import sorted_by
from recovery.spark.tasks.spool import Spool
from recovery.storage.seam import FIELD_SEPARATOR, BatchCount, Changes, Keys, States, TaskStore
from recovery.values.codec import StateCodec
from recovery.values.keys import encode_key, is_escaped, partition_of

SORTED_BYTES = 32 << 20
REPLACED = "\ufffd"
"""The character that Spark writes into JSON for bytes that are not valid UTF-8."""


class KeyGroups(NamedTuple):
    """A chunk's rows grouped by key. `texts` are the state keys, `raw` the same before escaping. Key number i has the
    rows from ends[i - 1] up to ends[i]."""

    chunk: pa.RecordBatch
    texts: list[str]
    raw: list[str | None]
    ends: pa.Array


class FailedCall(NamedTuple):
    """A call of update that failed: its partition and key, the stored state before it, and its rows in the chunk, from
    start up to end. timed_out: the call was for a timeout that passed."""

    partition: PartitionIndex
    key: Any
    text: str
    before: str | None
    start: int
    end: int
    timed_out: bool


class StepTask:
    """The work of a task on one recovery partition, or on all: the state of its loop over chunks."""

    chunk_rows = CHUNK_ROWS
    sorted_bytes = SORTED_BYTES

    def __init__(
        self,
        definition: StepDefinition,
        store: TaskStore,
        partition: PartitionIndex | None,
        partition_count: int,
        batch: BatchId,
        spark_partition: int,
    ) -> None:
        """partition: None for all. spark_partition: that of ROUTE in all rows, or its substitute."""
        self._definition = definition
        self._store = store
        self._partition = partition
        self._partition_count = partition_count
        self._spark_partition = spark_partition
        self._batch = batch
        self._codec = StateCodec(definition.state_type)
        self._row_maker = RowMaker(definition.columns)
        self._schema = to_arrow_schema(definition.output, definition.time_zone)
        self._now_ms = 0
        self._spools: dict[PartitionIndex, Spool] = {}
        if partition is not None:
            self._spool(partition)
        self._rows = 0
        self._keys = 0
        self._last_key: pa.Scalar | None = None
        self._saw_null = False
        self._due: dict[str, PartitionIndex] = {}
        self._awake: set[PartitionIndex] = set()

    @property
    def touched(self) -> Iterable[PartitionIndex]:
        """The recovery partitions that had rows or were woken."""
        return self._spools

    def run(self, batches: Iterator[pa.RecordBatch], width: Width | None = None) -> Iterator[pa.RecordBatch]:
        """Process the rows, at least one, and yield output as it comes; apply the changes at the end, in one
        transaction per partition. width: measures rows that are already sorted by key; None: the task sorts them."""
        name = self._definition.key_text
        if width is None:
            width = Width()
            batches = width.measured(batches)
            if not self._definition.sorted_by_spark:
                batches = sorted_by(name, batches, self.chunk_rows, self.sorted_bytes)
        with _paused_collector():
            for chunk in whole_key_chunks(batches, name, self.chunk_rows):
                output = self._process(chunk)
                if output is not None:
                    yield output
                del chunk, output
                gc.collect(0)
        yield from self._late()
        self._apply(BatchCount(self._rows, self._keys, width.row_bytes))
        for spool in self._spools.values():
            spool.close()

    def _late(self) -> Iterator[pa.RecordBatch]:
        """Call update for the keys whose timeout has passed and that had no rows; yield the output."""
        output = list(self._time_out(by_value(self._due)))
        if output:
            yield self._to_arrow(output)

    def _apply(self, count: BatchCount) -> None:
        """Apply the changes, in one transaction per partition."""
        self._store.apply(self._definition.step_id, self._batch, self._spools, count)

    def _process(self, chunk: pa.RecordBatch) -> pa.RecordBatch | None:
        """Call update for every key of a chunk of whole keys, sorted."""
        runs = self._runs(chunk)
        if runs is None:
            return None
        output = self._call_all(runs, *self._values(runs))
        return self._to_arrow(output) if output else None

    def _values(self, runs: KeyGroups) -> tuple[Sequence[Any], list[Any]]:
        """Return the keys and the rows for update. Raises StateValueError."""
        definition = self._definition
        names = definition.columns
        keys: Sequence[Any] = runs.raw
        known = {definition.key_columns[0]: repeated(runs.raw, runs.ends)} if definition.key_in_place else {}
        if not known:
            keys = self._keys_of(runs, runs.ends.to_pylist())
        return keys, self._row_maker.rows(definition.step_id, names, runs.chunk.columns[: len(names)], known)

    def _call_all(self, runs: KeyGroups, keys: Sequence[Any], rows: list[Any]) -> list[tuple[Any, ...]]:
        """Call update for every key of a chunk."""
        texts, ends = runs.texts, runs.ends.to_pylist()
        for text in texts if self._due else ():
            self._due.pop(text, None)
        self._rows += len(rows)
        starts = [0, *ends[:-1]]
        if self._partition is not None:
            stored = self._stored({self._partition: tuple(texts)})[self._partition]
            return self._call(self._partition, keys, texts, stored, rows, starts, ends)
        output = []
        shares = dict(self._divided(texts))
        states = self._stored({one: tuple(map(texts.__getitem__, places)) for one, places in shares.items()})
        for partition, places in shares.items():
            of_them = (list(map(each.__getitem__, places)) for each in (keys, texts, starts, ends))
            own_keys, own_texts, own_starts, own_ends = of_them
            stored = states[partition]
            output += self._call(partition, own_keys, own_texts, stored, rows, own_starts, own_ends)
        return output

    def _runs(self, chunk: pa.RecordBatch) -> KeyGroups | None:
        """Check the chunk and return it by key; None if it holds only ticks."""
        definition = self._definition
        self._locate(chunk)
        chunk = in_known_zones(chunk)
        text_column = chunk.column(definition.key_text)
        if definition.ticks:
            # Tick rows wake the partition. They have no key, so they come first.
            if self._spark_partition != UNHASHED:
                self._wake(np.unique(partitions_of(chunk, self._partition_count)).tolist())
            ticks = text_column.null_count
            chunk, text_column = chunk.slice(ticks), text_column.slice(ticks)
            if not len(chunk):
                return None
        runs = pc.run_end_encode(text_column)
        texts = raw = values_of(definition.step_id, definition.key_names[0], runs.values)
        self._check_sorted(runs.values)
        if len(definition.key_columns) > 1 and REPLACED in "".join(texts):
            self._check_text(chunk)
        if definition.key_in_place and (runs.values.null_count or is_escaped("".join(texts))):
            texts = [encode_key(text) for text in texts]
        if self._partition is not None:
            for edge in (texts[0], texts[-1]):
                self._check_partition(edge)
        elif definition.ticks and self._spark_partition == UNHASHED:
            # Spark has checked that there are no ticks.
            self._wake({partition_of(text, self._partition_count) for text in texts})
        return KeyGroups(chunk, texts, raw, runs.run_ends)

    def _call(
        self,
        partition: PartitionIndex,
        keys: Sequence[Any],
        texts: list[str],
        stored: list[str | None],
        rows: list[Any],
        starts: list[int],
        ends: list[int],
        timed_out: bool = False,
    ) -> list[tuple[Any, ...]]:
        """Call update for keys of one recovery partition: key number i has the rows from starts[i] up to ends[i]."""
        definition = self._definition
        output: list[tuple[Any, ...]] = []
        packed: list[str] = []
        update, timeouts = cast(Update, definition.update), definition.timeouts
        key_chars = 0 if timeouts else common_length(texts)
        states = group_states(stored, CallFacts(self._codec.decode, self._now_ms, timed_out))
        encode, extend, add = self._codec.encode, output.extend, packed.append
        calls = zip(keys, texts, stored, starts, ends, states, self._marks(output, len(texts)), strict=True)
        key = text = before = None
        start = end = mark = 0
        while True:
            try:
                # This loop runs for every key: avoid attribute lookups and function calls in it.
                for key, text, before, start, end, state, mark in calls:  # noqa: B007 - where output is cut
                    result = update(key, rows[start:end], state)
                    if result is not None:
                        extend(result)
                    if timeouts:
                        change = self._pack_with_timeout(text, state, before)
                        if change is not None:
                            add(change)
                    elif state.timeout_at_ms is not None:
                        raise StateValueError(
                            "update sets a timeout, but the call was not found in its code",
                            cause="The call is inside a helper of another module.",
                            remedy="Declare it: stateful(..., timeout=True).",
                        )
                    elif state.changed:
                        value = encode(state._value) if state.exists else ""
                        add(text + value if key_chars else value + FIELD_SEPARATOR + text)
                break
            except Exception as error:
                if text is None:
                    raise
                change = self._failed(error, FailedCall(partition, key, text, before, start, end, timed_out))
                del output[mark:]
                if change is not None:
                    add(change)
        self._keys += len(packed)
        if packed:
            self._keep_changes(partition, Changes(tuple(packed), timeouts, key_chars))
        return output

    def _marks(self, output: list[Any], count: int) -> Iterable[int]:
        """Yield, before each of `count` calls, how much of the output stays if that call fails."""
        return repeat(0, count)

    def _failed(self, error: Exception, call: FailedCall) -> str | None:
        """Raise the error of a call of update, or return the packed change of the key in place of the call's."""
        if isinstance(error, RecoveryError):
            raise self._named(error, call.key) from error
        self._raise_noted(error, f"key {shown(call.key)}")

    def _raise_noted(self, error: Exception, what: str) -> NoReturn:
        """Raise an error of the user's function, with a note that says in which call it was raised: for what."""
        if isinstance(error, StopIteration):
            # Where it leaves a generator, Python would replace it, and nothing would say whose it was.
            error = RuntimeError("the function raised StopIteration").with_traceback(error.__traceback__)
        error.add_note(f"in step {self._definition.step_id!r}, {what}, micro-batch {self._batch}")
        raise error

    def _pack_with_timeout(self, text: str, state: GroupState, before: str | None) -> str | None:
        """Return the packed change of a key; None if it neither had nor has a state. A call clears the key's earlier
        timeout, so every other key is written."""
        if state.timeout_at_ms is not None and not state.exists:
            raise StateValueError(
                "a timeout was set for a key without state", cause="", remedy="Call state.update(...) as well."
            )
        if not state.exists:
            return None if before is None else FIELD_SEPARATOR + FIELD_SEPARATOR + text
        value = self._codec.encode(state._value) if state.changed else before
        timeout = "" if state.timeout_at_ms is None else state.timeout_at_ms
        return f"{value}{FIELD_SEPARATOR}{timeout}{FIELD_SEPARATOR}{text}"

    def _time_out(self, due: Sequence[tuple[PartitionIndex, list[str]]]) -> Iterator[tuple[Any, ...]]:
        """Call update without rows for keys whose timeout has passed and that had no rows in this micro-batch."""
        for wanted in in_chunks(due):
            states = self._stored(wanted)
            for partition, keys in wanted.items():
                texts, none = list(keys), [0] * len(keys)
                stored = states[partition]
                yield from self._call(partition, self._parse_keys(texts), texts, stored, [], none, none, timed_out=True)

    def _stored(self, wanted: Mapping[PartitionIndex, Keys]) -> States:
        """Return the states of keys before the micro-batch, in one call."""
        return self._store.read(self._definition.step_id, self._batch, wanted)

    def _spool(self, partition: PartitionIndex) -> Spool:
        """Return the spool of changes to a recovery partition, which counts as touched from now on."""
        found = self._spools.get(partition)
        if found is None:
            found = self._spools[partition] = Spool(1 if self._partition is not None else self._partition_count)
        return found

    def _keep_changes(self, partition: PartitionIndex, changes: Changes) -> None:
        """Spool changes to a recovery partition. Raises StateValueError for a state that no partition can store."""
        for _, error in too_large(self._definition.step_id, changes):
            raise error
        self._spool(partition).add(changes)

    def _divided(self, texts: Sequence[str]) -> Iterator[tuple[PartitionIndex, list[int]]]:
        """Yield each recovery partition with the indices of its keys, and count it as touched; for a task of all
        partitions."""
        count = self._partition_count
        for partition, places in by_value({place: partition_of(text, count) for place, text in enumerate(texts)}):
            self._spool(partition)
            yield partition, places

    def _read(self, texts: Sequence[str]) -> list[str | None]:
        """Return the states of keys; None for a key without one."""
        if self._partition is not None:
            return self._stored({self._partition: tuple(texts)})[self._partition]
        found: list[str | None] = [None] * len(texts)
        shares = dict(self._divided(texts))
        states = self._stored({one: tuple(map(texts.__getitem__, places)) for one, places in shares.items()})
        for partition, places in shares.items():
            for place, state in zip(places, states[partition], strict=True):
                found[place] = state
        return found

    def _locate(self, chunk: pa.RecordBatch) -> None:
        """Check that all rows belong to this task, and read the micro-batch's time, from the columns that the plan
        computes after the exchange."""
        spark_partitions = chunk.column(ROUTE).to_numpy() >> HASH_BITS
        elsewhere = (
            self._partition is not None and (partitions_of(chunk, self._partition_count) != self._partition).any()
        )
        if elsewhere or (spark_partitions != self._spark_partition).any():
            raise mixed_partitions(self._definition)
        if self._definition.needs_time:
            self._now_ms = chunk.column(NOW)[0].as_py()

    def _wake(self, partitions: Iterable[int]) -> None:
        """Read the due timeouts of recovery partitions that have rows or ticks."""
        woken = set(map(PartitionIndex, partitions)) - self._awake
        if not woken:
            return
        self._awake |= woken
        due = self._store.due(self._definition.step_id, self._batch, sorted(woken), self._now_ms)
        for partition, texts in due.items():
            self._spool(partition)
            self._due.update(dict.fromkeys(texts, partition))

    def _check_partition(self, text: str) -> None:
        if partition_of(text, self._partition_count) != self._partition:
            raise UnsupportedPlanError(
                f"step {self._definition.step_id!r}: key {shown(text)} reached the task of partition {self._partition}",
                cause="The plan moves rows between the step's exchange and its function.",
            )

    def _check_text(self, chunk: pa.RecordBatch) -> None:
        """Check that the key's strings are valid UTF-8. Raises StateValueError.

        In the text of a key of several columns, one character replaces all invalid bytes, so different keys would
        become one."""
        for name, position in zip(self._definition.key_names, self._definition.key_columns, strict=True):
            if not is_text(chunk.column(position)):
                raise not_text(f"step {self._definition.step_id!r}: column {name!r}")

    def _check_sorted(self, values: pa.Array) -> None:
        """Check that every key comes once. Raises UnsupportedPlanError: a plan that lost its sort would split a key's
        rows over several calls."""
        given = values.drop_null() if values.null_count else values
        ordered = len(given) < 2 or pc.all(pc.less(given.slice(0, len(given) - 1), given.slice(1))).as_py()
        # NULL is a key like any other and comes first or last: at either end, it may come only once.
        ordered = ordered and values.null_count + self._saw_null < 2
        self._saw_null |= bool(values.null_count)
        if self._last_key is not None and len(given):
            ordered = ordered and self._last_key.as_py() < given[0].as_py()
        if not ordered:
            raise UnsupportedPlanError(f"step {self._definition.step_id!r}: its rows are not sorted by key")
        if len(given):
            self._last_key = given[-1]

    def _keys_of(self, runs: KeyGroups, ends: list[int]) -> Sequence[Any]:
        """Return the keys for update: values of the key column, or tuples for several columns."""
        first = pa.array([0, *ends[:-1]], pa.int64())
        definition = self._definition
        columns = [runs.chunk.column(position).take(first) for position in definition.key_columns]
        return key_values(definition.step_id, runs.texts, definition.key_names, columns)

    def _parse_keys(self, texts: list[str]) -> Sequence[Any]:
        """Return the keys for update from state keys, for keys without rows."""
        definition = self._definition
        try:
            columns = parse_keys(texts, definition.key_types, definition.time_zone)
        except StateValueError as error:
            found = f"step {definition.step_id!r}: {error.found}"
            raise StateValueError(found, cause=error.cause, remedy=error.remedy) from error
        return key_values(definition.step_id, texts, definition.key_names, columns)

    def _to_arrow(self, output: list[tuple[Any, ...]]) -> pa.RecordBatch:
        return to_batch(output, self._schema, self._definition.step_id, self._definition.time_zone)

    def _named(self, error: RecoveryError, key: Any) -> RecoveryError:
        found = f"step {self._definition.step_id!r}, key {shown(key)}: {with_path(error.found, error.path)}"
        return type(error)(found, cause=error.cause, remedy=error.remedy)


def mixed_partitions(definition: StepDefinition) -> UnsupportedPlanError:
    """Return the error for rows of a recovery partition that the task does not have."""
    return UnsupportedPlanError(f"step {definition.step_id!r}: one call saw rows of several recovery partitions")


@contextlib.contextmanager
def _paused_collector() -> Iterator[None]:
    """Disable cyclic garbage collection while a chunk's rows are created. The collector would scan all rows repeatedly,
    take a third of a task's time, and find nothing. `run` collects between chunks."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
