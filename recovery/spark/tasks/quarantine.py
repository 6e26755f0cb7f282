"""The quarantine of a step as one task sees it: which keys wait, and what the task adds."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import pyarrow as pa

from recovery.base.ids import BatchId, PartitionIndex
from recovery.base.untrusted_json import Refusal
from recovery.errors import CorruptPartitionError, QuarantineError, RecoveryError, StateValueError, shown
from recovery.spark.steps.definition import PREFIX, StepDefinition
from recovery.spark.steps.key_columns import parse_keys
from recovery.spark.tasks.changes import STATE_BYTES
from recovery.spark.tasks.spool import Spool
from recovery.storage.seam import FIELD_SEPARATOR, BatchCount, Changes, TaskStore
from recovery.values import quarantine, quarantined_rows
from recovery.values.quarantine import REPLAY_MS, WAITS_MS, Entry, KeptFailure, KeyNote

ENTRY_BYTES = 1 << 20
"""Room for what an entry has beside its rows, and for the key."""
Attempt = Callable[[pa.RecordBatch | None], None]
"""Attempts the call of an entry again, with its rows; None: the call was for a timeout. Raises the call's error, or
StillBad."""


class StillBad(Exception):  # noqa: N818 - some rows have passed
    """Some rows of an entry are still bad; the others have passed."""

    def __init__(self, rows: pa.RecordBatch, failure: KeptFailure) -> None:
        super().__init__(failure.text)
        self.rows = rows
        self.failure = failure


class _Put(NamedTuple):
    """What goes into quarantine for a key: rows, None for a call without any, and the error, None for rows that only
    wait; or a timeout that passed while the key waits."""

    rows: pa.RecordBatch | None
    failure: KeptFailure | None
    overdue_ms: int | None = None


class TaskQuarantine:
    """The keys of a task's partitions that wait, and the rows that the task puts into quarantine.

    What it adds belongs to the micro-batch like the step's changes: applying it again replaces it as a whole.
    """

    def __init__(self, definition: StepDefinition, store: TaskStore, batch: BatchId) -> None:
        self._definition = definition
        self._store = store
        self._batch = batch
        self._now_ms = time.time_ns() // 1_000_000
        self._awake: set[PartitionIndex] = set()
        self._waiting: set[str] = set()
        self.marked: dict[str, PartitionIndex] = {}
        """The keys whose rows are to be replayed."""
        self._pending: dict[PartitionIndex, list[tuple[str, _Put]]] = {}
        self._notes: dict[str, KeyNote] = {}
        self._spools: dict[PartitionIndex, Spool] = {}
        self.entered = 0
        """The rows that this task has put into quarantine; a call without rows counts as one."""
        self.rows = 0
        """The rows that this task has put into quarantine, less the rows that have left quarantine."""

    def wake(self, partitions: Iterable[PartitionIndex]) -> None:
        """Read which keys of these partitions wait."""
        new = sorted({*partitions} - self._awake)
        if not new:
            return
        self._awake.update(new)
        due = self._store.due(self._definition.quarantine, self._batch, new, WAITS_MS)
        for texts in due.values():
            self._waiting.update(_keys(texts))
        if any(due.values()):
            marked = self._store.due(self._definition.quarantine, self._batch, new, REPLAY_MS)
            self.marked.update((key, partition) for partition, texts in marked.items() for key in _keys(texts))

    def holds(self, text: str) -> bool:
        """Whether later rows and timeouts of this key have to wait, too."""
        return text in self._waiting and self._definition.hold == "key"

    def goes_behind(self, text: str) -> bool:
        """Whether rows of this key have to wait, or at least for earlier ones that are replayed first."""
        return text in self.marked or self.holds(text)

    @property
    def is_empty(self) -> bool:
        """Whether no key waits in the partitions that are awake."""
        return not self._waiting

    def put(
        self, partition: PartitionIndex, text: str, rows: pa.RecordBatch | None, error: Exception | KeptFailure | None
    ) -> None:
        """Put rows of a key into quarantine, behind those that wait. rows: None for a call for a timeout. error: None
        for rows that only wait. Raises QuarantineError if the task has put too many there."""
        if rows is not None:
            rows = self._own(rows)
        failure = quarantine.failure_of(error) if isinstance(error, Exception) else error
        self._pending.setdefault(partition, []).append((text, _Put(rows, failure)))
        count = len(rows) if rows is not None else 1
        self.entered, self.rows = self.entered + count, self.rows + count
        most = self._definition.most_waiting
        if most is not None and self.rows > most:
            behind = error if isinstance(error, Exception) else None
            raise too_many(self._definition.step_id, self.rows, most, failure, text) from behind

    def replay(self, partition: PartitionIndex, text: str, attempt: Attempt) -> None:
        """Attempt the entries of a key again, in their order. Those that pass leave the quarantine. With hold "key",
        entries behind one that fails wait on."""
        [stored] = self._read(partition, [quarantine.note_key(text)])
        if stored is None:
            return
        before = quarantine.note_from(stored, self._corrupt(text))
        # Rows of this micro-batch may have come behind those that the store has.
        note = self._notes.get(text, before)
        first, since_ms, error = before.end, note.since_ms, note.error
        passed, packed = 0, list[str]()
        for number in range(before.first, before.end):
            key = quarantine.entry_key(text, number)
            [stored] = self._read(partition, [key])
            if stored is None:
                continue
            entry = quarantine.entry_from(stored, self._corrupt(text))
            try:
                attempt(None if entry.timed_out else self._rows_of(text, number, entry))
            except Exception as failure:
                if isinstance(failure, StillBad):
                    found, left = failure.failure, self._own(failure.rows)
                    passed += entry.rows - len(left)
                    entry = msgspec.structs.replace(entry, rows=len(left), data=quarantined_rows.packed(left))
                elif belongs_to_row(failure):
                    found = quarantine.failure_of(failure)
                else:
                    raise
                if number < first:
                    first, since_ms = number, entry.at_ms
                error = found.text
                packed.append(_packed(key, quarantine.again(entry, found), None))
                if self._definition.hold == "key":
                    break
            else:
                passed += entry.rows or 1
                packed.append(_packed(key, None, None))
        self.rows -= passed
        rows = max(0, note.rows - passed)
        # A call clears the key's earlier timeout.
        overdue_ms = None if passed else note.overdue_ms
        left = msgspec.structs.replace(
            note, rows=rows, first=first, since_ms=since_ms, error=error, overdue_ms=overdue_ms
        )
        if left.rows == 0:
            self._waiting.discard(text)
            left = KeyNote(0, note.end, note.end, self._now_ms, "")
        self._notes[text] = left
        packed.append(_packed(quarantine.note_key(text), left if left.rows else None, WAITS_MS if left.rows else None))
        self._spool(partition).add(Changes(tuple(packed), timeouts=True))

    def _own(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the columns that go to quarantine."""
        names = self._definition.columns
        return pa.RecordBatch.from_arrays(rows.columns[: len(names)], names)

    def _rows_of(self, text: str, number: int, entry: Entry) -> pa.RecordBatch:
        """Return the rows of an entry with the columns that the step has now, in the places of a chunk: first the own
        ones, then those of a key that is an expression, then the computed ones. Raises StateValueError if one is
        missing."""
        table = quarantined_rows.unpacked(entry.data, self._corrupt(text), entry.rows)
        missing = [name for name in self._definition.columns if table.column_names.count(name) != 1]
        if missing and tuple(table.column_names) != self._definition.columns:
            raise _unlike(f"the rows lack the columns {', '.join(map(repr, missing))}")
        if not missing:
            table = table.select(list(self._definition.columns))
        batches = table.combine_chunks().to_batches()
        if len(batches) != 1:
            raise self._corrupt(text)(f"an entry has {len(table)} rows")
        rows = self._with_key(batches[0], text)
        if not self._definition.inputs:
            return rows
        computed = self._computed.get((text, number))
        if computed is None:
            raise _unlike("the rows do not have the types of the step's input")
        names = [*rows.schema.names, *computed.schema.names]
        return pa.RecordBatch.from_arrays([*rows.columns, *computed.columns], names)

    @cached_property
    def _computed(self) -> Mapping[tuple[str, int], pa.RecordBatch]:
        """What Spark has computed for the entries that are replayed."""
        found = self._definition.replayed
        return {} if found is None else found.by_place()

    def _with_key(self, rows: pa.RecordBatch, text: str) -> pa.RecordBatch:
        """Add the columns of a key that is an expression: an entry has only the columns of the input."""
        definition, own = self._definition, len(self._definition.columns)
        if all(place < own for place in definition.key_columns):
            return rows
        parts = zip(definition.key_columns, parse_keys([text], definition.key_types, definition.time_zone), strict=True)
        first = pa.array([0] * len(rows), pa.int64())
        made = [part.take(first) for place, part in parts if place >= own]
        names = [f"{PREFIX}key_{number}" for number in range(len(made))]
        return pa.RecordBatch.from_arrays([*rows.columns, *made], [*rows.schema.names, *names])

    def _read(self, partition: PartitionIndex, keys: Sequence[str]) -> list[str | None]:
        return self._store.read(self._definition.quarantine, self._batch, {partition: tuple(keys)})[partition]

    def overdue(self, partition: PartitionIndex, text: str, timeout_ms: int) -> None:
        """Note that a timeout of a key passed while the key waits."""
        self._pending.setdefault(partition, []).append((text, _Put(None, None, timeout_ms)))

    def freed(self, partitions: Collection[PartitionIndex]) -> dict[str, PartitionIndex]:
        """Return the waiting keys of these partitions for which a timeout passed, and note that it does not wait any
        more: `hold` was "key" then, and is "no" now."""
        found: dict[str, PartitionIndex] = {}
        step, names = self._definition.quarantine, {}
        for partition, texts in self._store.due(step, self._batch, sorted(partitions), WAITS_MS).items():
            names[partition] = tuple(texts)
        for partition, stored in self._store.read(step, self._batch, names).items():
            for name, text in zip(names[partition], stored, strict=True):
                key, _ = quarantine.parse_waiting_key(name)
                note = quarantine.note_from(text or "", self._corrupt(key))
                if note.overdue_ms is not None:
                    found[key] = partition
                    self._notes[key] = msgspec.structs.replace(note, overdue_ms=None)
                    self._spool(partition).add(Changes((_packed(name, self._notes[key], WAITS_MS),), timeouts=True))
        return found

    def flush(self) -> None:
        """Write what was put aside since the last time into the spools."""
        step, pending, self._pending = self._definition.quarantine, self._pending, {}
        wanted = {
            partition: tuple(sorted({text for text, _ in puts if text in self._waiting and text not in self._notes}))
            for partition, puts in pending.items()
        }
        wanted = {partition: texts for partition, texts in wanted.items() if texts}
        if wanted:
            of_notes = {part: tuple(map(quarantine.note_key, texts)) for part, texts in wanted.items()}
            for partition, found in self._store.read(step, self._batch, of_notes).items():
                for text, stored in zip(wanted[partition], found, strict=True):
                    if stored is not None:
                        self._notes[text] = quarantine.note_from(stored, self._corrupt(text))
        for partition, puts in pending.items():
            ends = {text: self._notes[text].end if text in self._notes else 0 for text, _ in puts}
            packed = [change for text, put in puts for change in self._changes(text, put)]
            self._check_free(partition, ends)
            packed += [_packed(quarantine.note_key(text), self._notes[text], WAITS_MS) for text in dict(puts)]
            self._spool(partition).add(Changes(tuple(packed), timeouts=True))

    def _check_free(self, partition: PartitionIndex, ends: Mapping[str, int]) -> None:
        """Raise CorruptPartitionError if an entry that no note has would be replaced. ends: where the entries of each
        key ended before the new ones."""
        places = [(text, number) for text, end in ends.items() for number in range(end, self._notes[text].end)]
        found = self._read(partition, [quarantine.entry_key(*place) for place in places]) if places else []
        for (text, number), stored in zip(places, found, strict=True):
            if stored is not None:
                raise CorruptPartitionError(
                    f"step {self._definition.step_id!r}, key {shown(text)}: entry {number} in quarantine is not in the "
                    "note of the key, and new rows would take its place",
                    cause="The note was removed or edited from outside.",
                    remedy="`recovery quarantine replay DIR` writes a missing note again, `drop` discards the rows; "
                    "otherwise restore a backup.",
                )

    def apply(self, partitions: Collection[PartitionIndex]) -> None:
        """Apply what was put aside, in one transaction for each of the partitions that the task has touched."""
        spools = {partition: self._spool(partition) for partition in partitions}
        self._store.apply(
            self._definition.quarantine, self._batch, spools, BatchCount(self.entered, 0, waiting=self.rows)
        )
        for spool in self._spools.values():
            spool.close()

    def _changes(self, text: str, put: _Put) -> Iterable[str]:
        """Yield the entries of what was put aside for a key, and update the note of the key."""
        note = self._notes.get(text) or KeyNote(0, 0, 0, self._now_ms, "")
        if put.overdue_ms is not None:
            self._notes[text] = msgspec.structs.replace(note, overdue_ms=note.overdue_ms or put.overdue_ms)
            return
        attempts = 0 if put.failure is None else 1
        for piece in [None] if put.rows is None else quarantined_rows.pieces(put.rows):
            data = "" if piece is None else quarantined_rows.packed(piece)
            count = 0 if piece is None else len(piece)
            if len(data) > STATE_BYTES - ENTRY_BYTES:
                raise QuarantineError(
                    f"step {self._definition.step_id!r}, key {shown(text)}: a row that fails takes {len(data):,} bytes "
                    f"as text{'' if put.failure is None else f'; its error: {put.failure.text}'}",
                    cause=f"A partition stores at most {STATE_BYTES:,} bytes in one value.",
                    remedy="Take the row out of the input, or let update take it.",
                )
            entry = Entry(self._batch, self._now_ms, count, data, attempts, put.failure, timed_out=piece is None)
            yield _packed(quarantine.entry_key(text, note.end), entry, None)
            note = msgspec.structs.replace(note, rows=note.rows + (count or 1), end=note.end + 1)
        error = note.error if put.failure is None else put.failure.text
        self._notes[text] = msgspec.structs.replace(note, error=error)

    def _spool(self, partition: PartitionIndex) -> Spool:
        return self._spools.setdefault(partition, Spool(max(1, len(self._awake))))

    def _corrupt(self, text: str) -> Refusal:
        step = self._definition.step_id
        return lambda why: CorruptPartitionError(f"step {step!r}, key {shown(text)}, in quarantine: {why}")


