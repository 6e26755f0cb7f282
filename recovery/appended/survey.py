"""Which of the input's files are known, wherever they are now, which are new, and which are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from recovery.appended.files import FileStat, PathPattern, display, joined
from recovery.appended.locate import DirectoryListing, Generation, Holds, later_generations, locate
from recovery.appended.options import Options
from recovery.appended.position import FilePosition, InputOffset
from recovery.appended.rotation import bases, certain_bases
from recovery.base.wording import counted, were
from recovery.errors import InputRewrittenError

COPYING_NS = 60_000_000_000
"""A copy that last changed longer ago than this is complete: it is a file of its own."""

Log = tuple[str, str]
"""A directory, and the name under which a log's lines are written."""


@dataclass(frozen=True, slots=True)
class ContentChecks:
    """What a survey asks of the content of files.

    holds: as for `locate`. begins_with: whether the first file begins with the whole content of the second.
    packs_nothing: whether a compressed file is of an empty one.
    """

    holds: Holds
    begins_with: Callable[[FileStat, FileStat], bool]
    packs_nothing: Callable[[FileStat], bool]


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of one look.

    found: where the known files are. lost: known files whose absence is allowed, kept in case they come back.
    aside: known files that the path no longer names, kept in case it names them again. fresh: new files, each with the
    name of its log, oldest first. since_ns: as in InputOffset.
    """

    found: Mapping[int, FileStat]
    lost: Mapping[int, FilePosition]
    aside: Mapping[int, FilePosition]
    fresh: list[tuple[FileStat, str]]
    since_ns: int


def survey(
    before: InputOffset,
    look: DirectoryListing,
    pattern: PathPattern,
    options: Options,
    contents: ContentChecks,
    now_ns: int,
) -> Survey:
    """Return which files of one look are known, new or lost.

    A known file may be absent if it was rotated, read to its end and then removed by rotation, so nothing can have been
    missed; if it was empty and its log was not rotated; if the path no longer names it; or if `onMissing` is ignore. A
    rewritten file is forgotten if `onRewrite` is restart. Otherwise raises InputRewrittenError.
    """
    known = before.files
    found = locate(known, look, contents.holds)
    new = _new_generations(before, found, look)
    lost, aside = _absent(known, found, look, pattern, options)
    if options.on_missing == "fail":
        # Before the files that were empty: this error names the way to read their lines.
        _check_compressed(known, new, look, contents)
        for number in sorted(known.keys() - found.keys() - aside.keys()):
            if known[number].blank:
                _check_blank(known[number], look, new)
    named: dict[int, FileStat] = {}
    for number, file in found.items():
        if pattern.names(known[number].origin) or file.path in look.listed:
            named[number] = file
        else:
            aside[number] = known[number]
    present = {file.identity for file in found.values()}
    added = {(each.file, each.origin) for each in new if not each.compressed} | set(_new_files(present, look))
    waiting = _in_the_making(added, known, found, look, contents, now_ns)
    for number in _overtaken(known, named, added):
        file = named.pop(number)
        if file in waiting:
            aside[number] = known[number]
        else:
            # The new generations of its log are older, so it gets a number after theirs.
            added.add((file, known[number].origin))
    hidden = [file.mtime_ns - 1 for file in waiting if file.path not in look.listed]
    since_ns = min([max(before.since_ns, newest_generation_ns(look)), *hidden])
    added |= set(_between_generations(known, named, look))
    fresh = [(file, origin) for file, origin in added if file not in waiting]
    fresh.sort(key=lambda one: (one[0].mtime_ns, one[0].name == one[1], one[0].path))
    return Survey(named, lost, aside, fresh, since_ns)


def newest_generation_ns(look: DirectoryListing) -> int:
    """Return when the newest generation that the path does not name was last written to; 1 if there is none."""
    return max([1, *(each.file.mtime_ns for each in look.generations)])


def _absent(
    known: Mapping[int, FilePosition],
    found: Mapping[int, FileStat],
    look: DirectoryListing,
    pattern: PathPattern,
    options: Options,
) -> tuple[dict[int, FilePosition], dict[int, FilePosition]]:
    """Return the known files that are absent, as `lost` and `aside` of a Survey, without those that were empty. Raises
    InputRewrittenError."""
    present = {file.identity for file in found.values()}
    logs = _logs(known, found)
    lost: dict[int, FilePosition] = {}
    aside: dict[int, FilePosition] = {}
    for number in sorted(known.keys() - found.keys()):
        position = known[number]
        here = look.listed.get(position.path)
        if here is not None and here.identity in present:
            here = None
        if not pattern.names(position.origin):
            aside[number] = position
        elif position.blank:
            continue
        elif _rotated_away(position, here, logs, look):
            lost[number] = position
        elif here is None:
            if options.on_missing == "fail":
                raise vanished(position)
            lost[number] = position
        elif position.offset and options.on_rewrite == "fail":
            raise rewritten(position, here)
    return lost, aside


def _check_blank(position: FilePosition, look: DirectoryListing, new: list[Generation]) -> None:
    """Check that an absent file, which was empty whenever it was seen, may be forgotten: nothing shows that lines were
    written to it. Raises InputRewrittenError."""
    for file in (*look.everything(), look.anywhere(position.path)):
        if file is not None and file.inode == position.inode and file.size and file.path not in look.listed:
            raise _left(position, file)
    if position.name != position.origin or any(_is_packed(position, each) for each in look.generations):
        return
    log = position.directory, position.origin
    if any(each.compressed and each.log == log and look.at(each.plain) is not None for each in new):
        # Compression replaced the file, and its lines were unpacked.
        return
    files = [each.file for each in new if each.origin == position.origin]
    files += [each for each in look.listed.values() if position.origin in certain_bases(each.name)]
    if any(each.directory == position.directory and each.mtime_ns > position.mtime_ns for each in files):
        raise vanished(position)


def _new_generations(before: InputOffset, found: Mapping[int, FileStat], look: DirectoryListing) -> list[Generation]:
    """Return the generations that were written to after the last scan, of logs that are unknown or were empty then.
    Nothing else leads to such files: no content is known that such a file could hold."""
    read = {log for log, number in _youngest(before.files, found).items() if not before.files[number].blank}
    present = {file.identity for file in found.values()}
    return [
        each
        for each in (look.generations if before.since_ns else ())
        if each.file.mtime_ns > before.since_ns and each.log not in read and each.file.identity not in present
    ]


def _check_compressed(
    known: Mapping[int, FilePosition], new: list[Generation], look: DirectoryListing, contents: ContentChecks
) -> None:
    """Check that no new generation was compressed before its lines were read. Raises InputRewrittenError."""
    logs = {(position.directory, position.origin) for position in known.values()}
    logs |= {(file.directory, file.name) for file in look.listed.values()}
    read = {position.mtime_ns for position in known.values() if position.drained}
    for each in new:
        if (
            each.compressed
            and each.log in logs
            and each.file.mtime_ns not in read
            and look.at(each.plain) is None
            and not contents.packs_nothing(each.file)
        ):
            raise _compressed(each)


def _youngest(known: Mapping[int, FilePosition], found: Mapping[int, FileStat]) -> dict[Log, int]:
    """Return the number of the youngest file of each log, among those that were found."""
    return {(found[number].directory, known[number].origin): number for number in sorted(found)}


def _overtaken(
    known: Mapping[int, FilePosition], found: Mapping[int, FileStat], added: set[tuple[FileStat, str]]
) -> list[int]:
    """Return the empty files that are still in their places although their logs have new generations: they were copied
    and truncated."""
    logs = {(file.directory, origin) for file, origin in added}
    return [
        number
        for number, file in found.items()
        if known[number].blank and file.name == known[number].origin and (file.directory, file.name) in logs
    ]


def _logs(known: Mapping[int, FilePosition], found: Mapping[int, FileStat]) -> dict[Log, bool | None]:
    """Return the logs being read, by directory and name, and whether each was just rotated; None: its file was empty,
    and a rotation that copies would not show."""
    logs: dict[Log, bool | None] = {}
    for number in sorted(found):
        position = known[number]
        log = position.directory, position.origin
        renamed = found[number].path != position.path
        logs[log] = renamed or logs.get(log) or (None if position.blank else False)
    return logs


def _rotated_away(
    position: FilePosition, here: FileStat | None, logs: Mapping[Log, bool | None], look: DirectoryListing
) -> bool:
    """Return whether rotation has removed a file that was read to its end.

    The file's name must be a rotation's of a log that is being read. If an unknown file, `here`, has its name now, that
    log must just have been rotated again.
    """
    own = [log for base in bases(position.name) if (log := (position.directory, base)) in logs]
    if not position.drained or not own:
        return False
    if here is None or any(logs[log] for log in own):
        return True
    is_other = here.inode != position.inode or any(_is_packed(position, each) for each in look.generations)
    return is_other and any(logs[log] is None for log in own)


def _is_packed(position: FilePosition, generation: Generation) -> bool:
    """Return whether a compressed generation is the position's file, unchanged: compression keeps its time."""
    return (
        generation.compressed
        and generation.file.directory == position.directory
        and generation.file.mtime_ns == position.mtime_ns
    )


