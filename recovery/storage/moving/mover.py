"""Moving partitions from owner to owner: every partition is at one owner that counts, whatever is killed when.

moves.1  Stage the partitions at their targets, block by block, also while a run writes to them. What is staged need not
         fit together.
moves.2  Hold the sources and the targets, so that no run does. Let nobody write to a partition that leaves. Compare
         all blocks, and send those in which the staged file still differs; the target compares these, and syncs the
         file.
moves.3  The source notes to whom the partition goes, and how new it is.
moves.4  The target puts the file into place. From now on this copy counts: of two copies of one age, the one that is
         noted as leaving does not.
moves.5  The source removes its file. The note stays, so that a run finds the target that does not know it.

Killed before moves.4, the copy at the source counts; the next run on it makes it newer than the note. What is staged is
removed by the target, or by the next move.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from recovery.base.clock import Clock
from recovery.base.faults import reach
from recovery.base.ids import PartitionIndex
from recovery.base.threads import each
from recovery.errors import LeaseLostError, OwnerUnreachableError, RecoveryError
from recovery.planning.moves import Move
from recovery.storage.moving.blocks import BLOCK_BYTES, differing
from recovery.wire.move_calls import MoveCalls
from recovery.wire.run_client import Owner

AT_ONCE = 4
"""Partitions that are moved at the same time."""
MOST_PASSES = 4
FEW_BYTES = 16 << 20
"""No further pass while a run writes if the last one sent no more than this."""


class MoveProgress(NamedTuple):
    """How far a move is. step: "send" while a run writes, "finish" when nobody does, "moved". bytes_sent: in all."""

    move: Move
    step: str
    bytes_sent: int


Observer = Callable[[MoveProgress], None]


def ignore(_: MoveProgress) -> None:
    """An observer that does nothing."""


class MoveResult(NamedTuple):
    """What came of moves. sent_bytes: in all. pause_s: how long the partitions were locked. error: what kept some from
    moving."""

    moved: tuple[Move, ...]
    sent_bytes: int
    pause_s: float
    error: RecoveryError | None = None

    @property
    def indexes(self) -> tuple[PartitionIndex, ...]:
        """The partitions that moved."""
        return tuple(move.index for move in self.moved)


class Mover:
    """Moves of one command or request."""

    def __init__(self, move_id: str, moves: Sequence[Move], observe: Observer = ignore) -> None:
        """move_id: 16 random hexadecimal digits."""
        self.moves = tuple(moves)
        self._move_id = move_id
        self._observe = observe
        self._sent: dict[PartitionIndex, int] = {move.index: 0 for move in moves}

    @property
    def sent_bytes(self) -> int:
        """What was sent so far."""
        return sum(self._sent.values())

    def stage(self, owners: Mapping[str, Owner], stopping: threading.Event) -> None:
        """Step moves.1. owners: by location. stopping: ends the step early. Raises what the owners refuse with."""
        for target in dict.fromkeys(move.target for move in self.moves):
            sizes = {move.name: move.size_bytes for move in self.moves if move.target == target}
            owners[target].ask(MoveCalls.begin_arrival, self._move_id, sizes)
        for number in range(MOST_PASSES):
            before = self.sent_bytes
            for move in self.moves:
                if stopping.is_set():
                    return
                self._send(move, owners, stopping, "send", is_first=number == 0)
            if self.sent_bytes - before <= FEW_BYTES:
                break
        reach("moves.1")

    def finish(self, owners: Mapping[str, Owner], clock: Clock) -> MoveResult:
        """Steps moves.2 to moves.5. owners: by location, held by the caller. Partitions that could not move stay where
        they are."""
        began_s, done = clock.elapsed_s(), []

        def attempt(move: Move) -> RecoveryError | None:
            try:
                self._finish(move, owners)
            except RecoveryError as error:
                return error
            done.append(move)
            return None

        errors = each(attempt, self.moves, at_once=AT_ONCE, name="move")
        moved = tuple(sorted(done, key=lambda move: move.index))
        error = next((error for error in errors if error is not None), None)
        return MoveResult(moved, self.sent_bytes, clock.elapsed_s() - began_s, error)

    def end(self, owners: Mapping[str, Owner]) -> None:
        """Remove what is staged. A target that does not answer removes it later."""
        for target in dict.fromkeys(move.target for move in self.moves):
            with contextlib.suppress(RecoveryError):
                owners[target].ask(MoveCalls.end_arrival, self._move_id)

    def _finish(self, move: Move, owners: Mapping[str, Owner]) -> None:
        source, target = owners[move.source], owners[move.target]
        # moves.2
        size_bytes = source.ask(MoveCalls.begin_leaving, move.name)
        try:
            sent = self._send(move, owners, threading.Event(), "finish")
            target.ask(MoveCalls.check_arrival, self._move_id, move.name, size_bytes, sent)
            reach("moves.2")
            # moves.3
            source.ask(MoveCalls.note_leaving, move.name, move.target)
            reach("moves.3")
            # moves.4
            target.ask(MoveCalls.place_arrival, self._move_id, move.name)
        except (OwnerUnreachableError, LeaseLostError):
            # The target may have put the file into place: the note stays, with which both cases are exact.
            raise
        except BaseException:
            with contextlib.suppress(RecoveryError):
                source.ask(MoveCalls.stay, move.name)
            raise
        reach("moves.4")
        # moves.5
        source.ask(MoveCalls.leave, move.name)
        reach("moves.5")
        self._tell(move, "moved")

    def _send(
        self,
        move: Move,
        owners: Mapping[str, Owner],
        stopping: threading.Event,
        step: str,
        *,
        is_first: bool = False,
    ) -> dict[int, bytes]:
        """Send the blocks in which the staged file differs; return their digests by number, none in the first pass."""
        source, target = owners[move.source], owners[move.target]
        if is_first:
            own: list[bytes] = []
            numbers = list(range(-(-move.size_bytes // BLOCK_BYTES)))
        else:
            streams: list[Callable[[], Iterator[list[bytes]]]] = [
                lambda: source.stream(MoveCalls.block_digests, move.name),
                lambda: target.stream(MoveCalls.staged_digests, self._move_id, move.name),
            ]
            own, theirs = each(lambda stream: [d for some in stream() for d in some], streams, at_once=2, name="digest")
            numbers = differing(theirs, own)
        if not numbers:
            return {}
        with contextlib.closing(source.stream(MoveCalls.blocks, move.name, numbers)) as found:
            for some in found:
                if stopping.is_set():
                    break
                target.ask(MoveCalls.put_blocks, self._move_id, move.name, some)
                self._sent[move.index] += sum(len(data) for _, data in some)
                self._tell(move, step)
        return {number: own[number] for number in numbers if own}

    def _tell(self, move: Move, step: str) -> None:
        self._observe(MoveProgress(move, step, self._sent[move.index]))
