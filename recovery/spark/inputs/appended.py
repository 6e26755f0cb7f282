"""Growing text files: whether each file that was read, or has to be read again, still has its content."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import msgspec

from recovery.appended.files import LocalFiles, display
from recovery.appended.options import parse_options
from recovery.appended.planner import Planner
from recovery.appended.position import FilePosition, InputOffset
from recovery.base.outside import Answers, Checked, DoesNotApply, Moment, Question
from recovery.errors import InputRewrittenError, RecoveryError
from recovery.planning.lag import PartLag
from recovery.planning.lost_input import Change, Loss, Needed, PartKind, There
from recovery.spark.clusters import Input
from recovery.spark.inputs.protocol import RUN_ONCE, Looked, Resumes

_LOOKS = (Moment.START, Moment.GOING_BACK)
_CAUSE = "The file was removed, compressed, truncated or written again after the flow had read it."


class AppendedInput:
    """The `StreamInput` of one `appended` source: the files of the position, and the files that were read beyond it."""

    answers: ClassVar[Answers] = {
        Question.SAME: Checked("a digest of the first and the last bytes that were read of each file", _LOOKS),
        Question.THERE: Checked("every byte up to where discarded epochs have read, by size and digest", _LOOKS),
        Question.CHANGED: Checked("the same digests", _LOOKS),
        Question.ABLE: Checked("each file is opened and read", _LOOKS),
        Question.OWNER: DoesNotApply(),
    }

    tells_lag: ClassVar[bool] = True

    def __init__(self, stream: Input, resumes: Resumes) -> None:
        self._options = parse_options(stream.options)
        self._name = stream.options.get("path", "")
        self._planner = Planner(self._options, LocalFiles(), os.cpu_count() or 1)
        self._at = InputOffset() if resumes.at is None else _offset(resumes.at) or InputOffset()
        self._reads = [found for text in resumes.reached.offsets if (found := _offset(text)) is not None]
        self._dropped: set[int] = set()
        self._seen_at: Mapping[int, int] = {}
        self._read_bytes = 0

    def look(self) -> Looked:
        """Look at the files, and change nothing. Raises StorageError if they cannot be read."""
        errors: list[tuple[str, RecoveryError]] = []
        at = self._at
        while at.files:
            try:
                self._planner.check(at)
                break
            except InputRewrittenError as error:
                numbers = [number for number, each in at.files.items() if display(each.path) == error.path]
                if not numbers:
                    raise
                error.remedy = f"{error.remedy} {RUN_ONCE.format(shlex.quote(self._name))}"
                errors.append((self._name, error))
                self._dropped.update(numbers)
                at = replace(at, files={n: each for n, each in at.files.items() if n not in numbers})
        needed, there = [], {}
        beyond = [] if self._options.on_missing != "fail" else _beyond(self._at, self._reads)
        beyond = [(known, position) for known, position in beyond if self._planner.names(position)]
        found = self._planner.holding([position for _, position in beyond])
        for (known, position), file in zip(beyond, found, strict=True):
            part, begin = display(position.path), 0 if known is None else known.offset
            needed.append(Needed(self._name, part, PartKind.GROWING_FILE, begin, position.offset, position.digest))
            if file is not None:
                there[self._name, part] = There(0, file.size, position.digest)
            elif known is not None and begin and self._planner.holding([known]) != [None]:
                # What the snapshot counts is still there; what came after that is not, or is something else.
                there[self._name, part] = There(0, begin, position.digest)
            elif (other := self._planner.in_place_of(position)) is not None:
                there[self._name, part] = There(0, other.size, "")
        return Looked(tuple(needed), there, tuple(errors), {self._name: _CAUSE})

    def goes_on(self, lost: Sequence[Loss]) -> str | None:
        """Return the offset without the lost files; a file that has the name of one is read as a new file."""
        parts = {loss.needed.part for loss in lost if loss.change is not Change.SHORTENED}
        kept = {
            number: each
            for number, each in self._at.files.items()
            if number not in self._dropped and display(each.path) not in parts
        }
        if kept == self._at.files:
            return None
        return msgspec.json.encode(replace(self._at, files=kept).to_json()).decode()

    def behind(self, at: str) -> Sequence[PartLag]:
        """Return the bytes of whole lines that a micro-batch without a limit would read next, in all files together."""
        position = _offset(at) or InputOffset()
        after = InputOffset.from_json(self._planner.latest(position.to_json(), None))
        begins = {number: each.offset for number, each in position.files.items()}
        behind = sum(each.offset - begins.get(number, 0) for number, each in after.files.items())
        # Positions of removed files are dropped: the sum of all that are left would fall.
        self._read_bytes += sum(max(0, offset - self._seen_at.get(number, 0)) for number, offset in begins.items())
        self._seen_at = begins
        return (PartLag(self._name, "", "", "byte", self._read_bytes, self._read_bytes + behind, behind),)

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _offset(text: str) -> InputOffset | None:
    """Return a position in appended files; None for another source's position."""
    try:
        found: Any = msgspec.json.decode(text)
        return InputOffset.from_json(found) if isinstance(found, Mapping) and "files" in found else None
    except (ValueError, RecursionError, RecoveryError):
        return None


def _beyond(at: InputOffset, reached: Sequence[InputOffset]) -> list[tuple[FilePosition | None, FilePosition]]:
    """Return how far the snapshot has read each file that was read further, and how far that was."""
    furthest: dict[tuple[int, str, str], FilePosition] = {}
    for offset in reached:
        for number, position in offset.files.items():
            name = number, position.origin, position.directory
            if name not in furthest or position.offset > furthest[name].offset:
                furthest[name] = position
    found: list[tuple[FilePosition | None, FilePosition]] = []
    for (number, origin, directory), position in furthest.items():
        known = at.files.get(number)
        if known is not None and (known.origin, known.directory) != (origin, directory):
            known = None
        if known is None or known.offset < position.offset:
            found.append((known, position))
    return [(known, position) for known, position in found if position.offset]
