"""The calls of runs, and of commands that only look, to an owner (see `recovery.wire.declared`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from recovery.base.ids import BatchId, Epoch, Lease, PartitionIndex, StepId
from recovery.planning.measures import ClosedPartition, Measure, StepSize
from recovery.planning.owner_facts import OwnerFacts
from recovery.planning.owner_restore import LeftRestore
from recovery.planning.resume import Cut
from recovery.planning.values import Execution, PartitionDescription
from recovery.storage.seam import BatchCount, Collected, Edited, HeldRows, KeyToErase
from recovery.wire.declared import DeclaredCalls, Row, Value, check_values
from recovery.wire.messages import Refusal
from recovery.wire.move_calls import MoveCalls, MoveRequest

StateRow = tuple[str, int, Value, int | None]
"""A `KeyState`: key, epoch, value, timeout."""
VersionRow = tuple[StateRow, int | None]
"""A `KeyVersion`: its state, and the epoch that replaced or removed it."""
ChangeRow = tuple[str, StateRow | None, StateRow | None]
"""A `KeyChange`: the key, and its state before and after."""


class DescribedFile(msgspec.Struct, frozen=True):
    """A file of the owner's directory: its description, or why there is none."""

    name: str
    description: PartitionDescription | None = None
    refusal: Refusal | None = None


class FileFacts(msgspec.Struct, frozen=True):
    """Further facts that a look shows about a partition. sizes: of its steps; None: its version does not say. measures:
    only part-0 has them."""

    log_bytes: int
    sizes: dict[str, StepSize] | None
    measures: list[Measure]


class FullCheckResult(msgspec.Struct, frozen=True):
    """The result of a full check."""

    name: str
    rows: int
    problems: tuple[str, ...]


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A part of a copied file. The pieces of one file follow each other."""

    name: str
    data: bytes


class OwnerStatus(msgspec.Struct, frozen=True):
    """An owner's status. holder: a sentence about the process that has locked its directory; empty if none has. stops:
    it ends as soon as the run has closed its epoch. request: what a command has asked of the run that
    calls."""

    version: str
    holder: str
    stops: bool
    facts: OwnerFacts
    request: MoveRequest | None = None


class BegunExecution(msgspec.Struct, frozen=True, array_like=True):
    """The execution that a run has begun, or is beginning, in the partitions of a store."""

    store_id: str
    lease: Lease


class StateDocument(msgspec.Struct, frozen=True, array_like=True):
    """A document of operational state, as `recovery.storage.documents.StoredState`."""

    state_id: str
    generation: int
    content: str | None
    changed_ms: int


class Changed(msgspec.Struct, frozen=True, array_like=True):
    """A document's new content; None removes it. seen: the generation from which it was made; 0: there was none."""

    state_id: str
    seen: int
    content: str | None


class Edit(msgspec.Struct, frozen=True, array_like=True):
    """An edit of a step (`StepEdit`). converted: the new value of each key, instead of the function."""

    old: StepId
    new: StepId | None
    converted: dict[str, str | None] | None


DRIVER, CONVERTED, EDITED = "driver", "converted", "edited"
"""What the rows of a part are: the driver's, new values of an edited step (of the old id), edited states."""


