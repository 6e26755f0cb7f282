"""How far the next batch reads, and how it is cut into tasks: functions of values, without files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from recovery.appended.position import FilePosition

MIN_PARTITION_BYTES = 1 << 20
FULL_PARTITION_BYTES = 4 << 20
MAX_PARTITION_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unread bytes of one file, from `offset` to `bound`.

    take_last: a last line without line end at `bound` is complete.
    """

    number: int
    offset: int
    bound: int
    take_last: bool = False


class LineEnds(Protocol):
    """Where lines end in the files."""

    def last(self, number: int, start: int, stop: int) -> int | None:
        """Return the place just after the last line end in [start, stop), or None."""

    def first(self, number: int, start: int, stop: int) -> int | None:
        """Return the place just after the first line end in [start, stop), or None."""


def plan_ends(
    groups: Sequence[Sequence[Backlog]], max_bytes: int | None, turn: int, lines: LineEnds
) -> tuple[dict[int, int], int]:
    """Return how far to read each file, and whose turn is next.

    A group is the generations of one log, oldest first; a younger generation waits until the limit leaves room for
    everything in the older ones. Groups are served round-robin, beginning at `turn`, each as far as the limit allows,
    so none starves. The planned bytes stay within `max_bytes`, except that a batch takes its first line whatever its
    length. Only whole lines are planned; files with nothing to read are left out.
    """
    ends: dict[int, int] = {}
    ordered = sorted((group for group in groups if group), key=lambda group: group[0].number)
    first = next((i for i, group in enumerate(ordered) if group[0].number >= turn), 0)
    circle = [*ordered[first:], *ordered[:first]]
    room = max_bytes
    for place, group in enumerate(circle):
        for backlog in group:
            end, complete = _end(backlog, room, lines, must_progress=not ends)
            if end is not None:
                ends[backlog.number] = end
                room = None if room is None else max(0, room - (end - backlog.offset))
            if not complete:
                following = circle[(place + 1) % len(circle)] if place == 0 else group
                return ends, following[0].number
    return ends, 0


def _end(backlog: Backlog, room: int | None, lines: LineEnds, *, must_progress: bool) -> tuple[int | None, bool]:
    """Return how far to read one file, and whether that is as far as it can be read now."""
    number, offset, bound = backlog.number, backlog.offset, backlog.bound
    if offset >= bound:
        return None, True
    whole = bound if backlog.take_last else lines.last(number, offset, bound)
    if whole is None or room is None or whole - offset <= room:
        return whole, True
    end = lines.last(number, offset, offset + room) if room else None
    if end is None and must_progress:
        end = lines.first(number, offset + room, whole) or whole
        return end, end == whole
    return end, False


@dataclass(frozen=True, slots=True)
class Range:
    """Whole lines of one file, [begin, end) in bytes, to be read in one batch.

    path: where the file was found. expected: the content it must hold; `expected.path` is the file name reported with
    its lines. after_unfinished: the line before `begin` was taken without its line end.
    """

    path: str
    expected: FilePosition
    begin: int
    end: int
    after_unfinished: bool = False


@dataclass(frozen=True, slots=True)
class Slice:
    """The lines of a range that begin in [start, stop); both places may be inside lines."""

    whole: Range
    start: int
    stop: int


def cut(ranges: Iterable[Range], partition_bytes: int) -> list[tuple[Slice, ...]]:
    """Return tasks of at most `partition_bytes` each: long ranges are cut, short ones combined, in order."""
    tasks: list[tuple[Slice, ...]] = []
    current: list[Slice] = []
    filled = 0
    for whole in ranges:
        length = whole.end - whole.begin
        pieces = -(-length // partition_bytes)
        for i in range(pieces):
            piece = Slice(whole, whole.begin + length * i // pieces, whole.begin + length * (i + 1) // pieces)
            if current and filled + piece.stop - piece.start > partition_bytes:
                tasks.append(tuple(current))
                current, filled = [], 0
            current.append(piece)
            filled += piece.stop - piece.start
    return [*tasks, tuple(current)] if current else tasks


def partition_bytes_for(total_bytes: int, cores: int) -> int:
    """Return a task size that gives each core two tasks. Tasks that would be smaller than FULL_PARTITION_BYTES are
    fewer, down to one for each core: the micro-batch waits for the slowest. All sizes are within bounds that keep a
    task worth starting."""
    two_each, one_each = (-(-total_bytes // (tasks * cores)) for tasks in (2, 1))
    least = min(max(one_each, MIN_PARTITION_BYTES), FULL_PARTITION_BYTES)
    return min(max(two_each, least), MAX_PARTITION_BYTES)
