"""What waits in quarantine, as tables of the page: since when, why, and whether it becomes more."""

from __future__ import annotations

from dataclasses import dataclass

from recovery.base.ids import NO_EPOCH
from recovery.base.intervals import format_interval
from recovery.base.wording import age_s, ahead_text, counted, moment_text
from recovery.errors import RecoveryError
from recovery.operational.steps.quarantine import steps_now
from recovery.report.facts import Facts
from recovery.report.html import Cell, section, table
from recovery.report.text import escaped, shortened
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import Store


@dataclass(frozen=True, slots=True)
class WaitedBefore:
    """How many rows waited after an older epoch."""

    epoch: int
    closed_ms: int
    rows: int


def waited_before(store: Store, facts: Facts) -> WaitedBefore | None:
    """Return what waited after the oldest epoch that all partitions hold; None: only one is held, or it cannot be
    read."""
    plan = facts.plan
    if plan is None or plan.snapshot is None:
        return None
    cut = min(cut for cut in plan.cuts if cut[0] != NO_EPOCH)
    closed_ms = next((each.closed_ms for each in plan.partitions[0].epochs if each.cut == cut), None)
    if cut == plan.snapshot.cut or closed_ms is None:
        return None
    try:
        found = steps_now(Snapshot.of(plan, cut, store.reader), facts.quarantine)
    except RecoveryError:
        # A run may have collected it meanwhile.
        return None
    return WaitedBefore(cut[0], closed_ms, sum(each.rows for each in found.values()))


def _waited(since_ms: int, now_ms: int) -> str:
    age = age_s(since_ms, now_ms)
    return f"since a time {ahead_text(age)}" if age < 0 else format_interval(round(age))


def quarantine_section(facts: Facts, before: WaitedBefore | None) -> str:
    """Return what waits at the newest epoch; nothing if nothing waits. before: what waited at an older one."""
    if not facts.quarantine:
        return ""
    rows = sum(each.rows for each in facts.quarantine.values())
    lead = "Rows that a step could not take, and rows that wait behind them, at the newest epoch."
    steps: list[list[Cell]] = [
        [
            shortened(step), each.rows, each.keys, None if each.since_ms is None else moment_text(each.since_ms),
            None if each.since_ms is None else _waited(each.since_ms, facts.now_ms),
            "some" if each.replays else "none",
        ]
        for step, each in facts.quarantine.items()
    ]  # fmt: skip
    errors: list[list[Cell]] = [
        [shortened(error.error), shortened(step), error.keys, error.rows]
        for step, each in facts.quarantine.items()
        for error in each.errors
    ]
    growth = "No older epoch is held, so how much it grows is not known."
    if before is not None:
        more = rows - before.rows
        changed = "as many as" if not more else f"{counted(abs(more), 'row')} {'more' if more > 0 else 'fewer'} than"
        growth = f"{changed} after epoch {before.epoch:,}, {moment_text(before.closed_ms)}."
    return section(
        "Quarantine",
        lead,
        table(("step", "rows", "keys", "since", "for", "replayed by the next run"), steps),
        f'<p class="note">{escaped(growth[0].upper() + growth[1:])}</p>',
        table(("newest error of a key", "step", "keys", "rows"), errors),
    )
