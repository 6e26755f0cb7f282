"""The targets of the `recovery state` commands: documents of operational state, or the states of a flow's steps."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

from recovery.base.clock import Clock
from recovery.base.reserved import RESERVED_PREFIX
from recovery.base.wording import counted
from recovery.epochs.writer import StepKey
from recovery.errors import ConfigurationError, StateLockedError, StateNotFoundError, StateValueError
from recovery.operational import marks, scopes
from recovery.operational.backends.backend import Backend, Document
from recovery.operational.closed_marks import changing_marks, settle, settled_marks, standing_marks
from recovery.operational.ids import OF_STORE, check, matches
from recovery.operational.keyed import is_keyed
from recovery.operational.runs import read_run
from recovery.operational.steps.step_edits import edit_states
from recovery.operational.values import from_json, to_json
from recovery.storage.history import KeyState
from recovery.storage.origin import DOCUMENT as ORIGIN
from recovery.storage.origin import is_readable
from recovery.storage.seam import Edited
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import Store

Name = str | StepKey
"""The id of a document, or a step and a key."""


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One state as it was read. `content` is JSON's own types. `version` shows whether the state has changed since.

    facts: of scoped state, what is stored beside its value: its times, and the previous value. None for other state.
    """

    name: Name
    content: Any
    version: Any
    timeout_ms: int | None = None
    facts: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the entry's facts as JSON values."""
        if isinstance(self.name, str):
            return {
                "id": self.name,
                "content": self.content,
                "generation": self.version[0],
                "changed_ms": self.version[1],
                **(self.facts or {}),
            }
        step, key = self.name
        return {"step": step, "key": key, "content": self.content, "timeout_ms": self.timeout_ms, "epoch": self.version}

    def whole(self) -> Whole:
        """Return the content with all that belongs to it, to write it under another name."""
        return Whole(self.content, self.timeout_ms, self.facts)

    def merged(self, change: Any) -> Any:
        """Return the content with `change` merged in: objects member by member, everything else is replaced. In scoped
        state a date and the like are values, although they are written as objects. Raises StateValueError."""
        if self.facts is None:
            return merge(self.content, change)
        return to_json(merge(from_json(self.content), from_json(change)))


REMOVED = object()
"""Used in place of content to remove the state."""


class StateTarget(Protocol):
    """Where states are found and written."""

    @property
    def location(self) -> str:
        """The directory or address of the states, for messages."""
        ...

    def find(self, name: Name) -> StateEntry | None:
        """Return the state of this name, None if there is none."""
        ...

    def find_all(self, names: Iterable[Name]) -> dict[Name, StateEntry | None]:
        """Return the states of several names, with one read of each place."""
        ...

    def entries(self, pattern: str | None = None) -> list[StateEntry]:
        """Return all states whose id or key the glob selects, sorted."""
        ...

    def write(self, verb: str, changes: Mapping[Name, Any], seen: Mapping[Name, StateEntry | None]) -> str:
        """Write content (or REMOVED) under names, together where the target can; returns what was done, for people.

        seen: what the caller found under these names. Raises StateLockedError if one has changed since.
        """
        ...


