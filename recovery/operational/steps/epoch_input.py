"""The position of each source at an epoch, how two of them differ, and the input that an epoch read: for growing files,
the bytes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from recovery.appended.position import InputOffset
from recovery.base.ids import NO_EPOCH
from recovery.base.reserved import CHECKPOINT_STEP, SOURCES_STEP
from recovery.checkpoint.offsets import is_tick, labels, read_log
from recovery.checkpoint.source_places import recorded_places
from recovery.checkpoint.sources import PLACES_KEY
from recovery.errors import RecoveryError
from recovery.planning.resume import Cut
from recovery.storage.snapshot import Snapshot


def position_of(at: Snapshot) -> dict[str, str]:
    """Return the position of each source in a snapshot, without tick sources: by its number in the plan, or by the name
    that the flow's code gives it."""
    text = _stored(at, f"offsets/{at.cut[2]}")
    if not text:
        return {}
    log = read_log(text)
    recorded = at.state(SOURCES_STEP, PLACES_KEY)
    if recorded is None or not isinstance(recorded.value, str):
        return dict(log.offsets)
    places = recorded_places(recorded.value)
    labelled = zip(labels(places, log), places.ticks, strict=True)
    of_input = dict.fromkeys(name for name, ticks in labelled if not ticks)
    if of_input.keys().isdisjoint(log.offsets):
        # The flow's code names its sources, and the names are not recorded.
        return {name: offset for name, offset in log.offsets.items() if not is_tick(offset)}
    return {str(number): log.offsets[name] for number, name in enumerate(of_input) if name in log.offsets}


def _stored(at: Snapshot, path: str) -> str:
    """Return a file of the checkpoint that a snapshot holds, as text; empty if it holds none."""
    first = f"{path}#{1:05}"
    found = at.some(CHECKPOINT_STEP, [path, first])
    whole, chunk = found.get(path), found.get(first)
    chunks = [whole] if whole else []
    while not whole and chunk is not None:
        chunks.append(chunk)
        chunk = at.state(CHECKPOINT_STEP, f"{path}#{len(chunks) + 1:05}")
    pieces = (each.value.encode() if isinstance(each.value, str) else each.value for each in chunks)
    return b"".join(pieces).decode(errors="replace")


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes [begin, end) of a file, under the name that it had when the epoch was closed."""

    path: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SourceInput:
    """What an epoch read of one source, by the source's number in the plan. ranges: None: the source is not
    `appended`."""

    source: str
    ranges: tuple[FileRange, ...] | None

    def as_json(self) -> dict[str, Any]:
        """Return the input as JSON."""
        ranges = None if self.ranges is None else [asdict(each) for each in self.ranges]
        return {"source": self.source, "ranges": ranges}


class EpochInputs:
    """What epochs read of each source. The position of an epoch is read once, also for the epoch after it."""

    def __init__(self, at: Snapshot) -> None:
        self._at = at
        self._cuts: dict[int, Cut] = {cut[0]: cut for cut in at.cuts}
        self._positions: dict[int, dict[str, str]] = {}

    def of(self, epoch: int) -> tuple[SourceInput, ...] | None:
        """Return what an epoch read; None if the epoch, or the one before it, is not held any more.

        Raises the errors of reading, and the errors of a position that cannot be read.
        """
        cuts = self._cuts
        if epoch not in cuts or (epoch - 1 not in cuts and epoch - 1 != NO_EPOCH):
            return None
        after = self._position(epoch)
        before = self._position(epoch - 1) if epoch - 1 in cuts and epoch > 1 else {}
        return tuple(SourceInput(source, _ranges(before.get(source), text)) for source, text in after.items())

    def _position(self, epoch: int) -> dict[str, str]:
        found = self._positions.get(epoch)
        if found is None:
            found = self._positions[epoch] = position_of(replace(self._at, cut=self._cuts[epoch]))
        return found


@dataclass(frozen=True, slots=True)
class FileRead:
    """How many bytes of a file were read in two snapshots. path: its name in the later of them, if it was renamed."""

    path: str
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """The position of one source in both snapshots; None: the source is not read there, or nothing was read from it."""

    source: str
    a: str | None
    b: str | None

    @property
    def same(self) -> bool:
        """Whether both snapshots have read the same input of this source. In growing files this means the same bytes,
        whatever was written behind them."""
        both = self._offsets()
        return self.a == self.b or (both is not None and _content(both[0]) == _content(both[1]))

    @property
    def files(self) -> tuple[FileRead, ...] | None:
        """The growing files that the two snapshots have not read equally far; None: a source of another kind."""
        both = self._offsets()
        return None if both is None else tuple(_files(*both))

    def _offsets(self) -> tuple[InputOffset, InputOffset] | None:
        one, other = (InputOffset() if text is None else _offset(text) for text in (self.a, self.b))
        return None if one is None or other is None else (one, other)

    def as_json(self) -> dict[str, Any]:
        """Return the positions as JSON."""
        files = {} if self.files is None else {"files": [asdict(each) for each in self.files]}
        return {"source": self.source, "same": self.same, "a": self.a, "b": self.b, **files}


def _content(offset: InputOffset) -> Counter[tuple[int, str]]:
    """Return what was read of each file. What was seen behind the read part, and file names, belong to nobody's
    state."""
    return Counter((each.offset, each.digest) for each in offset.files.values() if each.offset)


def _files(one: InputOffset, other: InputOffset) -> Iterator[FileRead]:
    """Yield the files that are read to different places. Files with one number and one first name are one file: two
    stores that share a history number the files of that history alike. For files without a number, the name decides."""
    left = dict(other.files)
    for number, mine in one.files.items():
        named = left.get(number)
        if named is None or named.origin != mine.origin:
            number = next((each for each, theirs in left.items() if theirs.path == mine.path), -1)
        theirs = left.pop(number, None)
        read = 0 if theirs is None else theirs.offset
        if mine.offset != read or (theirs is not None and mine.digest != theirs.digest and read):
            yield FileRead((theirs or mine).path, mine.offset, read)
    yield from (FileRead(each.path, 0, each.offset) for each in left.values() if each.offset)


def _ranges(before: str | None, after: str) -> tuple[FileRange, ...] | None:
    old, new = _offset(before), _offset(after)
    if new is None:
        return None
    files = old.files if old is not None else {}
    return tuple(
        FileRange(position.path, begin, position.offset)
        for number, position in new.files.items()
        if (begin := files[number].offset if number in files else 0) < position.offset
    )


def _offset(text: str | None) -> InputOffset | None:
    """Return a position in appended files; None for another source's position, and without a position."""
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.keys() - {"since"} != {"version", "next", "turn", "files"}:
        return None
    try:
        return InputOffset.from_json(found)
    except RecoveryError:
        # Another source may have a position of this form.
        return None
