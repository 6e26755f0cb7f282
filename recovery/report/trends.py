"""The section of measures over time: the state, its snapshots, and the work of the micro-batches."""

from __future__ import annotations

from collections.abc import Callable

from recovery.base.wording import counted, moment_text, short_moment_text
from recovery.planning.health import format_bytes, format_seconds
from recovery.planning.measures import Measure
from recovery.report.charts import Limit, Point, line_chart
from recovery.report.facts import Facts
from recovery.report.html import Cell, details, section, table
from recovery.report.text import escaped

SHOWN_ROWS = 500

Picture = tuple[str, str | None, Callable[[Measure], float | None], Callable[[float], str]]
"""A chart: its title, its target, its value, and how the value is shown."""


def trends_section(facts: Facts) -> str:
    """Return the section with a chart for each measure of the closed epochs."""
    lead = "Measures of each closed epoch, in the order of closing; dotted lines mark new executions."
    epochs = facts.epochs
    if not epochs:
        note = "Nothing is measured yet: runs record measures with every epoch that they close."
        return section("State and snapshots over time", lead, f'<p class="note">{note}</p>')
    targets = {finding.target.name: finding.target for finding in facts.health}
    breaks = [
        index / len(epochs) for index in range(1, len(epochs)) if epochs[index].execution != epochs[index - 1].execution
    ]
    if len(breaks) > 60:
        breaks = []
    pictures: list[Picture] = [
        ("State size", "state-size", lambda m: m.state_bytes, format_bytes),
        ("Snapshot duration", "snapshot-duration", lambda m: m.snapshot_s, format_seconds),
        ("Written by a snapshot", None, lambda m: m.written_bytes, format_bytes),
        ("Micro-batch time", None, lambda m: m.batch_s / m.batches if m.batches else None, format_seconds),
        ("State update latency, per key", "update-latency", lambda m: m.latency_s, format_seconds),
        ("Memory of the run's processes", "memory", lambda m: m.memory_bytes, format_bytes),
    ]
    since, until = (escaped(short_moment_text(m.measured_ms)) for m in (epochs[0], epochs[-1]))
    charts = []
    for name, target_name, value, shown in pictures:
        points = [
            Point(v, f"epoch {m.epoch:,}, execution {m.execution}\n{moment_text(m.measured_ms)}\n{shown(v)}")
            for m in epochs
            if (v := value(m)) is not None
        ]
        if not points:
            continue
        target = targets.get(target_name or "")
        limits = [
            Limit(level, kind, f"{kind} {target.shown(level)}")
            for kind, level in (("warning", target.warning), ("critical", target.critical))
            if level is not None
        ] if target else []  # fmt: skip
        span = f"<span>{since}</span><span>{until}</span>"
        charts.append(
            f'<div><span class="now">{escaped(shown(points[-1].value))}</span><h3>{escaped(name)}</h3>'
            f'{line_chart(name, points, shown, limits, breaks)}<div class="span">{span}</div></div>'
        )
    rows: list[list[Cell]] = [
        [
            m.epoch, m.execution, moment_text(m.measured_ms), m.batches, m.input_rows, m.touched,
            format_seconds(m.batch_s), format_seconds(m.snapshot_s), format_bytes(m.written_bytes),
            format_bytes(m.state_bytes), format_seconds(m.collect_s),
        ]
        for m in reversed(epochs[-SHOWN_ROWS:])
    ]  # fmt: skip
    header = (
        "epoch", "execution", "closed", "micro-batches", "rows", "touched", "their time", "snapshot", "written",
        "state", "collected in",
    )  # fmt: skip
    return section(
        "State and snapshots over time",
        lead,
        f'<div class="charts">{"".join(charts)}</div>',
        details(f"The newest {counted(len(rows), 'epoch')} as a table", table(header, rows)),
    )