class DocumentTarget:
    """The `StateTarget` of a backend's operational state in one environment. Marks that epochs moved appear as ordinary
    marks.

    The content of scoped state is its value; a value that has expired is not there.
    """

    def __init__(self, backend: Backend, prefix: str, clock: Clock, *, force: bool = False) -> None:
        """force: allow a mark of a type that cannot be compared with the mark it replaces."""
        self._backend = backend
        self._prefix = prefix
        self._clock = clock
        self._force = force
        # One moment for all that a command does: no value expires between its reads.
        self._now_ms = clock.wall_ms()

    @property
    def location(self) -> str:
        return self._backend.location

    def find(self, name: Name) -> StateEntry | None:
        return self.find_all([name])[name]

    def find_all(self, names: Iterable[Name]) -> dict[Name, StateEntry | None]:
        ids = {name: self._id(name) for name in names}
        found = self._backend.read(list(ids.values()))
        if marks.DOCUMENT in ids:
            found |= settled_marks(self._backend, found)
        return {name: self._entry_of(found[i]) if i in found else None for name, i in ids.items()}

    def entries(self, pattern: str | None = None) -> list[StateEntry]:
        found = map(self._entry_of, self._all().values())
        return [entry for entry in found if entry is not None and matches(str(entry.name), pattern)]

    def removed(self) -> dict[str, int]:
        """Return the generations of the states that were removed or have expired."""
        return {name: each.generation for name, each in self._all().items() if self._entry_of(each) is None}

    def has_expired(self, facts: Mapping[str, Any] | None) -> bool:
        """Whether a value with these facts has expired."""
        expires_ms = (facts or {}).get("expires_ms")
        return expires_ms is not None and expires_ms <= self._now_ms

    def write(self, verb: str, changes: Mapping[Name, Any], seen: Mapping[Name, StateEntry | None]) -> str:
        """Write content, or REMOVED, under names: in a recovery directory, all in one transaction."""
        for name, content in changes.items():
            if content is not REMOVED:
                check_content(str(name), plain(content))

        def change(name: Name) -> Any:
            def changed(before: Document | None) -> Any:
                # Read this under the document's lock: an epoch that moves a mark is closed before or after, not
                # meanwhile.
                rows = standing_marks(self._backend, self._id(name)) if name == marks.DOCUMENT else {}
                known = settle(self._id(name), before, rows)
                _check_unchanged(name, seen, None if known is None else self._entry_of(known))
                if changes[name] is not REMOVED and scopes.is_scoped(str(name)):
                    return self._scoped(changes[name], before)
                content = None if changes[name] is REMOVED else plain(changes[name])
                if name == marks.DOCUMENT and known is not None:
                    return marks.replaced(before and before.content, content, rows, force=self._force)
                return content

            return changed

        wanted = {self._id(name): change(name) for name in changes}
        if marks.DOCUMENT in changes:
            with changing_marks(self._backend, self._clock):
                self._backend.update(wanted)
        else:
            self._backend.update(wanted)
        return ", ".join(f"{name}: removed" if c is REMOVED else f"{name}: written" for name, c in changes.items())

    def _all(self) -> dict[str, Document]:
        """Return the documents of this environment by their names, sorted, those of removed states included."""
        found = {document.state_id: document for document in self._backend.list(self._prefix)}
        documents = sorted((found | settled_marks(self._backend, found)).items())
        named = {each.removeprefix(self._prefix): one for each, one in documents if each.startswith(self._prefix)}
        # Ids that begin with @ belong to environments; neither the plain environment nor another one shows them.
        return {
            name: document
            for name, document in named.items()
            if not name.startswith("@") and document.state_id not in OF_STORE
        }

    def is_of_store(self, name: str) -> bool:
        """Whether a document of this name says what the store is: it is none of the operational state."""
        return f"{self._prefix}{name}" in OF_STORE

    def _is_damaged(self, name: str) -> bool:
        """Whether a document of the store cannot be read: then it can be removed by its name."""
        state_id = f"{self._prefix}{name}"
        found = self._backend.read([state_id]).get(state_id)
        return state_id == ORIGIN and found is not None and not is_readable(found.content)

    def _id(self, name: Name) -> str:
        if self.is_of_store(str(name)) and not self._is_damaged(str(name)):
            raise ConfigurationError(
                f"{name!r:.120} cannot be a state id here",
                cause="The store keeps there which runs went back in it, or which store it was made from.",
                remedy="Choose another id.",
            )
        if check(str(name)).startswith("@"):
            raise ConfigurationError(
                f"{name!r:.120} cannot be a state id here",
                cause="Ids that begin with @ belong to environments.",
                remedy="Name the environment with --environment.",
            )
        return f"{self._prefix}{name}"

    def _entry_of(self, document: Document) -> StateEntry | None:
        """Return the state that a document holds; None if it holds none, or one that has expired."""
        name, content = document.state_id.removeprefix(self._prefix), document.content
        # Without marks, the rest of that document only says which marks of epochs no longer count.
        if content is None or (name == marks.DOCUMENT and marks.is_empty(content)):
            return None
        version = (document.generation, document.changed_ms)
        if not scopes.is_scoped(name):
            return StateEntry(name, content, version)
        try:
            stored = scopes.valid_content(document, self._now_ms)
        except StateValueError:
            # Another program wrote it: show it, so that it can be set or removed.
            return StateEntry(name, content, version)
        if stored is None:
            return None
        facts = {field: stored[field] for field in (*scopes.FACTS, "previous") if field in stored}
        return StateEntry(name, stored["value"], version, facts=facts)

    def _scoped(self, content: Any, before: Document | None) -> dict[str, Any]:
        """Return what to store for the value of scoped state."""
        given = content if isinstance(content, Whole) else Whole(content)
        if given.facts is not None:
            return {"value": given.content, **given.facts}
        try:
            known = scopes.valid_content(before, self._now_ms)
        except StateValueError:
            known = None
        return scopes.edited(given.content, known, self._now_ms, given.retention)


