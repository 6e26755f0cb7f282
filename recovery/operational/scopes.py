"""Scoped state: values that belong to one process, task, task instance or asset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

from recovery.base.clock import Clock
from recovery.base.intervals import Interval, parse_interval
from recovery.errors import ConfigurationError, StateLockedError, StateNotFoundError, StateValueError, shown
from recovery.operational.backends.backend import Backend, DirectoryBackend, Document, same_place
from recovery.operational.ids import StateId, join
from recovery.operational.values import from_json, to_json

KINDS = PROCESS, TASK, TASK_INSTANCE, ASSET = "process", "task", "task-instance", "asset"
"""The first parts of the ids of scoped state, after their environment."""
NEVER = "never"
NEVER_EXPIRE = timedelta.max
"""Airflow's name for a retention without end."""
FACTS = ("set_ms", "first_ms", "expires_ms", "retention_ms")
"""The fields beside a stored value and the previous one, in milliseconds. first_ms: when its scope first got a value.
retention_ms: the interval that a change begins again; None if the value is kept for ever or until a fixed moment."""
CLEANED_TOGETHER = 1000

Retention = Interval | datetime
"""How long a value is kept: an interval, the moment when it ends, or "never". An interval of 0 is never, as in
Airflow."""


class ScopedState:
    """One named value, durable as soon as `set` returns. The value survives crashes, retries and rewinds.

    Made by `StateManager.process_state`, `task_state` or `task_instance_state`.
    """

    def __init__(self, backend: Backend, clock: Clock, state_id: StateId, retention: Retention | None = None) -> None:
        self.state_id = state_id
        self._backend = backend
        self._clock = clock
        self._retention = retention

    def get(self, default: Any = None) -> Any:
        """Return the value, or `default` if there is none or its retention has passed."""
        content = self._content()
        return default if content is None else from_json(content["value"])

    def set(self, value: Any, retention: Retention | None = None) -> None:
        """Set the value. With `retention`, the value is forgotten after that time. Raises StateValueError.

        retention: an interval, a datetime, or "never", as 0 is too; None: the default retention of the StateManager.
        """
        now_ms = self._clock.wall_ms()
        encoded = to_json(value)
        lasting = lasts(self._retention if retention is None else retention, now_ms)

        def change(before: Document | None) -> Any:
            return _content(encoded, now_ms, lasting, valid_content(before, now_ms))

        # Setting an equal value is a change too: its time and its retention start again.
        self._backend.update({self.state_id: change})

    def update(self, change: Callable[[Any], Any], default: Any = None, retention: Retention | None = None) -> Any:
        """Set the value to the result of `change`, called with the current value (or `default`); returns the new value.

        No other writer comes in between; `change` may be called again if another writer was faster.

        retention: as in `set`; None: the interval with which the value was set begins again, and a value that was set
        until a fixed moment ends at that moment. A value that is new gets the default retention of the StateManager.
        """
        now_ms = self._clock.wall_ms()
        lasting = lasts(self._retention if retention is None else retention, now_ms)

        def changed(before: Document | None) -> Any:
            known = valid_content(before, now_ms)
            value = to_json(change(default if known is None else from_json(known["value"])))
            again = known is not None and retention is None
            return _content(value, now_ms, _renewed(known, now_ms) if again else lasting, known)

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

    @property
    def previous_instance(self) -> ScopedState | None:
        """The state of the same task in the run that began to keep state here last before this run. None if there is no
        such run, and for state of another kind."""
        found = previous_run(self._backend, self.state_id, self._clock.wall_ms(), keyed=False)
        return None if found is None else ScopedState(self._backend, self._clock, found, self._retention)

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
        return valid_content(self._backend.read([self.state_id]).get(self.state_id), self._clock.wall_ms())


def valid_content(document: Document | None, now_ms: int) -> Any:
    """Return the content of a value; None if there is none or its retention has passed. Raises StateValueError for a
    document in another form."""
    if document is None or document.content is None:
        return None
    content = document.content
    expires_ms = content.get("expires_ms") if isinstance(content, dict) else False
    if expires_ms is False or "value" not in content or not isinstance(expires_ms, int | None):
        raise StateValueError(
            f"{document.state_id!r:.120} is not in the form of a value",
            cause="Another program than recovery wrote the state.",
            remedy="Remove the state: python -m recovery state clear DIR ID",
        )
    return None if expires_ms is not None and expires_ms <= now_ms else content


def values_of(documents: Iterable[Document], now_ms: int) -> dict[StateId, Any]:
    """Return the values that documents hold, by id; without those that were removed or whose retention has passed.
    Raises StateValueError for a document in another form."""
    found = ((document.state_id, valid_content(document, now_ms)) for document in documents)
    return {state_id: from_json(content["value"]) for state_id, content in found if content is not None}


def has_expired(document: Document, now_ms: int) -> bool:
    """Whether a document holds a value of scoped state whose retention has passed."""
    try:
        there = document.content is not None and is_scoped(document.state_id)
        return there and valid_content(document, now_ms) is None
    except StateValueError:
        return False


def lasts(retention: Retention | None, now_ms: int) -> dict[str, int | None]:
    """Return the fields of a value that is set now and kept for `retention`. Raises ConfigurationError."""
    if retention is None or retention in (NEVER, NEVER_EXPIRE):
        return {"expires_ms": None, "retention_ms": None}
    if isinstance(retention, datetime):
        if retention.tzinfo is None:
            raise ConfigurationError(
                f"the end of a retention, {retention}, has no time zone",
                remedy="Give it one: datetime(..., tzinfo=UTC).",
            )
        return {"expires_ms": round(retention.timestamp() * 1000), "retention_ms": None}
    seconds = parse_interval(retention)
    if not seconds:
        return lasts(NEVER, now_ms)
    # A retention below a millisecond is a retention, not zero.
    retention_ms = max(1, round(seconds * 1000))
    return {"expires_ms": now_ms + retention_ms, "retention_ms": retention_ms}


