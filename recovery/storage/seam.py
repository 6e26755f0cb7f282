"""The seam between Spark and storage: every operation on recovery partitions that a task or the driver uses.

A task sees neither a directory nor a connection, only an address (text) that `connect` turns into a
`PartitionStore`. The partitions are local files, or files of owners on other hosts, which implement the same calls.
Every call is bulk, idempotent and returns values: no cursor and no transaction crosses the seam. A refused lease or
batch (LeaseLostError) is final and never retried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from recovery.base.ids import BatchId, Epoch, Lease, PartitionIndex, StepId
from recovery.base.reserved import quarantined_step
from recovery.planning.measures import ClosedPartition, Measure, StepSize
from recovery.planning.values import Execution, PartitionDescription, StepEdit

FIELD_SEPARATOR = "\x1f"

DriverRows = Mapping[StepId, Mapping[str, str | bytes | None]]
"""Rows of reserved steps, by step and key; None discards a row."""

Keys = tuple[str, ...]
States = dict[PartitionIndex, list[str | None]]
"""States by partition, in the order of the keys that were asked for. None for a key without a state."""

Edited = tuple[str | None, int | None]
"""A value as it is stored, and its timeout in milliseconds since 1970. A value of None discards the key."""


class KeyToErase(NamedTuple):
    """A key to erase with all its history, and with its rows in quarantine. step: None: in every step that has it."""

    step: str | None
    key: str


class HeldRows(NamedTuple):
    """What a partition holds of a key that may be erased: the id under which it is stored, which is that of a step or
    of its quarantine, and the number of rows, of all held epochs. newest: the newest snapshot has some of them. keys:
    the positions of the keys that have some, among those that were asked for."""

    stored: str
    rows: int
    newest: bool
    keys: tuple[int, ...] = ()


class Changes(NamedTuple):
    """A chunk of changed states, packed so that SQLite can unpack them without Python.

    packed: one text per key, "value␟key" or, when `timeouts`, "value␟timeout␟key", with the unit separator
    (U+001F) between. An empty value discards the key; an empty timeout means no timeout.
    key_chars: the length of the keys in characters if all have the same length. Each text is then the key directly
    followed by the value, which SQLite splits in half the time. `key_chars` is 0 for texts as above, and if there are
    timeouts.
    """

    packed: tuple[str, ...]
    timeouts: bool
    key_chars: int = 0


@dataclass(frozen=True, slots=True)
class CloseRequest:
    """One epoch to close in one partition.

    floor: the epoch up to which superseded snapshots may be collected.
    driver_rows: the driver's own values, per step id and key; None discards the key. Each value is looked up once,
        when it is written, so a mapping may read it lazily.
    logged: append the epoch's changes to the partition's log; `fold` is called later. Only without edits.
    state_rows: edited states, per step id and key: value and timeout; None discards the key.
    notes_made: note the keys that the epoch makes, for which nothing is superseded. By these notes, backups find new
    keys without a scan of the state.
    """

    epoch: Epoch
    batch: BatchId
    closed_ms: int
    clock_ms: int
    floor: Epoch
    driver_rows: DriverRows
    edits: Sequence[StepEdit] = ()
    state_rows: Mapping[StepId, Mapping[str, Edited]] = field(default_factory=dict)
    logged: bool = False
    notes_made: bool = False


class Collected(NamedTuple):
    """The result of collecting in one partition: the number of superseded rows that were deleted, and of logged changes
    that were folded."""

    rows: int
    changes: int


class BatchCount(NamedTuple):
    """What the tasks of one micro-batch did.

    rows: input rows seen. keys: keys written. row_bytes: average size of a row in Arrow, in the batch of rows with the
    largest average. looked_up: keys looked up. seam_s: seconds that tasks spent in storage, summed over the tasks.
    waiting: rows put into quarantine, less those that left it. A quarantine's `rows` are those put there.
    """

    rows: int
    keys: int
    row_bytes: int = 0
    looked_up: int = 0
    seam_s: float = 0.0
    waiting: int = 0


def added_up(counts: Iterable[BatchCount]) -> BatchCount:
    """Return what the tasks of a step did, given what those of some partitions did."""
    every = list(counts)
    return BatchCount(
        sum(count.rows for count in every),
        sum(count.keys for count in every),
        max((count.row_bytes for count in every), default=0),
        sum(count.looked_up for count in every),
        sum(count.seam_s for count in every),
        sum(count.waiting for count in every),
    )


def of_all_steps(counts: Mapping[StepId, BatchCount]) -> BatchCount:
    """Return what the tasks of all steps did. Steps in a chain see the same rows again, so `rows` is that of the step
    that saw most."""
    seen = (count.rows for step, count in counts.items() if quarantined_step(step) is None)
    return added_up(counts.values())._replace(rows=max(seen, default=0))


class TaskStore(Protocol):
    """The operations of a task. One object serves one task, and is released at the task's end at the latest.

    A call covers all partitions that a task needs it for: on a cluster it crosses the network once.
    """

    def read(self, step: StepId, batch: BatchId, wanted: Mapping[PartitionIndex, Keys]) -> States:
        """Return the stored states of the keys of each partition before `batch`, in the order of the keys, even if
        `batch` was already applied."""
        ...

    def apply(
        self,
        step: StepId,
        batch: BatchId,
        changes: Mapping[PartitionIndex, Iterable[Changes]],
        count: BatchCount,
    ) -> None:
        """Record what `batch` changed, in one transaction for each partition, in the order of their numbers. Replaces
        an earlier apply of the same batch in these partitions completely, also where there are no changes.

        count: of the task. The count is recorded with the first partition, because counts are added up.
        """
        ...

    def gathered(self, step: StepId, batch: BatchId, *, note: bool) -> bool:
        """Return whether a task that does the work of all partitions has already begun `batch`. note: record that such
        a task begins now."""
        ...

    def withdraw(self, step: StepId, batch: BatchId, partitions: Collection[PartitionIndex]) -> None:
        """Undo everything applied for `batch`, in one transaction for each partition."""
        ...

    def due(
        self, step: StepId, batch: BatchId, partitions: Collection[PartitionIndex], up_to_ms: int
    ) -> dict[PartitionIndex, list[str]]:
        """Return the keys of each partition whose timeout, before `batch`, is at or before `up_to_ms`; sorted."""
        ...

    def release(self) -> None:
        """Close everything the object holds open. A later call opens what was released again."""
        ...


class PartitionStore(Protocol):
    """The operations of the driver."""

    partition_count: int

    def describe(self) -> list[PartitionDescription]:
        """Return the description of every partition."""
        ...

    def prepare(self, execution: Execution) -> Path:
        """Create and return the scratch directory of an execution that is about to begin. Preparing changes nothing
        else: `start` removes the scratch directories that earlier executions left."""
        ...

    def start(
        self,
        execution: Execution,
        steps: Sequence[StepId],
        planned: Sequence[PartitionDescription] = (),
        *,
        keeps_log: bool = False,
        erases: Sequence[KeyToErase] = (),
    ) -> None:
        """Begin an execution: abandon everything at or above its resume epoch, and fold what is logged. Safe to repeat.

        planned: the partitions as the plan saw them. keeps_log: what is logged stays so, and counts as touched since
        the last fold. Then the first epoch has to be logged, too, unless everything is folded before. erases: keys of
        which the partitions hold nothing afterwards, at no epoch: all rows of a key go with one transaction, which
        records the execution. `scrub` removes what the files still have of them. Raises LeaseLostError when a later
        execution began, or an epoch was closed since planning: `start` never abandons an epoch that the plan does not
        know.
        """
        ...

    def address(self, lease: Lease) -> str:
        """Return the address at which tasks of this execution reach the partitions."""
        ...

    def open(self, lease: Lease, batch: BatchId) -> None:
        """Refuse, from now on, everything that batches earlier than `batch` still apply. A later batch may already be
        running. Raises LeaseLostError, and FileReplacedError when a file is no longer in its place."""
        ...

    def check(self, lease: Lease) -> None:
        """Check that every open file is still in its place, where the next run will look for it.

        `open` and `close` make the same check. Takes microseconds. Raises FileReplacedError, or LeaseLostError when a
        successor removed the file.
        """
        ...

    def seal(self, lease: Lease, batch: BatchId, *, apart: bool = True) -> None:
        """Refuse everything that `batch` and earlier ones still apply, and seal what they wrote: the epoch's content.

        apart: set the content aside, together with what earlier epochs have only logged, so that it can be moved or
        folded. Content that is not set apart can only be logged. Quick, whatever the amount of content. Micro-batches
        may continue when `seal` has returned. The next seal waits until `close`, and `fold` if it is called, have
        returned. Sealing the same batch again changes nothing, except that it may set the content aside.
        """
        ...

    def close(self, lease: Lease, requests: Sequence[CloseRequest]) -> list[ClosedPartition]:
        """Close an epoch: one request per partition, in parallel, each in one transaction. Seals the epoch's last
        micro-batch if that was not done. Micro-batches may continue meanwhile, on other threads.

        Returns what was done in each partition. Skips a partition in which this execution has already closed the
        epoch. When `close` returns, the epoch is durable in every partition, in the file that has the partition's name.
        Raises LeaseLostError and FileReplacedError.
        """
        ...

    def fold(self, lease: Lease, epoch: Epoch, floor: Epoch) -> list[Mapping[str, StepSize]]:
        """Move all logged changes into the snapshots. `epoch` is closed in all partitions, and the newest one; epochs
        before `floor` are not held afterwards. Partitions are folded in parallel, each in one transaction. Logged
        content must have been set apart (see `seal`). Micro-batches may continue meanwhile. Returns the size of each
        step in each partition. Repeatable. Raises LeaseLostError.
        """
        ...

    def scrub(self) -> None:
        """Rewrite every file, and empty its log, so that no byte of deleted rows is left in them; remove older copies
        that lie beside. Nobody else may write. Repeatable. Raises StorageError if a reader keeps a log from being
        emptied."""
        ...

    def collect(self, floor: Epoch) -> list[Collected]:
        """Collect in each partition up to `floor`, an epoch that all have closed, fold the log if `floor` is the newest
        epoch, and give space back to the file system. Must not be called during a run."""
        ...

    def begin_input(self, lease: Lease, content: str) -> None:
        """Store, in every partition, where the input begins. When `begin_input` returns, the position is durable in all
        partitions.

        The position does not belong to an epoch, so no rewind removes it. Must not run during `close`. Repeatable.
        Raises LeaseLostError.
        """
        ...

    def beginning(self) -> str | None:
        """Return where the input begins: the last content given to `begin_input`, or None if it was never called. One
        partition that has the beginning is enough. Raises CorruptPartitionError."""
        ...

    def checkpoint(self) -> None:
        """Move write-ahead logs that have become long into the files, as far as no reader is in the way. Never
        waits."""
        ...

    def record(self, measure: Measure) -> None:
        """Store a measure, which no rewind removes. Does not wait for the disk; the next `close` does. Must not
        run during `close`."""
        ...

    def counts(self, lease: Lease, batch: BatchId) -> BatchCount:
        """Return what was applied for a batch so far, in all steps and partitions together."""
        ...

    def counts_of_steps(self, batch: BatchId) -> dict[StepId, BatchCount]:
        """Return what was applied for a batch so far, in all partitions together, by step; quarantines are steps of
        their own."""
        ...

    def next_due_ms(self, lease: Lease, steps: Collection[StepId] | None = None) -> int | None:
        """Return the earliest timeout of any key in these steps, or in all steps by default. None if no key has a
        timeout."""
        ...

    def driver_values(self, step: StepId, resume_epoch: Epoch | None = None) -> dict[str, str | bytes]:
        """Return the newest closed values of a reserved step, or those that an execution from `resume_epoch` starts
        with."""
        ...

    def driver_rows(
        self, step: StepId, resume_epoch: Epoch | None = None
    ) -> Generator[tuple[str, str | bytes], None, None]:
        """Yield key and value of each row of any step, one value at a time, in no particular order. The values need not
        fit in memory. Closing the generator early ends its read transaction."""
        ...

    def known_steps(self, resume_epoch: Epoch | None = None) -> set[StepId]:
        """Return the step ids that have state in any partition, reserved ones included: now, or when an execution
        starts at `resume_epoch`."""
        ...

    def release(self) -> None:
        """Close connections and remove scratch files."""
        ...


class FencingStore(PartitionStore, Protocol):
    """A store whose partitions are all in one directory."""

    def fence(self, plan: Callable[[Sequence[PartitionDescription]], Execution]) -> Execution:
        """Begin the execution that `plan` returns for the partitions, while another execution may be closing epochs.
        Return it.

        An epoch that the other execution closes is either seen by `plan` or refused everywhere. If `plan` raises,
        nothing changes and the other execution continues.
        """
        ...
