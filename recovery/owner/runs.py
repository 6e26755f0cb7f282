"""What an owner service answers to runs and looks: `OwnerCalls` over one directory."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from recovery.base.clock import Clock
from recovery.base.ids import NO_EPOCH, Epoch, Lease, PartitionIndex, StepId
from recovery.base.printable import one_line
from recovery.errors import (
    ConfigurationError,
    DirectoryLockedError,
    LeaseLostError,
    NoPartitionsError,
    OwnerUnreachableError,
    StorageError,
)
from recovery.host.durable import PRIVATE, UMASK
from recovery.owner.copying import copies
from recovery.owner.documents import OwnedDocuments
from recovery.owner.given import request_of
from recovery.owner.holding import Holding, why_not_held
from recovery.owner.moving import OwnerMoves, Requests
from recovery.owner.shipping import Shipping
from recovery.owner.spool import SpoolMemory
from recovery.owner.tasks import TaskService
from recovery.owner.watch.disk import FreeDisk
from recovery.planning.measures import ClosedPartition
from recovery.planning.owner_restore import LeftRestore
from recovery.planning.values import Execution
from recovery.storage.others import others_beside
from recovery.storage.owner_reader import Looks, in_chunks
from recovery.storage.scan import describe_file, scan
from recovery.storage.staged import StagedRestore, end_left, left
from recovery.wire.calls import (
    BegunExecution,
    Closing,
    DescribedFile,
    DocumentCalls,
    FullCheckResult,
    OwnerStatus,
    PartitionCalls,
    Piece,
    RowsAhead,
)
from recovery.wire.declared import Row, Verb
from recovery.wire.messages import as_refusal
from recovery.wire.move_calls import MoveCalls
from recovery.wire.service import AskedTarget, Tasks

PART = re.compile(r"part-[0-9]{1,9}\.sqlite3")
"""Names of files that a scan finds whatever the files hold."""
ENDING_S = 30.0
"""How long a new run waits for the last calls of the one before it."""
NOTHING_KNOWN: Mapping[str, Epoch] = {}
CLOSES = {"seal": True, "fold": False}
"""Whether an epoch is being closed after a call of `PartitionCalls`; the other calls do not change that."""


class OwnedRuns:
    """The directory of an owner service, and the run that holds it: `recovery.wire.service.Runs`."""

    def __init__(
        self,
        directory: Path,
        scratch: Path,
        clock: Clock,
        serve_tasks: Callable[[Tasks | None], None],
        log: Callable[[str], None],
        memory: SpoolMemory,
    ) -> None:
        """serve_tasks: lets the tasks of an execution in; None: nobody. memory: what their messages may take."""
        self.directory = directory
        self.scratch = scratch
        self.shipping = Shipping(directory, scratch)
        self.documents = OwnedDocuments(directory)
        self.requests = Requests()
        self.disk_free = FreeDisk(directory)
        self.stops = False
        """Whether no further run may hold the directory."""
        self.epoch: Epoch | None = None
        """The newest epoch that was closed here since the service began."""
        self.epochs_closed = 0
        self.close_s: float | None = None
        """How long closing it took."""
        self.serving: Callable[[], OwnerStatus]
        """See `OwnerCalls.serving`."""
        self._clock = clock
        self._serve_tasks = serve_tasks
        self._memory = memory
        self.log = log
        self._lock = threading.Lock()
        self._ending = threading.Lock()
        self._holding: Holding | None = None

    def connected(self, unmask: Callable[[str], bytes], cut: Callable[[], None]) -> Connection:
        """See `Runs.connected`."""
        return Connection(self, unmask, cut)

    @property
    def holding(self) -> Holding | None:
        """The run that holds the directory."""
        return self._holding

    def hold(self, run: str, purpose: str, task_key: bytes) -> Holding:
        """Lock the directory for a run. Raises DirectoryLockedError, OwnerUnreachableError while the service stops."""
        # The last calls of a run that has ended may still be at work.
        if not self._ending.acquire(timeout=ENDING_S):
            raise DirectoryLockedError("the run before is still ending", path=self.directory)
        self._ending.release()
        with self._lock:
            if self.stops:
                raise _stopping(self.directory)
            if self._holding is not None and self._holding.run == run:
                raise ConfigurationError(
                    "two of the owners that were named are one owner",
                    path=self.directory,
                    cause="Two names or addresses lead to one owner.",
                    remedy="Name each owner once.",
                )
            if self._holding is not None:
                raise DirectoryLockedError(
                    f"the owner's directory is in use by {self._holding.purpose}", path=self.directory
                )
            self._holding = Holding(run, task_key, self.directory, self.scratch, purpose, self._clock)
            self.log(f"held by {one_line(purpose)}")
            return self._holding

    def held_by(self, run: str, begun: BegunExecution | None) -> Holding:
        """Return the hold of this run. Raises what `why_not_held` returns."""
        holding = self._holding
        if holding is None or holding.run != run:
            there = [each.description for each in self.scan() if each.description is not None]
            raise why_not_held(begun, there, holding, self.directory)
        return holding

    def let_go(self, holding: Holding, why: str = "") -> None:
        """End a hold. May be called again. why: the run did not ask for it, for the log."""
        with self._ending:
            with self._lock:
                if self._holding is not holding:
                    return
            self._serve_tasks(None)
            holding.end()
            # A call that was under way may have let tasks in again.
            self._serve_tasks(None)
            with self._lock:
                self._holding = None
            self.log(f"let go by {one_line(holding.purpose)}{why and ': '}{why}")

    def begin_to_stop(self) -> Holding | None:
        """Let no further run hold the directory. Return the run that does."""
        self.stops = True
        holding = self._holding
        if holding is not None:
            self.log(f"stopping, when the epoch of {one_line(holding.purpose)} is closed")
        return holding

    def end(self) -> None:
        """End the hold, if there is one, and what ships epochs."""
        if self._holding is not None:
            self.let_go(self._holding)
        self.shipping.end()

    def begin_tasks(self, holding: Holding, execution: Execution) -> None:
        """Let the tasks of an execution in."""
        with holding.using() as store:
            lease = execution.lease
            service = TaskService(store.address(lease), store.scratch, self._memory)
            self._serve_tasks(Tasks(service, holding.task_key, lease, frozenset(store.indexes)))
            parts = ", ".join(map(str, store.indexes))
            self.log(f"execution {lease.number} of {one_line(execution.flow_id)} began: partitions {parts}")

    def scan(self, known: Mapping[str, Epoch] = NOTHING_KNOWN) -> list[DescribedFile]:
        """Describe what is in the directory. known: see `OwnerCalls.found`."""
        try:
            found = scan(self.directory, lambda path: describe_file(path, known.get(path.name, NO_EPOCH)))
        except NoPartitionsError:
            return []
        return [
            DescribedFile(each.path.name, each.description, None if each.error is None else as_refusal(each.error))
            for each in found
        ]

    def moving(self, joined: Holding | None) -> OwnerMoves:
        """Return what answers the calls about moves on a connection. joined: the run to which it belongs."""
        return OwnerMoves(self.directory, self.path, self.requests, self._clock, self.log, self._holding, joined)

    def path(self, name: str) -> Path:
        """Return the path of a file that `scan` found."""
        # A scan describes every file, which takes long where there are many.
        is_found = PART.fullmatch(name) is not None and os.path.lexists(self.directory / name)
        if not is_found and name not in {each.name for each in self.scan()}:
            raise StorageError(f"there is no file {one_line(name)[:80]}", path=self.directory)
        return self.directory / name


class Connection(Looks):
    """The calls of one connection: `recovery.wire.service.RunConnection`."""

    def __init__(self, owner: OwnedRuns, unmask: Callable[[str], bytes], cut: Callable[[], None]) -> None:
        super().__init__(owner.path)
        self._owner = owner
        self._unmask = unmask
        self._cut = cut
        self._joined: Holding | None = None
        self._holds: Holding | None = None

    @contextlib.contextmanager
    def target(self, verb: Verb) -> Iterator[AskedTarget]:
        """See `RunConnection.target`. The partitions of a run stay open while a call uses them. Once the service is to
        stop, no further epoch begins to close: raises OwnerUnreachableError."""
        if verb.protocol is PartitionCalls:
            closes = CLOSES.get(verb.name)
            if closes and self._owner.stops:
                raise _stopping(self._owner.directory)
            with self._held.using(closes=closes) as store:
                yield store
        elif verb.protocol is MoveCalls:
            yield self._owner.moving(self._joined)
        else:
            yield self._owner.documents if verb.protocol is DocumentCalls else self

    @property
    def holds(self) -> bool:
        """See `RunConnection.holds`."""
        return self._holds is not None

    def ended(self) -> None:
        """See `RunConnection.ended`."""
        if self._holds is not None:
            self._owner.let_go(self._holds, "its connection has ended")
        elif self._joined is not None:
            self._joined.cuts.discard(self._cut)

    # Looks

    def serving(self) -> OwnerStatus:
        """See `OwnerCalls.serving`."""
        return self._owner.serving()

    def found(self, known: dict[str, Epoch]) -> list[DescribedFile]:
        """See `OwnerCalls.found`."""
        return self._owner.scan(known)

    def others_beside(self) -> list[str]:
        """See `OwnerCalls.others_beside`."""
        # Names need not be UTF-8, which messages are.
        return [one_line(str(path)) for path in others_beside(self._owner.directory)]

    def verify(self, names: list[str]) -> list[FullCheckResult]:
        """See `OwnerCalls.verify`."""
        from recovery.storage.verify import PartitionCheck

        paths = [self._owner.path(name) for name in names]
        checks = [PartitionCheck(path) if self._joined is None else self._joined.verify(path) for path in paths]
        verdicts = [check.run() for check in checks]
        return [FullCheckResult(each.path.name, each.rows, each.problems) for each in verdicts]

    def copies(self, names: list[str]) -> Iterator[Piece]:
        """See `OwnerCalls.copies`."""
        return copies([self._owner.path(name) for name in names], self._owner.scratch, self._owner.log)

    def store_copies(self, wanted: bytes) -> bytes:
        """See `OwnerCalls.store_copies`."""
        return self._owner.shipping.ask(wanted)

    # Holding

    def hold(self, run: str, purpose: str, masked_key: str) -> None:
        """See `OwnerCalls.hold`."""
        self._holds = self._owner.hold(run, purpose, self._unmask(masked_key))

    def still(self, run: str, begun: BegunExecution | None) -> OwnerStatus:
        """See `OwnerCalls.still`."""
        holding = self._owner.held_by(run, begun)
        return msgspec.structs.replace(self.serving(), request=self._owner.requests.open_for(holding))

    def let_go(self) -> None:
        """See `OwnerCalls.let_go`."""
        if self._holds is not None:
            self._owner.let_go(self._holds)

    def join(self, run: str, begun: BegunExecution | None) -> None:
        """See `OwnerCalls.join`."""
        self._joined = self._owner.held_by(run, begun)
        self._joined.cuts.add(self._cut)

    @property
    def _held(self) -> Holding:
        if self._joined is None:
            raise LeaseLostError("this connection belongs to no run", path=self._owner.directory)
        return self._joined

    def take(self, store_id: str, indexes: list[PartitionIndex], count: int) -> None:
        """See `OwnerCalls.take`."""
        self._held.take(store_id, indexes, count)

    def end_checks(self) -> None:
        """See `OwnerCalls.end_checks`."""
        self._held.end_checks()

    # The calls of a restore

    def left_restores(self) -> list[LeftRestore]:
        """See `OwnerCalls.left_restores`."""
        return left(self._held.directory)

    def end_left_restore(self, name: str, counts: bool) -> None:
        """See `OwnerCalls.end_left_restore`."""
        end_left(self._held.directory, name, counts=counts)

    def stage(self, name: str, home: str | None, indexes: list[PartitionIndex], umask: bool) -> None:
        """See `OwnerCalls.stage`."""
        self._held.stage(name, home, indexes, UMASK if umask else PRIVATE)

    @property
    def _restore(self) -> StagedRestore:
        if self._held.restore is None:
            raise LeaseLostError("there is no restore to this owner", path=self._owner.directory)
        return self._held.restore

    def put(self, piece: Piece) -> None:
        """See `OwnerCalls.put`."""
        self._restore.put(piece.name, piece.data)

    def check_staged(self, digests: dict[str, str]) -> None:
        """See `OwnerCalls.check_staged`."""
        self._restore.check(digests)

    def place(self) -> None:
        """See `OwnerCalls.place`."""
        self._restore.place()

    def end_restore(self, counts: bool) -> None:
        """See `OwnerCalls.end_restore`."""
        self._restore.end(counts=counts)

    # The calls of a run

    def make_deltas(self, execution: Execution, steps: list[StepId]) -> None:
        """See `OwnerCalls.make_deltas`."""
        with self._held.using() as store:
            store.make_deltas(execution, steps)
        self._owner.begin_tasks(self._held, execution)

    def give(self, epoch: Epoch, part: RowsAhead) -> None:
        """See `OwnerCalls.give`."""
        with self._held.using() as store:
            self._held.given.add(epoch, part, store.scratch)

    def close(self, lease: Lease, requests: list[Closing]) -> list[ClosedPartition]:
        """See `OwnerCalls.close`."""
        began_s = time.monotonic()
        given = self._held.given
        with self._held.using(closes=False) as store:
            indexed = zip(store.indexes, requests, strict=True)
            closed = store.close(lease, [request_of(each, given.of(index, each)) for index, each in indexed])
        given.clear()
        for each in requests[:1]:
            self._owner.epoch = each.epoch
            self._owner.epochs_closed += 1
            self._owner.close_s = time.monotonic() - began_s
        return closed

    def driver_rows(self, step: StepId, resume_epoch: Epoch | None) -> Iterator[list[Row]]:
        """See `OwnerCalls.driver_rows`."""
        with self._held.using() as store:
            yield from in_chunks(store.driver_rows(step, resume_epoch), lambda row: len(row[0]) + len(row[1]))


def _stopping(directory: Path) -> OwnerUnreachableError:
    return OwnerUnreachableError("the owner is being stopped", path=directory)
