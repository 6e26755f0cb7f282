"""The sources of a restored checkpoint, when the flow has others than the one that left it, or in other places.

Spark knows sources by their place in the plan: see `recovery.checkpoint.position`. So what stands in each place is
recorded with the position, and after a change of the flow the lines of offsets are laid out anew:

- A source goes on where it was, wherever it is read now, and in however many places. It is known by format and options,
  and otherwise by format and path, where that leaves no doubt. Separate reads of the same, which come to positions of
  their own when input comes in between, are told by the step that they are for.
- One that is new begins at its start. One that is new instead of another of a like format takes the other's position:
  its path may have changed. One that is gone is an error, since it would begin anew if it came back. So is one that is
  new to a step which does not read any more what it has read, while others do: that may be the same.
- A step with timeouts brings a source of ticks, whose offset means nothing after a restart: it comes and goes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from recovery.checkpoint.position import HEADER_LINES, ONE_LINE_EACH, missing_entry
from recovery.checkpoint.restore import Restored
from recovery.checkpoint.rows import row_keys
from recovery.errors import CorruptPartitionError, FlowMismatchError, SparkCheckpointError
from recovery.ids import StepId

SOURCES_STEP = StepId("$sources")
"""The step whose one row, PLACES_KEY, is the text of the SourcePlaces that the position was left by."""
PLACES_KEY = "places"
NO_TICK = '{"tick_ms": 0}'
NOTHING_READ = "-"
"""Spark's line for a source that has no offset yet."""
FILE_FORMATS = {"text", "csv", "json", "parquet", "orc", "xml", "avro", "binaryfile"}
"""Formats of Spark's file source, as the names of sources have them, in lower case."""
_AND = "\x1f"
"""Between the steps of which a source's name tells."""


@dataclass(frozen=True, slots=True)
class SourcePlaces:
    """The places in a plan where sources are read, in its order.

    ids: which source it is, counted where they come first. ticks: whether it is one of ticks. names: what it reads, in
    three words: its format, what stands for its path, what stands for all its options, and then what `read_for` says;
    None where that is not known. labels: the names that the flow's code gives sources; they are not stored.
    """

    ids: tuple[int, ...]
    ticks: tuple[bool, ...]
    names: tuple[str | None, ...]
    labels: tuple[str | None, ...] = ()

    def to_text(self) -> str:
        """As it is stored."""
        places = [
            {"source": each, "ticks": True} if tick else {"source": each, "reads": name}
            for each, tick, name in zip(self.ids, self.ticks, self.names, strict=True)
        ]
        return msgspec.json.encode(places).decode()

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """The ids, by which Spark numbers logs and lines; None where it knows sources by names of the flow's code."""
        return None if any(self.labels) else self.ids

    @property
    def steps(self) -> set[str]:
        """The steps that sources are read for."""
        return set[str]().union(*map(_named, self.names))

    def renamed(self, steps: Mapping[str, str]) -> SourcePlaces:
        """The same, for steps that have other names now."""

        def now(name: str | None) -> str | None:
            if name is None or name == _read(name):
                return name
            return f"{_read(name)} {read_for(steps.get(each, each) for each in _steps(name))}"

        return replace(self, names=tuple(map(now, self.names)))

    def others(self) -> dict[int, str | None]:
        """The sources that are none of ticks, in their order, and their names."""
        found = zip(self.ids, self.ticks, self.names, strict=True)
        return {source: name for source, tick, name in found if not tick}


def read_for(steps: Iterable[str]) -> str:
    """The steps that a source is read for, in one text."""
    return _AND.join(sorted(set(steps)))


def places_of(
    sources: Iterable[Hashable],
    ticks: Iterable[bool],
    names: Iterable[str | None] | None = None,
    labels: Iterable[str | None] = (),
) -> SourcePlaces:
    """The same from what stands in each place: sources that are equal are one, as Spark takes them."""
    seen: dict[Hashable, int] = {}
    ids = tuple(seen.setdefault(source, len(seen)) for source in sources)
    return SourcePlaces(ids, tuple(ticks), tuple(names) if names is not None else (None,) * len(ids), tuple(labels))


class _Place(msgspec.Struct, forbid_unknown_fields=True):
    source: int
    ticks: bool = False
    reads: str | None = None