def belongs_to_row(error: Exception) -> bool:
    """Whether an error of a call of update says that its rows or state are bad, rather than the host, the storage or
    the plan."""
    if isinstance(error, RecoveryError):
        return isinstance(error, StateValueError)
    return not isinstance(error, MemoryError | ImportError)


def _unlike(found: str) -> StateValueError:
    return StateValueError(
        found,
        cause="The input of the step has changed since the rows came.",
        remedy="Let the step read the old columns, or export the rows and drop them.",
    )


def too_many(step: str, rows: int, most: int, failure: KeptFailure | None, text: str) -> QuarantineError:
    """Return the error for more rows than one task may put into quarantine; with a replay, `most` exceeds the limit."""
    newest = "" if failure is None else f"; the newest error, for key {shown(text)}: {failure.text}"
    return QuarantineError(
        f"one task of step {step!r} would put {rows:,} rows into quarantine, where it may put {most:,}{newest}"
    )


def _keys(texts: Iterable[str]) -> Iterator[str]:
    """Yield the keys of notes."""
    return (quarantine.parse_waiting_key(text)[0] for text in texts)


def _packed(key: str, document: Entry | KeyNote | None, timeout_ms: int | None) -> str:
    """Return the packed change of a document; None removes it."""
    timeout = "" if timeout_ms is None else timeout_ms
    return f"{'' if document is None else quarantine.to_text(document)}{FIELD_SEPARATOR}{timeout}{FIELD_SEPARATOR}{key}"
