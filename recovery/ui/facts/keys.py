"""The keys of a step: one of them at an epoch, its history, and ranges of keys."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, NamedTuple

from recovery.base.reserved import RESERVED_PREFIX
from recovery.errors import ConfigurationError, StateNotFoundError
from recovery.operational.steps.epoch_input import EpochInputs
from recovery.operational.steps.step_history import History, Version, content, key_history
from recovery.operational.targets import StepTarget
from recovery.planning.comparing import ABSENT
from recovery.storage.history import KeyState
from recovery.storage.snapshot import Snapshot
from recovery.ui.facts.flows import Look, ShownFlow
from recovery.ui.facts.limits import (
    MOST_PAGE_BYTES,
    MOST_ROWS,
    bounded,
    check_time,
    is_half_over,
    rows_wanted,
    shown_value,
)

INPUTS = 50
"""The most versions with what their epochs read: each takes some reads."""


def key_facts(flow: ShownFlow, step: str, key: str, *, epoch: int | None = None) -> dict[str, Any]:
    """Return the state of a key at an epoch, None: the newest: {"step", "key", "found", "state": {"value",
    "value_bytes", "is_cut", "timeout_ms", "epoch"}}. state.epoch: the epoch that wrote the value; state: None if the
    key has none. Costs a search. Raises EpochNotHeldError, and StateNotFoundError for a step without any state."""

    def read(look: Look, at: Snapshot) -> dict[str, Any]:
        entry = StepTarget(look.store, step, flow.clock, at=at).find((step, key))
        state = None
        if entry is None:
            _check_step(look, step)
        else:
            found = entry.as_json()
            state = {**shown_value(found["content"]), "timeout_ms": found["timeout_ms"], "epoch": found["epoch"]}
        return flow.answer(look, {"step": step, "key": key, "found": state is not None, "state": state}, at.cut)

    return flow.reading(epoch, read)


def history_facts(flow: ShownFlow, step: str, key: str) -> dict[str, Any]:
    """Return what `history --json --show-input` prints, of the newest versions, as many as an answer has: {"step",
    "key", "oldest_epoch", "newest_epoch", "versions", "left_out"}. The value of a version is shown as in `key_facts`,
    and the newest `INPUTS` versions have the input of their epochs. Raises StateNotFoundError for a step or key without
    any version."""

    def read(look: Look, at: Snapshot) -> dict[str, Any]:
        target = StepTarget(look.store, step, flow.clock, at=at)
        try:
            found = key_history(target, step, key, whole=False, most_bytes=MOST_PAGE_BYTES)
        except StateNotFoundError:
            _check_step(look, step)
            raise
        versions, inputs = list(found.versions), EpochInputs(at)
        for number in range(max(0, len(versions) - INPUTS), len(versions)):
            check_time()
            versions[number] = replace(versions[number], input=inputs.of(versions[number].epoch))
        return flow.answer(look, _history(replace(found, versions=tuple(versions))), at.cut)

    return flow.reading(None, read)


def _history(found: History) -> dict[str, Any]:
    facts = found.as_json()
    newest_first = zip(reversed(found.versions), reversed(facts["versions"]), strict=True)
    versions = bounded((_version(version, row) for version, row in newest_first), MOST_ROWS)
    return {**facts, "versions": versions[::-1], "left_out": found.left_out + len(facts["versions"]) - len(versions)}


def _version(version: Version, row: dict[str, Any]) -> dict[str, Any]:
    """Return a version whose value and changes are bounded."""
    if version.value is ABSENT:
        return row
    shown = shown_value(version.value)
    rest = {name: value for name, value in row.items() if name not in ("value", "changes")}
    changes = row["changes"] if not shown["is_cut"] else []
    return {**rest, **shown, "changes": changes}


class _Place(NamedTuple):
    """Where a page of keys begins: a partition, and the text after which its keys come; None: at its first key."""

    partition: int
    after: str | None

    def __str__(self) -> str:
        return f"{self.partition}" if self.after is None else f"{self.partition}/{self.after}"


def page_facts(
    flow: ShownFlow,
    step: str,
    *,
    prefix: str = "",
    after: str | None = None,
    limit: int | None = None,
    epoch: int | None = None,
) -> dict[str, Any]:
    """Return a range of the keys of a step that begin with a prefix: {"step", "keys": [{"key", "value", …}], "next"}.
    after: the `next` of the page before.

    The order is that of the partitions, and in a partition that of the keys. A page may have fewer keys than `limit`,
    or none, and still have a `next`: it ends where its time or its bytes are used up. Raises as `key_facts`, and
    ConfigurationError for an `after` that no page gave.
    """
    wanted, start = rows_wanted(limit), _parsed(after)

    def read(look: Look, at: Snapshot) -> dict[str, Any]:
        _check_step(look, step)
        if start.partition >= len(at.readers):
            raise _no_place(str(after))
        rows: list[dict[str, Any]] = []
        place: _Place | None = start
        while place is not None:
            place = _fill(at, step, prefix, place, wanted, rows)
            if len(rows) >= wanted or sum(row["value_bytes"] for row in rows) >= MOST_PAGE_BYTES or is_half_over():
                break
        return flow.answer(look, {"step": step, "keys": rows, "next": None if place is None else str(place)}, at.cut)

    return flow.reading(epoch, read)


def key_row(state: KeyState) -> dict[str, Any]:
    """Return a key with its state, as lists of keys have it."""
    shown = shown_value(content(state.value))
    return {"key": state.key, **shown, "timeout_ms": state.timeout_ms, "epoch": state.epoch}


def _fill(
    at: Snapshot, step: str, prefix: str, place: _Place, wanted: int, rows: list[dict[str, Any]]
) -> _Place | None:
    """Add keys of one partition to a page; return where the keys after them begin, None: there are no more."""
    begin = prefix if place.after is None else max(prefix, f"{place.after}\0")
    most = wanted - len(rows)
    found = at.readers[place.partition].page(step, at.cut, begin, after_prefix(prefix), most, MOST_PAGE_BYTES)
    rows += map(key_row, found)
    if len(found) == most or sum(len(state.value) for state in found) >= MOST_PAGE_BYTES:
        return _Place(place.partition, found[-1].key)
    return _Place(place.partition + 1, None) if place.partition + 1 < len(at.readers) else None


def after_prefix(prefix: str) -> str | None:
    """Return the first text after all texts that begin with a prefix; None if there is none."""
    while prefix:
        last = ord(prefix[-1])
        prefix = prefix[:-1]
        if last < sys.maxunicode:
            # The code points of surrogates are no text.
            return prefix + chr(0xE000 if last == 0xD7FF else last + 1)
    return None


def _check_step(look: Look, step: str) -> None:
    """Raise StateNotFoundError for a step without state, and for the run's own."""
    known = {*look.status["steps"], *look.gathered.steps, *look.status["schemas"]}
    steps = sorted(each for each in known if not each.startswith(RESERVED_PREFIX))
    if step not in steps:
        raise StateNotFoundError(
            f"there is no step {step!r:.80}",
            path=look.store.directory,
            remedy=f"Steps with state: {', '.join(steps)}" if steps else "No step has state.",
        )


def _parsed(after: str | None) -> _Place:
    if after is None:
        return _Place(0, None)
    index, slash, key = after.partition("/")
    if not (index.isascii() and index.isdecimal()) or len(index) > 9:
        raise _no_place(after)
    return _Place(int(index), key if slash else None)


def _no_place(after: str) -> ConfigurationError:
    return ConfigurationError(
        f"{after!r:.80} is not a place among the keys", cause="", remedy="Give the `next` of another answer."
    )
