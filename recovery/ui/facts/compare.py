"""Two epochs of a flow, or two flows, compared: counts, keys, fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recovery.errors import RecoveryError
from recovery.operational.steps.comparison import KeyDifference, diff_snapshots
from recovery.operators.held import operators_in
from recovery.planning.comparing import ABSENT, Comparison
from recovery.storage.snapshot import Snapshot
from recovery.ui.facts.flows import ShownFlow
from recovery.ui.facts.limits import check_time, rows_wanted, shown_value


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
    look, second = flow.look(), (flow if other is None else other).look()
    one, two = look.at_epoch(epoch_a), second.at_epoch(epoch_b)
    found = diff_snapshots(one, two, steps, pattern, Comparison(), every_key=False)
    shown: list[KeyDifference] = []
    for each in found.differences:
        check_time()
        if len(shown) < wanted:
            shown.append(each)
    names = str(flow.source.directory), str((other or flow).source.directory)
    facts = found.as_json(*names, shown, _operators(one, two))
    facts["differences"] = [_bounded(each, row) for each, row in zip(shown, facts["differences"], strict=True)]
    facts["left_out"] = sum(sum(each.counts.values()) for each in found.counts.values()) - len(shown)
    return flow.answer(look, facts, one.cut)


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
