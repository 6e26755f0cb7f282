"""Who is who among the input's files: known ones wherever they are now, new ones, and lost ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from recovery.appended.files import FileStat, PathPattern, display, joined
from recovery.appended.locate import CONVINCING_BYTES, Holds, Look, later_generations, locate
from recovery.appended.options import Options
from recovery.appended.position import FilePosition
from recovery.appended.rotation import bases
from recovery.errors import InputRewrittenError

BeginsWith = Callable[[FileStat, FileStat], bool]
"""Whether the first file begins with the whole content of the second."""


@dataclass(frozen=True, slots=True)
class Survey:
    """`found`: where the known files are. `lost`: those that may be absent or are input no more, kept in
    case they come back.
    `fresh`: files not known so far and the name of the log each belongs to, oldest first."""

    found: Mapping[int, FileStat]
    lost: Mapping[int, FilePosition]
    fresh: list[tuple[FileStat, str]]


def survey(
    known: Mapping[int, FilePosition],
    look: Look,
    pattern: PathPattern,
    options: Options,
    holds: Holds,
    begins_with: BeginsWith,
) -> Survey:
    """What one look at the directories shows.

    A known file that cannot be found may be absent without further ado if nothing can have been missed (it
    was rotated, read to its end, and rotation removed it), if the path does not name it any more, or if
    `onMissing` is ignore; a rewritten one is forgotten if `onRewrite` is restart. Otherwise raises
    InputRewrittenError.
    """
    found = locate(known, look, holds)
    lost: dict[int, FilePosition] = {}
    for number, position in known.items():
        if number not in found and not _forgotten(number, known, found, look, pattern, options):
            lost[number] = position
    named: dict[int, FileStat] = {}
    for number, file in found.items():
        if pattern.names(known[number].origin) or file.path in look.listed:
            named[number] = file
        else:
            lost[number] = known[number]
    fresh = [*_new_files(found, look, begins_with), *_between_generations(known, named, look)]
    return Survey(named, lost, sorted(fresh, key=lambda one: (one[0].mtime_ns, one[0].path)))


def _forgotten(
    number: int,
    known: Mapping[int, FilePosition],
    found: Mapping[int, FileStat],
    look: Look,
    pattern: PathPattern,
    options: Options,
) -> bool:
    """Whether a file that cannot be found is to be read anew; False if it may be absent."""
    position = known[number]
    here = look.listed.get(position.path)
    if here is not None and any(here.same_file(other) for other in found.values()):
        here = None
    if not pattern.names(position.origin) or _rotated_away(
        number, known, found, still_there=here is not None
    ):
        return False
    if here is not None:
        if position.offset and options.on_rewrite == "fail":
            raise rewritten(position, here)
        return True
    if options.on_missing == "fail":
        raise vanished(position)
    return False


def _rotated_away(
    number: int, known: Mapping[int, FilePosition], found: Mapping[int, FileStat], *, still_there: bool
) -> bool:
    """Whether rotation has removed a file that was read to its end.

    Its name says that it was rotated from a log whose present file is being read; if another file has its
    name, that log must just have been rotated again.
    """
    position = known[number]
    logs = set(bases(position.name))
    for other, file in found.items():
        log = known[other]
        if other == number or log.origin not in logs or log.directory != position.directory or not log.offset:
            continue
        if position.drained and (not still_there or file.path != log.path):
            return True
    return False


def _new_files(
    found: Mapping[int, FileStat], look: Look, begins_with: BeginsWith
) -> Iterator[tuple[FileStat, str]]:
    """Listed files that no position knows, each once however many names it has."""
    seen = {(file.device, file.inode) for file in found.values()}
    for file in look.listed.values():
        identity = (file.device, file.inode)
        if file.size and identity not in seen and not _is_copy_in_the_making(file, look, begins_with):
            seen.add(identity)
            yield file, file.name


def _is_copy_in_the_making(file: FileStat, look: Look, begins_with: BeginsWith) -> bool:
    """Whether a rotation is just copying a log that it will truncate then: its lines are not new ones."""
    if file.size < CONVINCING_BYTES:
        return False
    logs = (look.listed.get(joined(file.directory, base)) for base in bases(file.name))
    return any(
        log is not None and log.size >= file.size and not log.same_file(file) and begins_with(log, file)
        for log in logs
    )


def _between_generations(
    known: Mapping[int, FilePosition], found: Mapping[int, FileStat], look: Look
) -> Iterator[tuple[FileStat, str]]:
    """Files of a log that was rotated more than once since the last look, and that the path does not name."""
    youngest: dict[tuple[str, str], FileStat] = {}
    for number in sorted(found):
        youngest[found[number].directory, known[number].origin] = found[number]
    taken = {(file.device, file.inode) for file in found.values()}
    for (_, origin), file in youngest.items():
        if file.name != origin:
            for one in later_generations(look, origin, file):
                if one.size and (one.device, one.inode) not in taken:
                    yield one, origin


def rewritten(position: FilePosition, here: FileStat) -> InputRewrittenError:
    """The error for a file whose content is not what was read from it."""
    if here.size < position.offset:
        found = f"The file has {here.size} bytes, but {position.offset} were read from it before."
    else:
        found = f"The file no longer begins with the {position.offset} bytes that were read from it before."
    return InputRewrittenError(found, path=display(position.path))


def vanished(position: FilePosition) -> InputRewrittenError:
    """The error for a file that is nowhere to be found."""
    unread = position.seen - position.offset
    return InputRewrittenError(
        f"The file is gone. {position.offset} bytes were read from it; "
        + (f"{unread} more were seen but not read." if unread else "whether it had more by then is unknown."),
        path=display(position.path),
        cause="It was deleted, compressed or moved to another directory before its end was read.",
        remedy='Put it back under this name, or go on without it with .option("onMissing", "ignore").',
    )
