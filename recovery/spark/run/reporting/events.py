"""Events that a run reports: its start, micro-batches, closed epochs, a stop; and the summary of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from recovery.base.ids import BatchId, Epoch
from recovery.base.notebooks import html_table
from recovery.epochs.closer import EpochClosed
from recovery.planning.going_back import Discarded
from recovery.planning.lag import InputLag
from recovery.planning.replacement import Replacement
from recovery.planning.replica import ReplicaState
from recovery.planning.resume import ResumePlan
from recovery.planning.sink_work import SinkWork


@dataclass(frozen=True, slots=True)
class Resumed:
    """The execution began, and starts with this epoch. discarded: what its rewind discarded."""

    execution: int
    resume_epoch: Epoch
    plan: ResumePlan
    metrics_url: str | None = None
    discarded: Discarded | None = None


@dataclass(frozen=True, slots=True)
class BatchDone:
    """A micro-batch was processed. rows: those that reached a step; of several steps, the one that saw most.
    keys: states written. duration_s: seconds it took. sink: the work of the sink since the run began; None: the sink
    does not count it. waiting: rows in quarantine after it. `InputCounted` reports how many rows the sources read."""

    batch: BatchId
    epoch: Epoch
    rows: int
    keys: int
    duration_s: float
    sink: SinkWork | None = None
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Stopping:
    """A signal with this number came. The run ends when `batch` is finished; None: no micro-batch is running."""

    signal: int
    batch: BatchId | None


@dataclass(frozen=True, slots=True)
class GoingOn:
    """The execution has ended for something to do before another one starts in the same session. what: as a
    sentence."""

    what: str


@dataclass(frozen=True, slots=True)
class OwnerReplaced:
    """Partitions that no owner had any more came back at other owners, before the execution began."""

    replacement: Replacement


@dataclass(frozen=True, slots=True)
class WaitingForSpark:
    """The run has waited this long. what: for executors, or for a source to say what it has, as a sentence."""

    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class InputCounted:
    """Spark reported how many rows the sources read for a micro-batch. Comes some time after the micro-batch is done,
    and before the next one is."""

    batch: BatchId
    rows: int


@dataclass(frozen=True, slots=True)
class ReplicaChanged:
    """Epochs can no longer be shipped (`replica.problem` says why), or again, without a problem."""

    replica: ReplicaState


@dataclass(frozen=True, slots=True)
class LagSeen:
    """The run has looked at how much input its newest epoch lacks."""

    lag: InputLag


Event = (
    Resumed
    | BatchDone
    | InputCounted
    | EpochClosed
    | Stopping
    | ReplicaChanged
    | WaitingForSpark
    | GoingOn
    | OwnerReplaced
    | LagSeen
)
Observer = Callable[[Event], None]


@dataclass(slots=True)
class RunSummary:
    """What a run did. Counts cover this run only, with all of its executions; rows are those that the sources read.

    discarded: what the requested rewind discarded; None: nothing. replica: what the replica has and lacks at the end;
    None: the run had none. lag: what the newest epoch lacked at the last look at the sources; None: no source says how
    much there is. lost_input: what was left out of each source whose loss was accepted, as text. replaced: the
    partitions that came back because an owner was lost, each time. quarantined: rows in quarantine at the end. skipped:
    why the run did not start Spark (`--if-new-input`); None: it did.
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
    replica: dict[str, Any] | None = None
    lag: dict[str, Any] | None = None
    lost_input: dict[str, str] = field(default_factory=dict)
    replaced: list[dict[str, Any]] = field(default_factory=list)
    quarantined: int = 0
    skipped: str | None = None

    def _repr_html_(self) -> str:
        return html_table(f"flow {self.flow}", [*rows_of(self), ("seconds", round(self.elapsed_s, 1))])


def rows_of(summary: RunSummary) -> list[tuple[str, object]]:
    """Return name and value of what is worth a look."""
    shown = ("directory", "execution", "resume_epoch", "last_epoch", "epochs", "batches", "rows", "states")
    return [(name.replace("_", " "), getattr(summary, name)) for name in shown]
