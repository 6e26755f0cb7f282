"""The section of the partitions: the epochs that each file holds, and those that all share."""

from __future__ import annotations

from recovery.base.wording import moment_text
from recovery.planning.explain import Role, explain
from recovery.planning.health import format_bytes
from recovery.report.charts import Bar, lane_chart
from recovery.report.facts import Facts
from recovery.report.html import Cell, details, lane_box, section, table
from recovery.report.text import escaped, shortened

SHOWN_PARTITIONS = 64


def partitions_section(facts: Facts) -> str:
    """Return the section of the partition files: which epochs each holds, and which all share."""
    lead = (
        "A run resumes from the newest epoch that every partition holds. A bar shows the epochs that one file can go "
        "back to; the shaded part shows those that all share."
    )
    verdicts = explain(list(facts.found), lambda ms: moment_text(ms) if ms is not None else "-")
    held = [each for each in verdicts if each.oldest is not None]
    if not verdicts:
        return ""
    low = min((each.oldest or 0 for each in held), default=0)
    high = max((each.newest_epoch or 0 for each in held), default=0)
    width = max(1, high - low + 1)

    def at(epoch: int) -> float:
        return (epoch - low) / width

    # Files that are not current come first.
    order = sorted(verdicts, key=lambda each: each.role is Role.CURRENT)[:SHOWN_PARTITIONS]
    shown = [each for each in verdicts if each in order]
    rows, names = [], []
    for each in shown:
        names.append(f"<b>{escaped(shortened(each.path.name, 28))}</b>")
        if each.oldest is None:
            rows.append([Bar(0, 0, "idle", f"{each.path.name}: {each.note}")])
            continue
        newest = each.newest_epoch or 0
        style = "held" if each.role in (Role.CURRENT, Role.HOLDS_BACK, Role.AHEAD) else "beyond"
        label = f"{each.path.name}\nepochs {each.oldest:,} to {newest:,}\n{each.note}"
        rows.append([Bar(at(each.oldest), at(newest + 1), style, label)])
    window = facts.plan.window if facts.plan else ()
    band = (at(window[0]), at(window[-1] + 1)) if window else None
    chart = lane_chart("The epochs that each partition holds", rows, band=band)
    sizes = {d.path: d.size_bytes for d in facts.described}
    cells: list[list[Cell]] = [
        [
            each.path.name,
            each.oldest,
            each.newest_epoch,
            moment_text(each.newest.closed_ms) if each.newest else None,
            format_bytes(sizes[each.path]) if each.path in sizes else None,
            each.note,
        ]
        for each in verdicts
    ]
    more = ""
    if len(verdicts) > len(shown):
        more = f'<p class="note">{len(verdicts) - len(shown):,} more are in the table.</p>'
    return section(
        "Partitions",
        lead,
        lane_box(names, chart, _before(low), f"epoch {high:,}", scroll=len(shown) > 28),
        more,
        details("Partitions as a table", table(("file", "oldest", "newest", "closed", "size", "verdict"), cells)),
    )


def _before(epoch: int) -> str:
    return f"epoch {epoch:,}" if epoch else "the beginning"