def _renewed(known: Any, now_ms: int) -> dict[str, int | None]:
    """Return the fields with which the retention of a stored value begins again."""
    retention_ms = known.get("retention_ms")
    if type(retention_ms) is int:
        return {"expires_ms": now_ms + retention_ms, "retention_ms": retention_ms}
    return {"expires_ms": known.get("expires_ms"), "retention_ms": None}


def edited(encoded: Any, before: Any, now_ms: int, retention: Retention | None = None) -> dict[str, Any]:
    """Return the content to store for a value that a person gives. retention: None begins that of `before` again.

    before: the content that is replaced, None if there is none.
    """
    lasting = _renewed(before, now_ms) if before is not None and retention is None else lasts(retention, now_ms)
    return _content(encoded, now_ms, lasting, before)


def expired(backend: Backend, now_ms: int) -> list[StateId]:
    """Return the ids of the values whose retention has passed, of all environments."""
    return [
        document.state_id
        for prefix in (*(f"{kind}/" for kind in KINDS), "@")
        for document in backend.list(prefix)
        if has_expired(document, now_ms)
    ]


def remove_expired(backend: Backend, now_ms: int) -> int:
    """Remove the values whose retention has passed; returns how many. A value that is set again meanwhile stays.

    Any backend, also while others write to it: `remove_expired` never holds the backend's lock for long.
    """

    def standing(document: Document | None) -> Any:
        return valid_content(document, now_ms)

    found, removed = expired(backend, now_ms), 0
    for first in range(0, len(found), CLEANED_TOGETHER):
        changed = backend.update(dict.fromkeys(found[first : first + CLEANED_TOGETHER], standing))
        removed += sum(document.content is None for document in changed.values())
    return removed


def previous_run(backend: Backend, scope_id: StateId, now_ms: int, *, keyed: bool) -> StateId | None:
    """Return the scope of the previous instance of a task: of the run that began to keep state last, among the runs
    that began before this one. keyed: whether to look at values with keys, or at values without.

    The order is that in which runs wrote, not that of their dates: a run that is started by hand may have any date.
    """
    environment, kind, parts = split(scope_id)
    if kind != TASK_INSTANCE or len(parts) != 4:
        return None
    dag, task, _, index = parts
    began: dict[StateId, tuple[int, StateId]] = {}
    for document in backend.list(f"{environment}{kind}/{dag}/{task}/"):
        found = split(document.state_id)[2]
        content = valid_content(document, now_ms)
        if content is not None and len(found) == 4 + keyed and found[3] == index:
            scope = f"{environment}{kind}/{'/'.join(found[:4])}"
            first_ms = content.get("first_ms", content.get("set_ms"))
            # Another program may have written something else.
            first_ms = first_ms if type(first_ms) is int else document.changed_ms
            began[scope] = min(began.get(scope, (first_ms, scope)), (first_ms, scope))
    own = began.pop(scope_id, None)
    earlier = [each for each in began.values() if own is None or each < own]
    return max(earlier)[1] if earlier else None


def split(state_id: StateId) -> tuple[str, str, list[str]]:
    """Return the prefix of the environment, the kind, and the remaining parts of an id, still encoded."""
    environment, rest = "", state_id
    if state_id.startswith("@"):
        name, _, rest = state_id.partition("/")
        environment = f"{name}/"
    kind, *parts = rest.split("/")
    return environment, kind, parts


def _content(value: Any, now_ms: int, lasting: dict[str, int | None], known: Any) -> dict[str, Any]:
    """Return a stored value; `known` is the content that it replaces, None if there is none."""
    first_ms = now_ms if known is None else known.get("first_ms", known.get("set_ms", now_ms))
    content = {"value": value, "set_ms": now_ms, "first_ms": first_ms, **lasting}
    return content if known is None else {**content, "previous": known["value"]}


def is_scoped(state_id: StateId) -> bool:
    """Whether an id, of any environment, is one of scoped state: its document holds a value and facts about it."""
    _, kind, parts = split(state_id)
    return kind in KINDS and bool(parts)


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


def asset_scope_id(name: Any, uri: str | None, asset_id: int | None) -> StateId:
    """Return the id of an asset's scope, which is named in exactly one way. Raises ConfigurationError.

    name: a text, or an object of Airflow: an Asset or AssetNameRef stands for its name, an AssetUriRef for its URI.
    """
    kinds = {each.__name__ for each in type(name).__mro__}
    if kinds & {"Asset", "AssetNameRef"}:
        name = name.name
    elif "AssetUriRef" in kinds and uri is None:
        name, uri = None, name.uri
    elif not isinstance(name, str | None):
        raise ConfigurationError(
            f"{shown(name)} is no asset",
            cause="An alias, for example, stands for any number of assets.",
            remedy="Give an Asset, its name, uri= or asset_id=.",
        )
    given = [(kind, value) for kind, value in (("name", name), ("uri", uri), ("id", asset_id)) if value is not None]
    if len(given) != 1 or given[0][1] == "" or isinstance(asset_id, bool):
        raise ConfigurationError(
            f"an asset cannot be named by name={shown(name)}, uri={shown(uri)}, asset_id={shown(asset_id)}",
            remedy="Give exactly one of them: they are different scopes.",
        )
    kind, value = given[0]
    return join(ASSET, kind, str(value) if kind == "id" else value)  # type: ignore[arg-type]
