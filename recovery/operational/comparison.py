"""Two snapshots compared: the states of their steps, and whether both are at the same position of the input."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from recovery.base.reserved import CHECKPOINT_STEP, SOURCES_STEP
from recovery.checkpoint.offsets import labels, read_log
from recovery.checkpoint.source_places import recorded_places
from recovery.checkpoint.sources import PLACES_KEY
from recovery.operational.ids import matches
from recovery.operational.step_edits import Moment
from recovery.operational.step_history import content
from recovery.planning.comparing import ABSENT, Comparison, Difference
from recovery.storage.history import KeyState

CHANGED, ONLY_A, ONLY_B = "changed", "only in A", "only in B"


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key that differs. what: CHANGED, ONLY_A or ONLY_B. before, after: its values in A and B, or ABSENT."""

    step: str
    key: str
    what: str
    before: Any
    after: Any
    differences: tuple[Difference, ...]
    timeouts: tuple[int | None, int | None]

    def as_json(self) -> dict[str, Any]:
        """Return the difference as JSON; a side without the key has no entry."""
        sides = {"a": self.before, "b": self.after}
        return {
            "step": self.step, "key": self.key, "what": self.what,
            **{name: value for name, value in sides.items() if value is not ABSENT},
            "fields": [each.as_json() for each in self.differences], "timeouts_ms": list(self.timeouts),
        }  # fmt: skip


@dataclass(slots=True)
class StepCounts:
    """How many keys of a step are equal, changed, or in one snapshot only."""

    equal: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((CHANGED, ONLY_A, ONLY_B), 0))

    @property
    def differ(self) -> bool:
        """Whether any key differs."""
        return any(self.counts.values())


def compare(
    a: Moment, b: Moment, step: str, comparison: Comparison, counts: StepCounts, pattern: str | None = None
) -> Iterator[KeyDifference]:
    """Yield the keys of a step that differ between two snapshots, by key, and add all of them to `counts`.

    pattern: only keys that match this glob. Of two snapshots of the same files it reads only the keys that changed in
    between, so `counts.equal` lacks the others; see `is_partial`.
    """
    for key, before, after in _pairs(a, b, step):
        if not matches(key, pattern):
            continue
        found = _difference(step, key, before, after, comparison)
        if found is None:
            counts.equal += 1
        else:
            counts.counts[found.what] += 1
            yield found


def is_partial(a: Moment, b: Moment) -> bool:
    """Return whether two snapshots are of the same files, so that a comparison reads only what was written between."""
    return a.paths == b.paths


def _pairs(a: Moment, b: Moment, step: str) -> Iterator[tuple[str, KeyState | None, KeyState | None]]:
    if is_partial(a, b):
        older, newer = sorted((a, b), key=lambda at: at.epoch)
        for change in newer.changes_in_order(step, older):
            both = (change.before, change.after) if older is a else (change.after, change.before)
            yield change.key, *both
        return
    rows, others = a.states_in_order(step), b.states_in_order(step)
    row, other = next(rows, None), next(others, None)
    while row is not None or other is not None:
        if other is None or (row is not None and row.key < other.key):
            assert row is not None
            yield row.key, row, None
            row = next(rows, None)
        elif row is None or other.key < row.key:
            yield other.key, None, other
            other = next(others, None)
        else:
            yield row.key, row, other
            row, other = next(rows, None), next(others, None)


def _difference(
    step: str, key: str, before: KeyState | None, after: KeyState | None, comparison: Comparison
) -> KeyDifference | None:
    timeouts = (before.timeout_ms if before else None, after.timeout_ms if after else None)
    if before is None or after is None:
        found = before or after
        assert found is not None
        value = content(found.value)
        if before is None:
            return KeyDifference(step, key, ONLY_B, ABSENT, value, (), timeouts)
        return KeyDifference(step, key, ONLY_A, value, ABSENT, (), timeouts)
    if before.value == after.value and timeouts[0] == timeouts[1]:
        return None
    one, other = content(before.value), content(after.value)
    differences = comparison.differences(one, other)
    if not differences and timeouts[0] == timeouts[1]:
        return None
    return KeyDifference(step, key, CHANGED, one, other, tuple(differences), timeouts)


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """Where one source stands in both snapshots; None: it is not read there, or has read nothing."""

    source: str
    a: str | None
    b: str | None


def positions(a: Moment, b: Moment) -> list[SourcePosition]:
    """Return the position of each source in both snapshots, by its number in the plan; tick sources are left out."""
    one, other = _position(a), _position(b)
    return [SourcePosition(each, one.get(each), other.get(each)) for each in dict.fromkeys([*one, *other])]


def _position(at: Moment) -> dict[str, str]:
    text = _stored(at, f"offsets/{at.cut[2]}")
    if not text:
        return {}
    log = read_log(text)
    recorded = at.state(SOURCES_STEP, PLACES_KEY)
    if recorded is None or not isinstance(recorded.value, str):
        return dict(log.offsets)
    places = recorded_places(recorded.value)
    of_input = [name for name, ticks in zip(labels(places, log), places.ticks, strict=True) if not ticks]
    return {
        str(number): log.offsets[name] for number, name in enumerate(dict.fromkeys(of_input)) if name in log.offsets
    }


def _stored(at: Moment, path: str) -> str:
    """Return a file of the checkpoint that a snapshot holds, as text; empty if it holds none."""
    whole = at.state(CHECKPOINT_STEP, path)
    chunks = [whole] if whole else []
    while not whole and (chunk := at.state(CHECKPOINT_STEP, f"{path}#{len(chunks) + 1:05}")):
        chunks.append(chunk)
    pieces = (each.value.encode() if isinstance(each.value, str) else each.value for each in chunks)
    return b"".join(pieces).decode(errors="replace")


def steps_of(a: Moment, b: Moment, wanted: Collection[str] = ()) -> list[str]:
    """Return the steps of two snapshots, without the run's own; `wanted`: only these."""
    every = dict.fromkeys([*a.steps(), *b.steps()])
    return [step for step in every if not wanted or step in wanted]
