"""What an owner service answers to looks: the calls of `OwnerCalls` that read partitions, or copy them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from recovery.base.ids import StepId
from recovery.host.durable import make_directories, modes_beside
from recovery.host.scratch import scratch_directory
from recovery.host.storage_errors import storage_errors
from recovery.planning.resume import Cut
from recovery.storage.copies import pin
from recovery.storage.history import KeyState
from recovery.storage.reading import FileReader
from recovery.wire.calls import ChangeRow, FileFacts, Piece, StateRow, VersionRow

CHUNK_BYTES = 1 << 20
"""The most bytes of rows in one message; only a message with one row is larger."""
ROW_BYTES = 16
"""About what a row takes besides its key and value."""

PIECE_BYTES = 1 << 20

R = TypeVar("R")


def in_chunks(found: Iterable[R], size_bytes: Callable[[R], int]) -> Iterator[list[R]]:
    """Yield rows in lists for one message each."""
    some: list[R] = []
    sum_bytes = 0
    for row in found:
        more_bytes = ROW_BYTES + size_bytes(row)
        if some and sum_bytes + more_bytes > CHUNK_BYTES:
            yield some
            some, sum_bytes = [], 0
        some.append(row)
        sum_bytes += more_bytes
    if some:
        yield some


class Looks:
    """The reading calls of one connection. path: returns the path of a file of the owner's directory, and refuses all
    other names."""

    def __init__(self, path: Callable[[str], Path]) -> None:
        self._path = path

    def facts(self, name: str) -> FileFacts:
        reader = self._reader(name)
        return FileFacts(reader.log_bytes(), reader.sizes(), reader.measures() if name == "part-0.sqlite3" else [])

    def states(self, name: str, step: StepId, cut: Cut, in_order: bool) -> Iterator[list[StateRow]]:
        return _streamed(self._reader(name).states(step, cut, in_order=in_order))

    def few_states(self, name: str, step: StepId, cut: Cut, keys: list[str] | None) -> Iterator[list[StateRow]]:
        return _streamed(self._reader(name).few_states(step, cut, keys))

    def key_sizes(self, name: str, step: StepId, cut: Cut) -> Iterator[list[tuple[str, int]]]:
        with _closed(self._reader(name).key_sizes(step, cut)) as found:
            yield from in_chunks(found, lambda row: len(row[0]))

    def count(self, name: str, step: StepId, cut: Cut) -> int:
        return self._reader(name).count(step, cut)

    def versions(self, name: str, step: StepId, key: str, cut: Cut) -> Iterator[list[VersionRow]]:
        found = self._reader(name).versions(step, key, cut)
        return in_chunks(((_row(each.state), each.until) for each in found), lambda row: _bytes(row[0]))

    def changes(self, name: str, step: StepId, first: Cut, last: Cut) -> Iterator[list[ChangeRow]]:
        with _closed(self._reader(name).changes(step, first, last)) as found:
            rows = ((each.key, _some_row(each.before), _some_row(each.after)) for each in found)
            yield from in_chunks(rows, lambda row: sum(_bytes(state) for state in row[1:] if state is not None))

    def all_there(self, name: str, step: StepId, cut: Cut) -> None:
        self._reader(name).check_all_there(step, cut)

    def steps(self, name: str) -> list[str]:
        return self._reader(name).steps()

    def newest_steps(self, name: str) -> list[str]:
        return self._reader(name).newest_steps()

    def has_step(self, name: str, step: StepId) -> bool:
        return self._reader(name).has_step(step)

    def largest(self, name: str, limit: int) -> list[tuple[str, str, int]]:
        return self._reader(name).largest(limit)

    def _reader(self, name: str) -> FileReader:
        return FileReader(self._path(name))


def _streamed(found: Iterable[KeyState]) -> Iterator[list[StateRow]]:
    with _closed(found) as states:
        yield from in_chunks(map(_row, states), _bytes)


def _closed(found: Iterable[R]) -> closing[Generator[R, None, None]]:
    """Return a context that ends the reading with it, also if the stream ends early."""
    return closing(each for each in found)


def _row(state: KeyState) -> StateRow:
    return state.key, state.epoch, state.value, state.timeout_ms


def _some_row(state: KeyState | None) -> StateRow | None:
    return None if state is None else _row(state)


def _bytes(row: StateRow) -> int:
    return len(row[0]) + len(row[2])


def copies(paths: Sequence[Path], scratch: Path) -> Iterator[Piece]:
    """Yield copies of these files in pieces, all as of the moment at which the first piece comes, which is empty.
    scratch: a directory with room for the largest of the copies."""
    pinned = pin(paths)
    try:
        yield Piece("", b"")
        with storage_errors(scratch):
            make_directories(scratch, modes_beside(paths[0]))
        with scratch_directory("copy", scratch) as room:
            for each in pinned:
                copy = room / each.path.name
                each.copy_to(copy)
                each.release()
                with copy.open("rb") as file:
                    while data := file.read(PIECE_BYTES):
                        yield Piece(copy.name, data)
                copy.unlink()
    finally:
        for each in pinned:
            each.release()
