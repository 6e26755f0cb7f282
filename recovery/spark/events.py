"""What a run tells: its place, each micro-batch, each closed epoch, that it stops; and what it did in all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from recovery.ids import BatchId, Epoch
from recovery.planning.resume import ResumePlan
from recovery.spark.closing import EpochClosed


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run has its place: the execution began, and starts with this epoch."""

    execution: int
    resume_epoch: Epoch
    plan: ResumePlan
    metrics_url: str | None = None


@dataclass(frozen=True, slots=True)
class BatchDone:
    """A micro-batch was processed: rows of input, states written, seconds it took."""

    batch: BatchId
    epoch: Epoch
    rows: int
    keys: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Stopping:
    """A signal came, by its number, and the run ends when `batch` is finished; None: no micro-batch is under way."""

    signal: int
    batch: BatchId | None


Event = Resumed | BatchDone | EpochClosed | Stopping
Observer = Callable[[Event], None]


@dataclass(slots=True)
class RunSummary:
    """What a run did. Counts are of this execution alone; rows are those that the sources read."""

    flow: str
    directory: str | None
    execution: int = 0
    resume_epoch: int = 1
    last_epoch: int = 0
    epochs: int = 0
    batches: int = 0
    rows: int = 0
    states: int = 0
    snapshot_s: float = 0.0
    elapsed_s: float = 0.0
    exceeded: list[dict[str, Any]] = field(default_factory=list)
