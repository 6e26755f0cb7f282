"""A trial of a replay: what the steps of a flow would do with rows in quarantine now. Nothing is written anywhere.

The calls are those of a replay: tasks of the steps, in this process, whose store reads a snapshot and keeps nothing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from recovery.base.clock import Clock
from recovery.base.ids import BatchId, PartitionIndex, StepId
from recovery.base.reserved import DECLARATIONS_STEP
from recovery.base.tracebacks import headline
from recovery.errors import FlowFailedError, RecoveryError, UnknownStepError
from recovery.flow import Flow
from recovery.operational.steps.quarantine import WaitingKey, WaitingRows, corrupt, entries_of
from recovery.planning.steps import StepChoices, plan_quarantines, plan_steps
from recovery.spark.planner.bind import steps_of
from recovery.spark.run.parts.waiting import check_released
from recovery.spark.run.start import build_flow
from recovery.spark.steps.definition import (
    EVERYWHERE,
    HASH_BITS,
    KEY,
    NOW,
    ROUTE,
    WHEN,
    StepDefinition,
    Waiting,
    replaying,
)
from recovery.spark.tasks.run_tasks import run_tasks, with_quarantine
from recovery.storage.seam import FIELD_SEPARATOR, BatchCount, Changes, Keys, States
from recovery.storage.snapshot import Snapshot
from recovery.values import quarantine
from recovery.values.declaration import Convert
from recovery.values.keys import partition_of
from recovery.values.quarantine import Entry, KeptFailure

TRIED_KEYS = 1000
TRIED_BYTES = 32 << 20
"""How many keys, and how many bytes of their entries, one task tries; only a task of a single key has more bytes."""
Outcome = Literal["passes", "fails", "waits"]


@dataclass(frozen=True, slots=True)
class Tried:
    """What would become of rows of an entry: the key's rows of one micro-batch. An entry of which a condition lets only
    some rows pass has two of these. rows: a call without rows counts as one.
    outcome: "waits" if the call is not made, because an earlier one of the key fails. failure: with which error the
    call fails."""

    number: int
    rows: int
    outcome: Outcome
    failure: KeptFailure | None = None


@dataclass(frozen=True, slots=True)
class TriedKey:
    """What would become of the rows of a key, by its entries."""

    key: WaitingKey
    entries: tuple[Tried, ...]

    def rows(self, outcome: Outcome) -> int:
        """Return how many rows have this outcome."""
        return sum(each.rows for each in self.entries if each.outcome == outcome)

    @property
    def error(self) -> str | None:
        """The first error, in one line; None: all rows pass."""
        return next((each.failure.text for each in self.entries if each.failure is not None), None)


def try_replay(
    at: Snapshot,
    keys: Sequence[WaitingKey],
    flow: Flow,
    spark: SparkSession,
    directory: Path,
    clock: Clock,
    keep_steps: Sequence[str] = (),
) -> Iterator[TriedKey]:
    """Yield what would become of the rows of keys, if a run of the flow replayed them now; the keys are of the newest
    snapshot `at`, sorted by step. keep_steps: as of the run. Nothing changes, except what the flow's own code does.

    Raises what the start of a run raises for steps that do not fit what is stored, and what a task raises for errors
    that say nothing about a row; FlowFailedError for such an error of the flow's code.
    """
    steps = {each.definition.step_id: each for each in steps_of(_built(flow, spark, at, keys))}
    declared = {step: str(text) for step, text in at.values(DECLARATIONS_STEP).items()}
    planned = {step: each.planned for step, each in steps.items()}
    wanted = {each.step for each in keys}
    choices = StepChoices(keep=keep_steps)
    plan_quarantines(wanted, declared, planned, choices, directory)
    held = {StepId(step) for step in at.steps() if step in wanted & steps.keys()}
    edits = plan_steps(held, declared, planned, choices, directory, lambda old, new: None).edits
    converting = {edit.old: edit.convert for edit in edits}
    for step, some in groupby(keys, attrgetter("step")):
        if step not in steps:
            raise UnknownStepError(f"the flow has no step {step!r}, whose rows are in quarantine", path=directory)
        definition, of_step = steps[step].definition, list(some)
        check_released(definition, WaitingRows.of((each.note, each.replays) for each in of_step))
        for chunk in _chunks(of_step):
            store = _TrialStore(at, definition, chunk, converting.get(step))
            with contextlib.redirect_stdout(sys.stderr):
                _run(store, definition, clock)
            yield from (TriedKey(each, tuple(store.tried(each))) for each in chunk)


def _built(flow: Flow, spark: SparkSession, at: Snapshot, keys: Sequence[WaitingKey]) -> DataFrame:
    """Build the flow's frame, as if a run replayed these keys: Spark computes what a step needs of their rows."""

    def entries(step: StepId) -> Waiting | None:
        own = [each for each in keys if each.step == step]
        found = ((each.key, number, entry) for each, number, entry in entries_of(at, own) if not entry.timed_out)
        return found if own else None

    token = replaying.set(entries)
    try:
        return build_flow(flow, spark)
    finally:
        replaying.reset(token)


