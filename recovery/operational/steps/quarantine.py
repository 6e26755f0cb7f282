"""The rows that wait in quarantine: which keys have some, what they hold, and edits that replay or drop them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace as replace_fields

from recovery.base.clock import Clock
from recovery.base.ids import Epoch, StepId
from recovery.base.reserved import DECLARATIONS_STEP, quarantine_of, quarantined_step
from recovery.base.untrusted_json import FIRST_MOMENT_MS, Refusal
from recovery.epochs.writer import StepKey
from recovery.errors import CorruptPartitionError, QuarantineError, shown
from recovery.operational.steps.step_edits import edit_states
from recovery.storage.seam import Edited
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import Store
from recovery.values import quarantine
from recovery.values.keys import WAITING_SEPARATOR
from recovery.values.quarantine import REPLAY_MS, Entry, KeyNote

if TYPE_CHECKING:
    import pyarrow as pa

PURPOSE = "quarantine"


MOST_ERRORS = 5
WITHOUT_NOTE = (
    "the note of the key is missing, so a run does not see that these rows wait, and later ones pass: replay them, or "
    "drop them"
)
READ_BYTES = 8 << 20
READ_ENTRIES = 1000
"""How many bytes and entries are read in one call; only a call for a single entry reads more bytes."""


@dataclass(frozen=True, slots=True)
class WaitingKey:
    """A key of a step with rows in quarantine. replays: the next run gives the rows to the step again. entries: the
    number of each entry, and how many bytes it takes; sorted. finding: what is wrong with what is stored of the key;
    None: nothing."""

    step: StepId
    key: str
    note: KeyNote
    replays: bool
    entries: tuple[tuple[int, int], ...] = ()
    finding: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the key and what waits for it as JSON values."""
        note = self.note
        return {
            "step": self.step,
            "key": self.key,
            "rows": note.rows,
            "since_ms": note.since_ms,
            "replays": self.replays,
            "error": note.error,
            "overdue_ms": note.overdue_ms,
            "finding": self.finding,
        }


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which keys with rows in quarantine a command is about: those of a step, one key, those that wait since a moment
    or later (milliseconds since 1970). None: all."""

    step: str | None = None
    key: str | None = None
    since_ms: int | None = None

    def keys(self, at: Snapshot) -> list[WaitingKey]:
        """Return the keys in a snapshot, sorted."""
        return [
            each
            for step in steps_that_wait(at)
            if self.step in (None, step)
            for each in waiting_keys(at, step)
            if self.key in (None, each.key) and (self.since_ms is None or each.note.since_ms >= self.since_ms)
        ]


@dataclass(frozen=True, slots=True)
class WaitingError:
    """Keys whose newest error is of one type and came from one place: how many, and the rows that wait for them.
    error: the newest of these errors, in one line."""

    error: str
    keys: int
    rows: int


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """What waits for a step: the number of keys and of rows, since when (milliseconds since 1970; None: nothing waits),
    whether the next run replays any of it, and the errors that hold most keys back, the most frequent first."""

    keys: int = 0
    rows: int = 0
    since_ms: int | None = None
    replays: bool = False
    errors: tuple[WaitingError, ...] = ()

    @classmethod
    def of(cls, keys: Iterable[tuple[KeyNote, bool]]) -> WaitingRows:
        """Return the sum over keys, of each its note and whether the next run replays it; keeps none of them."""
        count = rows = 0
        since: int | None = None
        replays = False
        kinds: dict[tuple[str, str], _Kind] = {}
        for note, is_replayed in keys:
            count, rows, replays = count + 1, rows + note.rows, replays or is_replayed
            since = note.since_ms if since is None else min(since, note.since_ms)
            kinds.setdefault(quarantine.kind_of(note.error), _Kind()).add(note)
        found = (WaitingError(each.newest[1], each.keys, each.rows) for each in kinds.values())
        return cls(count, rows, since, replays, tuple(sorted(found, key=lambda e: (-e.keys, e.error))[:MOST_ERRORS]))


class _Kind:
    """Keys whose newest error is of one kind. newest: when the error came that is the newest of them, and its text."""

    def __init__(self) -> None:
        self.keys, self.rows, self.newest = 0, 0, (FIRST_MOMENT_MS, "")

    def add(self, note: KeyNote) -> None:
        """Count a key."""
        self.keys, self.rows = self.keys + 1, self.rows + note.rows
        self.newest = max(self.newest, (note.since_ms, note.error))


def steps_that_wait(at: Snapshot) -> list[StepId]:
    """Return the steps that have rows in quarantine at any held epoch, sorted."""
    found = map(quarantined_step, at.steps(reserved=True))
    return sorted(step for step in found if step is not None)


def waiting_keys(at: Snapshot, step: StepId) -> list[WaitingKey]:
    """Return the keys of a step that wait, sorted. Reads no rows, except of a key whose note is missing: there the note
    is made from the entries. Raises CorruptPartitionError."""
    stored, sizes = quarantine_of(step), dict[str, dict[int, int]]()
    for name, size_bytes in at.sizes(stored):
        key, number = quarantine.parse_waiting_key(name)
        of_key = sizes.setdefault(key, {})
        if number is not None:
            of_key[number] = size_bytes
    found = {state.key: state for state in at.ending(stored, WAITING_SEPARATOR)}
    keys = []
    for key in sorted(sizes):
        name = quarantine.note_key(key)
        if name not in found:
            keys.append(_without_note(at, step, key, sizes[key]))
            continue
        note = quarantine.note_from(str(found[name].value), corrupt(step, name))
        entries = tuple(sorted((n, size) for n, size in sizes[key].items() if note.first <= n < note.end))
        keys.append(WaitingKey(step, key, note, found[name].timeout_ms == REPLAY_MS, entries))
    return keys


def summed_rows(at: Snapshot, steps: Sequence[StepId]) -> WaitingRows:
    """Return what waits for steps, all together. Reads the notes of the keys one after the other, and of the entries
    only the names. Raises CorruptPartitionError."""
    try:
        return WaitingRows.of(note for step in steps for note in _notes(at, step))
    except _NoNoteError:
        # Then entries have to be read: rare, and slow.
        return WaitingRows.of((each.note, each.replays) for step in steps for each in waiting_keys(at, step))


class _NoNoteError(Exception):
    """A key has entries, and no note."""


def _notes(at: Snapshot, step: StepId) -> Iterator[tuple[KeyNote, bool]]:
    """Yield the note of each key of a step that waits, and whether the next run replays it. Raises _NoNoteError, and
    CorruptPartitionError."""
    stored = quarantine_of(step)
    for reader in at.readers:
        names = set()
        for state in reader.ending(stored, at.cut, WAITING_SEPARATOR):
            names.add(state.key)
            yield quarantine.note_from(str(state.value), corrupt(step, state.key)), state.timeout_ms == REPLAY_MS
        # A note lies with its entries: all have the home of their key.
        if any(quarantine.note_of(name) not in names for name, _ in reader.key_sizes(stored, at.cut)):
            raise _NoNoteError


def _without_note(at: Snapshot, step: StepId, key: str, sizes: Mapping[int, int]) -> WaitingKey:
    """Return a key with entries, given their sizes by number, and with the note that it should have."""
    try:
        note = KeyNote(0, min(sizes), max(sizes) + 1, 0, "")
    except ValueError as error:
        raise corrupt(step, key)(str(error)) from error
    found = WaitingKey(step, key, note, False, tuple(sorted(sizes.items())), WITHOUT_NOTE)
    entries = [replace_fields(entry, data="") for _, _, entry in entries_of(at, [found])]
    errors = [entry.failure.text for entry in entries if entry.failure is not None]
    rows, newest = sum(entry.rows or 1 for entry in entries), errors[-1] if errors else ""
    note = replace_fields(note, rows=rows, since_ms=entries[0].at_ms, error=newest)
    return replace(found, note=note)


def entries_of(at: Snapshot, keys: Iterable[WaitingKey]) -> Iterator[tuple[WaitingKey, int, Entry]]:
    """Yield the entries of keys in a snapshot, with their numbers, in the order of the keys. Holds some megabytes of
    them, or a single entry. Raises CorruptPartitionError."""
    chunk: list[tuple[WaitingKey, int]] = []
    chunk_bytes = 0
    for each in keys:
        for number, size_bytes in each.entries:
            full = len(chunk) == READ_ENTRIES or chunk_bytes + size_bytes > READ_BYTES
            if chunk and (full or chunk[-1][0].step != each.step):
                yield from _read(at, chunk)
                chunk, chunk_bytes = [], 0
            chunk.append((each, number))
            chunk_bytes += size_bytes
    if chunk:
        yield from _read(at, chunk)


def _read(at: Snapshot, chunk: list[tuple[WaitingKey, int]]) -> Iterator[tuple[WaitingKey, int, Entry]]:
    """Yield entries of keys of one step."""
    step = chunk[0][0].step
    names = [quarantine.entry_key(each.key, number) for each, number in chunk]
    found = at.some(quarantine_of(step), names)
    for (each, number), name in zip(chunk, names, strict=True):
        # The sizes and the values are of one snapshot.
        state = found.pop(name, None)
        if state is None:
            raise corrupt(step, name)("it is gone")
        yield each, number, quarantine.entry_from(str(state.value), corrupt(step, name))


def rows_of(waiting: WaitingKey, entry: Entry) -> pa.Table | None:
    """Return the rows of an entry; None for a call for a timeout. Raises CorruptPartitionError."""
    from recovery.values import quarantined_rows

    if entry.timed_out:
        return None
    return quarantined_rows.unpacked(entry.data, corrupt(waiting.step, waiting.key), entry.rows)


def replay(store: Store, wanted: Wanted, clock: Clock) -> tuple[list[WaitingKey], Epoch | None]:
    """Let the next run give the rows of these keys to their steps again; return the keys, and the epoch that says so.
    Raises what `edit_states` raises."""
    chosen: list[WaitingKey] = []

    def compute(at: Snapshot) -> dict[StepKey, Edited]:
        chosen[:] = wanted.keys(at)
        return {
            (quarantine_of(each.step), quarantine.note_key(each.key)): (quarantine.to_text(each.note), REPLAY_MS)
            for each in chosen
            if not each.replays
        }

    return chosen, edit_states(store, "replay", compute, clock=clock, purpose=PURPOSE)


def drop(
    store: Store, at: Snapshot, keys: Sequence[WaitingKey], save: Callable[[Iterable[str]], None], clock: Clock
) -> Epoch | None:
    """Discard the rows of keys that a snapshot has; return the epoch without the rows, None if there are no keys. A
    timeout that passed while a key waited is due again.

    at: the newest snapshot when the keys were shown. Raises QuarantineError if an epoch was closed or taken back since:
    other rows may wait there. save: called under the store's locks, before anything is discarded, with what is
    discarded as lines of JSON. Raises what `edit_states` and `save` raise.
    """

    def compute(newest: Snapshot) -> dict[StepKey, Edited]:
        if newest.cut != at.cut:
            raise QuarantineError(
                f"other rows may wait than were shown: the newest epoch was {at.epoch}, and now it is {newest.epoch}",
                path=store.directory,
                cause="A run or another command has changed the store since.",
                remedy="Nothing was dropped. Run the same command again: it shows what waits now.",
            )
        save(lines_of(newest, keys))
        changes: dict[StepKey, Edited] = {}
        for each in keys:
            step = quarantine_of(each.step)
            changes[step, quarantine.note_key(each.key)] = (None, None)
            changes.update(((step, quarantine.entry_key(each.key, n)), (None, None)) for n, _ in each.entries)
            state = None if each.note.overdue_ms is None else newest.state(each.step, each.key)
            if state is not None:
                changes[each.step, each.key] = (str(state.value), each.note.overdue_ms)
        return changes

    return edit_states(store, "drop", compute, clock=clock, purpose=PURPOSE) if keys else None


def lines_of(at: Snapshot, keys: Iterable[WaitingKey]) -> Iterator[str]:
    """Yield a line of JSON for each entry of keys: the error, the rows as JSON, and the same rows with their types, an
    Arrow stream in base64."""
    for waiting, number, entry in entries_of(at, keys):
        yield json.dumps(entry_json(waiting, number, entry) | {"arrow": entry.data}, ensure_ascii=False)


def entry_json(waiting: WaitingKey, number: int, entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON values."""
    # Commands that only look do not wait for Arrow.
    from recovery.values import quarantined_rows

    table = rows_of(waiting, entry)
    return {
        "step": waiting.step,
        "key": waiting.key,
        "number": number,
        "batch": entry.batch,
        "at_ms": entry.at_ms,
        "attempts": entry.attempts,
        "timed_out": entry.timed_out,
        "error": None if entry.failure is None else msgspec.to_builtins(entry.failure),
        "rows": [] if table is None else quarantined_rows.json_rows(table),
    }


