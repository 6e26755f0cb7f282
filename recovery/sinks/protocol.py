"""What a sink may be: a function, an object with `write`, or one whose output appears epoch by epoch.

An EpochSink takes part in closing an epoch as in a two-phase commit. The commit point is not the sink's: it is that
every recovery partition holds the epoch. In the order in which things happen:

1. `rollback(resume)` when an execution starts: publish what was prepared for epochs that turned out closed, take
   back everything else that goes beyond the snapshot.
2. `write(batch, batch_id)` for each micro-batch: keep it aside, invisible. It may be called again for the same id.
3. `prepare(output)` before the partitions are written: make what belongs to the epoch durable, still invisible. The
   note it returns is saved in the partitions in the transaction that closes the epoch.
4. Every partition holds the epoch.
5. `publish(output)`: make it visible. Only this may be left undone by a crash, and 1 does it then.

The note is what ties output to snapshots: going back to an older snapshot brings back the note of that one. So a
sink that finds its own place by the note is right after a crash, a rewind and a restored backup alike.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from recovery.base.ids import BatchId, Epoch, Lease
from recovery.errors import ConfigurationError
from recovery.planning.timeline import TimelinePart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class BatchContext:
    """What a sink can know of the micro-batch that it is writing: see `current_batch`.

    epoch is the one that the micro-batch will be part of, unless the run dies before closing it.
    """

    batch_id: BatchId
    epoch: Epoch
    execution_number: int
    execution_id: str
    store_id: str
    flow_id: str

    @property
    def app_id(self) -> str:
        """With `version`, names this micro-batch of this execution, and never another content.

        For sinks that skip what they have seen, such as Delta (txnAppId, txnVersion). Another execution has another
        app id, so it skips nothing: what an earlier one wrote since the last closed epoch is written again.
        """
        return f"recovery-{self.store_id}-{self.execution_id}-batch"

    @property
    def version(self) -> int:
        """The micro-batch's number, which only grows under one `app_id`."""
        return self.batch_id


BATCH_BEING_WRITTEN: ContextVar[BatchContext] = ContextVar("current_batch")


def current_batch() -> BatchContext:
    """The micro-batch that the calling sink is writing.

    Only on the thread that called the sink, while it runs. Raises ConfigurationError elsewhere.
    """
    try:
        return BATCH_BEING_WRITTEN.get()
    except LookupError:
        raise ConfigurationError(
            "no micro-batch is being written here",
            cause="current_batch() was called outside a sink, or on a thread that the sink started.",
            remedy="Call it in the sink itself, and hand the values on.",
        ) from None


@dataclass(frozen=True, slots=True)
class EpochOutput:
    """An epoch whose output is to be prepared, or published.

    batch: the last micro-batch of it; everything written by this execution up to it and not yet published belongs to
        the epoch. A later one may have been written already, or be on its way on another thread.
    floor: no run can resume before the epoch behind this one any more: what is only needed to go back below may go.
    """

    epoch: Epoch
    batch: BatchId
    execution: Lease
    store_id: str
    flow_id: str
    floor: Epoch

    @property
    def app_id(self) -> str:
        """With `version`, names this epoch of this execution, and never another content.

        The output of a prepared epoch is fixed, so a sink that publishes under this name can skip what it has seen,
        and be exact: Delta's txnAppId, with `version` as txnVersion.
        """
        return f"recovery-{self.store_id}-{self.execution.id}-epoch"

    @property
    def version(self) -> int:
        """The epoch, which only grows under one `app_id`."""
        return self.epoch


@dataclass(frozen=True, slots=True)
class Resume:
    """Where an execution starts, told to a sink.

    epoch: the resume epoch; closed is what lies below.
    note: what `prepare` returned for the newest closed epoch in which this sink took part, None when there is none.
    timeline: which execution closed which epochs below `epoch`.
    floor: as in `EpochOutput`.
    """

    epoch: Epoch
    note: str | None
    execution: Lease
    store_id: str
    flow_id: str
    floor: Epoch
    timeline: tuple[TimelinePart, ...]

    def closed(self, epoch: int, execution_id: str) -> bool:
        """Whether this execution closed this epoch on the timeline that goes on now."""
        return any(p.execution.id == execution_id and p.first <= epoch <= p.last for p in self.timeline)


@runtime_checkable
class Sink(Protocol):
    """An object with the `write` of a foreachBatch function.

    single_action: True promises that `write` runs the batch exactly once and completely, on the calling thread;
    only then is it given the plan itself instead of a materialised copy.
    """

    single_action: bool

    def write(self, batch: DataFrame, batch_id: int) -> Any:
        """Take one micro-batch. It may come again after a crash."""
        ...


@runtime_checkable
class EpochSink(Sink, Protocol):
    """A sink whose output appears once, with the epoch it belongs to; see the module's docstring.

    Two more methods are called where a sink has them: `check(resume)`, before anything is written anywhere, raises
    what would make `rollback` impossible; `release()` gives back what the sink holds when the run ends.
    """

    def rollback(self, resume: Resume) -> None:
        """Leave visible exactly the output of the closed epochs. Repeatable: a crash halfway calls it again."""
        ...

    def prepare(self, output: EpochOutput) -> str:
        """Make the epoch's output durable; returns a note for the partitions. The epoch may still not be closed."""
        ...

    def publish(self, output: EpochOutput) -> None:
        """Make the output of an epoch visible that is closed now. Repeatable."""
        ...
