"""What a table says, drawn: bars for contenders, curves for growth. SVG, by matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Picture = Callable[[Path], None]
"""Draws into a file."""
OURS, OTHERS = "#1f77b4", "#b0b7c3"


def bars(title: str, unit: str, values: Sequence[tuple[str, float | None]]) -> Picture:
    """One bar a contender, shortest first; ours in a colour of their own. Those without a value are left out."""
    shown = sorted(((name, value) for name, value in values if value is not None), key=lambda each: -each[1])

    def draw(path: Path) -> None:
        figure, axes = _figure(height=0.8 + 0.36 * max(1, len(shown)))
        names = [name for name, _ in shown]
        drawn = axes.barh(
            names,
            [value for _, value in shown],
            color=[OURS if n.startswith(("ours", "recovery")) else OTHERS for n in names],
        )
        axes.bar_label(drawn, fmt="%.3g", padding=3)
        axes.set_xlabel(unit)
        axes.margins(x=0.12)
        _finish(figure, axes, title, path)

    return draw


def ratios(unit: str, lines: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> Picture:
    """For each line a group of bars, which begin at 1: to the right of it is more than ours, to the left less."""

    def draw(path: Path) -> None:
        rows = [(line, name, value) for line, bars in lines for name, value in bars]
        names = list(dict.fromkeys(name for _, name, _ in rows))
        colours = dict(zip(names, ("#7f8c9d", "#b0b7c3", "#d98c3f", "#8c6bb1", "#4f9d69"), strict=False))
        figure, axes = _figure(height=1.2 + 0.24 * len(rows) + 0.36 * len(lines))
        places: list[float] = []
        at = 0.0
        for line, bars in lines:
            where = {"transform": axes.get_yaxis_transform(), "va": "center", "zorder": 3}
            axes.text(0.005, at, line, **where, fontsize=9, weight="bold", bbox={"color": "white", "pad": 1})
            at += 1
            places += [at + number for number in range(len(bars))]
            at += len(bars) + 0.5
        drawn = axes.barh(
            places,
            [value - 1 for _, _, value in rows],
            left=1,
            color=[colours.get(name, OTHERS) for _, name, _ in rows],
        )
        axes.bar_label(drawn, labels=[f"{value:.3g} ×" for _, _, value in rows], padding=3, fontsize=8)
        axes.set_yticks(places, [name for _, name, _ in rows], fontsize=8)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.axvline(1, color=OURS, linewidth=2)
        axes.margins(x=0.15, y=0.02)
        axes.set_ylim(at, -0.8)
        axes.set_xlabel(unit)
        _finish(figure, axes, "The blue line is recovery; to the right of it, the others take more", path)

    return draw


def check() -> None:
    """Ends the program when pictures cannot be drawn."""
    _figure(height=1)


def curves(
    title: str, x: str, y: str, lines: Mapping[str, Sequence[tuple[float, float | None]]], *, linear: bool = True
) -> Picture:
    """Points joined by lines; from zero when `linear`, else both axes by powers."""

    def draw(path: Path) -> None:
        figure, axes = _figure(height=3.2)
        for name, points in lines.items():
            known = [(at, value) for at, value in points if value is not None]
            axes.plot([at for at, _ in known], [value for _, value in known], marker="o", label=name)
        if linear:
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
        else:
            axes.set_xscale("log")
            axes.set_yscale("log")
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(alpha=0.3)
        if len(lines) > 1:
            axes.legend(frameon=False)
        _finish(figure, axes, title, path)

    return draw


def _figure(height: float) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise SystemExit("Pictures need matplotlib: pip install '.[bench]'") from None
    figure = Figure(figsize=(7.5, height), layout="constrained")
    return figure, figure.add_subplot()


def _finish(figure: Any, axes: Any, title: str, path: Path) -> None:
    from matplotlib import rc_context

    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Text stays text, and the same figures give the same bytes.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "recovery"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
