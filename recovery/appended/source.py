"""The input as the planner and the tasks use it: what is there, how far to read, and bytes that are the right ones.

A micro-batch:

1. `Planner.latest` looks at the directories, finds each file that was read before by its content, meets new ones,
   and says how far the batch reads: an `InputOffset`, self-contained, to be saved.
2. `Planner.tasks` finds the files of that offset again, perhaps in another process after a crash, when they have
   grown or were rotated since, and cuts what lies between two offsets into tasks.
3. `TaskFiles` gives a task the bytes of its slices, and checks after each read that the file still is the one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from recovery.appended.content import BYTE_ORDER_MARK, find_last_line_end, find_line_end
from recovery.appended.files import Files, FileStat, OpenFile, PathPattern, display
from recovery.appended.locate import Look, locate
from recovery.appended.options import Options
from recovery.appended.plan import Backlog, Range, Slice, cut, partition_bytes_for, plan_ends
from recovery.appended.position import FilePosition, InputOffset, Read, fingerprint
from recovery.appended.survey import Survey, rewritten, survey, vanished
from recovery.errors import ConfigurationError, InputRewrittenError, RecoveryError, StorageError

ATTEMPTS = 5
"""How often a look is repeated when files were renamed or truncated while it lasted."""
KEPT_LOST_FILES = 1000
"""Positions of absent files that are kept; beyond that the oldest are forgotten."""
_SAMPLE_BYTES = 4096


class _MovedError(Exception):
    """A file was renamed or truncated between two steps of one look."""


class Planner:
    """Plans the micro-batches of one query. Offsets go in and out as JSON-like dicts.

    What it remembers between calls saves work only, except for the end that `fix_end` fixed.
    """

    def __init__(self, options: Options, files: Files, cores: int) -> None:
        self._options = options
        self._files = files
        self._cores = cores
        self._pattern = files.pattern(options.path)
        self._checks = _Checks(files)
        self._barren: dict[int, tuple[int, int]] = {}
        self._fixed: dict[tuple[int, int], int] | None = None
        self._bounds: dict[int, int] | None = None

    def initial(self) -> dict[str, Any]:
        """The offset at which nothing was read. Raises ConfigurationError if the path names nothing."""
        look = Look(self._files, self._pattern)
        if not self._pattern.is_glob and not look.listed:
            raise ConfigurationError(
                "There is no such file or directory.",
                path=display(self._options.path),
                cause="The path is wrong, or the file is yet to be created.",
                remedy="Correct the path, create the file, or give a glob, which may match nothing yet.",
            )
        return InputOffset().to_json()

    def fix_end(self) -> None:
        """From now on nothing is planned that was not there at this moment."""
        listed = Look(self._files, self._pattern).listed.values()
        self._fixed = {(file.device, file.inode): file.size for file in listed}
        self._bounds = None

    def latest(self, start: Mapping[str, Any], max_bytes: int | None) -> dict[str, Any]:
        """The end of a batch that begins at `start` and reads about `max_bytes` at most; `start` if there is nothing.

        A batch with something to read gets at least one line. Raises InputRewrittenError, or StorageError if
        something cannot be read.
        """
        before = InputOffset.from_json(start)
        for _ in range(ATTEMPTS):
            try:
                after = self._latest(before, max_bytes)
            except _MovedError:
                continue
            return dict(start) if after is None else after.to_json()
        raise StorageError(
            "Files were renamed or truncated during each of several looks at them.",
            path=display(self._options.path),
            cause="Something rotates or rewrites them all the time.",
            remedy="Rotate less often.",
        )

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[Slice, ...]]:
        """What lies between two offsets, cut into tasks; the same lines whenever it is asked.

        Raises InputRewrittenError if some of it is not there any more.
        """
        before = InputOffset.from_json(start).files
        after = InputOffset.from_json(end).files
        wanted = {
            number: position
            for number, position in after.items()
            if position.offset > (before[number].offset if number in before else 0)
        }
        if not wanted:
            return []
        found = self._find_again(wanted, after)
        ranges = [
            Range(
                path=found[number].path,
                expected=position,
                begin=before[number].offset if number in before else 0,
                end=position.offset,
                after_unfinished=number in before and before[number].unfinished,
            )
            for number, position in wanted.items()
            if number in found
        ]
        total_bytes = sum(one.end - one.begin for one in ranges)
        return cut(ranges, self._options.partition_bytes or partition_bytes_for(total_bytes, self._cores))

    def _latest(self, before: InputOffset, max_bytes: int | None) -> InputOffset | None:
        seen = self._survey(before)
        fresh = [one for one in seen.fresh if self._fixed is None or self._is_in_fixed_end(one[0])]
        files = dict(seen.found)
        positions = {number: before.files[number] for number in files}
        for number, (file, origin) in enumerate(fresh, before.next_id):
            files[number] = file
            positions[number] = FilePosition(file.path, origin, 0, file.size, file.inode, "")
        bounds = self._bounds_of(files, positions)
        groups: dict[tuple[str, str], list[Backlog]] = {}
        for number in sorted(files):
            backlog = self._backlog(number, positions[number], files[number], bounds[number])
            groups.setdefault((files[number].directory, positions[number].origin), []).append(backlog)
        ends, turn = plan_ends(list(groups.values()), max_bytes, before.turn, _Lines(self, files))
        if not ends and not fresh:
            return None
        moved = {
            number: self._advanced(positions[number], files[number], ends.get(number, positions[number].offset))
            for number in files
        }
        self._bounds = bounds if self._fixed is not None else None
        lost = dict(sorted(seen.lost.items())[-KEPT_LOST_FILES:])
        return InputOffset(moved | lost, before.next_id + len(fresh), turn)

    def _survey(self, before: InputOffset) -> Survey:
        """Looks again before it believes in a loss: a rotation may have been under way."""
        for attempt in range(ATTEMPTS):
            look = Look(self._files, self._pattern)
            self._checks.begin()
            try:
                return survey(
                    before.files, look, self._pattern, self._options, self._checks.holds, self._checks.begins_with
                )
            except InputRewrittenError:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _find_again(
        self, wanted: Mapping[int, FilePosition], after: Mapping[int, FilePosition]
    ) -> Mapping[int, FileStat]:
        for _ in range(ATTEMPTS):
            look = Look(self._files, self._pattern)
            found = locate(after, look, self._checks.holds)
            if wanted.keys() <= found.keys():
                break
        for number in wanted.keys() - found.keys():
            position = wanted[number]
            here = look.at(position.path)
            if here is not None and any(here.same_file(other) for other in found.values()):
                here = None
            if here is None and self._options.on_missing == "fail":
                raise vanished(position)
            if here is not None and self._options.on_rewrite == "fail":
                raise rewritten(position, here)
        return found

    def _is_in_fixed_end(self, file: FileStat) -> bool:
        assert self._fixed is not None
        return self._bounds is None and self._fixed.get((file.device, file.inode), 0) > 0

    def _bounds_of(
        self, files: Mapping[int, FileStat], positions: Mapping[int, FilePosition]
    ) -> dict[int, int]:
        """How far each file may be read: to its end, or to the end that was fixed.

        The first plan after the end was fixed gives each file its bound; later ones, whatever the files are
        called by then, keep to that.
        """
        if self._fixed is None:
            return {number: file.size for number, file in files.items()}
        if self._bounds is None:
            return {
                number: min(file.size, self._fixed.get((file.device, file.inode), file.size))
                for number, file in files.items()
            }
        return {number: self._bounds.get(number, positions[number].offset) for number in files}

    def _backlog(self, number: int, position: FilePosition, file: FileStat, bound: int) -> Backlog:
        bound = min(bound, file.size)
        at_end = self._fixed is not None and self._options.last_line == "take" and bound == file.size
        if at_end and position.offset == 0 and bound == len(BYTE_ORDER_MARK):
            with self.open(file) as opened:
                at_end = opened.read(0, bound) != BYTE_ORDER_MARK
        return Backlog(number, position.offset, bound, take_last=at_end)

    def _advanced(self, position: FilePosition, file: FileStat, end: int) -> FilePosition:
        """The position after a batch that reads to `end`, from the file as it is now."""
        renewed = replace(position, path=file.path, inode=file.inode, seen=file.size)
        if end == position.offset > 0:
            return renewed
        with self.open(file) as opened:
            if opened.stat().size < file.size or (
                position.digest and not position.holds_in(opened.read, opened.stat().size)
            ):
                raise _MovedError
            unfinished = end > position.offset and opened.read(end - 1, 1) != b"\n"
            if unfinished and not (self._fixed is not None and self._options.last_line == "take"):
                raise _MovedError
            digest = fingerprint(opened.read, end, file.size)
        return replace(renewed, offset=end, digest=digest, unfinished=unfinished)

    def open(self, file: FileStat) -> OpenFile:
        """Opens a file that a look has shown, if it still has that name."""
        try:
            opened = self._files.open(file.path)
        except OSError as error:
            raise StorageError(str(error), path=display(file.path)) from error
        if opened is None:
            raise _MovedError
        if not opened.stat().same_file(file):
            opened.close()
            raise _MovedError
        return opened

    def last_line_end(self, number: int, file: FileStat, start: int, stop: int) -> int | None:
        """As `LineEnds.last`; remembers where there was none, so that a growing line is not searched again."""
        known_start, known_stop = self._barren.get(number, (0, 0))
        begin = known_stop if known_start <= start <= known_stop <= stop else start
        with self.open(file) as opened:
            found = find_last_line_end(opened.read, begin, stop)
        if found is None:
            self._barren[number] = (start, stop)
        return found


class _Lines:
    """Where lines end in the files of one look."""

    def __init__(self, planner: Planner, files: Mapping[int, FileStat]) -> None:
        self._planner = planner
        self._files = files

    def last(self, number: int, start: int, stop: int) -> int | None:
        return self._planner.last_line_end(number, self._files[number], start, stop)

    def first(self, number: int, start: int, stop: int) -> int | None:
        with self._planner.open(self._files[number]) as opened:
            return find_line_end(opened.read, start, stop)


class _Checks:
    """Comparisons of content, remembered for as long as the files stay untouched."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[tuple[object, ...], bool] = {}
        self._used: dict[tuple[object, ...], bool] = {}

    def begin(self) -> None:
        """Forgets what the last look did not need."""
        self._known, self._used = self._used, {}

    def holds(self, file: FileStat, position: FilePosition) -> bool:
        """As `locate.Holds`."""
        if file.size < position.needed_bytes:
            return False
        key = (file, position.offset, position.digest)
        if key not in self._used:
            self._used[key] = self._known[key] if key in self._known else self._holds(file, position)
        return self._used[key]

    def begins_with(self, longer: FileStat, shorter: FileStat) -> bool:
        """As `survey.BeginsWith`, judged by the first and last bytes and samples between them."""
        places = {max(0, min(shorter.size - _SAMPLE_BYTES, shorter.size * i // 16)) for i in range(17)}
        with self._open(longer) as one, self._open(shorter) as other:
            return all(
                one.read(place, min(_SAMPLE_BYTES, shorter.size - place))
                == other.read(place, min(_SAMPLE_BYTES, shorter.size - place))
                for place in places
            )
