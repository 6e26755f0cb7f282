"""Several values by key in one scope: the state of a task instance, a task or an asset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from recovery.base.clock import Clock
from recovery.base.untrusted_json import LAST_MOMENT_MS
from recovery.errors import StateValueError
from recovery.operational.backends.backend import Backend, Document
from recovery.operational.ids import StateId, check, escape, matches, unescape
from recovery.operational.scopes import (
    ASSET,
    KINDS,
    PROCESS,
    TASK,
    TASK_INSTANCE,
    Retention,
    ScopedState,
    previous_run,
    split,
    valid_content,
    values_of,
)

T = TypeVar("T")

_NAMES = {PROCESS: 2, TASK: 2, TASK_INSTANCE: 4, ASSET: 2}
"""How many parts of an id name the scope; one part more is a key in that scope."""


class KeyedState:
    """Values by key in one scope, each durable when `set` returns. Keys are independent: each has its own retention.

    Made by `StateManager.task_state_store` and `asset_state_store`, the names of Airflow's task and asset state store.
    As a context manager, with `clear_on_success`, it removes all keys when the block ends without an exception.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        scope_id: StateId,
        retention: Retention | None = None,
        clear_on_success: bool = False,
    ) -> None:
        self.scope_id = scope_id
        self._backend = backend
        self._clock = clock
        self._retention = retention
        self._clear_on_success = clear_on_success

    def key(self, key: str) -> ScopedState:
        """Return the value of a key, for everything that a ScopedState can do."""
        part = escape(check(key, "key of a state"))
        return ScopedState(self._backend, self._clock, f"{self.scope_id}/{part}", self._retention)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or `default` if there is none or its retention has passed."""
        return self.key(key).get(default)

    def set(self, key: str, value: Any, retention: Retention | None = None) -> None:
        """Set the value of a key, which must not be None. `retention` as in `ScopedState.set`. Raises
        StateValueError."""
        self.key(key).set(_given(key, value), retention)

    def update(
        self, key: str, change: Callable[[Any], Any], default: Any = None, retention: Retention | None = None
    ) -> Any:
        """Set the value of a key to the result of `change`, as `ScopedState.update`; returns the new value, which must
        not be None."""
        return self.key(key).update(lambda before: _given(key, change(before)), default, retention)

    def delete(self, key: str) -> bool:
        """Remove a key; returns whether it existed."""
        return self.key(key).delete()

    async def aget(self, key: str, default: Any = None) -> Any:
        """`get`, without blocking the event loop."""
        return await _in_thread(lambda: self.get(key, default))

    async def aset(self, key: str, value: Any, retention: Retention | None = None) -> None:
        """`set`, without blocking the event loop. If the task is cancelled meanwhile, the value may still be set."""
        await _in_thread(lambda: self.set(key, value, retention))

    async def adelete(self, key: str) -> bool:
        """`delete`, without blocking the event loop."""
        return await _in_thread(lambda: self.delete(key))

    async def aclear(self, *, all_map_indices: bool = False) -> int:
        """`clear`, without blocking the event loop."""
        return await _in_thread(lambda: self.clear(all_map_indices=all_map_indices))

    def keys(self) -> list[str]:
        """Return the keys that have a value, sorted."""
        return sorted(self.items())

    def items(self) -> dict[str, Any]:
        """Return all values by key."""
        found = values_of(self._documents(), self._clock.wall_ms())
        return {unescape(split(state_id)[2][-1]): value for state_id, value in found.items()}

    def clear(self, *, all_map_indices: bool = False) -> int:
        """Remove all keys; returns how many keys there were. In a recovery directory this is one transaction.

        all_map_indices: of a task instance, remove those of all its mapped instances.
        """
        environment, kind, parts = split(self.scope_id)
        within = self.scope_id
        if all_map_indices and kind == TASK_INSTANCE:
            within = f"{environment}{kind}/{'/'.join(parts[:-1])}"
        found = [document.state_id for document in self._documents(within)]
        if found:
            self._backend.update(dict.fromkeys(found, _nothing))
        return len(found)

    @property
    def previous_run(self) -> KeyedState | None:
        """The state of the previous instance of the same task; see `ScopedState.previous_instance`."""
        found = previous_run(self._backend, self.scope_id, self._clock.wall_ms(), keyed=True)
        return None if found is None else KeyedState(self._backend, self._clock, found, self._retention)

    def __enter__(self) -> KeyedState:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if self._clear_on_success and kind is None:
            self.clear()

    def _documents(self, within: StateId | None = None) -> list[Document]:
        within = self.scope_id if within is None else within
        depth = _NAMES[split(self.scope_id)[1]] + 1
        found = self._backend.list(f"{within}/")
        return [d for d in found if d.content is not None and len(split(d.state_id)[2]) == depth]


@dataclass(frozen=True, slots=True)
class Scope:
    """One scope with state. names: of a process (namespace, name), a task (dag, task), a task instance (dag, task, run,
    map index) or an asset (name, uri or id, and that).

    keys: those that have a value; empty for a scope with one value without a key. expires_ms: when the first of them
    expires.
    """

    kind: str
    names: tuple[str, ...]
    keys: tuple[str, ...]
    changed_ms: int
    expires_ms: int | None


def scopes_of(documents: Iterable[Document], now_ms: int, pattern: str | None) -> list[Scope]:
    """Return the scopes of these documents that have a value, sorted. pattern: a glob of their ids."""
    grouped: dict[tuple[str, ...], list[tuple[str | None, Document, Any]]] = {}
    for document in documents:
        _, kind, parts = split(document.state_id)
        count = _NAMES.get(kind, 0)
        if kind not in KINDS or len(parts) not in (count, count + 1):
            continue
        content = valid_content(document, now_ms)
        if content is not None and matches("/".join((kind, *parts[:count])), pattern):
            key = unescape(parts[count]) if len(parts) > count else None
            grouped.setdefault((kind, *map(unescape, parts[:count])), []).append((key, document, content))
    return [
        Scope(
            kind=kind,
            names=names,
            keys=tuple(sorted(key for key, _, _ in found if key is not None)),
            changed_ms=max(document.changed_ms for _, document, _ in found),
            # Another program may have written a time that is no date.
            expires_ms=min(
                (min(c["expires_ms"], LAST_MOMENT_MS) for _, _, c in found if c.get("expires_ms") is not None),
                default=None,
            ),
        )
        for (kind, *rest), found in sorted(grouped.items())
        for names in [tuple(rest)]
    ]


async def _in_thread(call: Callable[[], T]) -> T:
    # Commands, which need no event loop, start sooner without its modules.
    import asyncio

    return await asyncio.to_thread(call)


def _given(key: str, value: Any) -> Any:
    """Return the value of a key. Raises StateValueError for None."""
    if value is None:
        raise StateValueError(
            f"the value of {key!r:.80} cannot be None",
            cause="None means that there is no value.",
            remedy="Remove it with delete.",
        )
    return value


def is_keyed(state_id: StateId) -> bool:
    """Whether an id, of any environment, is one of a value by key, which is never None."""
    _, kind, parts = split(state_id)
    return kind in _NAMES and len(parts) > _NAMES[kind]


def _nothing(_: Document | None) -> None:
    """Remove the document."""
