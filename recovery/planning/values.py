"""The values that planning reads from partitions, without SQLite or Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recovery.base.ids import NO_EPOCH, BatchId, Epoch, ExecutionNumber, Lease, PartitionIndex, StepId
from recovery.errors import RecoveryError
from recovery.values.declaration import Convert

ERASURE = "erased-"
"""Begins the id of an execution that erases keys."""


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
        """The partition's lease: the right to write."""
        return Lease(self.number, self.id)

    @property
    def erases(self) -> bool:
        """Whether the execution erased keys when it began: then no epoch before it is as its copies have it."""
        return self.id.startswith(ERASURE)


@dataclass(frozen=True, slots=True)
class ClosedEpoch:
    """A closed epoch as one partition holds it.

    clock_ms: the recovery clock, which only grows; decisions use it. closed_ms: wall time, for people.
    logged_rows, logged_digest: of its changes while they are only logged; then `snaps`, live_rows and live_digest are
    those of an older epoch. None: `snaps` includes this epoch.
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
        """Whether the epoch's changes are only logged, not in `snaps` yet."""
        return self.logged_rows is not None

    @property
    def cut(self) -> tuple[Epoch, str, BatchId]:
        """What must be equal in all partitions for the epoch to be one consistent snapshot."""
        return (self.epoch, self.execution.id, self.batch_id)


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """Everything the planner needs to know about one partition file. unlisted: the number of held epochs before those
    in `epochs`; only descriptions of backups, and for them, leave epochs out, and those that an owner sends to a look
    that knows earlier ones (see `recovery.planning.held`)."""

    path: Path
    index: PartitionIndex
    count: int
    store_id: str
    flow_id: str | None
    collected: Epoch
    executions: tuple[Execution, ...]
    epochs: tuple[ClosedEpoch, ...]
    size_bytes: int
    unlisted: int = 0

    @property
    def newest(self) -> ClosedEpoch | None:
        """The newest closed epoch that the partition holds."""
        return self.epochs[-1] if self.epochs else None

    @property
    def newest_epoch(self) -> Epoch:
        """The newest epoch's number, 0 when none was closed."""
        return self.epochs[-1].epoch if self.epochs else NO_EPOCH

    def erased_since(self, before: PartitionDescription) -> bool:
        """Whether keys were erased since an earlier description: then epochs that both have may differ."""
        return any(each.erases and each not in before.executions for each in self.executions)

    @property
    def folded_epoch(self) -> Epoch:
        """The epoch of `snaps`: the newest whose changes are not only logged; 0 without one."""
        return next((closed.epoch for closed in reversed(self.epochs) if not closed.is_logged), NO_EPOCH)

    @property
    def row_count(self) -> int:
        """The number of rows of all steps: those of its newest folded snapshot, those kept for going back, and logged
        changes."""
        kept = sum(closed.superseded_rows for closed in self.epochs if closed.epoch > self.collected)
        kept += sum(closed.logged_rows or 0 for closed in self.epochs)
        return kept + (self.epochs[-1].live_rows if self.epochs else 0)

    @property
    def oldest_epoch(self) -> Epoch:
        """The oldest epoch it can go back to; 0 is the time before the first."""
        return self.collected


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of a recovery directory: its description, or the error with which reading it failed.

    aside: a free name in the directory, under which the file may stay there; "": NAME.aside, which may be taken.
    """

    path: Path
    description: PartitionDescription | None
    error: RecoveryError | None = None
    aside: str = ""


@dataclass(frozen=True, slots=True)
class StepEdit:
    """A change of a step's stored state, made when an execution starts, before any micro-batch.

    `new` is None to drop `old`, another step to rename it, the same step to convert its states in place.
    """

    old: StepId
    new: StepId | None
    convert: Convert | None = None
