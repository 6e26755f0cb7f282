"""Two snapshots compared: the states of their steps, and whether both are at the same position of the input."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from recovery.base.addresses import local_path
from recovery.errors import StateNotFoundError
from recovery.operational.ids import matches
from recovery.operational.steps.epoch_input import SourcePosition, position_of
from recovery.operational.steps.step_history import content
from recovery.planning.comparing import ABSENT, Comparison, Difference
from recovery.storage.history import KeyChange, KeyState
from recovery.storage.snapshot import Snapshot, snapshot_at

Pair = tuple[str, KeyState | None, KeyState | None]
"""A key with its states in both snapshots; None: the key has no state."""

CHANGED, ONLY_A, ONLY_B = "changed", "only in A", "only in B"

Observer = Callable[[str, int], None]
"""Called with a step and the number of its keys that were read so far."""
KEYS_PER_EVENT = 4096


def ignore(_step: str, _keys: int) -> None:
    """An observer that does nothing."""


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
    """How many keys of a step are equal, changed, or in one snapshot only. equal: None: they were not counted."""

    equal: int | None = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((CHANGED, ONLY_A, ONLY_B), 0))

    @property
    def differ(self) -> bool:
        """Whether any key differs."""
        return any(self.counts.values())

    def as_json(self) -> dict[str, int]:
        """Return the counts as JSON values; without the equal keys, if they were not counted."""
        equal = {} if self.equal is None else {"equal": self.equal}
        return {**equal, **{name.replace(" ", "_").lower(): count for name, count in self.counts.items()}}


@dataclass(frozen=True, slots=True)
class Diff:
    """How two snapshots differ.

    sources: where each source stands in both. since: the epoch since which the changes are compared; None: all keys.
    counts: how many keys of each step are equal or differ, once `differences` is exhausted; it yields the keys that
    differ, by step and key, and may be read once.
    """

    epoch_a: int
    epoch_b: int
    sources: tuple[SourcePosition, ...]
    since: int | None
    counts: dict[str, StepCounts]
    differences: Iterator[KeyDifference]

    @property
    def same_position(self) -> bool:
        """Whether two snapshots have read the same input of each source."""
        return all(each.same for each in self.sources)

    @property
    def differ(self) -> bool:
        """Whether any key differs, once `differences` is exhausted."""
        return any(each.differ for each in self.counts.values())

    def as_json(self, a: str, b: str, shown: Sequence[KeyDifference], uncompared: Sequence[int]) -> dict[str, Any]:
        """Return what was found as JSON values, once `differences` is exhausted. a, b: how the two are named. shown:
        the differences to show. uncompared: the numbers of Spark's own operators, which were not compared."""
        return {
            "a": {"directory": a, "epoch": self.epoch_a}, "b": {"directory": b, "epoch": self.epoch_b},
            "equal": not self.differ, "same_position": self.same_position,
            "compared_since_epoch": self.since,
            "sources": [each.as_json() for each in self.sources],
            "steps": {step: each.as_json() for step, each in self.counts.items()},
            "operators_not_compared": list(uncompared),
            "differences": [each.as_json() for each in shown],
        }  # fmt: skip


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    epoch_a: int | None = None,
    epoch_b: int | None = None,
    steps: Collection[str] = (),
    key: str | None = None,
    tolerance: float = 0.0,
    ignore_fields: Collection[str] = (),
    every_key: bool = False,
) -> Diff:
    """Compare the states of steps in two recovery directories, or in one at two epochs. Only reads; runs may be active.

    epoch_a, epoch_b: a held epoch; None: the newest. steps: only these. key: only keys that match this glob.
    tolerance: by how much floats may differ, absolutely or relatively. ignore_fields: names of fields that are not
    compared, at any depth. every_key: read all keys also where the directories share a history.

    Raises the errors of planning, EpochNotHeldError, StateNotFoundError for a step that is in neither, and
    CorruptPartitionError, also while differences are read.
    """
    one, other = snapshot_at(local_path(a), epoch_a), snapshot_at(local_path(b), epoch_b)
    return diff_snapshots(one, other, steps, key, Comparison(tolerance, frozenset(ignore_fields)), every_key=every_key)


def diff_snapshots(
    a: Snapshot,
    b: Snapshot,
    steps: Collection[str],
    pattern: str | None,
    comparison: Comparison,
    *,
    every_key: bool,
    observe: Observer = ignore,
) -> Diff:
    """Return the differences of two snapshots."""
    chosen = steps_of(a, b, steps)
    for step in steps:
        if step not in chosen:
            raise StateNotFoundError(
                f"there is no step {step!r:.80} in either directory",
                remedy="List them: python -m recovery status DIR",
            )
    counts = {step: StepCounts() for step in chosen}
    found = (
        difference
        for step in chosen
        for difference in compare(a, b, step, comparison, counts[step], pattern, every_key=every_key, observe=observe)
    )
    return Diff(a.epoch, b.epoch, tuple(positions(a, b)), None if every_key else since(a, b), counts, found)


