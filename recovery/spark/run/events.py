"""What a run tells: its place, each micro-batch, each closed epoch, that it stops; and what it did in all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from recovery.base.ids import BatchId, Epoch
from recovery.epochs.closer import EpochClosed
from recovery.planning.going_back import Discarded
from recovery.planning.resume import ResumePlan


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run has its place: the execution began, and starts with this epoch. discarded: what its rewind gave up."""

    execution: int
    resume_epoch: Epoch
    plan: ResumePlan
    metrics_url: str | None = None
    discarded: Discarded | None = None


@dataclass(frozen=True, slots=True)
class BatchDone:
    """A micro-batch was processed: rows that reached a step (of several, of the one that saw most), states written,
    seconds it took. How many rows the sources read is told by `InputCounted`."""

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


@dataclass(frozen=True, slots=True)
class InputCounted:
    """Spark has reported how many rows the sources read for a micro-batch: some time after it was done, and before the
    next one is."""

    batch: BatchId
    rows: int


Event = Resumed | BatchDone | InputCounted | EpochClosed | Stopping
Observer = Callable[[Event], None]


@dataclass(slots=True)
class RunSummary:
    """What a run did. Counts are of this execution alone; rows are those that the sources read.

    discarded: what the rewind that it was asked for discarded; None: nothing.
    """

    flow: str
    directory: str | None
    execution: int = 0
    resume_epoch: int = 1
    resume_after: int = 0
    last_epoch: int = 0
    epochs: int = 0
    batches: int = 0
    rows: int = 0
    states: int = 0
    snapshot_s: float = 0.0
    elapsed_s: float = 0.0
    exceeded: list[dict[str, Any]] = field(default_factory=list)
    discarded: dict[str, Any] | None = None