def _new_files(present: set[tuple[int, int]], look: DirectoryListing) -> Iterator[tuple[FileStat, str]]:
    """Yield listed files without a position, each once even if it has several names."""
    seen = set(present)
    for file in look.listed.values():
        if file.identity not in seen:
            seen.add(file.identity)
            yield file, file.name


def _in_the_making(
    added: set[tuple[FileStat, str]],
    known: Mapping[int, FilePosition],
    found: Mapping[int, FileStat],
    look: DirectoryListing,
    contents: ContentChecks,
    now_ns: int,
) -> set[FileStat]:
    """Return the new files that wait for a later scan: the unfinished copy of a log that its rotation will then
    truncate, and the log itself if nothing of it was read, as which of the two has which lines will show then.

    A copy changed a moment ago, its name is a rotation's, and the log, which was not renamed, begins with the copy's
    whole content.
    """
    waiting: set[FileStat] = set()
    by_path = {file.path: file for file in found.values()}
    renamed = {(file.directory, known[n].origin) for n, file in found.items() if file.name != known[n].name}
    for file, origin in added:
        if now_ns - file.ctime_ns > COPYING_NS or (file.directory, origin) in renamed:
            continue
        hidden = file.path not in look.listed
        for base in bases(file.name):
            path = joined(file.directory, base)
            log = by_path.get(path) or (look.listed.get(path) if hidden else None)
            if log is not None and log.size >= file.size and log.size > 0 and contents.begins_with(log, file):
                waiting |= {file, log} if hidden else {file}
    return waiting


