"""Two epochs of a flow, or two flows, compared: counts, keys, fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recovery.errors import RecoveryError
from recovery.operational.steps.comparison import KeyDifference, diff_snapshots
from recovery.operators.held import operators_in
from recovery.planning.comparing import ABSENT, Comparison
from recovery.storage.snapshot import Snapshot
from recovery.ui.facts.flows import Look, ShownFlow
from recovery.ui.facts.limits import MOST_PAGE_BYTES, check_time, rows_wanted, shown_value, size_of


def compare_facts(
    flow: ShownFlow,
    other: ShownFlow | None = None,
    *,
    epoch_a: int | None = None,
    epoch_b: int | None = None,
    steps: Sequence[str] = (),
    pattern: str | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Return what `diff --json` prints of a flow at two epochs, or of two flows: other: B; None: the same flow.
    epoch_a, epoch_b: None: the newest. steps: only these; pattern: only keys that match this glob.

    A difference whose value is too long has `is_cut`, and neither values nor fields. Two flows without a shared history
    are compared key by key. Raises EpochNotHeldError, StateNotFoundError, and LookLimitError if it takes too long.
    """
    wanted = rows_wanted(limit)
    beside = flow if other is None else other
    names = str(flow.source.directory), str(beside.source.directory)

    def read(look: Look, one: Snapshot) -> dict[str, Any]:
        if beside is flow:
            return flow.answer(look, compared(one, look.at_epoch(epoch_b)), one.cut)
        return flow.answer(look, beside.reading(epoch_b, lambda _, two: compared(one, two)), one.cut)

    def compared(one: Snapshot, two: Snapshot) -> dict[str, Any]:
        return _compared(one, two, steps, pattern, wanted, names)

    return flow.reading(epoch_a, read)


def _compared(
    one: Snapshot, two: Snapshot, steps: Sequence[str], pattern: str | None, wanted: int, names: tuple[str, str]
) -> dict[str, Any]:
    found = diff_snapshots(one, two, steps, pattern, Comparison(), every_key=False)
    shown: list[KeyDifference] = []
    size_bytes = 0
    for each in found.differences:
        check_time()
        if len(shown) < wanted and size_bytes < MOST_PAGE_BYTES:
            shown.append(each)
            size_bytes += sum(size_of(value) for value in (each.before, each.after) if value is not ABSENT)
    facts = found.as_json(*names, shown, _operators(one, two))
    facts["differences"] = [_bounded(each, row) for each, row in zip(shown, facts["differences"], strict=True)]
    facts["left_out"] = sum(sum(each.counts.values()) for each in found.counts.values()) - len(shown)
    return facts


def _operators(one: Snapshot, two: Snapshot) -> list[int]:
    try:
        return operators_in(one, two)
    except (RecoveryError, ValueError):
        return []


def _bounded(found: KeyDifference, row: dict[str, Any]) -> dict[str, Any]:
    is_cut = any(value is not ABSENT and shown_value(value)["is_cut"] for value in (found.before, found.after))
    if not is_cut:
        return {**row, "is_cut": False}
    return {**{name: value for name, value in row.items() if name not in ("a", "b")}, "fields": [], "is_cut": True}
