"""The section of the executions: a lane for each, with the epochs that it closed and those that count."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from recovery.base.ids import Epoch
from recovery.base.intervals import format_interval
from recovery.base.wording import counted, moment_text, short_moment_text
from recovery.planning.going_back import after_text
from recovery.planning.lanes import Lane
from recovery.report.charts import Bar, LaneLink, lane_chart
from recovery.report.facts import Facts
from recovery.report.html import Cell, details, lane_box, legend, section, table
from recovery.report.text import escaped


def timeline_section(facts: Facts, drawn: Sequence[Lane]) -> str:
    """Return the section of all executions: the epochs that each closed, rewinds, and what a run can resume from."""
    lead = (
        "Each row is an execution with the epochs that it closed, the newest first. A run that goes back abandons the "
        "later epochs; no file holds them any more, only this history."
    )
    if not drawn:
        return section("Timeline", lead, '<p class="note">No run has begun yet.</p>')
    total = max(1, max(lane.last for lane in drawn))

    def at(epoch: int) -> float:
        """Return where an epoch begins; epoch 1 at the left edge."""
        return min(1.0, max(0.0, (epoch - 1) / total))

    rows, links, names = [], [], []
    newest_first = list(reversed(drawn))
    place: dict[int, int] = {lane.execution.number: index for index, lane in enumerate(newest_first)}
    for index, lane in enumerate(newest_first):
        rows.append(_lane_bars(lane, at))
        # The link of a rewind to the beginning comes from the execution that it abandons.
        origin = newest_first[index + 1].execution.number if lane.rewound and lane.parent is None else lane.parent
        if origin is not None:
            kind = "rewind" if lane.rewound else "onward"
            links.append(LaneLink(at(lane.first), place[origin], index, kind))
        when = escaped(short_moment_text(lane.execution.started_ms))
        names.append(f'<span class="when">{when}</span><b>#{lane.execution.number}</b>')
    window = facts.plan.window if facts.plan else ()
    band = (at(window[0]), at(window[-1] + 1)) if window else None
    chart = lane_chart("Executions and their epochs", rows, links, band)
    marks = legend(
        ('<rect class="lived" y="1" width="18" height="10" rx="3"/>', "epochs that count"),
        ('<rect class="gone" y="1" width="18" height="10" rx="3"/>', "abandoned by a rewind"),
        ('<line class="link rewind" x1="9" x2="9" y1="0" y2="12"/>', "went back to here"),
        ('<circle class="idle" cx="9" cy="6" r="4"/>', "closed no epoch"),
        ('<rect class="band" width="18" height="12" rx="3"/>', "can be resumed from"),
    )
    return section(
        "Timeline",
        lead,
        lane_box(names, chart, "epoch 1", f"epoch {total:,}", scroll=len(drawn) > 28),
        marks,
        _executions_table(drawn),
    )


def _lane_bars(lane: Lane, at: Callable[[int], float]) -> list[Bar]:
    run = lane.execution
    said = f"execution {run.number} · {moment_text(run.started_ms)}"
    if lane.rewound:
        said += f"\nwent back over {counted(lane.rewound, 'epoch')} to {after_text(lane.first - 1)}"
    if lane.last < lane.first:
        return [Bar(at(lane.first), at(lane.first), "idle", f"{said}\nbegan {after_text(lane.first - 1)}, closed none")]
    bars = []
    if lane.lived >= lane.first:
        label = f"{said}\n{_epochs(lane.first, lane.lived)} count"
        bars.append(Bar(at(lane.first), at(lane.lived + 1), "lived", label))
    if lane.abandoned:
        start = max(lane.lived + 1, lane.first)
        label = f"{said}\n{_epochs(start, lane.last)} abandoned"
        bars.append(Bar(at(start), at(lane.last + 1), "gone", label))
    return bars


def _executions_table(drawn: Sequence[Lane]) -> str:
    rows: list[list[Cell]] = [
        [
            lane.execution.number,
            moment_text(lane.execution.started_ms),
            lane.first - 1,
            f"{lane.first:,} – {lane.last:,}" if lane.last >= lane.first else "none",
            lane.abandoned,
            format_interval(lane.execution.snapshot_interval_s),
            format_interval(lane.execution.backup_interval_s),
            lane.execution.host,
        ]
        for lane in reversed(drawn)
    ]
    header = ("execution", "started", "after epoch", "closed", "abandoned", "-s", "-b", "host")
    return details("Executions as a table", table(header, rows))


def _epochs(first: Epoch | int, last: Epoch | int) -> str:
    return f"epoch {first:,}" if first == last else f"epochs {first:,} to {last:,}"