def recorded_places(text: str) -> SourcePlaces:
    """From its text. Raises CorruptPartitionError when it is none."""
    try:
        found = msgspec.json.decode(text, type=list[_Place])
    except msgspec.DecodeError as error:
        raise CorruptPartitionError(f"{text!r} does not tell the places of sources: {error}") from error
    return SourcePlaces(
        tuple(each.source for each in found), tuple(each.ticks for each in found), tuple(each.reads for each in found)
    )


def check_logs(restored: Restored, directory: Path, places: SourcePlaces) -> None:
    """Raises SparkCheckpointError when a source's log does not go as far as its offset."""
    if restored.batch is None:
        return
    missing = missing_entry(directory, restored.batch, places.numbers)
    if missing is not None:
        raise SparkCheckpointError(
            f"{missing} is missing in the position after micro-batch {restored.batch}",
            cause="An earlier version of recovery did not keep it where the flow reads one source in two places.",
            remedy="Go back to an epoch that has it, by --resume-epoch, or begin anew: input could be passed over.",
        )


def fit_sources(
    restored: Restored, directory: Path, places: SourcePlaces, recorded: SourcePlaces | None = None
) -> Restored:
    """Make the checkpoint fit a flow that reads its sources in these places.

    recorded: the places of the flow that left it; None: an earlier version did not keep them.
    Raises FlowMismatchError when a source is gone, or it cannot be told which one is which.
    """
    if restored.batch is None:
        return restored
    log = directory / "offsets" / str(restored.batch)
    lines = log.read_text().split("\n")
    header, offsets = lines[:HEADER_LINES], lines[HEADER_LINES:]
    numbered = lines[0] != ONE_LINE_EACH
    if numbered:
        labelled = {label: offset for label, _, offset in (line.partition(":") for line in offsets)}
        if places.numbers is None or not all(map(str.isdecimal, labelled)):
            # The flow's code names its sources, and Spark knows them by that.
            _check_labels(labelled, places)
            return restored
        ids = tuple(range(len(offsets))) if recorded is None else recorded.ids
        last = _last_places(ids)
        if labelled.keys() != set(map(str, last.values())):
            if recorded is not None:
                # Names of digits, which the flow's code gave sources and does not give any more.
                _check_labels(labelled, places)
            # An earlier version did not keep which source is read where.
            return restored
        offsets = [labelled[str(last[source])] for source in ids]
    if recorded is None or len(recorded.ids) != len(offsets):
        recorded = _inferred(offsets, places)
    left = dict(zip(recorded.ids, offsets, strict=True))
    logs = directory / "sources"
    came = _matched(
        recorded, places, lambda then: _are_in_step([left[each] for each in then], [logs / str(each) for each in then])
    )
    wanted = [
        NO_TICK if tick else left[came[each]] if each in came else NOTHING_READ
        for each, tick in zip(places.ids, places.ticks, strict=True)
    ]
    if numbered or recorded.ticks != places.ticks or [*map(_but_ticks, wanted)] != [*map(_but_ticks, offsets)]:
        if numbered:
            wanted = [f"{place}:{wanted[place]}" for place in _last_places(places.ids).values()]
        text = "\n".join([*header, *wanted])
        for batch in (restored.batch, restored.batch - 1):
            if (directory / "offsets" / str(batch)).exists():
                (directory / "offsets" / str(batch)).write_text(text)
        restored = _without(restored, {f"offsets/{restored.batch}"})
    return _move(restored, logs, came, recorded.others())


def _last_places(ids: Iterable[int]) -> dict[int, int]:
    """Where each source is read last: its number in the second form of the log, which has one line for each source."""
    return {source: place for place, source in enumerate(ids)}


def _check_labels(before: Iterable[str], places: SourcePlaces) -> None:
    gone = sorted(set(before).difference(places.labels))
    if gone:
        raise FlowMismatchError(
            f"the position is one in sources with names, of which the flow lacks {', '.join(gone)}",
            cause="A source was left out, or has another name. It would begin anew if it came back.",
            remedy="Read the same sources again, by the same names; or begin anew in another directory.",
        )


