"""Charts as inline SVG. Horizontal positions are percentages, so charts fit any width and text keeps its size."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recovery.report.text import escaped

HEIGHT = 150
TOP = 22
POINTS = 240
LANE, BAR = 20, 12
"""Pixels; the style sheet gives names of lanes the same height."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measured value and its label; href: where it leads to."""

    value: float
    label: str
    href: str | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """A level to draw across a chart."""

    value: float
    level: str
    label: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A piece of a lane: its start and end as shares of the width, its class in the style sheet, its label, and where
    it leads to."""

    start: float
    end: float
    style: str
    label: str
    href: str | None = None


@dataclass(frozen=True, slots=True)
class LaneLink:
    """A line from one lane down to another, at a share of the width."""

    at: float
    above: int
    below: int
    style: str


def line_chart(
    title: str, points: Sequence[Point], shown: Callable[[float], str], limits: Sequence[Limit], breaks: Sequence[float]
) -> str:
    """Return a filled line of the points in order of closing. breaks: shares of the width where an execution began."""
    buckets = _buckets(points)
    highest = max((point.value for point in buckets), default=0.0)
    # A level far above all measured values would flatten the line.
    drawn = [limit for limit in limits if limit.value <= 2.5 * highest]
    top = _ceiling(max([highest, *(limit.value for limit in drawn)], default=0.0))
    plot = HEIGHT - TOP

    def y(value: float) -> float:
        return TOP + plot * (1 - value / top)

    grid = "".join(
        f'<line class="grid" x1="0" x2="100%" y1="{y(top * share):.1f}" y2="{y(top * share):.1f}"/>'
        for share in (0.5, 1.0)
    )
    ticks = "".join(
        f'<text class="tick" x="0" y="{y(top * share) - 4:.1f}">{escaped(shown(top * share))}</text>'
        for share in (0.5, 1.0)
    )
    lines = "".join(
        f'<line class="limit {limit.level}" x1="0" x2="100%" y1="{y(limit.value):.1f}" y2="{y(limit.value):.1f}"/>'
        f'<text class="tick end {limit.level}" x="100%" y="{y(limit.value) - 4:.1f}">{escaped(limit.label)}</text>'
        for limit in drawn
    )
    starts = "".join(
        f'<line class="break" x1="{100 * at:.2f}%" x2="{100 * at:.2f}%" y1="{TOP}" y2="{HEIGHT}"/>' for at in breaks
    )
    width = 1000
    step = width / max(1, len(buckets) - 1)
    xs = [index * step for index in range(len(buckets))] if len(buckets) > 1 else [0.0, float(width)]
    values = [point.value for point in buckets] if len(buckets) > 1 else [point.value for point in buckets] * 2
    path = " ".join(f"{x:.1f},{plot * (1 - v / top):.2f}" for x, v in zip(xs, values, strict=True))
    hover = "".join(
        _linked(
            f'<rect class="hit" x="{100 * index / len(buckets):.3f}%" width="{100 / len(buckets):.3f}%" y="{TOP}" '
            f'height="{plot}" data-t="{_lines(point.label)}"/>',
            point.href,
        )
        for index, point in enumerate(buckets)
    )
    return (
        f'<svg class="chart" width="100%" height="{HEIGHT + 1}" role="{_role(hover)}" aria-label="{escaped(title)}">'
        f"{grid}{starts}"
        f'<svg y="{TOP}" width="100%" height="{plot}" viewBox="0 0 {width} {plot}" preserveAspectRatio="none">'
        f'<polygon class="area" points="0,{plot} {path} {width},{plot}"/><polyline class="line" points="{path}"/></svg>'
        f'<line class="base" x1="0" x2="100%" y1="{HEIGHT}" y2="{HEIGHT}"/>{lines}{ticks}{hover}</svg>'
    )


def lane_chart(
    title: str,
    rows: Sequence[Sequence[Bar]],
    links: Sequence[LaneLink] = (),
    band: tuple[float, float] | None = None,
) -> str:
    """Return a chart with a row of bars for each lane. band: a part of the width that is shaded in all lanes."""
    height = LANE * len(rows) + 6
    shade = ""
    if band is not None:
        start, end = 100 * band[0], 100 * max(band[1] - band[0], 0.002)
        shade = f'<rect class="band" x="{start:.3f}%" width="{end:.3f}%" y="0" height="{height}" rx="4"/>'
    rules = "".join(
        f'<line class="rule" x1="0" x2="100%" y1="{LANE * i + LANE / 2 + 3}" y2="{LANE * i + LANE / 2 + 3}"/>'
        for i in range(len(rows))
    )
    joined = "".join(
        f'<line class="link {link.style}" x1="{100 * link.at:.3f}%" x2="{100 * link.at:.3f}%" '
        f'y1="{LANE * link.above + LANE / 2 + 3}" y2="{LANE * link.below + LANE / 2 + 3}"/>'
        for link in links
    )
    bars = "".join(_bar(bar, 3 + LANE * row) for row, bars in enumerate(rows) for bar in bars)
    return (
        f'<svg class="lanes" width="100%" height="{height}" role="{_role(bars)}" aria-label="{escaped(title)}">'
        f"{shade}{rules}{joined}{bars}</svg>"
    )


def meter(value: float, warning: float, critical: float, level: str, label: str) -> str:
    """Return a bar for a value, with marks at its two levels."""
    full = max(critical * 1.15, value) or 1
    ticks = "".join(
        f'<line class="mark {name}" x1="{100 * limit / full:.2f}%" x2="{100 * limit / full:.2f}%" y1="0" y2="12"/>'
        for name, limit in (("warning", warning), ("critical", critical))
    )
    return (
        f'<svg class="meter" width="100%" height="12" role="img" aria-label="{escaped(label)}">'
        f'<rect class="track" width="100%" y="3" height="6" rx="3"/>'
        f'<rect class="fill {level}" width="{max(100 * value / full, 0.6):.2f}%" y="3" height="6" rx="3"/>{ticks}</svg>'
    )


def share_bar(share: float) -> str:
    """Return a bar that shows a share."""
    return (
        '<svg class="meter" width="100%" height="10" aria-hidden="true">'
        '<rect class="track" width="100%" y="2" height="6" rx="3"/>'
        f'<rect class="fill plain" width="{max(100 * share, 0.6):.2f}%" y="2" height="6" rx="3"/></svg>'
    )


def _bar(bar: Bar, y: float) -> str:
    said = f'data-t="{_lines(bar.label)}"'
    if bar.end <= bar.start:
        shape = (
            f'<circle class="{bar.style}" cx="{100 * bar.start:.3f}%" cy="{y + LANE / 2}" r="4" {said}>'
            f"<title>{_lines(bar.label)}</title></circle>"
        )
    else:
        shape = (
            f'<rect class="{bar.style}" x="{100 * bar.start:.3f}%" width="{100 * (bar.end - bar.start):.3f}%" '
            f'y="{y + (LANE - BAR) / 2}" height="{BAR}" rx="3" {said}><title>{_lines(bar.label)}</title></rect>'
        )
    return _linked(shape, bar.href)


def _role(shapes: str) -> str:
    """Return what a chart is to a screen reader: a picture, unless something in it leads to a page."""
    return "group" if "<a " in shapes else "img"


def _linked(shape: str, href: str | None) -> str:
    """Return a shape that leads to a page. The keyboard passes over it: a table beside the chart has the same links."""
    return shape if href is None else f'<a href="{escaped(href)}" tabindex="-1" aria-hidden="true">{shape}</a>'


def _lines(label: str) -> str:
    """Return a label for an attribute or a title, with its lines one below the other."""
    return "&#10;".join(escaped(line) for line in label.split("\n"))


def _buckets(points: Sequence[Point]) -> list[Point]:
    """Return at most `POINTS` points: of neighbours the highest."""
    if len(points) <= POINTS:
        return list(points)
    edges = [index * len(points) // POINTS for index in range(POINTS + 1)]
    return [max(points[start:end], key=lambda point: point.value) for start, end in itertools.pairwise(edges)]


def _ceiling(value: float) -> float:
    """Return the next higher round number."""
    if value <= 0:
        return 1.0
    magnitude = 1.0
    while magnitude > value:
        magnitude /= 10
    while magnitude * 10 <= value:
        magnitude *= 10
    return next(magnitude * step for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if magnitude * step >= value)
