"""What an owner answers about partitions that move: those that leave its directory, and those that come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from recovery.base.clock import Clock
from recovery.base.ids import PartitionIndex
from recovery.base.printable import one_line
from recovery.errors import DirectoryLockedError, LeaseLostError
from recovery.owner.holding import Holding
from recovery.planning.copies import Departed
from recovery.storage.moving import arriving
from recovery.storage.moving.blocks import blocks, database, digests
from recovery.storage.moving.departed import forget_note, read_notes
from recovery.wire.move_calls import Block, MoveRequest


class Requests:
    """The newest request that a command has made of the run that holds an owner."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: MoveRequest | None = None
        self._run: Holding | None = None

    def ask(self, request: MoveRequest, holding: Holding | None, where: Path) -> None:
        """Note a request. Raises DirectoryLockedError."""
        with self._lock:
            if holding is None or holding.store is None:
                raise DirectoryLockedError(
                    "no run holds the owner" if holding is None else f"the owner is in use by {holding.purpose}",
                    path=where,
                    cause="Only a run whose execution has begun can be asked to move partitions.",
                    remedy="Run the same command again in a moment.",
                )
            if self._newest is not None and self._newest.is_open and self._run is holding:
                raise DirectoryLockedError(
                    "the run was asked to move partitions before, and has not answered yet",
                    path=where,
                    cause="Another command moves partitions of the same run.",
                    remedy="Run the same command again when the other one has ended.",
                )
            self._newest, self._run = request, holding

    def get(self, move_id: str, holder: Holding | None) -> MoveRequest | None:
        """Return a request; None if another one came after it, or if another run than the one that was asked holds the
        owner. holder: whoever holds it now."""
        with self._lock:
            found, run = self._newest, self._run
        if found is None or found.move_id != move_id:
            return None
        # Between two executions of a run that moves partitions, the owner is held by others.
        return None if found.state == "asked" and holder not in (None, run) else found

    def report(self, request: MoveRequest) -> None:
        """Replace a request by what the run says of it."""
        with self._lock:
            if self._newest is not None and self._newest.move_id == request.move_id:
                self._newest = request

    def open_for(self, holding: Holding) -> MoveRequest | None:
        """Return the request that this run has not begun with."""
        with self._lock:
            found = self._newest
            return found if found is not None and found.state == "asked" and self._run is holding else None


class OwnerMoves:
    """The calls of one connection: `MoveCalls`."""

    def __init__(
        self,
        directory: Path,
        path_of: Callable[[str], Path],
        requests: Requests,
        clock: Clock,
        log: Callable[[str], None],
        holder: Holding | None,
        joined: Holding | None,
    ) -> None:
        """path_of: returns the path of a file that is there. holder: the run that holds the directory. joined: the one
        to which this connection belongs."""
        self._directory = directory
        self._path_of = path_of
        self._requests = requests
        self._clock = clock
        self._log = log
        self._holder = holder
        self._joined = joined

    def departed(self) -> list[Departed]:
        return list(read_notes(self._directory))

    def request_move(self, request: MoveRequest) -> None:
        self._requests.ask(request, self._holder, self._directory)
        parts = ", ".join(f"part-{index} to {one_line(to)}" for index, to in request.targets.items())
        self._log(f"the run was asked to move {parts}")

    def move_request(self, move_id: str) -> MoveRequest | None:
        return self._requests.get(move_id, self._holder)

    def report_move(self, request: MoveRequest) -> None:
        self._requests.report(request)

    def block_digests(self, name: str) -> Iterator[list[bytes]]:
        with database(self._path_of(name)) as (read, size_bytes):
            yield from digests(read, size_bytes)

    def blocks(self, name: str, numbers: list[int]) -> Iterator[list[Block]]:
        with database(self._path_of(name)) as (read, _):
            yield from blocks(read, numbers)

    def begin_arrival(self, move_id: str, sizes: dict[str, int]) -> None:
        arriving.begin(self._directory, move_id, sizes, self._clock.wall_ms())

    def put_blocks(self, move_id: str, name: str, some: list[Block]) -> None:
        arriving.put(self._directory, move_id, name, some)

    def staged_digests(self, move_id: str, name: str) -> Iterator[list[bytes]]:
        yield from arriving.staged_digests(self._directory, move_id, name)

    def check_arrival(self, move_id: str, name: str, size_bytes: int, digests: dict[int, bytes]) -> None:
        arriving.check(self._directory, move_id, name, size_bytes, digests)

    def end_arrival(self, move_id: str) -> None:
        arriving.end(self._directory, move_id)

    # The calls of who holds the directory

    def begin_leaving(self, name: str) -> int:
        return self._held.begin_leaving(self._path_of(name)).size_bytes

    def note_leaving(self, name: str, to: str) -> None:
        with self._held.leaving(name) as partition:
            partition.note(to, self._clock.wall_ms())

    def forget_departed(self, index: PartitionIndex, to: str) -> None:
        with self._held.busy():
            forget_note(self._directory, index, to)
        self._log(f"the note that part-{index} went to {one_line(to)} was removed")

    def place_arrival(self, move_id: str, name: str) -> None:
        with self._held.busy():
            arriving.place(self._directory, move_id, name)
        self._log(f"{name} has come")

    def leave(self, name: str) -> None:
        with self._held.leaving(name, ends=True) as partition:
            to = partition.remove()
        self._log(f"{name} has left for {one_line(to)}")

    def stay(self, name: str) -> None:
        with self._held.leaving(name, ends=True) as partition:
            partition.stay()

    @property
    def _held(self) -> Holding:
        if self._joined is None:
            raise LeaseLostError("this connection belongs to no run", path=self._directory)
        return self._joined