class RowsAhead(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one step that a close writes to one partition, sent ahead of that close: key, value, timeout of an edited
    state."""

    index: PartitionIndex
    what: str
    step: StepId
    rows: list[tuple[str, Value, int | None]]

    def __post_init__(self) -> None:
        check_values(value for _, value, _ in self.rows)


class Closing(msgspec.Struct, frozen=True, array_like=True):
    """A `CloseRequest` as it is sent. parts: how many parts with further rows were sent ahead of it."""

    epoch: Epoch
    batch: BatchId
    closed_ms: int
    clock_ms: int
    floor: Epoch
    driver_rows: dict[StepId, dict[str, Value]]
    edits: list[Edit]
    state_rows: dict[StepId, dict[str, Edited]]
    logged: bool
    notes_made: bool = False
    parts: int = 0

    def __post_init__(self) -> None:
        for rows in self.driver_rows.values():
            check_values(rows.values())


class OwnerCalls(Protocol):
    """The calls on a connection that has proved itself with the token.

    A look asks without holding. A run holds the owner's directory on one connection (`hold`); it is held until that
    connection ends. The run's other connections `join` the first. `take` opens partitions, which the calls below it,
    and `PartitionCalls`, then mean.
    """

    def serving(self) -> OwnerStatus:
        """Return the owner's status."""
        ...

    def found(self, known: dict[str, Epoch]) -> list[DescribedFile]:
        """Describe all partitions in the owner's directory. known: of the files of these names, list only the epochs
        from this one on, and the newest (see `recovery.planning.held`)."""
        ...

    def facts(self, name: str) -> FileFacts:
        """Return further facts about one file."""
        ...

    def states(self, name: str, step: StepId, cut: Cut, in_order: bool) -> Iterator[list[StateRow]]:
        """Return the states of a step in one file as of a cut; see `recovery.storage.reading.PartitionReader`, as for
        the calls below."""
        ...

    def few_states(self, name: str, step: StepId, cut: Cut, keys: list[str] | None) -> Iterator[list[StateRow]]:
        """Return the states of these keys of a step in one file as of a cut, those that it has; None: all."""
        ...

    def page(
        self, name: str, step: StepId, cut: Cut, begin: str, end: str | None, limit: int, most_bytes: int
    ) -> Iterator[list[StateRow]]:
        """Return the first states of a step in one file from a key on, as of a cut."""
        ...

    def ending(self, name: str, step: StepId, cut: Cut, ending: str) -> Iterator[list[StateRow]]:
        """Return the states of a step in one file whose keys end with a text, as of a cut."""
        ...

    def key_sizes(self, name: str, step: StepId, cut: Cut) -> Iterator[list[tuple[str, int]]]:
        """Return the keys of a step in one file as of a cut, with the size of each value in bytes."""
        ...

    def count(self, name: str, step: StepId, cut: Cut) -> int:
        """Return the number of keys of a step in one file as of a cut."""
        ...

    def versions(self, name: str, step: StepId, key: str, cut: Cut, since: int) -> Iterator[list[VersionRow]]:
        """Return the values of a key that one file still holds, up to a cut, oldest first: those that the epoch `since`
        or a later one wrote."""
        ...

    def version_spans(self, name: str, step: StepId, key: str, cut: Cut) -> list[tuple[int, int | None, int]]:
        """Return when each of these values was there: from which epoch, until which, and its bytes."""
        ...

    def due(self, name: str, step: StepId, moments: list[int]) -> tuple[int | None, list[int]]:
        """Return the earliest timeout of a step in the newest snapshot of a file, and how many are due up to each
        moment."""
        ...

    def changes(self, name: str, step: StepId, first: Cut, last: Cut) -> Iterator[list[ChangeRow]]:
        """Return the keys of a step in one file whose state differs between two cuts."""
        ...

    def all_there(self, name: str, step: StepId, cut: Cut) -> None:
        """Refuse if a file lacks rows of a step that it had as of a cut."""
        ...

    def steps(self, name: str) -> list[str]:
        """Return the steps with rows in any snapshot that a file holds."""
        ...

    def newest_steps(self, name: str) -> list[str]:
        """Return the steps of the flow with rows in the newest snapshot of a file."""
        ...

    def has_step(self, name: str, step: StepId) -> bool:
        """Return whether a file has rows of a step in its newest snapshot."""
        ...

    def rows_of(self, name: str, keys: list[KeyToErase]) -> list[HeldRows]:
        """Return how many rows one file holds of these keys, at any epoch."""
        ...

    def others_beside(self) -> list[str]:
        """Return the paths of what others have put beside the partitions, under names of partitions."""
        ...

    def largest(self, name: str, limit: int) -> list[tuple[str, str, int]]:
        """Return the largest states of a file: step, key, bytes."""
        ...

    def verify(self, names: list[str]) -> list[FullCheckResult]:
        """Check files in full."""
        ...

    def copies(self, names: list[str]) -> Iterator[Piece]:
        """Copy files, all as of the moment at which the first piece comes, which is empty. Works during a run."""
        ...

    def store_copies(self, wanted: bytes) -> bytes:
        """Store copies at a place of backups; see `recovery.backup.share`. The lines of request and answer are packed
        by `recovery.places.packed`. Works during a run."""
        ...

    def hold(self, run: str, purpose: str, masked_key: str) -> None:
        """Lock the directory for a run. masked_key: the task key, masked by `proof.masked`."""
        ...

    def still(self, run: str, begun: BegunExecution | None) -> OwnerStatus:
        """Confirm that the run is active. The connection that holds the directory calls this from time to time. begun:
        as in `join`."""
        ...

    def let_go(self) -> None:
        """End the hold of this connection. The directory is free when this returns."""
        ...

    def join(self, run: str, begun: BegunExecution | None) -> None:
        """Make this a connection of the run that holds the directory. begun: what the run has begun in the partitions,
        if it has; with it the owner can tell a run that was replaced from one that it only let go."""
        ...

    def take(self, store_id: str, indexes: list[PartitionIndex], count: int) -> None:
        """Open these partitions of a store for writing."""
        ...

    def end_checks(self) -> None:
        """End the full checks (`verify`) of this run, now and later."""
        ...

    def left_restores(self) -> list[LeftRestore]:
        """Remove what killed restores left that do not count, and describe those of which the home has to tell."""
        ...

    def end_left_restore(self, name: str, counts: bool) -> None:
        """End a left restore. counts: the restore's files stay."""
        ...

    def stage(self, name: str, home: str | None, indexes: list[PartitionIndex], umask: bool) -> None:
        """Begin a restore of these partitions to the owner's directory; see `recovery.storage.staged`. home: None:
        beside the partitions that are there. umask: others may read them, as far as the owner's umask allows."""
        ...

    def put(self, piece: Piece) -> None:
        """Append to one of the restore's files."""
        ...

    def check_staged(self, digests: dict[str, str]) -> None:
        """Compare each of the restore's files with the SHA-256, in hexadecimal, and sync them."""
        ...

    def place(self) -> None:
        """Put the restore's files into place."""
        ...

    def end_restore(self, counts: bool) -> None:
        """End the restore. counts: the restore's files stay; if not, they are removed."""
        ...

    def make_deltas(self, execution: Execution, steps: list[StepId]) -> None:
        """Create the deltas of an execution that has begun: the rest of `PartitionStore.start`. Tasks may come now."""
        ...

    def give(self, epoch: Epoch, part: RowsAhead) -> None:
        """Take rows of the next close, which are too many for one call. Parts of another epoch are forgotten."""
        ...

    def close(self, lease: Lease, requests: list[Closing]) -> list[ClosedPartition]:
        """See `PartitionStore.close`."""
        ...

    def driver_rows(self, step: StepId, resume_epoch: Epoch | None) -> Iterator[list[Row]]:
        """See `PartitionStore.driver_rows`; some rows at a time."""
        ...


class DocumentCalls(Protocol):
    """The calls about documents of operational state, which lie with partition 0."""

    def documents(self, ids: list[str]) -> list[StateDocument]:
        """Return the documents of these ids, as of one moment. The owner has partition 0."""
        ...

    def documents_of(self, prefix: str) -> list[StateDocument]:
        """Return all documents whose id begins with `prefix`, removed documents included, sorted by id."""
        ...

    def change_documents(self, changes: list[Changed], now_ms: int, busy_ms: int) -> list[StateDocument] | None:
        """Change documents in one transaction, and return them; None, with nothing changed, if one of them has another
        generation than was seen. busy_ms: how long to wait for other writers."""
        ...

    def forget_documents(self, ids: list[str], busy_ms: int) -> int:
        """Remove documents without a trace; return how many there were."""
        ...

    def place_documents(self, placed: list[StateDocument], busy_ms: int) -> None:
        """Write documents unchanged, generation and time included."""
        ...


class PartitionCalls(Protocol):
    """The calls that an owner passes to the partitions that a run has taken. What these return for each partition is in
    the order in which they were taken. Each call does what the method of `PartitionStore` with its name does."""

    def describe(self) -> list[PartitionDescription]: ...
    def prepare(self, execution: Execution) -> Path: ...
    def allow(self, steps: Sequence[StepId]) -> None:
        """Make room for the deltas of these steps, or refuse."""
        ...

    def begin(
        self,
        execution: Execution,
        planned: Mapping[PartitionIndex, PartitionDescription | None],
        keeps_log: bool,
        erases: Sequence[KeyToErase],
    ) -> None:
        """Begin an execution in some partitions: a part of `PartitionStore.start`."""
        ...

    def open(self, lease: Lease, batch: BatchId) -> None: ...
    def check(self, lease: Lease) -> None: ...
    def seal(self, lease: Lease, batch: BatchId, apart: bool) -> None: ...
    def fold(self, lease: Lease, epoch: Epoch, floor: Epoch) -> Sequence[Mapping[str, StepSize]]: ...
    def collect(self, floor: Epoch) -> list[Collected]: ...
    def scrub(self) -> None: ...
    def begin_input(self, lease: Lease, content: str) -> None: ...
    def newest_beginning(self) -> tuple[int, str, str] | None:
        """Return the newest row that says where the input begins: execution, its id, and the content."""
        ...

    def checkpoint(self) -> None: ...
    def record(self, measure: Measure) -> None: ...
    def counts_of_steps(self, batch: BatchId) -> dict[StepId, BatchCount]:
        """Return what was applied for a batch so far, by step."""
        ...

    def next_due_ms(self, lease: Lease, steps: Collection[StepId] | None) -> int | None: ...
    def known_steps(self, resume_epoch: Epoch | None) -> set[StepId]: ...


class AskedCalls(OwnerCalls, DocumentCalls, PartitionCalls, MoveCalls, Protocol):
    """Whatever a run or look can ask an owner."""


ASKED: DeclaredCalls[AskedCalls] = DeclaredCalls(AskedCalls)