def _inferred(offsets: Sequence[str], places: SourcePlaces) -> SourcePlaces:
    """The places by the lines that they left. As many as the flow has now are those; one alone is read wherever its
    flow reads."""
    ticks = [*map(_is_tick, offsets)]
    now = [source for source, tick in zip(places.ids, places.ticks, strict=True) if not tick]
    count = ticks.count(False)
    sources = iter(now if count == len(now) else range(count))
    return places_of([-place - 1 if tick else next(sources) for place, tick in enumerate(ticks)], ticks)


def _matched(before: SourcePlaces, places: SourcePlaces, in_step: Callable[[Sequence[int]], bool]) -> dict[int, int]:
    """For each source of the flow that was read before, which one that was.

    in_step: whether sources that are read separately have come to the same position. Raises FlowMismatchError when one
    is gone, or it is not clear which is which.
    """
    old, new = before.others(), places.others()
    came: dict[int, int] = {}
    left, spare = set(old), set[int]()
    steps = {""}.union(*map(_steps, new.values()))

    def found(then: Iterable[int], now: Iterable[int]) -> None:
        came.update(zip(now, then, strict=False))
        left.difference_update(came.values())

    for then, now in _alike(old, new, str):
        if len(then) == len(now):
            found(then, now)
    # The same, for whatever step.
    for then, now in _alike(old, new, _read):
        for each in now:
            # For a step that it was read for before, it goes on where that step is.
            its = [one for one in then if _named(old[one]) & _named(new[each])] if each not in came else []
            if its and not in_step(its):
                raise _unclear(_named(new[each]))
            found(its[:1], [each])
            left.difference_update(its)
        rest, more = [each for each in then if each in left], [each for each in now if each not in came]
        if len(rest) == len(more) or not rest or in_step(then):
            # If it is read more often, each goes on from where all of them were. If it is read less often, the others
            # were left out, or changed to what is found below.
            found(rest + then[:1] * len(more), more)
            spare |= set(rest[len(more) :])
        elif not more and len(rest) < len(then):
            # It was read for steps that are gone; if they came back, they would begin where the others are.
            spare |= {each for each in rest if not _steps(old[each]) & steps}
    # The same place, read with other options.
    others = {source: name for source, name in new.items() if source not in came}
    for then, now in _alike({source: old[source] for source in sorted(left)}, others, _place):
        if len(now) == 1 and (len(then) == 1 or (spare.issuperset(then) and in_step(then))):
            found(then, now)
    # What was read for steps that are gone, and is read on for others, is left out.
    left -= {one for one in left & spare if not _steps(old[one]) & steps}
    # Another place, or one that is new. What is left out is only where nothing new can be it.
    known = None not in old.values() and None not in new.values()
    others = {source: name for source, name in new.items() if source not in came}
    gone: list[int] = []
    for kind in dict.fromkeys(_kind(old[source], known) for source in sorted(left)):
        then = [source for source in sorted(left) if _kind(old[source], known) == kind]
        now = [source for source, name in others.items() if _kind(name, known) == kind]
        if len(then) == len(now):
            came |= zip(now, then, strict=True)
        elif now or not spare.issuperset(then):
            gone += then
    anew = [source for source in new if source not in came]
    for one in (one for one in old if known and one not in gone):
        kept = [source for source in came if came[source] == one]
        like = [source for source in anew if _kind(new[source], known) == _kind(old[one], known)]
        lost = (_named(old[one]) & _all(_named, new, like)) - _all(_named, new, kept)
        if "" in _steps(old[one]) & _all(_steps, new, like):
            # What reads it for no step is told by how many there are.
            lost |= {""} if sum(map(places.ids.count, kept)) < before.ids.count(one) else set()
        if lost:
            raise _changed_for(lost)
    if gone:
        raise FlowMismatchError(
            f"the flow reads {len(new)} sources, and the position is one in {len(old)}, of which {len(gone)} "
            f"{'is' if len(gone) == 1 else 'are'} not found in the flow",
            cause="A source was left out, has another format, or has another path or options while one was added.",
            remedy="Read the same sources again; change paths and options in one run and add or leave out sources in "
            "another; or begin anew in another directory.",
        )
    return came


def _unclear(steps: Iterable[str]) -> FlowMismatchError:
    return FlowMismatchError(
        f"one source is read for {_listed(steps)}, which have read it separately",
        cause="Input came in between, so that the steps have come to different positions in it.",
        remedy="Read it for each of them by itself, as before; or begin anew in another directory.",
    )


