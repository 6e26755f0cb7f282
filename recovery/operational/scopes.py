"""Scoped state: values that belong to one process, task or task instance."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

from recovery.base.clock import Clock
from recovery.base.intervals import Interval, parse_interval
from recovery.errors import ConfigurationError, StateLockedError, StateNotFoundError, StateValueError, shown
from recovery.operational.backends.backend import Backend, DirectoryBackend, Document, same_place
from recovery.operational.ids import StateId, join
from recovery.operational.values import from_json, to_json

KINDS = PROCESS, TASK, TASK_INSTANCE = "process", "task", "task-instance"
"""The first parts of the ids of scoped state, after their environment."""


class ScopedState:
    """One named value, durable as soon as `set` returns. It survives crashes, retries and rewinds.

    Made by `StateManager.process_state`, `task_state` or `task_instance_state`.
    """

    def __init__(self, backend: Backend, clock: Clock, state_id: StateId) -> None:
        self.state_id = state_id
        self._backend = backend
        self._clock = clock

    def get(self, default: Any = None) -> Any:
        """Return the value, or `default` if there is none or its retention has passed."""
        content = self._content()
        return default if content is None else from_json(content["value"])

    def set(self, value: Any, retention: Interval | None = None) -> None:
        """Set the value. With `retention` it is forgotten after that time. Raises StateValueError."""
        now_ms = self._clock.wall_ms()
        encoded = to_json(value)
        expires_ms = None if retention is None else now_ms + round(parse_interval(retention) * 1000)

        def change(before: Document | None) -> Any:
            content = {"value": encoded, "set_ms": now_ms, "expires_ms": expires_ms}
            known = self._valid(before, now_ms)
            return content if known is None else {**content, "previous": known["value"]}

        # Setting an equal value is a change too: its time and its retention start again.
        self._backend.update({self.state_id: change})

    def update(self, change: Callable[[Any], Any], default: Any = None) -> Any:
        """Set the value to the result of `change`, called with the current value (or `default`); returns the new value.

        No other writer comes in between; `change` may be called again if another writer was faster. The retention
        stays.
        """
        now_ms = self._clock.wall_ms()

        def changed(before: Document | None) -> Any:
            known = self._valid(before, now_ms)
            if known is None:
                return {"value": to_json(change(default)), "set_ms": now_ms, "expires_ms": None}
            value = to_json(change(from_json(known["value"])))
            return {"value": value, "set_ms": now_ms, "expires_ms": known["expires_ms"], "previous": known["value"]}

        return from_json(self._backend.update({self.state_id: changed})[self.state_id].content["value"])

    def delete(self) -> bool:
        """Remove the value; returns whether it existed."""
        existed = self._content() is not None
        if self._backend.read([self.state_id]):
            self._backend.update({self.state_id: lambda _: None})
        return existed

    @property
    def exists(self) -> bool:
        """Whether there is a value."""
        return self._content() is not None

    @property
    def previous(self) -> Any:
        """The value that the last change replaced; None if it replaced none."""
        content = self._content()
        return None if content is None or "previous" not in content else from_json(content["previous"])

    @property
    def changed_at(self) -> datetime | None:
        """When the value was last set or removed, in UTC; None if it never was."""
        document = self._backend.read([self.state_id]).get(self.state_id)
        return None if document is None else datetime.fromtimestamp(document.changed_ms / 1000, tz=UTC)

    def copy_to(self, other: ScopedState) -> None:
        """Copy this value to `other`, with the rest of its retention. Raises StateNotFoundError if there is no
        value."""
        other._take(self._moved())

    def move_to(self, other: ScopedState) -> None:
        """Move this value to `other`. Raises ConfigurationError if both are the same state, StateLockedError if the
        value was changed meanwhile: then the changed value stays here."""
        same = same_place(self._backend, other._backend)
        if same and other.state_id == self.state_id:
            raise ConfigurationError(f"{self.state_id!r:.120} cannot be moved to itself", remedy="Name another one.")
        content = self._moved()

        def remove(document: Document | None) -> None:
            if document is None or document.content != content:
                raise StateLockedError(
                    f"{self.state_id!r:.120} was changed while it was moved",
                    path=self._backend.location,
                    cause="Another process set or removed it meanwhile.",
                    remedy="Check both, then move it again.",
                )

        if same and isinstance(self._backend, DirectoryBackend):
            # Both changes happen, or neither.
            self._backend.update({other.state_id: lambda _: content, self.state_id: remove})
        else:
            other._take(content)
            self._backend.update({self.state_id: remove})

    def _moved(self) -> Any:
        content = self._content()
        if content is None:
            raise StateNotFoundError(f"there is no state {self.state_id!r:.200}", path=self._backend.location)
        return content

    def _take(self, content: Any) -> None:
        self._backend.update({self.state_id: lambda _: content})

    def _content(self) -> Any:
        return self._valid(self._backend.read([self.state_id]).get(self.state_id), self._clock.wall_ms())

    @staticmethod
    def _valid(document: Document | None, now_ms: int) -> Any:
        if document is None or document.content is None:
            return None
        content = document.content
        expires_ms = content.get("expires_ms") if isinstance(content, dict) else False
        if expires_ms is False or "value" not in content or not isinstance(expires_ms, int | None):
            raise StateValueError(
                f"{document.state_id!r:.120} is not in the form of a value",
                cause="It was written by something other than recovery.",
                remedy="Remove it: python -m recovery state clear DIR ID",
            )
        return None if expires_ms is not None and expires_ms <= now_ms else content


def remove_expired(backend: Backend, now_ms: int) -> int:
    """Remove the values whose retention has passed; returns how many. A value that is set again meanwhile stays."""

    def standing(document: Document | None) -> Any:
        return ScopedState._valid(document, now_ms)

    expired = [
        document.state_id
        for prefix in (*(f"{kind}/" for kind in KINDS), "@")
        for document in backend.list(prefix)
        if _is_scope(document.state_id) and document.content is not None and standing(document) is None
    ]
    changed = backend.update(dict.fromkeys(expired, standing)) if expired else {}
    return sum(document.content is None for document in changed.values())


def _is_scope(state_id: StateId) -> bool:
    """Whether an id, of any environment, is one of scoped state."""
    kind, _, rest = state_id.partition("/")
    return (rest.partition("/")[0] if kind.startswith("@") else kind) in KINDS


def run_name(run: str | date | datetime) -> str:
    """Return a run's name for a state id: its id or its date. Equal moments in different time zones have the same
    name."""
    if isinstance(run, datetime):
        return (run if run.tzinfo is None else run.astimezone(UTC)).isoformat()
    if isinstance(run, date):
        return run.isoformat()
    return run


def process_id(namespace: str, name: str) -> StateId:
    """Return the id of a process's state."""
    return join(PROCESS, namespace, name)


def task_id(dag_id: str, task_id: str) -> StateId:
    """Return the id of a task's state."""
    return join(TASK, dag_id, task_id)


def task_instance_id(dag_id: str, task_id: str, run: str | date | datetime, map_index: int | None) -> StateId:
    """Return the id of a task instance's state; all its tries share it."""
    if map_index is not None and (type(map_index) is not int or map_index < -1):
        raise ConfigurationError(f"map_index={shown(map_index)} is not an index", remedy="Use 0, 1, 2 …, or None.")
    return join(TASK_INSTANCE, dag_id, task_id, run_name(run), str(-1 if map_index is None else map_index))
