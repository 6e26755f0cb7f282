"""What RESULTS.md begins with: one table of ratios, of all that was measured in one session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.table import NONE, markdown, ratio

Times = tuple[float | None, float | None]
COLUMNS = {
    "Spark, RocksDB": ("spark-rocksdb",),
    "Spark, HDFS store": ("spark-hdfs",),
    "Spark, Java function": ("spark-java",),
    "Spark, Python function": ("transformWithState", "transformWithStateInPandas", "applyInPandasWithState"),
    "Bytewax": ("bytewax-processes", "bytewax"),
}
"""Of the table: contenders, of which the fastest counts."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One line: what was measured, what recovery took, with its unit, and how many times that each contender took, in
    wall time, or whatever the line says, and in processor time."""

    what: str
    ours: str
    peers: dict[str, Times]

    @staticmethod
    def times(
        value: float | None, ours: float | None, cpu_s: float | None = None, ours_cpu_s: float | None = None
    ) -> Times:
        """The two ratios; None where one is not known."""
        return _quotient(value, ours), _quotient(cpu_s, ours_cpu_s)

    @classmethod
    def read(cls, given: dict[str, Any]) -> Compared:
        """From JSON."""
        peers = {name: (times[0], times[1]) for name, times in given["peers"].items()}
        return cls(given["what"], given["ours"], peers)

    def column(self, name: str) -> Times | None:
        """Of the fastest contender of this column; None: none was measured."""
        found = [self.peers[each] for each in COLUMNS[name] if each in self.peers]
        known = [times for times in found if times[0] is not None]
        return min(known, key=lambda times: times[0] or 0.0, default=None)


def markdown_of(lines: Sequence[Compared]) -> str:
    """The table. A column that nobody is in is left out."""
    names = [name for name in COLUMNS if any(line.column(name) for line in lines)]
    rows = [(line.what, line.ours, *(_cell(line.column(name)) for name in names)) for line in lines]
    return markdown(("", "recovery", *names), rows)


def bars_of(lines: Iterable[Compared]) -> list[tuple[str, list[tuple[str, float]]]]:
    """The same for the picture: for each line its columns' first ratios."""
    found = []
    for line in lines:
        columns = [(name, line.column(name)) for name in COLUMNS]
        found.append((line.what, [(name, times[0]) for name, times in columns if times and times[0]]))
    return found


def _cell(times: Times | None) -> str:
    if times is None:
        return NONE
    first, second = times
    return ratio(first, 1.0) + (f" ({ratio(second, 1.0)})" if second is not None else "")


def _quotient(value: float | None, ours: float | None) -> float | None:
    return value / ours if value is not None and ours else None
