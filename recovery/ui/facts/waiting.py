"""What waits in quarantine, the marks, and the owners."""

from __future__ import annotations

from typing import Any

from recovery.operational.backends.owned import documents_of
from recovery.operational.backends.retry import RetryPolicy
from recovery.operational.manager import StateManager
from recovery.operational.steps.quarantine import Wanted, entries_of, entry_json
from recovery.storage.snapshot import Snapshot
from recovery.ui.facts.flows import Look, ShownFlow
from recovery.ui.facts.limits import bounded, page_of

MOST_ENTRIES = 20
"""The most entries of one key in one answer."""


def quarantine_facts(
    flow: ShownFlow,
    *,
    step: str | None = None,
    key: str | None = None,
    after: int | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Return a range of what `quarantine list --json` prints: {"keys": […], "count", "next", "entries"}. step, key:
    only these. entries: with step and key, the first ones of what `quarantine show --json` prints; else None."""

    def read(look: Look, at: Snapshot) -> dict[str, Any]:
        found = Wanted(step, key).keys(at)
        rows, following = page_of([each.as_json() for each in found], after, limit)
        entries: list[dict[str, Any]] | None = None
        if step is not None and key is not None:
            entries = bounded((entry_json(*each) for each in entries_of(at, found)), MOST_ENTRIES)
        return flow.answer(look, {"keys": rows, "count": len(found), "next": following, "entries": entries}, at.cut)

    return flow.reading(None, read)


def owner_facts(flow: ShownFlow) -> dict[str, Any]:
    """Return {"owners", "replaced", "notes"}: as in `status --json`, and which copies were not used."""
    look = flow.look()
    facts = {"owners": look.status["owners"], "replaced": look.status["replaced"], "notes": list(look.store.notes)}
    return flow.answer(look, facts)


def mark_facts(flow: ShownFlow, *, after: int | None = None, limit: int | None = None) -> dict[str, Any]:
    """Return a range of what `hwm list --json` prints: {"marks": […], "count", "next"}."""
    look = flow.look()
    backend = documents_of(look.store, flow.clock, RetryPolicy())
    found = [mark.as_json() for mark in StateManager(look.store.directory, backend=backend).list_hwms()]
    rows, following = page_of(found, after, limit)
    return flow.answer(look, {"marks": rows, "count": len(found), "next": following})