def _between_generations(
    known: Mapping[int, FilePosition], found: Mapping[int, FileStat], look: DirectoryListing
) -> Iterator[tuple[FileStat, str]]:
    """Yield files that the path does not name, of logs that were rotated more than once since the last look."""
    taken = {file.identity for file in found.values()}
    for number in _youngest(known, found).values():
        if found[number].name != known[number].origin and not known[number].blank:
            for one in later_generations(look, known[number], found[number]):
                if one.identity not in taken:
                    yield one, known[number].origin


def rewritten(position: FilePosition, here: FileStat) -> InputRewrittenError:
    """Return the error for a file that no longer has the content that was read from it."""
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
        cause="The file was deleted, compressed or moved to another directory before its end was read.",
        remedy='Put the file back under this name, or skip the file with .option("onMissing", "ignore").',
    )


def _left(position: FilePosition, file: FileStat) -> InputRewrittenError:
    """Return the error for a file with lines that is no longer input, and was empty while it was."""
    return InputRewrittenError(
        f"The file was empty when it was input. {display(file.path)}, which is not input, has its inode number now, "
        f"and {counted(file.size, 'byte')} that {'was' if file.size == 1 else 'were'} not read.",
        path=display(position.path),
        cause="The file was renamed, or the link that led to the file was changed. Or the file was deleted, and "
        "the other file was made later.",
        remedy="Rename the other file to this name for one run, or go on without the lines that were not read: "
        '.option("onMissing", "ignore").',
    )


def _compressed(generation: Generation) -> InputRewrittenError:
    """Return the error for a generation that was compressed before it was read."""
    plain = display(generation.plain)
    return InputRewrittenError(
        f"The generation of {display(generation.origin)} was compressed before its lines were read.",
        path=display(generation.file.path),
        cause="The log was rotated between two scans, and its rotation compresses immediately, or rotated it twice.",
        remedy=f"Decompress the file to {plain} beside the compressed file, keeping its time (gunzip -k does): the "
        'next run reads it. Or go on without the lost lines with .option("onMissing", "ignore"). Let logrotate use '
        "delaycompress.",
    )