class StepTarget:
    """The `StateTarget` of a flow's steps, at the newest epoch or at a held one. Writing makes a new epoch."""

    def __init__(
        self,
        store: Store,
        step: str,
        clock: Clock,
        *,
        epoch: int | None = None,
        force: bool = False,
        at: Snapshot | None = None,
    ) -> None:
        """at: a snapshot of the store that the caller has; None: that of the epoch, by default the newest."""
        self._store = store
        self._step = step
        self._clock = clock
        self._force = force
        self.snapshot: Snapshot = store.at(epoch) if at is None else at

    @property
    def location(self) -> str:
        return str(self._store.directory)

    def at_same_moment(self, step: str) -> StepTarget:
        """Return the states of another step, as of the same epoch."""
        other = copy(self)
        other._step = step
        return other

    def find(self, name: Name) -> StateEntry | None:
        return self.find_all([name])[name]

    def find_all(self, names: Iterable[Name]) -> dict[Name, StateEntry | None]:
        wanted = list(map(_step_key, names))
        held = _held(self.snapshot, wanted)
        return {name: _step_entry(name[0], held[name]) if name in held else None for name in wanted}

    def entries(self, pattern: str | None = None) -> list[StateEntry]:
        found = [_step_entry(self._step, s) for s in self.snapshot.states(self._step) if matches(s.key, pattern)]
        return sorted(found, key=lambda entry: entry.name)

    def write(self, verb: str, changes: Mapping[Name, Any], seen: Mapping[Name, StateEntry | None]) -> str:
        """Write the states of keys, or REMOVED, in a new epoch; timeouts stay unchanged."""

        def compute(newest: Snapshot) -> dict[StepKey, Edited]:
            edited: dict[StepKey, Edited] = {}
            held = _held(newest, map(_step_key, changes))
            for name, content in changes.items():
                step, key = _step_key(name)
                state = held.get((step, key))
                _check_unchanged(name, seen, None if state is None else _step_entry(step, state))
                if content is REMOVED:
                    edited.update({(step, key): (None, None)} if state else {})
                else:
                    timeout_ms = seen_timeout(content, state)
                    text = json.dumps(plain(content), ensure_ascii=False, separators=(",", ":"))
                    if state is None or (text, timeout_ms) != (state.value, state.timeout_ms):
                        edited[step, key] = (text, timeout_ms)
            return edited

        edited: Mapping[StepKey, Edited] = {}

        def computed(newest: Snapshot) -> Mapping[StepKey, Edited]:
            nonlocal edited
            edited = compute(newest)
            return edited

        epoch = edit_states(self._store, verb, computed, clock=self._clock, force=self._force)
        count = counted(len(edited), "key")
        return "nothing to change" if epoch is None else f"epoch {epoch} closed: {count} edited"


@dataclass(frozen=True, slots=True)
class Whole:
    """Content with what belongs to it: of a step's key its timeout, of scoped state its facts, as another name or an
    export had them; or the retention that it gets."""

    content: Any
    timeout_ms: int | None = None
    facts: Mapping[str, Any] | None = None
    retention: scopes.Retention | None = None


