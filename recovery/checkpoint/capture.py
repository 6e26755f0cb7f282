"""Capturing a running query's checkpoint as of a micro-batch, file by file, only the new files.

The stream's thread decides in one step which files are needed, and gives every new file a second name (a hard link, or
a copy) in a staging directory: Spark may remove its own name while the background reads the content, a chunk at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from recovery.base.ids import BatchId
from recovery.checkpoint.home import CheckpointHome, Mark, keep, mark_of
from recovery.checkpoint.position import is_progress, position_files, wait_for_commit
from recovery.checkpoint.rows import CHUNK_BYTES, Content, HeldFile, as_content, file_of, held_file, row_keys
from recovery.checkpoint.state_stores.state_files import StateFiles
from recovery.errors import SparkCheckpointError
from recovery.host.durable import make_directories

_TRIES = 20
_LONGEST_PAUSE_S = 5.0
"""Between two tries on a place that all hosts share: NFS may show what another host wrote a minute later."""
_SMALL_BYTES = 64 << 10


class Captured(Mapping[str, Content | None]):
    """The changes of an epoch to the checkpoint's rows, by row key; None discards a row.

    Each access reads a row's content from its file. `release` removes the staged files.
    """

    def __init__(self, held: dict[str, HeldFile], new: Mapping[str, bytes | Path], gone: Iterator[str], home: Path):
        """new: files by their path in the checkpoint, each as its content or as the path where it is staged."""
        self.held = held
        """The files that the partitions hold once these changes are written."""
        self._new = new
        self._marks = {path: mark_of(file) for path, file in new.items() if isinstance(file, Path)}
        self._rows: dict[str, bool] = dict.fromkeys(gone, False)
        self._rows.update((key, True) for path in new for key in row_keys(path, held[path]))
        self._home = home

    def __getitem__(self, key: str) -> Content | None:
        return self._read(key) if self._rows[key] else None

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def release(self) -> None:
        """Remove the staged files; afterwards no row can be read."""
        if self._marks:
            shutil.rmtree(self._home, ignore_errors=True)

    def _read(self, key: str) -> Content:
        path, chunk = file_of(key)
        file = self._new[path]
        if isinstance(file, bytes):
            return as_content(file)
        with file.open("rb") as source:
            source.seek(max(0, chunk - 1) * CHUNK_BYTES)
            data = source.read(CHUNK_BYTES)
        if mark_of(file) != self._marks[path]:
            raise SparkCheckpointError("it was changed after Spark had finished it", path=path)
        return as_content(data)


class Capture:
    """The files of a checkpoint that the partitions hold, and the changes that an epoch makes to them.

    held: the files in the newest snapshot. stale: rows in it that belong to none of them. staging: a directory of this
    host, created when needed, by default beside the checkpoint's. sources: see `position_files`.
    """

    def __init__(
        self,
        home: CheckpointHome,
        held: Mapping[str, HeldFile],
        stale: frozenset[str] = frozenset(),
        *,
        staging: Path | None = None,
        sources: Sequence[int] | None = None,
    ) -> None:
        self._stale = stale
        self._sources = sources
        self._home = home
        self.checkpoint = home.directory
        self._staging = staging or home.directory.with_name("staging")
        self._held = dict(held)
        self._seen = {path: mark_of(self.checkpoint / path) for path in held if is_progress(path)}
        self._number = itertools.count(1)
        self._state = StateFiles(home, self._held)

    def wait_for_commit(self, batch: BatchId, alive: Callable[[], bool]) -> bool:
        """Wait until Spark has logged `batch` as done; return False when the query ended without doing so. Raises
        FlowFailedError after a minute."""
        return wait_for_commit(self._home, batch, alive)

    def take(self, batch: BatchId, instead: Mapping[str, bytes] | None = None) -> Captured:
        """Return the changes as of `batch`, which Spark has logged as done. The cost is a listing of the state
        directories and a link, or a copy, for each new file.

        instead: contents that replace those of the checkpoint, for files of the position. Raises SparkCheckpointError
        when a needed file is missing or was altered, UnsupportedPlanError for an unsupported layout of state.
        """
        home = self._staging / str(next(self._number))
        changed: set[str] = set()
        for left in reversed(range(_TRIES)):
            try:
                self._home.pull(batch)
                wanted = position_files(self.checkpoint, batch, self._sources) | self._state.needed(batch)
                # Include the changes that the previous try found: it has already updated their marks.
                changed = (changed | set(self._changed(wanted))) & wanted
                new = self._take_hold(sorted(wanted - self._held.keys() | changed), home)
                break
            except FileNotFoundError as error:
                # Spark's maintenance removed the file because a newer snapshot replaces it: look again.
                shutil.rmtree(home, ignore_errors=True)
                if not left:
                    raise SparkCheckpointError("it is missing", path=error.filename) from error
            except SparkCheckpointError:
                shutil.rmtree(home, ignore_errors=True)
                if not left or not self._home.shared:
                    raise
            if self._home.shared:
                time.sleep(min(_LONGEST_PAUSE_S, 0.1 * 2 ** (_TRIES - left)))
        new |= instead or {}
        stay = wanted & self._held.keys() - changed - new.keys()
        held = {path: self._held[path] for path in stay}
        held |= {path: held_file(_size(file)) for path, file in new.items()}
        gone = (key for path, file in self._held.items() if path not in stay for key in row_keys(path, file))
        return Captured(held, new, itertools.chain(self._stale, gone), home)

    def saved(self, captured: Captured) -> None:
        """Record that an epoch with these changes is being closed: the next changes build on it."""
        self._stale = frozenset()
        self._held.clear()
        self._held.update(captured.held)
        self._seen = {path: mark for path, mark in self._seen.items() if path in captured.held}

    def _take_hold(self, paths: list[str], home: Path) -> dict[str, bytes | Path]:
        """Return the new files, safe from Spark: small files of the position as content, all others as staged paths."""
        found: dict[str, bytes | Path] = {}
        held: dict[str, Path] = {}
        for number, path in enumerate(paths):
            mark = self._mark(path)
            small = not path.startswith("state/") and mark[0] <= _SMALL_BYTES
            if is_progress(path) or not small:
                self._seen[path] = mark
            if small:
                found[path] = (self.checkpoint / path).read_bytes()
                continue
            found[path] = target = home / str(number)
            make_directories(home)
            if path.startswith("state/"):
                held[path] = target
            else:
                # A connector may write to its own again.
                (shutil.copy2 if is_progress(path) else keep)(self.checkpoint / path, target)
        self._home.hold(held)
        return found

    def _mark(self, path: str) -> Mark:
        return self._home.mark(path) if path.startswith("state/") else mark_of(self.checkpoint / path)

    def _changed(self, wanted: set[str]) -> Iterator[str]:
        """Yield the held files to take again, because a connector wrote to its own.

        Spark writes its files only once. Raises SparkCheckpointError for a file that changed.
        """
        for path, mark in self._seen.items():
            if path in wanted and path in self._held:
                with contextlib.suppress(FileNotFoundError):
                    if self._mark(path) != mark:
                        if not is_progress(path):
                            raise SparkCheckpointError("it changed after it was captured", path=path)
                        yield path


def _size(file: bytes | Path) -> int:
    return len(file) if isinstance(file, bytes) else file.stat().st_size