def steps_now(at: Snapshot, also: Iterable[str]) -> dict[str, WaitingRows]:
    """Return what waits for each step with rows in quarantine. Looks for the steps that have declared anything, and for
    `also`, where `steps_that_wait` reads all keys of the store. Raises CorruptPartitionError."""
    candidates = {quarantined_step(step) or step for step in at.values(DECLARATIONS_STEP)}.union(also)
    found = {step: summed_rows(at, [StepId(step)]) for step in sorted(candidates)}
    return {step: rows for step, rows in found.items() if rows.keys}


def waiting_rows(at: Snapshot | None, renames: Mapping[str, str], step: StepId) -> WaitingRows:
    """Return what waits for a step of a flow. at: None: nothing does. renames: steps that the run renames."""
    return WaitingRows() if at is None else summed_rows(at, _ids(renames, step))


def replayed_entries(at: Snapshot | None, renames: Mapping[str, str], step: StepId) -> Iterator[tuple[str, int, Entry]]:
    """Yield key, number and content of the entries with rows that are to be replayed in a step of a flow. Arguments as
    for `waiting_rows`."""
    if at is None:
        return
    for one in _ids(renames, step):
        marked = [each for each in waiting_keys(at, one) if each.replays]
        yield from ((each.key, number, entry) for each, number, entry in entries_of(at, marked) if not entry.timed_out)


def _ids(renames: Mapping[str, str], step: StepId) -> list[StepId]:
    return [step, *(StepId(old) for old, new in renames.items() if new == step)]


def corrupt(step: str, key: str) -> Refusal:
    """Return what makes the error about an entry or a note that nobody can read."""
    return lambda why: CorruptPartitionError(f"step {step!r:.80}, key {shown(key)}, in quarantine: {why}")