def plain(content: Any) -> Any:
    """Return content without what belongs to it."""
    return content.content if isinstance(content, Whole) else content


def seen_timeout(content: Any, state: KeyState | None) -> int | None:
    """Return the timeout that content gets: its own, or that of the state it replaces."""
    if isinstance(content, Whole):
        return content.timeout_ms
    return None if state is None else state.timeout_ms


def merge(before: Any, change: Any) -> Any:
    """Merge `change` into `before`: objects are merged member by member, everything else is replaced."""
    if not isinstance(before, dict) or not isinstance(change, dict):
        return change
    return {**before, **{key: merge(before.get(key), value) for key, value in change.items()}}


def check_content(state_id: str, content: Any) -> None:
    """Raises StateValueError if the content would break the form of one of the package's own documents."""
    scoped = scopes.is_scoped(state_id)
    if content is None and (not scoped or is_keyed(state_id)):
        raise StateValueError(
            f"{state_id!r:.120} cannot be set to null",
            cause="Null means that there is no value.",
            remedy="Remove it with clear.",
        )
    kind = state_id.partition("/")[0]
    try:
        if state_id == marks.DOCUMENT:
            marks.check_document(content)
        elif kind == "runs":
            read_run("", content)
        elif scoped:
            to_json(from_json(content))
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise StateValueError(
            f"this is not in the form of {state_id!r:.120}: {error}",
            cause="",
            remedy="Take what `get` prints and change the values in it.",
        ) from error


def missing(target: StateTarget, name: Name) -> StateNotFoundError:
    """Return the error for a missing state. Raises CorruptPartitionError if the state may have been lost."""
    if isinstance(name, str) or not isinstance(target, StepTarget):
        return StateNotFoundError(f"there is no state {name!r:.200}", path=target.location)
    step, key = name
    target.snapshot.check_all_there(step, key)
    return unknown_step(target, step) or StateNotFoundError(
        f"step {step!r:.80} has no state of key {key!r:.200}",
        path=target.location,
        remedy=f"List what exists: python -m recovery state list DIR --step {shlex.quote(step)}",
    )


def unknown_step(target: StepTarget, step: str) -> StateNotFoundError | None:
    """Return the error for a step without any state; None if the step has state."""
    known = target.snapshot.steps(reserved=True)
    if step in known:
        return None
    shown = [each for each in known if not each.startswith(RESERVED_PREFIX)]
    return StateNotFoundError(
        f"there is no step {step!r:.80}",
        path=target.location,
        remedy=f"Steps with state: {', '.join(shown)}" if shown else "No step has state.",
    )


def _step_key(name: Name) -> StepKey:
    assert not isinstance(name, str), "a document's id where a step and key are needed"
    return name


def _held(at: Snapshot, names: Iterable[StepKey]) -> dict[StepKey, KeyState]:
    """Return the states of these names, for those that have one."""
    keys: dict[str, list[str]] = {}
    for step, key in names:
        keys.setdefault(step, []).append(key)
    return {(step, key): state for step, wanted in keys.items() for key, state in at.some(step, wanted).items()}


def _step_entry(step: str, state: KeyState) -> StateEntry:
    if isinstance(state.value, bytes):
        raise StateValueError(f"the value of step {step!r} key {state.key!r:.80} is not text", cause="", remedy="")
    return StateEntry((step, state.key), content_of(state.value), state.epoch, state.timeout_ms)


def content_of(text: str) -> Any:
    """Return a stored value as JSON; a value that is not JSON, as its text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # The run's own values are text of any form.
        return text


def _check_unchanged(name: Name, seen: Mapping[Name, StateEntry | None], found: StateEntry | None) -> None:
    if name in seen and seen[name] != found:
        raise StateLockedError(
            f"{name!r:.200} was changed by another process meanwhile",
            cause="Another process wrote the state after this command read it.",
            remedy="Check its new value, then run the same command again.",
        )
