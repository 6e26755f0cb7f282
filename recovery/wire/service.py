"""What the server needs from whoever has the partitions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from recovery.base.ids import Lease, PartitionIndex
from recovery.storage.seam import Changes, TaskStore
from recovery.wire.calls import OwnerCalls
from recovery.wire.messages import Rows


class Aside(Protocol):
    """Where the messages of one apply wait until all have come."""

    def add(self, body: bytes, more: bool) -> None:
        """Take a frame of a CHANGES message; more: the message goes on in the next one."""
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
        """Give the room back."""
        ...


class Service(Protocol):
    """What the server serves to tasks."""

    def store(self) -> contextlib.AbstractContextManager[TaskStore]:
        """Return a store for one call."""
        ...

    def aside(self) -> contextlib.AbstractContextManager[Aside]:
        """Return room for the messages of one apply."""
        ...

    def rows(self, call: Rows) -> Iterator[bytes]:
        """Yield the rows that a call asks for as ROWS messages, none of which is empty."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Tasks:
    """What tasks of one execution are served with. partitions: those that are here."""

    service: Service
    key: bytes
    lease: Lease
    partitions: Collection[PartitionIndex]


class RunConnection(OwnerCalls, Protocol):
    """What answers one connection with the token."""

    @property
    def holds(self) -> bool:
        """Whether a run is held as long as this connection lasts."""
        ...

    def ended(self) -> None:
        """The connection has ended."""
        ...


class Runs(Protocol):
    """What the server serves to runs and looks."""

    def connected(self, unmask: Callable[[str], bytes], cut: Callable[[], None]) -> RunConnection:
        """Return what answers a new connection. unmask: returns a key that the client has masked. cut: ends the
        connection."""
        ...
