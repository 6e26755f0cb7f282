"""The driver's store of partitions that are spread over hosts: files of its own directory, and those of owners.

Every operation goes to all locations at the same time, and returns when the last of them has answered. So an epoch is
closed when every owner has said that its partitions have it, as with files: the closing protocol is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from recovery.base.ids import NO_EPOCH, BatchId, Epoch, Lease, PartitionIndex, StepId
from recovery.errors import LeaseLostError, OwnerUnreachableError
from recovery.planning.measures import ClosedPartition, Measure, StepSize
from recovery.planning.values import Execution, PartitionDescription, StepEdit
from recovery.storage.reach import spread_address
from recovery.storage.seam import BatchCount, CloseRequest, Collected, Edited, KeyToErase, added_up, of_all_steps
from recovery.storage.sqlite.store import FilePartitions, epoch_of
from recovery.values.keys import home_of
from recovery.wire.address import owner_address
from recovery.wire.calls import (
    CONVERTED,
    DRIVER,
    EDITED,
    BegunExecution,
    Closing,
    Edit,
    OwnerCalls,
    PartitionCalls,
    RowsAhead,
)
from recovery.wire.run_client import Owner

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

PART_BYTES = 8 << 20
"""The most bytes of rows that are sent ahead of a close in one call."""
ROW_BYTES = 16
"""About what a row takes besides key and value."""


class SentAhead:
    """The rows of one epoch on their way to an owner. Rows that are too many for the message of the close go ahead in
    parts."""

    def __init__(self, owner: Owner, epoch: Epoch) -> None:
        self.parts: Counter[PartitionIndex] = Counter()
        """How many were sent for each partition."""
        self._owner = owner
        self._epoch = epoch
        self._rows: dict[tuple[PartitionIndex, str, StepId], list[tuple[str, Any, int | None]]] = {}
        self._size_bytes = 0

    def add(
        self, index: PartitionIndex, what: str, step: StepId, key: str, value: str | bytes | None,
        timeout_ms: int | None = None,
    ) -> None:  # fmt: skip
        """Add a row; see `RowsAhead`."""
        self._rows.setdefault((index, what, step), []).append((key, value, timeout_ms))
        self._size_bytes += len(key) + len(value or "") + ROW_BYTES
        if self._size_bytes > PART_BYTES:
            for (to, kind, of), rows in self._rows.items():
                self._owner.ask(OwnerCalls.give, self._epoch, RowsAhead(to, kind, of, rows))
                self.parts[to] += 1
            self._rows, self._size_bytes = {}, 0

    def left(self, index: PartitionIndex, what: str, step: StepId) -> Iterator[tuple[str, Any]]:
        """Yield key and value of the rows that were not sent."""
        return ((key, value) for key, value, _ in self._rows.get((index, what, step), ()))

    def left_states(self, index: PartitionIndex, step: StepId) -> dict[str, Edited]:
        """Return the edited states that were not sent."""
        return {key: (text, timeout_ms) for key, text, timeout_ms in self._rows.get((index, EDITED, step), ())}


class OwnerPartitions:
    """The partitions of an owner that a run holds. What they return for each partition is in the order of `indexes`, as
    for a share of the store in `FilePartitions`."""

    def __init__(self, owner: Owner, store_id: str, indexes: Sequence[PartitionIndex], count: int) -> None:
        """Open the partitions at the owner."""
        self.indexes = tuple(indexes)
        self._owner = owner
        self._store_id = store_id
        self._count = count
        owner.ask(OwnerCalls.take, store_id, list(indexes), count)

    def ask(self, call: Callable[Concatenate[PartitionCalls, P], R], *arguments: P.args, **named: P.kwargs) -> R:
        """Make a call for these partitions."""
        return self._owner.ask(call, *arguments, **named)

    def describe(self) -> list[PartitionDescription]:
        return [at_owner(self._owner, each) for each in self.ask(PartitionCalls.describe)]

    def begin(
        self,
        execution: Execution,
        planned: Mapping[PartitionIndex, PartitionDescription | None],
        keeps_log: bool,
        erases: Sequence[KeyToErase],
    ) -> None:
        self._owner.begun = BegunExecution(self._store_id, execution.lease)
        self.ask(PartitionCalls.begin, execution, planned, keeps_log, erases)

    def make_deltas(self, execution: Execution, steps: Sequence[StepId]) -> None:
        self._owner.ask(OwnerCalls.make_deltas, execution, list(steps))

    def address(self, lease: Lease) -> str:
        at = self._owner.address
        return owner_address(
            self._owner.location, lease, self._count, deadline_s=at.deadline_s, tls_ca_pem=at.tls_ca_pem
        )

    def close(self, lease: Lease, requests: Sequence[CloseRequest]) -> list[ClosedPartition]:
        # An owner may have none of the partitions.
        ahead = SentAhead(self._owner, requests[0].epoch if requests else NO_EPOCH)
        for index, request in zip(self.indexes, requests, strict=True):
            for step, values in request.driver_rows.items():
                for key, value in values.items():
                    ahead.add(index, DRIVER, step, key, value)
            for step, states in request.state_rows.items():
                for key, (text, timeout_ms) in states.items():
                    ahead.add(index, EDITED, step, key, text, timeout_ms)
        for edit in requests[0].edits if requests else ():
            self._convert(edit, ahead)
        given = [
            Closing(
                request.epoch,
                request.batch,
                request.closed_ms,
                request.clock_ms,
                request.floor,
                {step: dict(ahead.left(index, DRIVER, step)) for step in request.driver_rows},
                [
                    Edit(each.old, each.new, each.convert and dict(ahead.left(index, CONVERTED, each.old)))
                    for each in request.edits
                ],
                {step: ahead.left_states(index, step) for step in request.state_rows},
                request.logged,
                request.notes_made,
                ahead.parts[index],
            )
            for index, request in zip(self.indexes, requests, strict=True)
        ]
        return self._owner.ask(OwnerCalls.close, lease, given)

    def _convert(self, edit: StepEdit, ahead: SentAhead) -> None:
        """Convert an edited step. A function cannot be sent: each partition gets what comes out for its keys."""
        if edit.convert is None:
            return
        with closing(self.driver_rows(edit.old)) as rows:
            for key, text in rows:
                assert isinstance(text, str)
                ahead.add(home_of(edit.old, self._count, key), CONVERTED, edit.old, key, edit.convert(key, text))

    def driver_rows(
        self, step: StepId, resume_epoch: Epoch | None = None
    ) -> Generator[tuple[str, str | bytes], None, None]:
        with closing(self._owner.stream(OwnerCalls.driver_rows, step, resume_epoch)) as found:
            for some in found:
                yield from some

    def release(self) -> None:
        self._owner.release()


def at_owner(owner: Owner, description: PartitionDescription) -> PartitionDescription:
    """Return a description whose path says which owner has the file: "h1:7337/part-0.sqlite3"."""
    return replace(description, path=Path(owner.location, description.path.name))


Located = FilePartitions | OwnerPartitions
"""The partitions of one location."""
AT_ONCE = 4
"""The thread that closes epochs, the stream, the timer and the checks ask a location at the same time."""


class OwnedPartitions:
    """The partitions of one store in several locations: a `PartitionStore` but for `fence`, which only a store of files
    has. The driver's own directory has its scratch files, and perhaps partitions."""

    def __init__(self, own: FilePartitions, others: Sequence[OwnerPartitions]) -> None:
        self.partition_count = own.partition_count
        self._own = own
        self._locations: list[Located] = [own, *others]
        self._pool = ThreadPoolExecutor(AT_ONCE * len(self._locations), thread_name_prefix="location")

    def describe(self) -> list[PartitionDescription]:
        """See `PartitionStore.describe`."""
        return self._in_order(self._each(lambda location: location.describe()))

    def prepare(self, execution: Execution) -> Path:
        """See `PartitionStore.prepare`. Owners have scratch directories of their own."""
        self._all(PartitionCalls.prepare, execution)
        return self._own.scratch

    @property
    def scratch(self) -> Path:
        """The scratch directory of the execution, on this host."""
        return self._own.scratch

    def start(
        self,
        execution: Execution,
        steps: Sequence[StepId],
        planned: Sequence[PartitionDescription] = (),
        *,
        keeps_log: bool = False,
        erases: Sequence[KeyToErase] = (),
    ) -> None:
        """See `PartitionStore.start`. As in one directory, partitions that lacked an epoch come before those that hold
        it, wherever they are."""
        self._all(PartitionCalls.allow, steps)
        seen: dict[PartitionIndex, PartitionDescription | None] = {
            index: planned[index] if planned else None for location in self._locations for index in location.indexes
        }
        for epoch in sorted({epoch_of(each) for each in seen.values()}):

            def begin(location: Located, epoch: Epoch = epoch) -> None:
                mine = {index: seen[index] for index in location.indexes if epoch_of(seen[index]) == epoch}
                if mine:
                    location.begin(execution, mine, keeps_log, erases)

            self._each(begin)
        self._each(lambda location: location.make_deltas(execution, steps))

    def address(self, lease: Lease) -> str:
        """See `PartitionStore.address`."""
        held = [location for location in self._locations if location.indexes]
        return spread_address(
            lease, self.partition_count, [(location.address(lease), location.indexes) for location in held]
        )

    def open(self, lease: Lease, batch: BatchId) -> None:
        """See `PartitionStore.open`."""
        self._all(PartitionCalls.open, lease, batch)

    def check(self, lease: Lease) -> None:
        """See `PartitionStore.check`. This store asks every owner."""
        self._all(PartitionCalls.check, lease)

    def seal(self, lease: Lease, batch: BatchId, *, apart: bool = True) -> None:
        """See `PartitionStore.seal`."""
        self._all(PartitionCalls.seal, lease, batch, apart)

    def close(self, lease: Lease, requests: Sequence[CloseRequest]) -> list[ClosedPartition]:
        """See `PartitionStore.close`. Locations clear what they have closed without waiting for others: the content is
        in their partitions, and if another location fails, the run ends."""
        return self._in_order(
            self._each(lambda location: location.close(lease, [requests[index] for index in location.indexes]))
        )

    def fold(self, lease: Lease, epoch: Epoch, floor: Epoch) -> list[Mapping[str, StepSize]]:
        """See `PartitionStore.fold`."""
        return self._in_order(self._all(PartitionCalls.fold, lease, epoch, floor))

    def scrub(self) -> None:
        """See `PartitionStore.scrub`."""
        self._all(PartitionCalls.scrub)

    def collect(self, floor: Epoch) -> list[Collected]:
        """See `PartitionStore.collect`."""
        return self._in_order(self._all(PartitionCalls.collect, floor))

    def begin_input(self, lease: Lease, content: str) -> None:
        """See `PartitionStore.begin_input`."""
        self._all(PartitionCalls.begin_input, lease, content)

    def beginning(self) -> str | None:
        """See `PartitionStore.beginning`."""
        found = [each for each in self._all(PartitionCalls.newest_beginning) if each is not None]
        return max(found)[2] if found else None

    def checkpoint(self) -> None:
        """See `PartitionStore.checkpoint`."""
        self._all(PartitionCalls.checkpoint)

    def record(self, measure: Measure) -> None:
        """See `PartitionStore.record`. The first partition has the measures."""
        first = next(location for location in self._locations if PartitionIndex(0) in location.indexes)
        _call(first, PartitionCalls.record, measure)

    def counts(self, lease: Lease, batch: BatchId) -> BatchCount:
        """See `PartitionStore.counts`."""
        return of_all_steps(self.counts_of_steps(batch))

    def counts_of_steps(self, batch: BatchId) -> dict[StepId, BatchCount]:
        """See `PartitionStore.counts_of_steps`."""
        by_location = self._all(PartitionCalls.counts_of_steps, batch)
        steps = {step for counts in by_location for step in counts}
        return {step: added_up(counts[step] for counts in by_location if step in counts) for step in steps}

    def next_due_ms(self, lease: Lease, steps: Collection[StepId] | None = None) -> int | None:
        """See `PartitionStore.next_due_ms`."""
        found = self._all(PartitionCalls.next_due_ms, lease, steps)
        return min((due for due in found if due is not None), default=None)

    def driver_values(self, step: StepId, resume_epoch: Epoch | None = None) -> dict[str, str | bytes]:
        """See `PartitionStore.driver_values`."""
        return dict(self.driver_rows(step, resume_epoch))

    def driver_rows(
        self, step: StepId, resume_epoch: Epoch | None = None
    ) -> Generator[tuple[str, str | bytes], None, None]:
        """See `PartitionStore.driver_rows`."""
        for location in self._locations:
            with closing(location.driver_rows(step, resume_epoch)) as rows:
                yield from rows

    def known_steps(self, resume_epoch: Epoch | None = None) -> set[StepId]:
        """See `PartitionStore.known_steps`."""
        return set().union(*self._all(PartitionCalls.known_steps, resume_epoch))

    def release(self) -> None:
        """See `PartitionStore.release`. Owners let the run go."""
        self._pool.shutdown()
        for location in self._locations:
            location.release()

    def _all(self, call: Callable[Concatenate[PartitionCalls, P], R], *arguments: P.args, **named: P.kwargs) -> list[R]:
        """Make a call at all locations; see `_each`."""
        return self._each(lambda location: _call(location, call, *arguments, **named))

    def _each(self, work: Callable[[Located], T]) -> list[T]:
        """Do `work` for all locations in parallel. Waits for all before raising an error: first that of a run that was
        replaced, last that of a lost owner."""
        futures = [self._pool.submit(work, location) for location in self._locations]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise min(errors, key=_rank)
        return [future.result() for future in futures]

    def _in_order(self, found: Iterable[Iterable[T]]) -> list[T]:
        """Return what the locations have for each partition, in the order of the indexes."""
        pairs: Iterator[tuple[PartitionIndex, T]] = (
            pair
            for location, results in zip(self._locations, found, strict=True)
            for pair in zip(location.indexes, results, strict=True)
        )
        return [result for _, result in sorted(pairs, key=lambda pair: pair[0])]


def _call(
    location: Located, call: Callable[Concatenate[PartitionCalls, P], R], *arguments: P.args, **named: P.kwargs
) -> R:
    if isinstance(location, OwnerPartitions):
        return location.ask(call, *arguments, **named)
    here: PartitionCalls = location
    result: R = getattr(here, call.__name__)(*arguments, **named)
    return result


def _rank(error: BaseException) -> int:
    """Return how much an error of a location says about why the run ended: 0 the most."""
    return 0 if isinstance(error, LeaseLostError) else 2 if isinstance(error, OwnerUnreachableError) else 1