def _chunks(keys: Iterable[WaitingKey]) -> Iterator[list[WaitingKey]]:
    chunk, chunk_bytes = list[WaitingKey](), 0
    for each in keys:
        size_bytes = sum(size for _, size in each.entries)
        if chunk and (len(chunk) == TRIED_KEYS or chunk_bytes + size_bytes > TRIED_BYTES):
            yield chunk
            chunk, chunk_bytes = [], 0
        chunk.append(each)
        chunk_bytes += size_bytes
    if chunk:
        yield chunk


def _run(store: _TrialStore, definition: StepDefinition, clock: Clock) -> None:
    """Run a task that replays the keys of a store. Raises the errors that end a run."""
    count = len(store.at.readers)
    # Rows without a key wake all partitions, as the rows of a tick do.
    texts = pa.nulls(count, pa.string())
    names = dict.fromkeys([*definition.columns, KEY])
    no_value = pa.nulls(count, pa.bool_())
    batch = pa.RecordBatch.from_arrays(
        [
            *(texts for _ in names),
            no_value,
            pa.array([clock.wall_ms()] * count, pa.int64()),
            pa.array([EVERYWHERE << HASH_BITS | index for index in range(count)], pa.int64()),
        ],
        [*names, WHEN, NOW, ROUTE],
    )
    woken = replace(definition, replays=True, most_waiting=None)
    try:
        for _ in run_tasks(
            woken, iter([batch]), lambda _: (store, count), store.batch, with_quarantine(definition), count
        ):
            pass
    except RecoveryError:
        raise
    except (Exception, SystemExit) as error:
        raise FlowFailedError(
            f"step {definition.step_id!r} failed, and not because of a row: {headline(error)}",
            cause="The error says nothing about a row: with it a run ends, too.",
            remedy="Fix the flow.",
        ) from error


class _TrialStore:
    """What a task of a step finds if these keys are to be replayed. What it applies to the quarantine says what became
    of each entry; nothing else of it is kept."""

    def __init__(
        self, at: Snapshot, definition: StepDefinition, keys: Sequence[WaitingKey], convert: Convert | None
    ) -> None:
        self.at = at
        self.batch = BatchId(at.cut[2] + 1)
        self._step = definition.step_id
        self._quarantine = definition.quarantine
        self._convert = convert
        self._keys = {each.key: each for each in keys}
        self._rows: dict[tuple[str, int], int] = {}
        self._left: dict[tuple[str, int], Entry | None] = {}
        """What is left of each entry that was attempted; None: nothing."""

    def tried(self, key: WaitingKey) -> Iterator[Tried]:
        """Yield what became of the entries of a key."""
        for number, _ in key.entries:
            place = key.key, number
            if place not in self._rows:
                # Nobody has read it: it waits behind another one.
                self._read_entry(key, number)
            rows = self._rows[place] or 1
            if place not in self._left:
                yield Tried(number, rows, "waits")
                continue
            left = self._left[place]
            fails = 0 if left is None else left.rows or 1
            if rows > fails:
                yield Tried(number, rows - fails, "passes")
            if left is not None:
                yield Tried(number, fails, "fails", left.failure)

    def _read_entry(self, key: WaitingKey, number: int) -> None:
        name = quarantine.entry_key(key.key, number)
        found = self.at.state(self._quarantine, name)
        if found is not None:
            self._note_rows(name, str(found.value))

    def _note_rows(self, name: str, text: str) -> None:
        key, number = quarantine.parse_waiting_key(name)
        if number is not None:
            self._rows[key, number] = quarantine.entry_from(text, corrupt(self._step, name)).rows

    def read(self, step: StepId, batch: BatchId, wanted: Mapping[PartitionIndex, Keys]) -> States:
        found = self.at.some(step, [name for names in wanted.values() for name in names])
        texts = {name: str(state.value) for name, state in found.items()}
        if step == self._quarantine:
            for name, text in texts.items():
                self._note_rows(name, text)
        elif self._convert is not None:
            converted = {name: self._convert(name, text) for name, text in texts.items()}
            texts = {name: text for name, text in converted.items() if text is not None}
        return {home: [texts.get(name) for name in names] for home, names in wanted.items()}

    def apply(
        self, step: StepId, batch: BatchId, changes: Mapping[PartitionIndex, Iterable[Changes]], count: BatchCount
    ) -> None:
        if step != self._quarantine:
            return
        for chunks in changes.values():
            for packed in (each for chunk in chunks for each in chunk.packed):
                text, _, name = packed.split(FIELD_SEPARATOR, 2)
                key, number = quarantine.parse_waiting_key(name)
                if number is None:
                    continue
                self._left[key, number] = quarantine.entry_from(text, corrupt(self._step, name)) if text else None

    def due(
        self, step: StepId, batch: BatchId, partitions: Collection[PartitionIndex], up_to_ms: int
    ) -> dict[PartitionIndex, list[str]]:
        found: dict[PartitionIndex, list[str]] = {index: [] for index in partitions}
        # No timeout of the step is due: a replay comes before them.
        for key in self._keys if step == self._quarantine else ():
            home = partition_of(key, len(self.at.readers))
            if home in found:
                found[home].append(quarantine.note_key(key))
        return found

    def gathered(self, step: StepId, batch: BatchId, *, note: bool) -> bool:
        return False

    def withdraw(self, step: StepId, batch: BatchId, partitions: Collection[PartitionIndex]) -> None:
        """Nothing was kept."""

    def release(self) -> None:
        """Nothing is open."""
