"""Whether the sources of a flow have something that its newest epoch lacks, asked without Spark.

The answer may be "new" where Spark would find nothing to read: then Spark starts, and finds nothing. It is "nothing"
only where Spark would find nothing. So every file that Spark has not logged counts as new, whatever options would leave
it out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from recovery.appended.files import LocalFiles
from recovery.appended.options import parse_options
from recovery.appended.planner import Planner
from recovery.base.wording import counted
from recovery.checkpoint.offsets import NOTHING_READ, read_log
from recovery.checkpoint.reached import LOCAL, LoggedFile
from recovery.checkpoint.source_places import FILE_FORMATS, recorded_places
from recovery.idle import iceberg, kafka
from recovery.idle.delta import SCHEMA_LOGS, new_version
from recovery.idle.note import NotedSource

TICKS = "recovery_ticks"
"""The format of the source that wakes steps whose timeouts are due. The note says when."""
MOST_LEVELS = 64
"""Directories below a path that are looked through. Links that lead in a circle have more."""
_WILDCARD = re.compile(r"[*?\[{\\]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_OPTIONS: Mapping[str, Collection[str]] = {
    "appended": ("path", "lastline", "encodingerrors", "onrewrite", "onmissing", "sharedfiles"),
    "kafka": kafka.KEPT,
    iceberg.DIRECTORY: iceberg.KEPT,
}
"""Options that a note keeps of each format, in lower case; of others, the path. The rest may be secrets."""
_WHY_NOT: Mapping[str, Callable[[Mapping[str, str]], str | None]] = {
    "kafka": kafka.why_not_asked,
    iceberg.DIRECTORY: iceberg.why_not_asked,
}
"""Formats some of whose options only Spark understands."""
_TABLES = ("delta", iceberg.DIRECTORY)
_REFUSED = ("cleansource", *SCHEMA_LOGS)
"""Options by which a start does something even without input."""


class Positions(NamedTuple):
    """Where an epoch is in its sources. log: the text of its log of offsets. files: the files that sources have logged,
    by the source's directory in the checkpoint. identities: the ids of topics, by name."""

    log: str
    files: Mapping[str, Collection[LoggedFile]]
    identities: Mapping[str, str] = {}


def noted_source(kind: str, options: Mapping[str, str], *, plain_is_local: bool) -> NotedSource | str:
    """Return what a note keeps of a source, or why only Spark can ask the source. kind: the format; `iceberg.DIRECTORY`
    for an Iceberg table that is a directory, whose path is among the options. options: names in lower case.
    plain_is_local: whether Spark takes a path without a scheme as one of this host."""
    name = kind.lower()
    if name == TICKS:
        return NotedSource(name)
    why = _WHY_NOT[name](options) if name in _WHY_NOT else None
    if why is not None:
        return why
    # The position of a file source says where its files are; that of a table does not.
    is_elsewhere = name in _TABLES and not plain_is_local
    if is_elsewhere or name not in (*_READERS, "kafka") or any(option in options for option in _REFUSED):
        return f"only Spark knows whether the source {kind} has new input"
    kept = _OPTIONS.get(name, ("path",))
    return NotedSource(name, {option: value for option, value in options.items() if option in kept})


def new_input(sources: list[NotedSource], places: str, positions: Positions, group: str | None = None) -> str | None:
    """Return what a run would find to do for its sources, as text, or why that is not known; None: nothing.

    places: as `SourcePlaces` writes them. group: the consumer group that shows positions in topics; None: none does.
    Raises RecoveryError or OSError if a source cannot be asked.
    """
    known = recorded_places(places)
    offsets = read_log(positions.log)
    if len(known.ids) != len(sources) or offsets.is_numbered or len(offsets.offsets) != len(sources):
        return "the position does not say which source is where"
    topics = []
    for place, source in enumerate(sources):
        offset = offsets.offsets[str(place)]
        if source.format == TICKS:
            continue
        if offset == NOTHING_READ:
            return f"nothing was read yet of {source.options.get('path', source.format)}"
        if source.format == "kafka":
            found = kafka.new_records(source.options, offset, positions.identities)
            topics.append((source.options, offset))
        else:
            found = _READERS[source.format](source, offset, positions.files.get(str(known.ids[place]), ()))
        if found is not None:
            return found
    return None if group is None else kafka.not_shown(group, topics)


