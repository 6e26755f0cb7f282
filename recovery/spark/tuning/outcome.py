"""The outcome of a micro-batch, by which the tactics decide about the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """A processed micro-batch. rows: those that reached a step; of several steps, the one that saw most. keys: states
    written. row_bytes: the width that no Arrow batch's rows exceeded on average. seconds: its duration. query: the
    JVM's handle of its query; None if Spark's `start` has not returned yet."""

    rows: int
    keys: int
    row_bytes: int = 0
    seconds: float = 0.0
    query: Any = None
