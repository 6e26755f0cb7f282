"""Pictures of facts, by the charts of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from recovery.base.wording import counted, moment_text, short_moment_text
from recovery.planning.health import format_bytes, format_seconds
from recovery.report.charts import Bar, LaneLink, Point, lane_chart, line_chart, meter, share_bar
from recovery.report.html import lane_box, legend
from recovery.report.text import escaped

Row = Mapping[str, Any]
"""An epoch, an execution or a step, as the facts have it."""

LEGEND = legend(
    ('<rect class="lived" y="1" width="18" height="10" rx="3"/>', "epochs that count"),
    ('<rect class="gone" y="1" width="18" height="10" rx="3"/>', "abandoned by a rewind"),
    ('<line class="link rewind" x1="9" x2="9" y1="0" y2="12"/>', "went back to here"),
    ('<circle class="idle" cx="9" cy="6" r="4"/>', "closed no epoch here"),
    ('<rect class="band" width="18" height="12" rx="3"/>', "can be resumed from"),
)


def time_line(
    epochs: Sequence[Row], executions: Sequence[Row], window: Sequence[int], href: Callable[[Row], str]
) -> Markup:
    """Return a lane for each execution with the epochs that it closed, of these epochs. href: where an epoch leads."""
    if not epochs:
        return Markup("")
    low: int = min(each["epoch"] for each in epochs)
    high: int = max(each["epoch"] for each in epochs)
    width = high - low + 1

    def at(epoch: int) -> float:
        return min(1.0, max(0.0, (epoch - low) / width))

    newest_first = sorted(executions, key=lambda each: -each["number"])
    lane_of = {each["number"]: lane for lane, each in enumerate(newest_first)}
    rows, names, links = [], [], []
    for lane, run in enumerate(newest_first):
        bars = [_epoch_bar(each, at, href(each)) for each in epochs if each["execution"] == run["number"]]
        rows.append(bars or [Bar(at(run["first_epoch"]), at(run["first_epoch"]), "idle", _run_text(run))])
        names.append(
            f'<span class="when">{escaped(short_moment_text(run["started_ms"]))}</span><b>#{run["number"]}</b>'
        )
        above = lane_of.get(run["parent"]) if run["parent"] is not None else lane_of.get(run["number"] - 1)
        if above is not None and low <= run["first_epoch"] <= high:
            links.append(LaneLink(at(run["first_epoch"]), above, lane, "rewind" if run["rewound"] else "onward"))
    held = [epoch for epoch in window if low <= epoch <= high]
    band = (at(held[0]), at(held[-1] + 1)) if held else None
    chart = lane_chart("Executions and their epochs; the table below has the same", rows, links, band)
    box = lane_box(names, chart, f"epoch {low:,}", f"epoch {high:,}", scroll=len(rows) > 28)
    return Markup(box + LEGEND)


def _epoch_bar(each: Row, at: Callable[[int], float], href: str) -> Bar:
    took = "" if each["duration_s"] is None else f", {format_seconds(each['duration_s'])} after the one before"
    fate = "abandoned" if each["is_abandoned"] else "held" if each["is_held"] else "no longer held"
    label = (
        f"epoch {each['epoch']:,}, execution {each['execution']}\nclosed {moment_text(each['closed_ms'])}{took}\n{fate}"
    )
    # A gap shows where one epoch ends.
    start, end = at(each["epoch"]), at(each["epoch"] + 1)
    return Bar(start, start + (end - start) * 0.92, "gone" if each["is_abandoned"] else "lived", label, href)


def _run_text(run: Row) -> str:
    return f"execution {run['number']}, {moment_text(run['started_ms'])}"


def trends(epochs: Sequence[Row], href: Callable[[Row], str]) -> Sequence[Mapping[str, Any]]:
    """Return a chart for each measure of epochs: {"title", "now", "chart", "since", "until"}."""
    measured = [each for each in reversed(epochs) if each["measure"] is not None and not each["is_abandoned"]]
    pictures: Sequence[tuple[str, Callable[[Row], float | None], Callable[[float], str]]] = (
        ("Rows of an epoch", lambda m: m["input_rows"], lambda rows: f"{rows:,.0f}"),
        ("Micro-batch time", lambda m: m["batch_s"] / m["batches"] if m["batches"] else None, format_seconds),
        ("Snapshot duration", lambda m: m["snapshot_s"], format_seconds),
        ("State size", lambda m: m["state_bytes"], format_bytes),
    )
    breaks = [
        index / len(measured)
        for index in range(1, len(measured))
        if measured[index]["execution"] != measured[index - 1]["execution"]
    ]
    return [
        _trend(title, measured, points, shown, breaks)
        for title, value, shown in pictures
        if (points := [Point(v, _measured(each, shown(v)), href(each)) for each in measured
                       if (v := value(each["measure"])) is not None])
    ]  # fmt: skip


def _trend(
    title: str, rows: Sequence[Row], points: Sequence[Point], shown: Callable[[float], str], breaks: Sequence[float]
) -> Mapping[str, Any]:
    return {
        "title": title,
        "now": shown(points[-1].value),
        "chart": Markup(line_chart(f"{title}; the time line has a table", points, shown, (), breaks)),
        "since": short_moment_text(rows[0]["closed_ms"]),
        "until": short_moment_text(rows[-1]["closed_ms"]),
    }


def _measured(each: Row, value: str) -> str:
    return f"epoch {each['epoch']:,}, execution {each['execution']}\n{moment_text(each['closed_ms'])}\n{value}"


def growth(step: Row) -> Markup:
    """Return the chart of a step's size over time; empty if it was not measured twice."""
    points = [
        Point(each["bytes"], f"epoch {each['epoch']:,}\n{counted(each['keys'], 'key')}, {format_bytes(each['bytes'])}")
        for each in step["growth"]
    ]
    if len(points) < 2:
        return Markup("")
    return Markup(line_chart(f"Size of {step['step']} over time", points, format_bytes, (), ()))


def health_meter(each: Row) -> Markup:
    """Return the bar of a value against its two levels; empty if it has none, if the value is an age that is not known,
    or if low values are the bad ones."""
    value, warning, critical = each["value"], each["warning"], each["critical"]
    if value is None or value < 0 or warning is None or critical is None or critical < warning:
        return Markup("")
    return Markup(meter(value, warning, critical, each["level"], f"{each['target']}: {each['level']}"))


def share(part: float, whole: float) -> Markup:
    """Return a bar for a part of a whole."""
    return Markup(share_bar(part / whole if whole else 0.0))
