"""Reading a partition that lies at an owner: the same values as from a file, over the network. Both ends."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from recovery.base.ids import StepId
from recovery.errors import StorageError
from recovery.planning.held import continued, unsettled_from
from recovery.planning.measures import Measure, StepSize
from recovery.planning.resume import Cut
from recovery.planning.values import PartitionDescription
from recovery.storage.history import Due, KeyChange, KeyState, KeyVersion, VersionSpan
from recovery.storage.reading import FileReader
from recovery.storage.seam import HeldRows, KeyToErase
from recovery.wire.calls import ChangeRow, FileFacts, OwnerCalls, StateRow, VersionRow
from recovery.wire.messages import as_error
from recovery.wire.run_client import Owner

CHUNK_BYTES = 1 << 20
"""The most bytes of rows in one message; only a message with one row is larger."""
ROW_BYTES = 16
"""About what a row takes besides its key and value."""

R = TypeVar("R")


class OwnerReader:
    """Reads a file of an owner: a `PartitionReader`. Facts that a look shows are asked for once."""

    def __init__(self, owner: Owner, name: str) -> None:
        self.path = Path(owner.location, name)
        self._owner = owner
        self._name = name

    def states(self, step: str, cut: Cut, *, in_order: bool = False) -> Iterator[KeyState]:
        return map(self._state, self._rows(OwnerCalls.states, StepId(step), cut, in_order))

    def few_states(self, step: str, cut: Cut, keys: Sequence[str] | None = None) -> list[KeyState]:
        wanted = None if keys is None else list(keys)
        return [self._state(row) for row in self._rows(OwnerCalls.few_states, StepId(step), cut, wanted)]

    def page(self, step: str, cut: Cut, begin: str, end: str | None, limit: int, most_bytes: int) -> list[KeyState]:
        found = self._rows(OwnerCalls.page, StepId(step), cut, begin, end, limit, most_bytes)
        return [self._state(row) for row in found]

    def ending(self, step: str, cut: Cut, ending: str) -> Iterator[KeyState]:
        return map(self._state, self._rows(OwnerCalls.ending, StepId(step), cut, ending))

    def key_sizes(self, step: str, cut: Cut) -> Iterator[tuple[str, int]]:
        return self._rows(OwnerCalls.key_sizes, StepId(step), cut)

    def count(self, step: str, cut: Cut) -> int:
        return self._owner.ask(OwnerCalls.count, self._name, StepId(step), cut)

    def versions(self, step: str, key: str, cut: Cut, since: int = 0) -> list[KeyVersion]:
        found = self._rows(OwnerCalls.versions, StepId(step), key, cut, since)
        return [KeyVersion(self._state(row), until) for row, until in found]

    def version_spans(self, step: str, key: str, cut: Cut) -> list[VersionSpan]:
        found = self._owner.ask(OwnerCalls.version_spans, self._name, StepId(step), key, cut)
        return [VersionSpan(*each) for each in found]

    def due(self, step: str, moments: Sequence[int]) -> Due:
        return Due(*self._owner.ask(OwnerCalls.due, self._name, StepId(step), list(moments)))

    def changes(self, step: str, first: Cut, last: Cut) -> Iterator[KeyChange]:
        for key, before, after in self._rows(OwnerCalls.changes, StepId(step), first, last):
            yield KeyChange(key, self._some_state(before), self._some_state(after))

    def check_all_there(self, step: str, cut: Cut) -> None:
        self._owner.ask(OwnerCalls.all_there, self._name, StepId(step), cut)

    def steps(self) -> list[str]:
        return self._owner.ask(OwnerCalls.steps, self._name)

    def newest_steps(self) -> list[str]:
        return self._owner.ask(OwnerCalls.newest_steps, self._name)

    def has_step(self, step: str) -> bool:
        return self._owner.ask(OwnerCalls.has_step, self._name, StepId(step))

    def rows_of(self, keys: Sequence[KeyToErase]) -> list[HeldRows]:
        return self._owner.ask(OwnerCalls.rows_of, self._name, list(keys))

    def sizes(self) -> dict[str, StepSize] | None:
        return self._facts.sizes

    def measures(self) -> list[Measure]:
        return self._facts.measures

    def log_bytes(self) -> int:
        return self._facts.log_bytes

    def largest(self, limit: int) -> list[tuple[str, str, int]]:
        return self._owner.ask(OwnerCalls.largest, self._name, limit)

    @cached_property
    def _facts(self) -> FileFacts:
        return self._owner.ask(OwnerCalls.facts, self._name)

    def _rows(self, call: Callable[..., Iterator[list[R]]], *arguments: Any) -> Iterator[R]:
        with closing(self._owner.stream(call, self._name, *arguments)) as found:
            for some in found:
                yield from some

    def _state(self, row: StateRow) -> KeyState:
        key, epoch, value, timeout_ms = row
        if not isinstance(value, str | bytes):
            raise StorageError(f"its owner sent a value of type {type(value).__name__}", path=self.path)
        return KeyState(key, epoch, value, timeout_ms)

    def _some_state(self, row: StateRow | None) -> KeyState | None:
        return None if row is None else self._state(row)


def found_at(owner: Owner, known: dict[str, PartitionDescription]) -> tuple[PartitionDescription, ...]:
    """Return the descriptions of an owner's files, whose paths say which owner has them. known: those of an earlier
    look, by name, which become those of this one; what the owner sends is in proportion to what changed since. Raises
    the error of the first file that cannot be read."""
    found: dict[str, PartitionDescription] = {}
    for each in owner.ask(OwnerCalls.found, {name: unsettled_from(before) for name, before in known.items()}):
        path = Path(owner.location, each.name)
        if each.refusal is not None:
            error = as_error(each.refusal, owner.location)
            error.path = str(path)
            raise error
        if each.description is None:
            raise StorageError("its owner neither describes it nor says why", path=path)
        before, now = known.get(each.name), replace(each.description, path=path)
        whole = now if before is None else continued(before, now)
        if whole is None:
            # A run has gone back, or another copy has taken its place.
            known.clear()
            return found_at(owner, known)
        # The same object says that nothing has changed.
        found[each.name] = before if before is not None and whole == before else whole
    known.clear()
    known.update(found)
    return tuple(found.values())


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

    def page(
        self, name: str, step: StepId, cut: Cut, begin: str, end: str | None, limit: int, most_bytes: int
    ) -> Iterator[list[StateRow]]:
        return _streamed(self._reader(name).page(step, cut, begin, end, limit, most_bytes))

    def ending(self, name: str, step: StepId, cut: Cut, ending: str) -> Iterator[list[StateRow]]:
        return _streamed(self._reader(name).ending(step, cut, ending))

    def key_sizes(self, name: str, step: StepId, cut: Cut) -> Iterator[list[tuple[str, int]]]:
        with _closed(self._reader(name).key_sizes(step, cut)) as found:
            yield from in_chunks(found, lambda row: len(row[0]))

    def count(self, name: str, step: StepId, cut: Cut) -> int:
        return self._reader(name).count(step, cut)

    def versions(self, name: str, step: StepId, key: str, cut: Cut, since: int) -> Iterator[list[VersionRow]]:
        found = self._reader(name).versions(step, key, cut, since)
        return in_chunks(((_row(each.state), each.until) for each in found), lambda row: _bytes(row[0]))

    def version_spans(self, name: str, step: StepId, key: str, cut: Cut) -> list[tuple[int, int | None, int]]:
        return [(*each,) for each in self._reader(name).version_spans(step, key, cut)]

    def due(self, name: str, step: StepId, moments: list[int]) -> tuple[int | None, list[int]]:
        found = self._reader(name).due(step, moments)
        return found.earliest_ms, found.counts

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

    def rows_of(self, name: str, keys: list[KeyToErase]) -> list[HeldRows]:
        return self._reader(name).rows_of(keys)

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
