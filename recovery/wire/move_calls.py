"""The calls by which a partition goes from one owner to another, and by which a command asks a run for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

import msgspec

from recovery.base.ids import PartitionIndex
from recovery.planning.copies import Departed
from recovery.wire.messages import Refusal

Block = tuple[int, bytes]
"""A block of a file: its number and content."""


class MoveRequest(msgspec.Struct, frozen=True):
    """What a command asks of the run that holds an owner: to bring partitions to other owners. targets: by partition,
    as the run reaches them. state: "asked" until the run begins, then "moving"; at the end "done", or "refused" with
    the reason. said: what the run does. moved: the partitions that have moved, with a refusal, too."""

    move_id: str
    targets: dict[PartitionIndex, str]
    state: Literal["asked", "moving", "done", "refused"] = "asked"
    said: str = ""
    moved: tuple[PartitionIndex, ...] = ()
    pause_s: float = 0.0
    refusal: Refusal | None = None

    @property
    def is_open(self) -> bool:
        """Whether the run has still to answer."""
        return self.state in ("asked", "moving")


class MoveCalls(Protocol):
    """The calls about moves. Those of the first group need no hold; those of the last group need one."""

    def departed(self) -> list[Departed]:
        """Return the notes of partitions that left this owner."""
        ...

    def request_move(self, request: MoveRequest) -> None:
        """Ask the run that holds this owner to move partitions. Refused if no run does, or if it has another
        request."""
        ...

    def move_request(self, move_id: str) -> MoveRequest | None:
        """Return a request with what the run has reported; None: it is not known here."""
        ...

    def report_move(self, request: MoveRequest) -> None:
        """Report how far a request is."""
        ...

    def block_digests(self, name: str) -> Iterator[list[bytes]]:
        """Return the digests of the blocks of a partition's file, also while a run writes to it."""
        ...

    def blocks(self, name: str, numbers: list[int]) -> Iterator[list[Block]]:
        """Return blocks of a partition's file."""
        ...

    def begin_arrival(self, move_id: str, sizes: dict[str, int]) -> None:
        """Make room for the partitions of a move; see `recovery.storage.moving.arriving`, as for the calls below."""
        ...

    def put_blocks(self, move_id: str, name: str, some: list[Block]) -> None:
        """Write blocks of a staged file."""
        ...

    def staged_digests(self, move_id: str, name: str) -> Iterator[list[bytes]]:
        """Return the digests of the blocks of a staged file."""
        ...

    def check_arrival(self, move_id: str, name: str, size_bytes: int, digests: dict[int, bytes]) -> None:
        """Compare blocks of a staged file with what left: those that were sent since all others were compared."""
        ...

    def end_arrival(self, move_id: str) -> None:
        """Remove what is staged."""
        ...

    def begin_leaving(self, name: str) -> int:
        """Let nobody write to a partition until it has left, stays, or the hold ends; return its size in bytes. See
        `recovery.storage.moving.leaving`, as for the calls below."""
        ...

    def note_leaving(self, name: str, to: str) -> None:
        """Note where the partition goes."""
        ...

    def forget_departed(self, index: PartitionIndex, to: str) -> None:
        """Remove the note that a partition went to this owner: its copy there does not count any more."""
        ...

    def place_arrival(self, move_id: str, name: str) -> None:
        """Put a staged file into place."""
        ...

    def leave(self, name: str) -> None:
        """Remove the partition that has left."""
        ...

    def stay(self, name: str) -> None:
        """The partition does not leave."""
        ...
