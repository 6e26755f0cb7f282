"""How far the input was read beyond the position that a run resumes at.

Epochs that the start discards have read further, and so have micro-batches of a killed run that no epoch closed. The
former are in the partitions, the latter in the checkpoint that the killed run left in its scratch directory. That
checkpoint is never used to continue: here it only says which input has to be read again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from recovery.base.untrusted_json import Count
from recovery.base.untrusted_paths import read_received
from recovery.checkpoint.offsets import NOTHING_READ, OffsetLog, read_log
from recovery.checkpoint.rows import Content, as_bytes, file_of
from recovery.places.address import split_uri

LOCAL = "file:"
"""The file system of this host, as `LoggedFile` names it."""
MOST_BYTES = 1 << 28
"""The largest log that is read: larger than Spark writes one for a million files."""
LogTexts = Mapping[str, str]
"""Files of a checkpoint, by their path in it."""


class _Entry(msgspec.Struct):
    """A file that a file source has read, as its log has it. timestamp: its modification time in milliseconds."""

    path: str
    timestamp: Count


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """A file that a file source has read: the file's URI as Spark writes it, and its modification time when it was
    read."""

    uri: str
    modified_ms: int

    @property
    def file_system(self) -> str:
        """The scheme and the host of the URI, without the slashes in front of a path: "file:", "s3a://bucket"."""
        return split_uri(self.uri)[0]

    @property
    def path(self) -> str:
        """The path in its file system."""
        return split_uri(self.uri)[1]


@dataclass(frozen=True, slots=True)
class Reached:
    """What was read beyond a position. offsets: offsets of any sources, as they log them. files: what file sources have
    logged in epochs. open_files: what they have logged in micro-batches that no epoch closed. entries_lack: whether
    entries of a log in the partitions are missing, as where one of them is an older copy."""

    offsets: tuple[str, ...] = ()
    files: tuple[LoggedFile, ...] = ()
    open_files: tuple[LoggedFile, ...] = ()
    entries_lack: bool = False


def reached(held: Iterable[tuple[str, Content]], left: Iterable[Path], restored: Path) -> Reached:
    """Return what was read beyond the restored checkpoint.

    held: rows of checkpoints that the partitions hold. left: checkpoints that killed runs left. What cannot be read of
    either is left out: neither is used to continue.
    """
    return _beyond(_texts(held), [_left_texts(each) for each in left], lambda: _left_texts(restored))


def reached_between(held: Iterable[tuple[str, Content]], known: Iterable[tuple[str, Content]]) -> Reached:
    """Return what rows of a later snapshot say was reached, beyond the rows of an earlier snapshot."""
    return _beyond(_texts(held), [], lambda: _texts(known))


def position_in(
    rows: Iterable[tuple[str, Content]], batch: int
) -> tuple[str, dict[str, tuple[LoggedFile, ...]]] | None:
    """Return the position after a micro-batch among the rows of a checkpoint: the text of its log of offsets, and what
    each file source has logged, by the number of the source. None: the rows have no such position, or not all of it."""
    texts = _texts(rows)
    log = texts.get(f"offsets/{batch}")
    if log is None or _lacks_entries(texts):
        return None
    logs: dict[str, dict[str, str]] = {}
    for path, text in texts.items():
        if path.startswith("sources/"):
            logs.setdefault(path.split("/")[1], {})[path] = text
    return log, {source: tuple(logged_files(found)) for source, found in logs.items()}


def _beyond(closed: LogTexts, others: Sequence[LogTexts], known: Callable[[], LogTexts]) -> Reached:
    # A file that was logged twice was written again in between: the later entry counts.
    files = {each.uri: each for each in logged_files(closed)}
    opened = {each.uri: each for found in others for each in logged_files(found)}
    # A long log is read only if it matters.
    for each in logged_files(known()) if files or opened else ():
        files.pop(each.uri, None)
        opened.pop(each.uri, None)
    logs = [_log(text) for found in (closed, *others) for path, text in found.items() if path.startswith("offsets/")]
    offsets = dict.fromkeys(
        offset for log in logs if log is not None for offset in log.offsets.values() if offset != NOTHING_READ
    )
    return Reached(
        tuple(offsets),
        tuple(files.values()),
        tuple(each for uri, each in opened.items() if uri not in files),
        _lacks_entries(closed),
    )


def logged_files(texts: LogTexts) -> Iterator[LoggedFile]:
    """Yield the files in the logs of file sources, in the order of the logs."""
    for path, text in sorted(texts.items(), key=lambda each: _order(each[0])):
        if path.startswith("sources/"):
            for line in text.split("\n")[1:]:
                with contextlib.suppress(ValueError, RecursionError):
                    entry = msgspec.json.decode(line, type=_Entry)
                    yield LoggedFile(entry.path, entry.timestamp)


def _texts(rows: Iterable[tuple[str, Content]]) -> dict[str, str]:
    """Return the files of offsets and of sources' logs among rows of a checkpoint."""
    chunks: dict[str, dict[int, bytes]] = {}
    for key, content in rows:
        path, chunk = file_of(key)
        if path.startswith(("offsets/", "sources/")):
            chunks.setdefault(path, {})[chunk] = as_bytes(content)
    return {
        path: b"".join(content for _, content in sorted(found.items())).decode(errors="replace")
        for path, found in chunks.items()
    }


def _left_texts(checkpoint: Path) -> dict[str, str]:
    """Return the texts of the log files in a checkpoint on this host."""
    found = {}
    for folder in ("offsets", "sources"):
        for path in (checkpoint / folder).rglob("*"):
            if not path.name.startswith("."):
                with contextlib.suppress(OSError):
                    text = read_received(path, MOST_BYTES).decode(errors="replace")
                    found[path.relative_to(checkpoint).as_posix()] = text
    return found


def _log(text: str) -> OffsetLog | None:
    with contextlib.suppress(IndexError):
        return read_log(text)
    return None


def _order(path: str) -> tuple[str, int]:
    folder, _, name = path.rpartition("/")
    number = name.removesuffix(".compact")
    return folder, int(number) if number.isdecimal() else -1


def _lacks_entries(texts: LogTexts) -> bool:
    """Return whether logs of file sources have gaps."""
    numbers: dict[str, dict[int, bool]] = {}
    for path in texts:
        folder, number = _order(path)
        if folder.startswith("sources/") and number >= 0:
            numbers.setdefault(folder, {})[number] = path.endswith(".compact")
    for found in numbers.values():
        whole = max((number for number, compact in found.items() if compact), default=-1)
        if any(number not in found for number in range(whole + 1, max(found))):
            return True
    return False
