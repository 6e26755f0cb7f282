"""What planning is about: values read from partitions, without SQLite or Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recovery.base.ids import NO_EPOCH, BatchId, Epoch, ExecutionNumber, Lease, PartitionIndex, StepId
from recovery.errors import RecoveryError
from recovery.values.declaration import Convert


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of a flow on a recovery directory."""

    number: ExecutionNumber
    id: str
    flow_id: str
    resume_epoch: Epoch
    started_ms: int
    snapshot_interval_s: float
    backup_interval_s: float
    host: str
    pid: int
    version: str

    @property
    def lease(self) -> Lease:
        """Its right to write."""
        return Lease(self.number, self.id)


@dataclass(frozen=True, slots=True)
class ClosedEpoch:
    """What one partition holds of a closed epoch.

    clock_ms is the recovery clock, which only grows: decisions use it. closed_ms is wall time, for people.
    logged_rows, logged_digest: of its changes, while they are logged and `snaps` is of an older epoch, whose live_rows
    and live_digest it has; None: `snaps` was brought to this epoch.
    """

    epoch: Epoch
    execution: Lease
    batch_id: BatchId
    closed_ms: int
    clock_ms: int
    written: int
    live_rows: int
    live_digest: int
    superseded_rows: int
    superseded_digest: int
    logged_rows: int | None = None
    logged_digest: int | None = None

    @property
    def is_logged(self) -> bool:
        """Whether its changes are not in `snaps` yet."""
        return self.logged_rows is not None

    @property
    def cut(self) -> tuple[Epoch, str, BatchId]:
        """What must be equal in all partitions for the epoch to be one consistent snapshot."""
        return (self.epoch, self.execution.id, self.batch_id)


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """Everything the planner needs to know of one partition file."""

    path: Path
    index: PartitionIndex
    count: int
    store_id: str
    flow_id: str | None
    collected: Epoch
    executions: tuple[Execution, ...]
    epochs: tuple[ClosedEpoch, ...]
    size_bytes: int

    @property
    def newest(self) -> ClosedEpoch | None:
        """The newest closed epoch it holds."""
        return self.epochs[-1] if self.epochs else None

    @property
    def newest_epoch(self) -> Epoch:
        """Its number, 0 when none was closed."""
        return self.epochs[-1].epoch if self.epochs else NO_EPOCH

    @property
    def folded_epoch(self) -> Epoch:
        """The epoch that `snaps` is of: the newest whose changes are not logged, 0 when there is none."""
        return max((closed.epoch for closed in self.epochs if not closed.is_logged), default=NO_EPOCH)

    @property
    def row_count(self) -> int:
        """Rows of all steps: those of its newest folded snapshot, and what is kept to go back."""
        kept = sum(closed.superseded_rows for closed in self.epochs if closed.epoch > self.collected)
        return kept + (self.epochs[-1].live_rows if self.epochs else 0)

    @property
    def oldest_epoch(self) -> Epoch:
        """The oldest epoch it can go back to; 0 is the time before the first."""
        return self.collected


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of a recovery directory: what it says of itself, or why it cannot be read."""

    path: Path
    description: PartitionDescription | None
    error: RecoveryError | None = None


@dataclass(frozen=True, slots=True)
class StepEdit:
    """A change of the steps themselves, made when an execution starts, before any micro-batch.

    `new` is None to drop `old`, another step to rename it, the same to convert its states in place.
    """

    old: StepId
    new: StepId | None
    convert: Convert | None = None
