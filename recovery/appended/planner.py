"""What the next micro-batch reads.

A micro-batch:

1. `Planner.latest` looks at the directories, finds each known file by its content, finds new ones, and returns how
   far the batch reads: a self-contained `InputOffset`, to be saved.
2. `Planner.tasks` finds the files of that offset again, perhaps in another process after a crash, when they may
   have grown or been rotated, and cuts the lines between two offsets into tasks.
3. `reach.TaskFiles` gives a task the bytes of its slices, and checks after each read that it is still the same
   file; `content.read_task` turns them into record batches.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from recovery.appended.files import FileStat, InputFiles, display
from recovery.appended.line_ends import BYTE_ORDER_MARK, find_last_line_end, find_line_end
from recovery.appended.locate import DirectoryListing, locate
from recovery.appended.options import Options
from recovery.appended.plan import Backlog, Range, Slice, cut, partition_bytes_for, plan_ends
from recovery.appended.position import FilePosition, InputOffset, fingerprint
from recovery.appended.reach import ATTEMPTS, Checks, MovedError, open_same
from recovery.appended.survey import ContentChecks, Survey, newest_generation_ns, rewritten, survey, vanished
from recovery.errors import ConfigurationError, InputRewrittenError, StorageError

_WILDCARD = re.compile(r"[*?\[]")
KEPT_LOST_FILES = 1000
"""The number of positions of absent files that are kept; beyond it the oldest are forgotten."""


class Planner:
    """Plans the micro-batches of one query. Offsets go in and out as JSON-like dicts.

    What the planner remembers between calls only saves work, except for the end that `fix_end` fixed.
    cores: how many tasks can run at the same time. clock_ns: returns nanoseconds since 1970.
    """

    def __init__(
        self, options: Options, files: InputFiles, cores: int, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._options = options
        self._files = files
        self._cores = cores
        self._clock_ns = clock_ns
        self._pattern = files.pattern(options.path)
        self._checks = checks = Checks(files)
        self._contents = ContentChecks(checks.holds, checks.begins_with, checks.packs_nothing)
        self._lines = _Lines(files)
        self._fixed: dict[tuple[int, int], int] | None = None
        self._fixed_since_ns = 0
        self._bounds: dict[int, int] | None = None

    def initial(self) -> dict[str, Any]:
        """Return the offset before anything is read. Raises ConfigurationError if the path names nothing."""
        if not self._pattern.is_glob and not self._look().listed:
            raise ConfigurationError(
                "There is no such file or directory.",
                path=display(self._options.path),
                cause="The path is wrong, or the file does not exist yet.",
                remedy="Correct the path, create the file, or give a glob, which may match nothing yet.",
            )
        return InputOffset().to_json()

    def fix_end(self) -> None:
        """Limit all further plans to the content that exists now."""
        look = self._look()
        self._fixed = {file.identity: file.size for file in look.listed.values()}
        self._fixed_since_ns = newest_generation_ns(look)
        self._bounds = None

    def latest(self, start: Mapping[str, Any], max_bytes: int | None) -> dict[str, Any]:
        """Return the end of a batch that begins at `start`; `start` if there is nothing to read.

        The batch reads whole lines, at most `max_bytes` but at least one line if there is one. Raises
        InputRewrittenError, or StorageError if something cannot be read.
        """
        after = self.end_of_batch(InputOffset.from_json(start), max_bytes)
        return dict(start) if after is None else after.to_json()

    def end_of_batch(self, before: InputOffset, max_bytes: int | None) -> InputOffset | None:
        """Return what `latest` does, as a value; None if there is nothing to read. Raises what `latest` raises."""
        for _ in range(ATTEMPTS):
            try:
                return self._latest(before, max_bytes)
            except MovedError:
                continue
        raise StorageError(
            "The files changed names or were truncated each time that they were listed.",
            path=display(self._options.path),
            cause="Another program rotates or rewrites them constantly.",
            remedy="Rotate less often.",
        )

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[Slice, ...]]:
        """Return the lines between two offsets, cut into tasks: the same lines in every call.

        Raises InputRewrittenError if some of them no longer exist.
        """
        return self.tasks_between(InputOffset.from_json(start), InputOffset.from_json(end))

    def tasks_between(self, first: InputOffset, last: InputOffset) -> list[tuple[Slice, ...]]:
        """Return what `tasks` does. Raises what `tasks` raises."""
        before, after = first.files, last.files
        begins = {number: before[number].offset if number in before else 0 for number in after}
        wanted = {number: position for number, position in after.items() if position.offset > begins[number]}
        if not wanted:
            return []
        found = self._find_again(wanted, after)
        ranges = [
            Range(
                path=found[number].path,
                expected=position,
                begin=begins[number],
                end=position.offset,
                after_unfinished=number in before and before[number].unfinished,
            )
            for number, position in wanted.items()
            if number in found
        ]
        total_bytes = sum(one.end - one.begin for one in ranges)
        return cut(ranges, self._options.partition_bytes or partition_bytes_for(total_bytes, self._cores))

    def check(self, at: InputOffset) -> None:
        """Check that the input can be read on from an offset. Raises what `latest` raises then."""
        self._survey(at)

    def names(self, position: FilePosition) -> bool:
        """Return whether the path names the file, or named it before a directory was removed."""
        base = self._pattern.directories
        if self._pattern.is_glob and (wildcard := _WILDCARD.search(base)):
            base = base[: wildcard.start()].rpartition("/")[0]
        return self._names(position) and f"{position.directory}/".startswith(f"{base.rstrip('/')}/")

    def holding(self, positions: Sequence[FilePosition]) -> list[FileStat | None]:
        """Return the file that has the content of each position; None if there is none."""
        look = self._look()
        found = locate(dict(enumerate(positions)), look, self._checks.holds)
        return [found.get(number) for number in range(len(positions))]

    def in_place_of(self, position: FilePosition) -> FileStat | None:
        """Return the file that has the name of a position, whatever its content is; None if there is none."""
        return self._look().at(position.path)

    def _look(self) -> DirectoryListing:
        return DirectoryListing(self._files, self._pattern)

    def _latest(self, before: InputOffset, max_bytes: int | None) -> InputOffset | None:
        seen = self._survey(before)
        fresh = [(file, origin) for file, origin in seen.fresh if self._is_before_end(file, origin)]
        files = dict(seen.found)
        positions = {number: before.files[number] for number in files}
        for number, (file, origin) in enumerate(fresh, before.next_id):
            files[number] = file
            positions[number] = self._first_position(file, origin)
        bounds = self._bounds_of(files, positions)
        groups: dict[tuple[str, str], list[Backlog]] = {}
        for number in sorted(files):
            log = (files[number].directory, positions[number].origin)
            groups.setdefault(log, []).append(self._backlog(number, positions[number], files[number], bounds[number]))
        self._lines.files = files
        ends, turn = plan_ends(list(groups.values()), max_bytes, before.turn, self._lines)
        # An empty file has nothing but its number and its time: the number may be another file's since.
        touched = any(
            positions[n].blank and not f.size and positions[n].mtime_ns != f.mtime_ns for n, f in files.items()
        )
        if not ends and not fresh and not touched and before.since_ns:
            return None
        after = {
            number: self._advanced(positions[number], file, ends.get(number, positions[number].offset))
            for number, file in files.items()
        }
        if self._fixed is not None:
            self._bounds = bounds
        # The absent files grow in number, so they need a limit; those that the path does not name do not.
        kept = dict(sorted(seen.lost.items())[-KEPT_LOST_FILES:]) | dict(seen.aside)
        # In the order in which the saved form is read back: it decides between files that a position may mean.
        files_after = dict(sorted((after | kept).items()))
        return InputOffset(files_after, before.next_id + len(fresh), turn, self._since_ns(before, seen))

    def _since_ns(self, before: InputOffset, seen: Survey) -> int:
        """Return the `since_ns` of the next offset. Until the end that was fixed, only what came before it counts."""
        if self._fixed is None:
            return seen.since_ns
        return max(before.since_ns, min(seen.since_ns, self._fixed_since_ns))

    def _survey(self, before: InputOffset) -> Survey:
        """Return the survey. Before reporting a loss, look again: a rotation may have been in progress."""
        attempt = 1
        while True:
            self._checks.begin()
            look = self._look()
            if before.files and not look.listed and not any(map(self._names, before.files.values())):
                raise StorageError(
                    "The path matches no file, and the files read before were elsewhere.",
                    path=display(self._options.path),
                    cause="The directory was moved or deleted, its file system is not mounted, or the path is wrong.",
                    remedy="Put it back, mount it or correct the path, then run again: nothing was skipped.",
                )
            try:
                return survey(before, look, self._pattern, self._options, self._contents, self._clock_ns())
            except InputRewrittenError:
                if attempt == ATTEMPTS:
                    raise
                attempt += 1

    def _names(self, position: FilePosition) -> bool:
        return self._pattern.names(position.origin)

    def _find_again(
        self, wanted: Mapping[int, FilePosition], after: Mapping[int, FilePosition]
    ) -> Mapping[int, FileStat]:
        """Return the files of a saved offset, without those that the options allow to be lost."""
        for _ in range(ATTEMPTS):
            look = self._look()
            found = locate(after, look, self._checks.holds)
            if wanted.keys() <= found.keys():
                return found
        for number in sorted(wanted.keys() - found.keys()):
            here = look.at(wanted[number].path)
            if here is not None and any(here.same_file(other) for other in found.values()):
                here = None
            if here is None and self._options.on_missing == "fail":
                raise vanished(wanted[number])
            if here is not None and self._options.on_rewrite == "fail":
                raise rewritten(wanted[number], here)
        return found

    def _is_before_end(self, file: FileStat, origin: str) -> bool:
        """Return whether a new file lies before the fixed end, if there is one.

        Only the first plan after `fix_end` accepts new files. A file that is not listed was rotated before the end was
        fixed.
        """
        if self._fixed is None:
            return True
        return self._bounds is None and (file.name != origin or file.identity in self._fixed)

    def _bounds_of(self, files: Mapping[int, FileStat], positions: Mapping[int, FilePosition]) -> dict[int, int]:
        """Return how far each file may be read: to its end, or to the fixed end.

        The first plan after `fix_end` gives each file its bound; later plans keep to that bound, whatever the files are
        called then.
        """
        if self._fixed is None:
            return {number: file.size for number, file in files.items()}
        if self._bounds is None:
            return {number: min(file.size, self._fixed.get(file.identity, file.size)) for number, file in files.items()}
        return {number: self._bounds.get(number, positions[number].offset) for number in files}

    def _backlog(self, number: int, position: FilePosition, file: FileStat, bound: int) -> Backlog:
        take_last = self._takes_last_line and bound == file.size
        if take_last and position.offset == 0 and bound == len(BYTE_ORDER_MARK):
            with open_same(self._files, file) as opened:
                take_last = opened.read(0, bound) != BYTE_ORDER_MARK
        return Backlog(number, position.offset, min(bound, file.size), take_last)

    @property
    def _takes_last_line(self) -> bool:
        return self._fixed is not None and self._options.last_line == "take"

    def _first_position(self, file: FileStat, origin: str) -> FilePosition:
        with open_same(self._files, file) as opened:
            digest = fingerprint(opened.read, 0, file.size)
        return FilePosition(self._path(file), origin, 0, file.size, file.mtime_ns, file.inode, digest)

    def _path(self, file: FileStat) -> str:
        """Return the path to remember. An empty file behind a link could not be found once the link leads elsewhere."""
        return file.path if file.size else self._files.target(file.path)

    def _advanced(self, position: FilePosition, file: FileStat, end: int) -> FilePosition:
        """Return the position after a batch that reads to `end`.

        The last step checks that the file still holds the content read before: only then do line end and digest come
        from that content. Raises MovedError if the file was truncated meanwhile.
        """
        known = position.path, position.seen, position.mtime_ns, position.inode
        if end == position.offset and known == (file.path, file.size, file.mtime_ns, file.inode):
            return position
        renewed = replace(position, path=self._path(file), seen=file.size, mtime_ns=file.mtime_ns, inode=file.inode)
        if end == position.offset > 0:
            return renewed
        with open_same(self._files, file) as opened:
            unfinished = end > position.offset and opened.read(end - 1, 1) != b"\n"
            digest = fingerprint(opened.read, end, file.size)
            size = opened.stat().size
            holds = size >= file.size and position.holds_in(opened.read, size)
        if not holds or (unfinished and not self._takes_last_line):
            raise MovedError
        return replace(renewed, offset=end, digest=digest, unfinished=unfinished)


class _Lines:
    """Where lines end in the files of one look; remembers long parts without a line end."""

    def __init__(self, files: InputFiles) -> None:
        self.files: Mapping[int, FileStat] = {}
        self._reach = files
        self._barren: dict[int, tuple[int, int, FileStat]] = {}

    def last(self, number: int, start: int, stop: int) -> int | None:
        file = self.files[number]
        begin = start
        if number in self._barren:
            barren_start, barren_stop, was = self._barren[number]
            # The bytes may have been overwritten, unless the file only grew.
            grown = was.same_file(file) and was.size < file.size
            if barren_start <= start <= barren_stop and (was == file or grown):
                begin = barren_stop
        if begin >= stop:
            return None
        with open_same(self._reach, file) as opened:
            found = find_last_line_end(opened.read, begin, stop)
        if found is None:
            self._barren[number] = (start, stop, file)
        return found

    def first(self, number: int, start: int, stop: int) -> int | None:
        with open_same(self._reach, self.files[number]) as opened:
            return find_line_end(opened.read, start, stop)
