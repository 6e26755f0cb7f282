"""Benchmarks of small micro-batches: which take part, and how long each micro-batch took."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.harness import environments
from benchmarks.harness.processes import Spent, spent
from benchmarks.harness.rounds import Contender


def check_skip(arguments: argparse.Namespace) -> None:
    """Ends the program when too little would be counted."""
    if not 0 <= arguments.skip < arguments.batches - 1:
        raise SystemExit("--skip must leave two micro-batches to measure")


def contenders(module: str, variants: Mapping[str, dict[str, Any]], files: Path, **given: Any) -> list[Contender]:
    """One for each variant, that runs `measure` of the module in this Python, on these files."""
    given |= {"files": str(files), "totals": "totals"}
    python = environments.own_python()
    return [Contender(name, python, f"{module}:measure", {**variant, **given}) for name, variant in variants.items()]


def durations_s(query: Any) -> list[float]:
    """What Spark reports for the whole trigger of each micro-batch that had input."""
    return [each["durationMs"]["triggerExecution"] / 1000 for each in query.recentProgress if each["numInputRows"]]


def high_s(durations: Sequence[float]) -> float:
    """What 95 % of them do not exceed."""
    return quantiles(durations, n=20)[-1]


class Counted:
    """A sink that drops what it is given, and notes what was spent when the first micro-batch begins that counts. It is
    no `DiscardSink`, so that a run gives it every micro-batch."""

    single_action = True

    def __init__(self, first: int) -> None:
        """first: the number of that micro-batch."""
        self._first = first
        self._before: Spent | None = None

    def write(self, batch: Any, batch_id: int) -> None:
        """A foreachBatch function."""
        if batch_id == self._first:
            self._before = spent()
        batch.write.format("noop").mode("overwrite").save()

    def until_now(self) -> dict[str, float]:
        """Processor time and written bytes of all processes since."""
        if self._before is None:
            raise RuntimeError(f"there was no micro-batch {self._first}")
        used = spent() - self._before
        return {"counted_cpu_s": used.cpu_s, "written_bytes": used.written_bytes}