def compare(
    a: Snapshot,
    b: Snapshot,
    step: str,
    comparison: Comparison,
    counts: StepCounts,
    pattern: str | None = None,
    *,
    every_key: bool = False,
    observe: Observer = ignore,
) -> Iterator[KeyDifference]:
    """Yield the keys of a step that differ between two snapshots, by key, and add all of them to `counts`.

    pattern: only keys that match this glob. Where both snapshots still hold a part of a shared history, `compare` reads
    only the keys that changed since, and counts all other keys, but not with a pattern; see `since`. every_key: read
    all keys nevertheless.
    """
    equal = 0
    found_pairs = _all_pairs(a, b, step) if every_key else pairs(a, b, step)
    for number, (key, before, after) in enumerate(found_pairs, 1):
        if number % KEYS_PER_EVENT == 0:
            observe(step, number)
        if not matches(key, pattern):
            continue
        found = difference_of(step, key, before, after, comparison)
        if found is None:
            equal += 1
        else:
            counts.counts[found.what] += 1
            yield found
    if every_key or since(a, b) is None:
        counts.equal = equal
    elif pattern is None:
        counts.equal = a.count(step) - counts.counts[CHANGED] - counts.counts[ONLY_A]
    else:
        counts.equal = None


def since(a: Snapshot, b: Snapshot) -> int | None:
    """Return the epoch from which on a comparison reads what was written; None: it reads all keys.

    That epoch is the older of two snapshots of the same files, or the newest epoch that two stores hold of a history
    that they share.
    """
    if a.paths == b.paths:
        return min(a.epoch, b.epoch)
    shared = a.shared_with(b)
    return shared[0].epoch if shared else None


def pairs(a: Snapshot, b: Snapshot, step: str) -> Iterator[Pair]:
    """Yield the keys of a step that may differ between two snapshots, by key, with their states in both."""
    if a.paths == b.paths:
        older, newer = sorted((a, b), key=lambda at: at.epoch)
        for change in newer.changes_in_order(step, older):
            both = (change.before, change.after) if older is a else (change.after, change.before)
            yield change.key, *both
        return
    shared = a.shared_with(b)
    yield from _all_pairs(a, b, step) if shared is None else _changed_pairs(a, b, step, shared)


def _changed_pairs(a: Snapshot, b: Snapshot, step: str, shared: tuple[Snapshot, Snapshot]) -> Iterator[Pair]:
    """Yield the keys that changed on either side since the snapshot that both share. A side on which a key did not
    change has the state that it had in that snapshot."""
    changes, others = a.changes_in_order(step, shared[0]), b.changes_in_order(step, shared[1])
    one, other = next(changes, None), next(others, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.key < other.key):
            assert one is not None
            yield one.key, one.after, one.before
            one = next(changes, None)
        elif one is None or other.key < one.key:
            yield other.key, other.before, other.after
            other = next(others, None)
        else:
            yield one.key, one.after, other.after
            one, other = next(changes, None), next(others, None)


def _all_pairs(a: Snapshot, b: Snapshot, step: str) -> Iterator[Pair]:
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


def changed_states(a: Snapshot, b: Snapshot, step: str) -> Iterator[KeyChange]:
    """Yield the keys of a step whose state differs between two snapshots, by key, with both states as stored."""
    for key, before, after in pairs(a, b, step):
        if difference_of(step, key, before, after, Comparison()) is not None:
            yield KeyChange(key, before, after)


def difference_of(
    step: str, key: str, before: KeyState | None, after: KeyState | None, comparison: Comparison
) -> KeyDifference | None:
    """Return how a key differs between two snapshots; None: it does not."""
    timeouts = (before.timeout_ms if before else None, after.timeout_ms if after else None)
    if before is None or after is None:
        found = before or after
        if found is None:
            # Both have removed it since the snapshot that they share.
            return None
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


def positions(a: Snapshot, b: Snapshot) -> list[SourcePosition]:
    """Return the position of each source in both snapshots, by its number in the plan; tick sources are left out."""
    one, other = position_of(a), position_of(b)
    return [SourcePosition(each, one.get(each), other.get(each)) for each in dict.fromkeys([*one, *other])]


def steps_of(a: Snapshot, b: Snapshot, wanted: Collection[str] = ()) -> list[str]:
    """Return the steps of two snapshots, without the run's own; `wanted`: only these."""
    every = dict.fromkeys([*a.steps(), *b.steps()])
    return [step for step in every if not wanted or step in wanted]
