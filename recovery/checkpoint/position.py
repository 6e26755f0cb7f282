"""Spark's position in its input: the files of a checkpoint that every query has.

`metadata`, `offsets/<batch>`, `commits/<batch>` and, for sources that keep a log (files, rate, Kafka),
`sources/<i>/<n>`, or files in directories there. The files are stored unchanged, so any source works. All files but
those in directories are immutable once written.

The log of offsets has a line for each place in the plan where a source is read. A source that is read in several
places, because a frame is used twice, has a line for each place, but one number `i`: sources are numbered by their
first place.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from recovery.base.ids import NO_BATCH, BatchId
from recovery.base.untrusted_json import MOST
from recovery.base.untrusted_paths import objection
from recovery.checkpoint.home import CheckpointHome
from recovery.checkpoint.rows import file_of
from recovery.errors import FlowFailedError, SparkCheckpointError, UnsupportedPlanError

HEADER_LINES = 2
"""The number of header lines in a log of offsets: version and settings. A line for each source follows."""
ONE_LINE_EACH = "v1"
"""The version in which order identifies the lines; in the next version each begins with the name of its source."""
_LOG_ENTRY = re.compile(r"(\d+)(\.compact)?")


def position_files(checkpoint: Path, batch: BatchId, sources: Sequence[int] | None = None) -> set[str]:
    """Return the paths of the files that hold the position after `batch`.

    sources: the source of each line of the log of offsets; None: unknown, so each line counts as its own source.
    """
    paths = {"metadata", f"offsets/{batch}", f"commits/{batch}"}
    newest = dict(_logged(checkpoint, batch, sources))
    logs = checkpoint / "sources"
    for source in logs.iterdir() if logs.is_dir() else ():
        last = newest.get(source.name, batch)
        # When the epoch closes, the file source has already logged the next batch: after a resume, that entry would
        # make it skip those files.
        paths |= {f"sources/{source.name}/{name}" for name, number in _entries(source) if number <= last}
        paths |= {f"sources/{source.name}/{name}" for name in _below(source, last)}
    return paths


def initial_logs(checkpoint: Path, sources: Sequence[int] | None = None) -> set[str]:
    """Return the paths of what sources have logged before micro-batch 0, which is planned. Sources that log by
    themselves what a micro-batch reads, as file sources do, have logged nothing before it. `sources` as above."""
    by_batch = {source for source, _ in _logged(checkpoint, BatchId(0), sources)}
    paths: set[str] = set()
    logs = checkpoint / "sources"
    for source in logs.iterdir() if logs.is_dir() else ():
        if source.name not in by_batch:
            paths |= {f"sources/{source.name}/{name}" for name, number in _entries(source) if not number}
            paths |= {f"sources/{source.name}/{name}" for name in _below(source, NO_BATCH)}
    return paths


def is_progress(path: str) -> bool:
    """Return whether a file of the position is a connector's own, which it may rewrite; the others are immutable."""
    return path.startswith("sources/") and path.count("/") > 2


def missing_entry(checkpoint: Path, batch: BatchId, sources: Sequence[int] | None = None) -> str | None:
    """Return the path of an entry that a source's log lacks, by the source's offset after `batch`; None: none is
    missing. Without that entry, Spark fails at the start, or treats unread files as read. `sources` as above."""
    for source, entry in _logged(checkpoint, batch, sources):
        log = checkpoint / "sources" / source
        if entry >= 0 and entry not in {number for _, number in (_entries(log) if log.is_dir() else ())}:
            return f"sources/{source}/{entry}"
    return None


def wait_for_commit(home: CheckpointHome, batch: BatchId, alive: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    """Wait until Spark has logged `batch` as done; return False when the query ended without doing so.

    Raises FlowFailedError after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not home.has_logged(batch):
        if not alive():
            return home.has_logged(batch)
        if time.monotonic() > deadline:
            path = f"{home.location}/commits/{batch}"
            raise FlowFailedError(f"Spark has not logged micro-batch {batch} after {timeout_s:g} s", path=path)
        time.sleep(0.05 if home.shared else 0.002)
    return True


def _offsets(checkpoint: Path, batch: BatchId) -> list[str]:
    """Return the lines of the log of offsets. Raises SparkCheckpointError when the log is invalid."""
    path = checkpoint / "offsets" / str(batch)
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise SparkCheckpointError("it is not in the form that Spark writes", path=path) from error
    if len(lines) < HEADER_LINES:
        raise SparkCheckpointError(f"it has {len(lines)} lines, fewer than Spark writes", path=path)
    return lines


def source_lines(checkpoint: Path, batch: BatchId, sources: Sequence[int] | None) -> Iterator[tuple[str, str]]:
    """Yield each source's offset after the micro-batch, with the name of the source's directory below `sources/`.
    `sources` as for `position_files`."""
    version, *lines = _offsets(checkpoint, batch)
    for number, line in enumerate(lines[HEADER_LINES - 1 :]):
        place, _, text = (str(number), "", line) if version == ONE_LINE_EACH else line.partition(":")
        if place.isdecimal() and sources is not None and int(place) < len(sources):
            place = str(sources[int(place)])
        yield place, text


def _logged(checkpoint: Path, batch: BatchId, sources: Sequence[int] | None) -> Iterator[tuple[str, int]]:
    """Yield the sources that count entries of their own log, as file sources do: the name of the log, and the last
    entry that belongs to the micro-batch."""
    for place, text in source_lines(checkpoint, batch, sources):
        entry = logged_entry(text)
        if entry is not None:
            yield place, entry


def logged_entry(offset: str) -> int | None:
    """Return the last entry of its own log that a source has read by `offset`; None for sources without such a log."""
    with contextlib.suppress(ValueError, RecursionError):
        found = msgspec.json.decode(offset)
        if isinstance(found, dict) and type(found.get("logOffset")) is int and found["logOffset"] <= MOST:
            return int(found["logOffset"])
    return None


def _below(log: Path, last: int) -> Iterator[str]:
    """Yield the files in directories beside a source's log, where some connectors keep their progress.

    Excluded are entries of later micro-batches, and hidden files, which are unfinished. Raises UnsupportedPlanError for
    a path that the partitions cannot keep.
    """
    with os.scandir(log) as found:
        directories = [Path(entry.path) for entry in found if entry.is_dir()]
    for directory in directories:
        for path in directory.rglob("*"):
            parts = path.relative_to(log).parts
            wrong = objection("/".join(parts))
            if wrong is not None:
                raise UnsupportedPlanError(
                    f"a source keeps a file whose path {wrong}",
                    path=path,
                    cause="Partitions do not store such paths: they could lead outside the checkpoint.",
                    remedy="Use another connector, or run this query without recovery partitions.",
                )
            if file_of(path.name)[1]:
                raise UnsupportedPlanError(
                    "a source keeps a file whose name ends like the name of a file part",
                    path=path,
                    cause="Long files are stored in parts, numbered like #00001.",
                    remedy="Use another connector, or run this query without recovery partitions.",
                )
            later = any(part.isdecimal() and int(part) > last for part in parts)
            if not later and not any(part.startswith(".") for part in parts) and path.is_file():
                yield "/".join(parts)


def _entries(log: Path) -> Iterator[tuple[str, int]]:
    """Yield the names of the entries in a source's log, with their numbers."""
    for entry in log.iterdir():
        match = _LOG_ENTRY.fullmatch(entry.name)
        if match is not None:
            yield entry.name, int(match[1])
