"""Reading a partition that lies at an owner: the same values as from a file, asked for over the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from recovery.base.ids import StepId
from recovery.errors import StorageError
from recovery.planning.measures import Measure, StepSize
from recovery.planning.resume import Cut
from recovery.storage.history import KeyChange, KeyState, KeyVersion
from recovery.wire.calls import FileFacts, OwnerCalls, StateRow
from recovery.wire.run_client import Owner

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

    def key_sizes(self, step: str, cut: Cut) -> Iterator[tuple[str, int]]:
        return self._rows(OwnerCalls.key_sizes, StepId(step), cut)

    def count(self, step: str, cut: Cut) -> int:
        return self._owner.ask(OwnerCalls.count, self._name, StepId(step), cut)

    def versions(self, step: str, key: str, cut: Cut) -> list[KeyVersion]:
        found = self._rows(OwnerCalls.versions, StepId(step), key, cut)
        return [KeyVersion(self._state(row), until) for row, until in found]

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
