"""The rows that wait in quarantine: which keys have some, what they hold, and edits that replay or drop them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from recovery.base.clock import Clock
from recovery.base.ids import Epoch, StepId
from recovery.base.reserved import DECLARATIONS_STEP, quarantine_of, quarantined_step
from recovery.base.untrusted_json import Refusal
from recovery.epochs.writer import StepKey
from recovery.errors import CorruptPartitionError, shown
from recovery.operational.steps.step_edits import edit_states
from recovery.storage.seam import Edited
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import Store
from recovery.values import quarantine
from recovery.values.quarantine import REPLAY_MS, Entry, KeyNote

if TYPE_CHECKING:
    import pyarrow as pa

PURPOSE = "quarantine"


@dataclass(frozen=True, slots=True)
class WaitingKey:
    """A key of a step with rows in quarantine. replays: the next run gives the rows to the step again."""

    step: StepId
    key: str
    note: KeyNote
    replays: bool

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
class WaitingRows:
    """What waits for a step: the number of keys and of rows, since when (milliseconds since 1970; None: nothing waits),
    and whether the next run replays any of it."""

    keys: int = 0
    rows: int = 0
    since_ms: int | None = None
    replays: bool = False

    @classmethod
    def of(cls, keys: Sequence[WaitingKey]) -> WaitingRows:
        """Return the sum over keys."""
        since = min((each.note.since_ms for each in keys), default=None)
        return cls(len(keys), sum(each.note.rows for each in keys), since, any(each.replays for each in keys))


def steps_that_wait(at: Snapshot) -> list[StepId]:
    """Return the steps that have rows in quarantine at any held epoch, sorted."""
    found = map(quarantined_step, at.steps(reserved=True))
    return sorted(step for step in found if step is not None)


def waiting_keys(at: Snapshot, step: StepId) -> list[WaitingKey]:
    """Return the keys of a step that wait, sorted. Reads no rows. Raises CorruptPartitionError."""
    stored = quarantine_of(step)
    notes = [key for key, _ in at.sizes(stored) if quarantine.parse_waiting_key(key)[1] is None]
    found = at.some(stored, notes)
    return [
        WaitingKey(
            step,
            quarantine.parse_waiting_key(name)[0],
            quarantine.note_from(str(found[name].value), _corrupt(step, name)),
            found[name].timeout_ms == REPLAY_MS,
        )
        for name in sorted(found)
    ]


def entries_of(at: Snapshot, waiting: WaitingKey) -> Iterator[tuple[int, Entry]]:
    """Yield the entries of a key with their numbers, in their order. Raises CorruptPartitionError."""
    for number in range(waiting.note.first, waiting.note.end):
        name = quarantine.entry_key(waiting.key, number)
        state = at.state(quarantine_of(waiting.step), name)
        if state is not None:
            yield number, quarantine.entry_from(str(state.value), _corrupt(waiting.step, name))


def rows_of(waiting: WaitingKey, entry: Entry) -> pa.Table | None:
    """Return the rows of an entry; None for a call for a timeout. Raises CorruptPartitionError."""
    from recovery.values import quarantined_rows

    return None if entry.timed_out else quarantined_rows.unpacked(entry.data, _corrupt(waiting.step, waiting.key))


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
    store: Store, wanted: Wanted, save: Callable[[Iterable[str]], None], clock: Clock
) -> tuple[list[WaitingKey], Epoch | None]:
    """Discard the rows of these keys; return the keys, and the epoch without the rows. A timeout that passed while the
    key waited is due again.

    save: called under the store's locks, before anything is discarded, with what is discarded as lines of JSON. Raises
    what `edit_states` and `save` raise.
    """
    chosen: list[WaitingKey] = []

    def compute(at: Snapshot) -> dict[StepKey, Edited]:
        chosen[:] = wanted.keys(at)
        if chosen:
            save(line for each in chosen for line in lines_of(at, each))
        changes: dict[StepKey, Edited] = {}
        for each in chosen:
            step = quarantine_of(each.step)
            changes[step, quarantine.note_key(each.key)] = (None, None)
            for number in range(each.note.first, each.note.end):
                name = quarantine.entry_key(each.key, number)
                if at.state(step, name) is not None:
                    changes[step, name] = (None, None)
            state = None if each.note.overdue_ms is None else at.state(each.step, each.key)
            if state is not None:
                changes[each.step, each.key] = (str(state.value), each.note.overdue_ms)
        return changes

    return chosen, edit_states(store, "drop", compute, clock=clock, purpose=PURPOSE)


def lines_of(at: Snapshot, waiting: WaitingKey) -> Iterator[str]:
    """Yield a line of JSON for each entry of a key: the error, the rows as JSON, and the same rows with their types, an
    Arrow stream in base64."""
    for number, entry in entries_of(at, waiting):
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
    candidates = {*at.values(DECLARATIONS_STEP), *also}
    found = {step: WaitingRows.of(waiting_keys(at, StepId(step))) for step in sorted(candidates)}
    return {step: rows for step, rows in found.items() if rows.keys}


def waiting_rows(at: Snapshot | None, renames: Mapping[str, str], step: StepId) -> WaitingRows:
    """Return what waits for a step of a flow. at: None: nothing does. renames: steps that the run renames."""
    ids = [step, *(StepId(old) for old, new in renames.items() if new == step)]
    return WaitingRows.of([] if at is None else [each for one in ids for each in waiting_keys(at, one)])


def _corrupt(step: str, key: str) -> Refusal:
    return lambda why: CorruptPartitionError(f"step {step!r:.80}, key {shown(key)}, in quarantine: {why}")
