"""What the server asks of the process that has the partitions open: stores, buffers, rows, handlers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from recovery.base.ids import Lease, PartitionIndex
from recovery.storage.seam import Changes, TaskStore
from recovery.wire.calls import DocumentCalls, OwnerCalls, PartitionCalls
from recovery.wire.declared import Verb
from recovery.wire.messages import Rows
from recovery.wire.move_calls import MoveCalls


class Aside(Protocol):
    """A buffer for the messages of one apply until all of them have arrived."""

    def add(self, body: bytes, more: bool) -> None:
        """Add a frame of a CHANGES message. more: the message continues in the next frame."""
        ...

    @property
    def messages(self) -> int:
        """The number of whole messages."""
        ...

    @property
    def size_bytes(self) -> int:
        """Their size."""
        ...

    def changes(self, begin: int, end: int) -> Iterable[Changes]:
        """Return the chunks in messages number `begin` up to `end`; may be iterated again."""
        ...

    def close(self) -> None:
        """Discard the messages, and free their space."""
        ...


class Service(Protocol):
    """What the server needs to answer tasks."""

    def store(self, attempt: int = 0) -> contextlib.AbstractContextManager[TaskStore]:
        """Return a store for one call. attempt: as in `reach`."""
        ...

    def aside(self) -> contextlib.AbstractContextManager[Aside]:
        """Return a buffer for the messages of one apply."""
        ...

    def rows(self, call: Rows) -> Iterator[bytes]:
        """Yield the rows that a call asks for, some at a time; nothing that is yielded is empty."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Tasks:
    """What the server needs to answer the tasks of one execution. partitions: those that this process has open."""

    service: Service
    key: bytes
    lease: Lease
    partitions: Collection[PartitionIndex]


AskedTarget = OwnerCalls | DocumentCalls | PartitionCalls | MoveCalls


class RunConnection(OwnerCalls, Protocol):
    """The handler of one connection of a run or look."""

    def target(self, verb: Verb) -> contextlib.AbstractContextManager[AskedTarget]:
        """Return what executes a call: an object of the protocol that declares it, open until the block ends."""
        ...

    @property
    def holds(self) -> bool:
        """Whether the directory is locked for a run as long as this connection lasts."""
        ...

    def ended(self) -> None:
        """Release what the connection held: it has ended."""
        ...


class Runs(Protocol):
    """Makes the handlers for connections of runs and looks."""

    def connected(self, unmask: Callable[[str], bytes], cut: Callable[[], None]) -> RunConnection:
        """Return the handler of a new connection. unmask: returns a key that the client has masked. cut: ends the
        connection."""
        ...
