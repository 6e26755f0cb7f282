"""Which of the input's files are known, wherever they are now, which are new, and which are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from recovery.appended.files import FileStat, PathPattern, display, joined
from recovery.appended.locate import Holds, Look, later_generations, locate
from recovery.appended.options import Options
from recovery.appended.position import FilePosition
from recovery.appended.rotation import bases
from recovery.base.wording import counted, were
from recovery.errors import InputRewrittenError

BeginsWith = Callable[[FileStat, FileStat], bool]
"""Returns whether the first file begins with the whole content of the second."""

COPYING_NS = 60_000_000_000
"""A copy that last changed longer ago than this is complete: it is a file of its own."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of one look.

    found: where the known files are. lost: known files whose absence is allowed, kept in case they come back.
    aside: those that the path no longer names, kept in case it names them again. fresh: new files, each with the name
    of its log, oldest first.
    """

    found: Mapping[int, FileStat]
    lost: Mapping[int, FilePosition]
    aside: Mapping[int, FilePosition]
    fresh: list[tuple[FileStat, str]]


def survey(
    known: Mapping[int, FilePosition],
    look: Look,
    pattern: PathPattern,
    options: Options,
    holds: Holds,
    begins_with: BeginsWith,
    now_ns: int,
) -> Survey:
    """Return which files of one look are known, new or lost.

    A known file may be absent if it was rotated, read to its end and then removed by rotation, so nothing can have been
    missed; if the path no longer names it; or if `onMissing` is ignore. A rewritten file is forgotten if `onRewrite` is
    restart. Otherwise raises InputRewrittenError.
    """
    found = locate(known, look, holds)
    present = {(file.device, file.inode) for file in found.values()}
    logs = _logs(known, found)
    lost: dict[int, FilePosition] = {}
    aside: dict[int, FilePosition] = {}
    for number in sorted(known.keys() - found.keys()):
        position = known[number]
        here = look.listed.get(position.path)
        if here is not None and (here.device, here.inode) in present:
            here = None
        if not pattern.names(position.origin):
            aside[number] = position
        elif _rotated_away(position, here, logs):
            lost[number] = position
        elif here is None:
            if options.on_missing == "fail":
                raise vanished(position)
            lost[number] = position
        elif position.offset and options.on_rewrite == "fail":
            raise rewritten(position, here)
    named: dict[int, FileStat] = {}
    for number, file in found.items():
        if pattern.names(known[number].origin) or file.path in look.listed:
            named[number] = file
        else:
            aside[number] = known[number]
    read = {file.path: file for number, file in found.items() if known[number].offset}
    fresh = [
        (file, origin)
        for file, origin in (*_new_files(present, look), *_between_generations(known, named, look))
        if now_ns - file.ctime_ns > COPYING_NS or not _is_copy_in_the_making(file, read, begins_with)
    ]
    return Survey(named, lost, aside, sorted(fresh, key=lambda one: (one[0].mtime_ns, one[0].path)))


def _logs(known: Mapping[int, FilePosition], found: Mapping[int, FileStat]) -> dict[tuple[str, str], bool]:
    """Return the logs being read, by directory and name, and whether each was just rotated."""
    logs: dict[tuple[str, str], bool] = {}
    for number, file in found.items():
        log = known[number]
        if log.offset:
            name = log.directory, log.origin
            logs[name] = logs.get(name, False) or file.path != log.path
    return logs


def _rotated_away(position: FilePosition, here: FileStat | None, logs: Mapping[tuple[str, str], bool]) -> bool:
    """Return whether rotation has removed a file that was read to its end.

    Its name must be a rotation's of a log that is being read. If an unknown file, `here`, has its name now, that log
    must just have been rotated again.
    """
    if not position.drained:
        return False
    rotated = [logs.get((position.directory, base)) for base in bases(position.name)]
    return any(now is not None and (here is None or now) for now in rotated)


def _new_files(present: set[tuple[int, int]], look: Look) -> Iterator[tuple[FileStat, str]]:
    """Yield listed files without a position, each once even if it has several names."""
    seen = set(present)
    for file in look.listed.values():
        identity = (file.device, file.inode)
        if file.size and identity not in seen:
            seen.add(identity)
            yield file, file.name


def _is_copy_in_the_making(file: FileStat, read: Mapping[str, FileStat], begins_with: BeginsWith) -> bool:
    """Return whether a file is the unfinished copy of a log that its rotation will then truncate: no line is new.

    Its name is a rotation's, and the log, which was already read from, begins with the copy's whole content.
    """
    logs = (read.get(joined(file.directory, base)) for base in bases(file.name))
    return any(log is not None and log.size >= file.size and begins_with(log, file) for log in logs)


def _between_generations(
    known: Mapping[int, FilePosition], found: Mapping[int, FileStat], look: Look
) -> Iterator[tuple[FileStat, str]]:
    """Yield files that the path does not name, of logs that were rotated more than once since the last look."""
    youngest: dict[tuple[str, str], int] = {}
    for number in sorted(found):
        youngest[found[number].directory, known[number].origin] = number
    taken = {(file.device, file.inode) for file in found.values()}
    for number in youngest.values():
        if found[number].name != known[number].origin:
            for one in later_generations(look, known[number], found[number]):
                if one.size and (one.device, one.inode) not in taken:
                    yield one, known[number].origin


def rewritten(position: FilePosition, here: FileStat) -> InputRewrittenError:
    """Return the error for a file that no longer has the content read from it."""
    read = f"{'was' if position.offset == 1 else 'were'} read from it before"
    if here.size < position.offset:
        found = f"The file has {counted(here.size, 'byte')}, but {position.offset} {read}."
    else:
        found = f"The file no longer begins with the {counted(position.offset, 'byte')} that {read}."
    return InputRewrittenError(found, path=display(position.path))


def vanished(position: FilePosition) -> InputRewrittenError:
    """Return the error for a file that cannot be found anywhere."""
    unread = position.seen - position.offset
    rest = "whether more was written to it is unknown."
    if unread:
        rest = f"{unread:,} more {'was' if unread == 1 else 'were'} written but not read."
    return InputRewrittenError(
        f"The file is gone. {were(position.offset, 'byte')} read from it; {rest}",
        path=display(position.path),
        cause="It was deleted, compressed or moved to another directory before its end was read.",
        remedy='Put it back under this name, or skip it with .option("onMissing", "ignore").',
    )