def _new_files(source: NotedSource, _: str, logged: Collection[LoggedFile]) -> str | None:
    path = _local(source)
    if path is None or not logged or any(each.file_system != LOCAL for each in logged):
        return f"only Spark can look at {source.options.get('path')}"
    known = {each.path for each in logged}
    new = [found for found in _files_of(path) if found not in known]
    return f"{counted(len(new), 'new file')}, such as {min(new)}" if new else None


def _new_lines(source: NotedSource, offset: str, _: Collection[LoggedFile]) -> str | None:
    planner = Planner(parse_options(source.options), LocalFiles(), 1)
    position = msgspec.json.decode(offset)
    # As at the start of a run that ends with its input: it takes last lines without an end only then.
    planner.fix_end()
    return None if planner.latest(position, None) == position else f"new lines in {source.options.get('path')}"


def _new_commits(source: NotedSource, offset: str, _: Collection[LoggedFile]) -> str | None:
    path = _local(source)
    if path is None:
        return f"only Spark can look at {source.options.get('path')}"
    return new_version(path, offset) if source.format == "delta" else iceberg.new_snapshot(path, offset, source.options)


_READERS: Mapping[str, Callable[[NotedSource, str, Collection[LoggedFile]], str | None]] = {
    **dict.fromkeys(FILE_FORMATS, _new_files),
    "appended": _new_lines,
    **dict.fromkeys(_TABLES, _new_commits),
}


def _local(source: NotedSource) -> str | None:
    """Return the path of a source in this host's file system; None if it is elsewhere, or its parts are unclear."""
    path, here = source.options.get("path", ""), os.getcwd()  # noqa: PTH109 - a text
    scheme = _SCHEME.match(path)
    if not path or (scheme is not None and scheme[1] != "file") or _WILDCARD.search(here):
        return None
    plain = path.removeprefix(LOCAL) if scheme is not None else path
    return os.path.normpath(os.path.join(here, re.sub("^/+", "/", plain)))  # noqa: PTH118


def _files_of(path: str) -> Iterator[str]:
    """Yield the files that Spark may read of a path, which may have wildcards; perhaps others, too."""
    first = _WILDCARD.search(path)
    base = path if first is None else path[: first.start()].rpartition("/")[0] or "/"
    pattern = None if first is None else re.compile(f"{_expression(path)}(/.*)?", re.DOTALL)
    if not Path(base).is_dir():
        # A single file; or nothing, which Spark's own error says.
        yield base
        return
    for found in _below(base, hidden=pattern is not None, levels=MOST_LEVELS):
        if pattern is None or pattern.fullmatch(found):
            yield found


def _expression(path: str) -> str:
    """Return an expression that matches what Hadoop's wildcards match, and perhaps more."""
    if "\\" in path or "{" in path:
        return ".*"
    return "".join(
        "[^/]*" if part.startswith("*") else "[^/]" if part[0] in "?[" else re.escape(part)
        for part in re.findall(r"\*+|\?|\[[^\]]*\]|[^*?\[]+|\[", path)
    )


def _below(directory: str, *, hidden: bool, levels: int) -> Iterator[str]:
    """Yield the files below a directory that Spark does not leave out by their names. hidden: look into directories
    with such names, too. Raises OSError."""
    if not levels:
        raise OSError(f"{directory} is deeper than {MOST_LEVELS} directories")
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                if hidden or not _is_left_out(entry.name):
                    yield from _below(entry.path, hidden=hidden, levels=levels - 1)
            elif not _is_left_out(entry.name):
                yield entry.path


def _is_left_out(name: str) -> bool:
    """Whether Spark's file index leaves out what has this name (`InMemoryFileIndex.shouldFilterOutPathName`)."""
    left_out = (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")
    return left_out and not name.startswith(("_common_metadata", "_metadata"))
