"""The seam between Spark and storage: everything a task or the driver asks of recovery partitions.

A task sees neither a directory nor a connection, only an address (text) that `connect` turns into a
`PartitionStore`. Today that means files of this machine; another machine's owner process can stand behind the same
calls. Every call is bulk, idempotent and returns values: no cursor and no transaction crosses the seam.
A refused lease or batch (LeaseLostError) is final and never retried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from recovery.base.ids import BatchId, Epoch, Lease, PartitionIndex, StepId
from recovery.planning.measures import ClosedPartition, Measure, StepSize
from recovery.planning.values import Execution, PartitionDescription, StepEdit

FIELD_SEPARATOR = "\x1f"


class Changes(NamedTuple):
    """A chunk of changed states, packed so that SQLite unpacks them without Python.

    packed: one text per key, "value␟key" or, when `timeouts`, "value␟timeout␟key", with the unit separator
    (U+001F) between; an empty value discards the key, an empty timeout is none.
    key_chars: the keys' length in characters where all have the same; then a text is the key and, at once, the value,
    which SQLite takes apart in half the time. It is 0 for texts as above, and where there are timeouts.
    """

    packed: tuple[str, ...]
    timeouts: bool
    key_chars: int = 0


@dataclass(frozen=True, slots=True)
class CloseRequest:
    """One epoch to close in one partition.

    floor: the epoch up to which superseded snapshots may be collected.
    driver_rows: values of the driver's own, per step id and key; None discards the key. A value is asked for once,
        when it is written, so that a mapping may read it then.
    logged: its changes are appended to the partition's log, and `fold` is called later; without edits only.
    state_rows: states that were edited, per step id and key: value and timeout; None discards the key.
    """

    epoch: Epoch
    batch: BatchId
    closed_ms: int
    clock_ms: int
    floor: Epoch
    driver_rows: Mapping[StepId, Mapping[str, str | bytes | None]]
    edits: Sequence[StepEdit] = ()
    state_rows: Mapping[StepId, Mapping[str, tuple[str | None, int | None]]] = field(default_factory=dict)
    logged: bool = False


class BatchCount(NamedTuple):
    """What the tasks of one micro-batch did: input rows seen, keys written; the bytes of a row as Arrow has it, on
    average over the batch of rows in which that is most; keys looked up, and the seconds that storage took of the
    tasks for all of it, added up."""

    rows: int
    keys: int
    row_bytes: int = 0
    looked_up: int = 0
    seam_s: float = 0.0


class TaskStore(Protocol):
    """What a task may ask. One object serves one task, and is released at its end at the latest."""

    def read(self, step: StepId, partition: PartitionIndex, batch: BatchId, keys: tuple[str, ...]) -> list[str | None]:
        """The stored states of `keys` before `batch`, in their order, even when the batch was already applied."""
        ...

    def apply(
        self,
        step: StepId,
        partition: PartitionIndex,
        batch: BatchId,
        changes: Iterable[Changes],
        count: BatchCount,
    ) -> None:
        """Record what `batch` changed, in one transaction; replaces an earlier apply of the same batch whole."""
        ...

    def gathered(self, step: StepId, batch: BatchId, *, note: bool) -> bool:
        """Whether a task that does the work of all partitions has begun on `batch` before. note: one begins now."""
        ...

    def withdraw(self, step: StepId, partition: PartitionIndex, batch: BatchId) -> None:
        """Undo what was applied of `batch`, in one transaction."""
        ...

    def due(self, step: StepId, partition: PartitionIndex, batch: BatchId, up_to_ms: int) -> list[str]:
        """The keys whose timeout, before `batch`, is at or before `up_to_ms`; sorted."""
        ...

    def release(self) -> None:
        """Give back what the object holds open. Asked again, it opens anew."""
        ...


class PartitionStore(Protocol):
    """What the driver may ask."""

    partition_count: int

    def describe(self) -> list[PartitionDescription]:
        """What every partition says of itself."""
        ...

    def prepare(self, execution: Execution) -> Path:
        """Make the scratch directory of an execution that is about to begin, and remove what others left; returns it.
        Nothing of the partitions changes."""
        ...

    def start(
        self, execution: Execution, steps: Sequence[StepId], planned: Sequence[PartitionDescription] = ()
    ) -> None:
        """Begin an execution: abandon everything at or above its resume epoch. Safe to repeat.

        planned: the partitions as the plan saw them. Raises LeaseLostError when a later execution began, or an epoch
        was closed since: no epoch that the plan does not know is abandoned.
        """
        ...

    def address(self, lease: Lease) -> str:
        """Where tasks of this execution reach the partitions."""
        ...

    def open(self, lease: Lease, batch: BatchId) -> None:
        """Refuse what earlier batches still apply from now on; a later one may already be under way. Raises
        LeaseLostError, and FileReplacedError when a file is not in its place any more."""
        ...

    def check(self, lease: Lease) -> None:
        """Whether everything that is open is in its place, where the next run will look for it. `open` and `close` ask
        it too. Takes microseconds. Raises FileReplacedError, or LeaseLostError when a successor took it away."""
        ...

    def seal(self, lease: Lease, batch: BatchId, *, apart: bool = True) -> None:
        """Refuse what `batch` and earlier ones still apply, and take hold of what they left: the epoch's content.

        apart: set it aside, with what earlier epochs have only logged, to be moved or folded. Otherwise it can only be
        logged. Quick, whatever is held; micro-batches may go on as soon as it returns. The next one to be sealed waits
        until `close`, and `fold` if it is called, have returned. Sealing the same batch again changes nothing, but that
        its content may be set aside.
        """
        ...

    def close(self, lease: Lease, requests: Sequence[CloseRequest]) -> list[ClosedPartition]:
        """Close an epoch, one request per partition, all at once; each in one transaction. Seals its micro-batch
        if that was not done. Micro-batches may go on meanwhile, on other threads.

        Returns what was done in each partition. A partition that this execution closed it in already is left
        as it is. When it returns, the epoch is durable in every partition, in the file that has its name. Raises
        LeaseLostError and FileReplacedError.
        """
        ...

    def fold(self, lease: Lease, epoch: Epoch) -> list[Mapping[str, StepSize]]:
        """Move what is logged to where it belongs, up to an epoch that is closed in all partitions and the newest one;
        earlier ones are not held any more. All partitions at once, each in one transaction. What is logged has to be
        set apart (see `seal`). Micro-batches may go on meanwhile. Returns the size of each step in each partition.
        Repeatable. Raises LeaseLostError.
        """
        ...

    def begin_input(self, lease: Lease, content: str) -> None:
        """Keep, in every partition, where the input begins. When it returns, it is durable in all of them. It is no
        part of an epoch: no rewind takes it back. Not while `close` goes on. Repeatable. Raises LeaseLostError."""
        ...

    def beginning(self) -> str | None:
        """Where the input begins, as `begin_input` was last given it; None when it never was. One partition that has it
        is enough. Raises CorruptPartitionError."""
        ...

    def checkpoint(self) -> None:
        """Move what closing left in logs to where it belongs, as far as no reader is in the way. Never waits."""
        ...

    def record(self, measure: Measure) -> None:
        """Keep what was measured: a fact that no rewind takes back. Does not wait for the disk; the `checkpoint` after
        it does. Not while `close` goes on."""
        ...

    def counts(self, lease: Lease, batch: BatchId) -> BatchCount:
        """What was applied of a batch so far, all steps and partitions together."""
        ...

    def next_due_ms(self, lease: Lease, steps: Collection[StepId] | None = None) -> int | None:
        """The earliest timeout of any key of these steps, of all where none are named; None when there is none."""
        ...

    def driver_values(self, step: StepId, resume_epoch: Epoch | None = None) -> dict[str, str | bytes]:
        """The newest closed values of a reserved step, or those that an execution from `resume_epoch` starts with."""
        ...

    def driver_rows(self, step: StepId, resume_epoch: Epoch | None = None) -> Iterator[tuple[str, str | bytes]]:
        """The same of any step, one at a time and in no particular order: values that need not fit in memory."""
        ...

    def known_steps(self, resume_epoch: Epoch | None = None) -> set[StepId]:
        """The step ids that have state in any partition, reserved ones included: now, or when an execution starts at
        `resume_epoch`."""
        ...

    def release(self) -> None:
        """Give back connections and scratch files."""
        ...
