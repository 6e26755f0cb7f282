"""What a partition store in memory holds: partitions, and the deltas of an execution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from recovery.base.ids import NO_BATCH, NO_EPOCH, BatchId, Epoch, Lease, PartitionIndex, StepId
from recovery.base.reserved import RESERVED_PREFIX
from recovery.errors import CorruptPartitionError, LeaseLostError
from recovery.planning.measures import ClosedPartition, StepSize
from recovery.planning.values import ClosedEpoch, Execution, PartitionDescription, StepEdit
from recovery.storage.seam import FIELD_SEPARATOR, BatchCount, Changes, CloseRequest, KeyToErase
from recovery.storage.sqlite.erase import ErasedKeys

State = tuple[str | bytes, int | None]
"""A value and its timeout."""

Touched = dict[str, State | None]
"""Changes by key; None discards the key."""

Snapshot = dict[StepId, dict[str, State]]
"""All states of one partition."""


@dataclass
class Delta:
    """What micro-batches changed in one step and partition since the last closed epoch, by micro-batch."""

    open_batch: BatchId = NO_BATCH
    closed_batch: BatchId = NO_BATCH
    applied_batch: BatchId = NO_BATCH
    pending: bool = False
    """Whether the content sealed last is not set apart."""
    apart: bool = False
    """Whether content is set apart. It must be moved before the next seal."""
    changes: dict[BatchId, Touched] = field(default_factory=dict)
    counts: dict[BatchId, BatchCount] = field(default_factory=dict)
    attempts: dict[BatchId, int] = field(default_factory=dict)
    """The greatest number of an attempt that has written."""

    def attempted(self, batch: BatchId, attempt: int) -> None:
        """Note an attempt that writes. Raise LeaseLostError if a later one has written."""
        if attempt and attempt < self.attempts.get(batch, 0):
            raise LeaseLostError(f"attempt {attempt} of a task of micro-batch {batch} is over", path="")
        self.attempts[batch] = max(attempt, self.attempts.get(batch, 0))

    def check(self, batch: BatchId) -> None:
        """Raise LeaseLostError for a micro-batch that is over."""
        if batch < self.open_batch or batch <= self.closed_batch or batch < self.applied_batch:
            raise LeaseLostError(f"micro-batch {batch} is over", path="")

    def seal(self, batch: BatchId, apart: bool) -> None:
        """See `PartitionStore.seal`."""
        assert not self.apart or batch <= self.closed_batch, "the content set apart before was not moved yet"
        if batch > self.closed_batch or (apart and self.pending):
            # The real store keeps one value before the newest, so the fake must not allow more.
            assert self.applied_batch <= batch + 1, f"{self.applied_batch} was applied: what {batch} left is not known"
        if batch > self.closed_batch:
            self.closed_batch, self.pending = batch, True
        if apart and self.pending:
            self.apart, self.pending = True, False

    def touched(self, last: BatchId | None = None) -> Touched:
        """Return the newest change of each key, of the micro-batches up to `last`, or of all."""
        found: Touched = {}
        for batch in sorted(self.changes):
            if last is None or batch <= last:
                found |= self.changes[batch]
        return found

    def forget(self, last: BatchId) -> None:
        """Remove the changes of micro-batches up to `last`, which are in a snapshot now."""
        self.changes = {batch: changes for batch, changes in self.changes.items() if batch > last}


@dataclass
class Scratch:
    """What need not survive an execution: its deltas, and the micro-batches that one task has begun for all partitions.

    path: an empty directory on disk, for files of the driver."""

    lease: Lease
    path: Path
    deltas: dict[StepId, list[Delta]] = field(default_factory=dict)
    gathered: set[tuple[StepId, BatchId]] = field(default_factory=set)


@dataclass
class Partition:
    """One partition: what a file of the real store holds."""

    path: Path
    index: int
    count: int
    flow_id: str | None = None
    collected: Epoch = NO_EPOCH
    executions: list[Execution] = field(default_factory=list)
    epochs: list[ClosedEpoch] = field(default_factory=list)
    snapshots: dict[Epoch, Snapshot] = field(default_factory=lambda: {NO_EPOCH: {}})
    beginning: tuple[int, str, str] | None = None
    """Number and id of the execution that found where the input begins, and the position."""

    @property
    def newest(self) -> ClosedEpoch | None:
        return self.epochs[-1] if self.epochs else None

    @property
    def newest_epoch(self) -> Epoch:
        return self.epochs[-1].epoch if self.epochs else NO_EPOCH

    @property
    def folded_epoch(self) -> Epoch:
        return max((each.epoch for each in self.epochs if not each.is_logged), default=NO_EPOCH)

    def describe(self) -> PartitionDescription:
        return PartitionDescription(
            path=self.path,
            index=PartitionIndex(self.index),
            count=self.count,
            store_id=self.path.parent.name,
            flow_id=self.flow_id,
            collected=self.collected,
            executions=tuple(self.executions),
            epochs=tuple(self.epochs),
            size_bytes=0,
        )

    def snapshot(self, resume_epoch: Epoch | None = None) -> Snapshot:
        """Return the newest snapshot, or the one that an execution from `resume_epoch` finds."""
        last = self.newest_epoch if resume_epoch is None else resume_epoch - 1
        return self.snapshots.get(max((epoch for epoch in self.snapshots if epoch <= last), default=NO_EPOCH), {})

    def sizes(self) -> dict[str, StepSize]:
        """Return the size of each step in the newest folded snapshot."""
        steps = self.snapshots.get(self.folded_epoch, {})
        return {step: StepSize(len(states), _size(states)) for step, states in steps.items() if states}

    def check(self, lease: Lease) -> None:
        """Raise LeaseLostError if a later execution began."""
        if not self.executions or self.executions[-1].lease != lease:
            raise LeaseLostError(f"execution {lease.number} may not write any more: a later one began", path=self.path)

    def start(
        self, execution: Execution, planned: PartitionDescription | None, erases: Sequence[KeyToErase] = ()
    ) -> None:
        """Begin an execution: abandon everything at or above its resume epoch, fold, and erase keys at every epoch."""
        newest = self.executions[-1] if self.executions else None
        if newest is not None and newest.lease == execution.lease:
            return
        if newest is not None and newest.number >= execution.number:
            raise LeaseLostError(f"execution {newest.number} began before {execution.number}", path=self.path)
        if planned is not None and self.newest != planned.newest:
            raise LeaseLostError("an epoch was closed since this was planned", path=self.path)
        last = min(self.newest_epoch, execution.resume_epoch - 1)
        if execution.resume_epoch <= self.collected or last != execution.resume_epoch - 1:
            raise CorruptPartitionError(f"it cannot start at epoch {execution.resume_epoch}", path=self.path)
        self.epochs = [each for each in self.epochs if each.epoch <= last]
        self.snapshots = {epoch: states for epoch, states in self.snapshots.items() if epoch <= last}
        self.fold(self.collected if execution.backup_interval_s or execution.erases else Epoch(last))
        for states in (states for steps in self.snapshots.values() for states in steps.items()):
            for key in [key for key in states[1] if ErasedKeys(erases).has(states[0], key)]:
                del states[1][key]
        self.epochs = [
            replace(each, live_rows=sum(map(len, self.snapshots[each.epoch].values()))) if erases else each
            for each in self.epochs
        ]
        self.executions.append(execution)
        self.flow_id = execution.flow_id

    def close(self, lease: Lease, request: CloseRequest, deltas: Mapping[StepId, Delta]) -> ClosedPartition:
        """Close an epoch: write what the deltas and the request changed."""
        self.check(lease)
        newest = self.newest
        if newest is not None and newest.cut == (request.epoch, lease.id, request.batch):
            return ClosedPartition(newest.written, newest.written, 0, 0, 0.0, self.sizes())
        if self.newest_epoch != request.epoch - 1:
            raise CorruptPartitionError(
                f"it cannot close epoch {request.epoch}: its newest is {self.newest_epoch}", path=self.path
            )
        assert not (request.logged and (request.edits or request.state_rows)), "an epoch that edits cannot be logged"
        collected = 0
        if not request.logged:
            self.fold(request.floor)
            collected = self.collect(request.floor)
        before = self.snapshot()
        changed = _changed(request, deltas)
        after = written_over(before, changed)
        for edit in request.edits:
            edited = _edited(edit, after)
            after = written_over(after, edited)
            changed |= edited
        written = {
            step: {key: state for key, state in changes.items() if state is not None}
            for step, changes in changed.items()
        }
        count = sum(map(len, written.values()))
        replaced = sum(key in before.get(step, {}) for step, changes in changed.items() for key in changes)
        folded = next((each for each in self.epochs if each.epoch == self.folded_epoch), None)
        self.snapshots[request.epoch] = after
        self.epochs.append(
            ClosedEpoch(
                epoch=request.epoch,
                execution=lease,
                batch_id=request.batch,
                closed_ms=request.closed_ms,
                clock_ms=request.clock_ms,
                written=count,
                live_rows=(folded.live_rows if folded else 0) if request.logged else sum(map(len, after.values())),
                live_digest=0,
                superseded_rows=0 if request.logged else replaced,
                superseded_digest=0,
                logged_rows=sum(map(len, changed.values())) if request.logged else None,
                logged_digest=0 if request.logged else None,
            )
        )
        for delta in deltas.values():
            delta.forget(request.batch)
        counted = [step for step in (deltas if request.logged else written) if not step.startswith(RESERVED_PREFIX)]
        states_written = sum(len(written[step]) for step in counted)
        return ClosedPartition(states_written, count, sum(map(_size, written.values())), collected, 0.0, self.sizes())

    def fold(self, floor: Epoch) -> int:
        """Keep nothing before `floor` if the newest epoch is only logged. Return the number of logged changes."""
        newest = self.newest
        if newest is None or not newest.is_logged:
            return 0
        changes = sum(each.logged_rows or 0 for each in self.epochs)
        for number, each in enumerate(self.epochs):
            if each.is_logged:
                rows = sum(map(len, self.snapshots[each.epoch].values()))
                self.epochs[number] = replace(each, live_rows=rows, logged_rows=None, logged_digest=None)
        self.collect(min(floor, newest.epoch))
        return changes

    def collect(self, floor: Epoch) -> int:
        """Remove the snapshots below `floor`. Return the number of superseded rows that are given up."""
        if floor <= self.collected:
            return 0
        assert floor <= self.newest_epoch, f"epoch {floor} was not closed: the newest is {self.newest_epoch}"
        floor = min(floor, self.folded_epoch)
        given_up = sum(each.superseded_rows for each in self.epochs if self.collected < each.epoch <= floor)
        self.epochs = [each for each in self.epochs if each.epoch >= floor]
        self.snapshots = {epoch: states for epoch, states in self.snapshots.items() if epoch >= floor}
        self.collected = floor
        return given_up


def unpacked(chunk: Changes) -> Iterator[tuple[str, State | None]]:
    """Yield the changes of a chunk."""
    for text in chunk.packed:
        timeout = ""
        if chunk.key_chars:
            key, value = text[: chunk.key_chars], text[chunk.key_chars :]
        elif chunk.timeouts:
            value, timeout, key = text.split(FIELD_SEPARATOR, 2)
        else:
            value, key = text.split(FIELD_SEPARATOR, 1)
        yield key, (value, int(timeout) if timeout else None) if value else None


def states_of(partition: Partition, step: StepId, touched: Touched) -> dict[str, State]:
    """Return the states of a step: those of the newest snapshot, with changes over them."""
    return written_over(partition.snapshot(), {step: touched}).get(step, {})


def _changed(request: CloseRequest, deltas: Mapping[StepId, Delta]) -> dict[StepId, Touched]:
    """Return what an epoch changed, without its edits."""
    changed = {step: delta.touched(request.batch) for step, delta in deltas.items()}
    for step, values in request.driver_rows.items():
        changed[step] = {key: None if value is None else (value, None) for key, value in values.items()}
    for step, states in request.state_rows.items():
        changed[step] = {key: None if value is None else (value, at) for key, (value, at) in states.items()}
    return changed


def written_over(snapshot: Snapshot, changed: Mapping[StepId, Touched]) -> Snapshot:
    """Return a new snapshot: this one with changes."""
    new = {step: dict(states) for step, states in snapshot.items()}
    for step, changes in changed.items():
        states = new.setdefault(step, {})
        for key, state in changes.items():
            if state is not None:
                states[key] = state
            else:
                states.pop(key, None)
    return new


def _edited(edit: StepEdit, snapshot: Snapshot) -> dict[StepId, Touched]:
    """Return the changes that drop, rename or convert a step."""
    states, convert = snapshot.get(edit.old, {}), edit.convert
    changes: dict[StepId, Touched] = {edit.old: dict.fromkeys(states)}
    if edit.new is not None:
        new: Touched = {}
        for key, (value, timeout_ms) in states.items():
            converted = convert(key, str(value)) if convert is not None else value
            new[key] = None if converted is None else (converted, timeout_ms)
        changes[edit.new] = new
    return changes


def _size(states: Mapping[str, State]) -> int:
    """Return the bytes of keys and values."""
    return sum(len(key.encode()) + len(_encoded(value)) for key, (value, _) in states.items())


def _encoded(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