def _changed_for(steps: Iterable[str]) -> FlowMismatchError:
    return FlowMismatchError(
        f"{_listed(steps)} would read a source from its start, and not go on with the one that was read before",
        cause="Its path or options were changed where several read it, which cannot be told from a source that is new.",
        remedy="In one run read it separately there, with the path and options that it has; change those in the next. "
        "One that is new is added first, and the old one left out in another run.",
    )


def _listed(steps: Iterable[str]) -> str:
    return " and ".join(f"step {each!r}" if each else "what is behind no step" for each in sorted(steps))


def _alike(
    old: Mapping[int, str | None], new: Mapping[int, str | None], by: Callable[[str], str]
) -> Iterator[tuple[list[int], list[int]]]:
    """The sources of before and of now whose names are the same by what is asked for."""
    groups: dict[str, tuple[list[int], list[int]]] = {}
    for side, sources in enumerate((old, new)):
        for source, name in sources.items():
            if name is not None:
                groups.setdefault(by(name), ([], []))[side].append(source)
    return ((then, now) for then, now in groups.values() if then and now)


def _read(name: str) -> str:
    """Format, path and options, without the step."""
    return " ".join(name.split(" ", 3)[:3])


def _steps(name: str | None) -> set[str]:
    """The steps that it is read for, one without a name where it is for none, or where that is not known."""
    words = name.split(" ", 3) if name is not None else []
    return set(words[3].split(_AND)) if len(words) > 3 else {""}


def _named(name: str | None) -> set[str]:
    return _steps(name) - {""}


def _all(what: Callable[[str | None], set[str]], names: Mapping[int, str | None], sources: Iterable[int]) -> set[str]:
    return set[str]().union(*(what(names[source]) for source in sources))


def _place(name: str) -> str:
    """Format and path, without the options."""
    return " ".join(name.split(" ")[:2])


def _kind(name: str | None, known: bool) -> str:
    """Sources of one kind can go on from each other's position. Those of files are alike, whatever the format."""
    if name is None or not known:
        return ""
    kind = name.split(" ")[0].lower()
    return "files" if kind in FILE_FORMATS else kind


def _are_in_step(lines: Sequence[str], logs: Sequence[Path]) -> bool:
    """Whether sources have the same offset, and have logged the same."""
    return len(set(lines)) == 1 and all(_content(log) == _content(logs[0]) for log in logs[1:])


def _content(log: Path) -> dict[str, bytes]:
    files = (path for path in log.rglob("*") if path.is_file())
    return {str(path.relative_to(log)): path.read_bytes() for path in files}


def _move(restored: Restored, sources: Path, came: Mapping[int, int], before: Iterable[int]) -> Restored:
    """Copy what sources have logged to their new places. What the partitions hold of a source that moved, or of the one
    that had its place before, may be taken for another's of the same name: it is not held any more, and its rows are
    stale. That goes for sources that have logged nothing yet, too."""
    moves = {new: old for new, old in came.items() if new != old}
    stays = came.keys() - moves.keys()
    with_logs = {new: old for new, old in moves.items() if (sources / str(old)).exists()}
    for new, old in with_logs.items():
        shutil.copytree(sources / str(old), sources / f"{new}.moved")
    vacated = {*before, *moves} - stays
    for place in vacated:
        shutil.rmtree(sources / str(place), ignore_errors=True)
    for new in with_logs:
        (sources / f"{new}.moved").rename(sources / str(new))
    taken = tuple(f"sources/{place}/" for place in vacated)
    return _without(restored, {path for path in restored.held if path.startswith(taken)})


def _without(restored: Restored, paths: Set[str]) -> Restored:
    """The same, but what the partitions have of these files is not what the checkpoint has of them any more."""
    held = {path: file for path, file in restored.held.items() if path not in paths}
    stale = frozenset(key for path in paths for key in row_keys(path, restored.held[path]))
    return Restored(restored.batch, held, restored.stale | stale)


def _but_ticks(line: str) -> str:
    return NO_TICK if _is_tick(line) else line


def _is_tick(line: str) -> bool:
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    return isinstance(found, dict) and found.keys() == {"tick_ms"}
