"""The sources of a restored checkpoint, when the flow has other sources than the previous one, or in other places.

Spark knows sources by their place in the plan: see `recovery.checkpoint.position`. So the source in each place is
recorded with the position, and after a change of the flow the lines of offsets are rearranged:

- A source resumes where it was, wherever it is read now, and in however many places. Format and options identify a
  source, or else format and path, if these are unambiguous. The steps distinguish separate reads of the same source,
  which reach positions of their own when input arrives in between.
- A new source begins at its start. A new source in place of another of a like format takes the other's position: its
  path may have changed. A missing source is an error, because it would begin from scratch if it came back. The same
  holds for a source that is new to a step that no longer reads another source, while other steps still read that one:
  both may be one source.
- A step with timeouts adds a tick source, whose offset means nothing after a restart: it comes and goes.
- Before the first micro-batch counts, sources come and go: those that are read again begin where they began.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from recovery.base.ids import NO_BATCH
from recovery.checkpoint.offsets import NO_TICK, NOTHING_READ, is_tick
from recovery.checkpoint.position import HEADER_LINES, ONE_LINE_EACH, missing_entry
from recovery.checkpoint.restore import RestoredCheckpoint
from recovery.checkpoint.source_matching import match_sources, match_starts
from recovery.checkpoint.source_places import SourcePlaces, places_of
from recovery.errors import FlowMismatchError, SparkCheckpointError

PLACES_KEY = "places"
IDENTITIES_KEY = "identities"
"""The row of step `$sources` that says which topics the position speaks of: the topics' ids, by name."""
LEFT_KEY = "left"
"""The row of step `$sources` that says which topics runs have stopped to read, and where, by name."""


def check_logs(restored: RestoredCheckpoint, directory: Path, places: SourcePlaces) -> None:
    """Raise SparkCheckpointError when a source's log does not reach its offset."""
    if restored.batch is None:
        return
    missing = missing_entry(directory, restored.batch, places.numbers)
    if missing is not None:
        raise SparkCheckpointError(
            f"{missing} is missing in the position after micro-batch {restored.batch}",
            cause="An earlier version of recovery did not save the whole position of a flow that reads one "
            "source in two places.",
            remedy="Go back to an epoch with the whole position (--resume-after), or begin again in another directory: "
            "otherwise input could be skipped.",
        )


def fit_sources(
    restored: RestoredCheckpoint, directory: Path, places: SourcePlaces, recorded: SourcePlaces | None = None
) -> RestoredCheckpoint:
    """Make the checkpoint fit a flow that reads its sources in these places; return the result.

    recorded: the places of the previous flow; None: an earlier version did not keep them.
    Raises FlowMismatchError when a source is gone, or the matching is ambiguous.
    """
    if restored.batch is None:
        return restored
    log = directory / "offsets" / str(restored.batch)
    try:
        lines = log.read_text().split("\n")
    except UnicodeDecodeError as error:
        raise SparkCheckpointError(f"offsets/{restored.batch} is not in the form that Spark writes") from error
    header, offsets = lines[:HEADER_LINES], lines[HEADER_LINES:]
    numbered = lines[0] != ONE_LINE_EACH
    if numbered:
        labelled = {label: offset for label, _, offset in (line.partition(":") for line in offsets)}
        if places.numbers is None or not all(map(str.isdecimal, labelled)):
            # The flow's code names its sources, and Spark knows them by these names.
            _check_labels(labelled, places)
            return restored
        ids = tuple(range(len(offsets))) if recorded is None else recorded.ids
        last = _last_places(ids)
        if labelled.keys() != set(map(str, last.values())):
            if recorded is not None:
                # The labels are names of digits, which the flow's code no longer gives its sources.
                _check_labels(labelled, places)
            # An earlier version did not record which source is read where.
            return restored
        offsets = [labelled[str(last[source])] for source in ids]
    if recorded is None or len(recorded.ids) != len(offsets):
        recorded = _inferred(offsets, places)
    left = dict(zip(recorded.ids, offsets, strict=True))
    logs = directory / "sources"
    match = match_starts if restored.batch == NO_BATCH else match_sources
    came = match(
        recorded,
        places,
        {source for source in recorded.others() if left[source] == NOTHING_READ},
        lambda then: _are_in_step([left[each] for each in then], [logs / str(each) for each in then]),
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
        restored = restored.without({f"offsets/{restored.batch}"})
    return _move(restored, logs, came, recorded.others())


def _last_places(ids: Iterable[int]) -> dict[int, int]:
    """Return the last place of each source: its number in the log's second form, which has one line for each source."""
    return {source: place for place, source in enumerate(ids)}


def _check_labels(before: Iterable[str], places: SourcePlaces) -> None:
    gone = sorted(set(before).difference(places.labels))
    if gone:
        raise FlowMismatchError(
            f"the saved position has named sources that the flow lacks: {', '.join(gone)}",
            cause="A source was removed or renamed. If a removed source came back, it would be read from its start.",
            remedy="Read the same sources under the same names; or begin again in another directory.",
        )


def _inferred(offsets: Sequence[str], places: SourcePlaces) -> SourcePlaces:
    """Infer the places from the recorded lines. If the flow now has as many places, the recorded places are the flow's;
    a single source is read wherever its flow reads."""
    ticks = [*map(is_tick, offsets)]
    now = [source for source, tick in zip(places.ids, places.ticks, strict=True) if not tick]
    count = ticks.count(False)
    sources = iter(now if count == len(now) else range(count))
    return places_of([-place - 1 if tick else next(sources) for place, tick in enumerate(ticks)], ticks)


def _are_in_step(lines: Sequence[str], logs: Sequence[Path]) -> bool:
    """Return whether sources have the same offset, and the same content in their logs."""
    return len(set(lines)) == 1 and all(_content(log) == _content(logs[0]) for log in logs[1:])


def _content(log: Path) -> dict[str, bytes]:
    files = (path for path in log.rglob("*") if path.is_file())
    return {str(path.relative_to(log)): path.read_bytes() for path in files}


def _move(
    restored: RestoredCheckpoint, sources: Path, came: Mapping[int, int], before: Iterable[int]
) -> RestoredCheckpoint:
    """Copy what sources have logged to their new places; return the checkpoint without the files of vacated places.

    The partitions' files of a source that moved, or of the previous source in its place, could be mistaken for another
    source's of the same name: they are no longer held, and their rows are stale. The rule includes sources that have
    logged nothing yet.
    """
    moves = {new: old for new, old in came.items() if new != old}
    stays = came.keys() - moves.keys()
    with_logs = {new: old for new, old in moves.items() if (sources / str(old)).exists()}
    for new, old in with_logs.items():
        shutil.copytree(sources / str(old), sources / f"{new}.moved", symlinks=True)
    vacated = {*before, *moves} - stays
    for place in vacated:
        shutil.rmtree(sources / str(place), ignore_errors=True)
    for new in with_logs:
        (sources / f"{new}.moved").rename(sources / str(new))
    taken = tuple(f"sources/{place}/" for place in vacated)
    return restored.without({path for path in restored.held if path.startswith(taken)})


def _but_ticks(line: str) -> str:
    return NO_TICK if is_tick(line) else line


def texts_by_name(text: object) -> dict[str, str]:
    """Return what the row of IDENTITIES_KEY or LEFT_KEY says; nothing without such a row."""
    with contextlib.suppress(ValueError):
        return msgspec.json.decode(text if isinstance(text, str) else "{}", type=dict[str, str])
    return {}
