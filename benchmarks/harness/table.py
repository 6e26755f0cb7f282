"""Medians, ratios and tables: pure functions of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.harness.rounds import Measurement

NONE = "–"


@dataclass(frozen=True, slots=True)
class Summary:
    """The runs of one contender that count. `problem`: of the first one that does not."""

    contender: str
    runs: tuple[Measurement, ...]
    problem: str | None

    def middle(self, of: Callable[[Measurement], float]) -> float | None:
        """The median over the runs; None without any."""
        return median(of(run) for run in self.runs) if self.runs else None

    @property
    def seconds(self) -> float | None:
        """The median of the measured times. A contender that was ever wrong has none."""
        return self.correct(lambda run: run.seconds)

    def correct(self, of: Callable[[Measurement], float]) -> float | None:
        """The median over the runs; None without any, and for a contender that was ever wrong."""
        return self.middle(of) if self.problem is None else None


def summarise(measurements: Iterable[Measurement]) -> list[Summary]:
    """By contender, in the order in which they first ran."""
    runs: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        runs.setdefault(measurement.contender, []).append(measurement)
    return [
        Summary(
            contender,
            tuple(run for run in all_runs if run.problem is None),
            next((run.problem for run in all_runs if run.problem is not None), None),
        )
        for contender, all_runs in runs.items()
    ]


def ratio(value: float | None, baseline: float | None) -> str:
    """How many times the baseline: 1.00, 12.3."""
    if value is None or not baseline:
        return NONE
    times = value / baseline
    return f"{times:.2g}" if times < 0.1 else f"{times:.2f}" if times < 10 else f"{times:.3g}"


def seconds(value: float | None) -> str:
    """Seconds: 0.123, 12.3, 123."""
    if value is None:
        return NONE
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def milliseconds(value: float | None) -> str:
    """Seconds, shown as milliseconds: 298."""
    return NONE if value is None else f"{value * 1000:.0f}"


def spread(runs: Iterable[float], unit: Callable[[float], str] = seconds) -> str:
    """Fastest to slowest."""
    values = sorted(runs)
    return f"{unit(values[0])}–{unit(values[-1])}" if values else NONE


def count(value: float | None) -> str:
    """A number in thousands: 12,345."""
    return NONE if value is None else f"{value:,.0f}"


def mebibytes(value: float | None) -> str:
    """Bytes in MiB."""
    if value is None:
        return NONE
    size = value / 2**20
    return f"{size:,.0f}" if size >= 10 else f"{size:.1f}"


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that reads well as text too: the first column to the left, the others to the right."""
    widths = [max(3, *(len(row[at]) for row in (headers, *rows))) for at in range(len(headers))]

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(aligned)} |"

    rule = [("-" * (width - 1) + ":") if at else "-" * width for at, width in enumerate(widths)]
    return "\n".join(line(cells) for cells in (headers, rule, *rows))
