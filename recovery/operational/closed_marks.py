"""High-water marks that belong to the closed epochs of a recovery directory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from recovery.base.clock import Clock
from recovery.base.reserved import EPOCH_STEP
from recovery.epochs.writer import StepKey
from recovery.errors import CorruptPartitionError
from recovery.operational import marks
from recovery.operational.backends.backend import Backend, Document
from recovery.operational.ids import StateId, escape, unescape
from recovery.planning.resume import common_cuts, plan_resume
from recovery.storage.documents import BusyPartition
from recovery.storage.history import KeyState
from recovery.storage.lock import lock_holder
from recovery.storage.seam import Edited
from recovery.storage.store import Store


@contextlib.contextmanager
def changing_marks(backend: Backend, clock: Clock) -> Iterator[None]:
    """Context in which documents of marks may be written: no epoch moves a mark between `standing_marks` and the write.

    In a directory, the document's own lock sees to that. At an owner, all locations are locked if epochs have moved
    marks: raises DirectoryLockedError during a run.
    """
    store = backend.store
    if store is None or store.home_owner() is None or not store.home().has_step(EPOCH_STEP):
        yield
        return
    with store.locked(clock, "a change of marks"):
        yield


def standing_marks(backend: Backend, state_id: StateId) -> dict[str, Any]:
    """Return `closed_marks`, for a caller in `changing_marks` that holds the document's partition, and is about to
    write the document.

    Raises BusyPartition while an epoch is closed in that partition but not yet in all: the write would override the
    marks of that epoch, and it cannot be compared with them yet.
    """
    store = backend.store
    if store is not None and store.home_owner() is None and store.home().has_step(EPOCH_STEP):
        holder = lock_holder(store.directory)
        if holder is not None and _is_closing(store, holder):
            raise BusyPartition("an epoch is being closed")
    return closed_marks(backend, state_id)


def _is_closing(store: Store, holder: Mapping[str, Any]) -> bool:
    """Whether the run that holds the directory has closed an epoch in the first partition but not yet in all. If a dead
    run left such an epoch, the next run discards it when it begins."""
    partitions = plan_resume(store.found()).partitions
    shared, _, _ = max(common_cuts(partitions))
    if partitions[0].newest_epoch <= shared:
        return False
    last = partitions[0].executions[-1]
    if (holder["pid"], holder["host"]) != (last.pid, last.host):
        return holder["pid"] is None
    return bool(holder["since_ms"] <= last.started_ms)


def closed_marks(backend: Backend, state_id: StateId) -> dict[str, Any]:
    """Return the rows that belong to a document of marks, by the mark's key, as of the newest epoch that all partitions
    hold. Only a recovery directory has such rows.

    Raises the errors of planning: while the files are inconsistent, that epoch is unknown.
    """
    return _rows(backend).get(state_id, {})


def settled_marks(backend: Backend, found: Mapping[StateId, Document]) -> dict[StateId, Document]:
    """Return the documents of marks that epochs changed, in all environments, with the epochs' marks merged in as
    ordinary marks. `found` holds the backend's stored documents; documents that the epochs leave unchanged are left
    out."""
    settled = {state_id: settle(state_id, found.get(state_id), rows) for state_id, rows in _rows(backend).items()}
    return {state_id: each for state_id, each in settled.items() if each is not None and each != found.get(state_id)}


def settle(state_id: StateId, document: Document | None, rows: Mapping[str, Any]) -> Document | None:
    """Return the document with the marks of epochs that count merged in as ordinary marks. The generation does not
    change, because nothing was written."""
    before = document or Document(state_id, 0, None, 0)
    counting = marks.counting(before.content, rows)
    if not counting:
        return document
    changed_ms = max(before.changed_ms, *(row["changed_ms"] for row in counting.values()))
    return replace(before, content=marks.settled(before.content, rows), changed_ms=changed_ms)


def above_closed(backend: Backend, document: Document) -> Document:
    """Return the document in the form that makes its marks override the marks that the backend's epochs moved."""
    rows = closed_marks(backend, document.state_id)
    return replace(document, content=marks.above(document.content, rows)) if rows else document


def _rows(backend: Backend) -> dict[StateId, dict[str, Any]]:
    """Return the rows of all environments, by the id of the document that they belong to."""
    store = backend.store
    if store is None or not store.home().has_step(EPOCH_STEP):
        return {}
    found: dict[StateId, dict[str, Any]] = {}
    at = store.at()
    home = at.readers[0]
    for state in home.few_states(EPOCH_STEP, at.cut):
        environment, _, key = state.key.partition("/")
        state_id = f"@{environment}/{marks.DOCUMENT}" if unescape(environment) else marks.DOCUMENT
        found.setdefault(state_id, {})[key] = _row(home.path, state)
    return found


def _row(path: Path, state: KeyState) -> dict[str, Any]:
    """Return the row that a state holds. Raises CorruptPartitionError for a row that no run wrote."""
    try:
        return marks.checked_row(json.loads(state.value))
    except (ValueError, RecursionError) as error:
        raise CorruptPartitionError(
            f"the mark {state.key!r:.120} of an epoch cannot be read: {error}", path=path
        ) from None


def changes(environment: str, rows: Mapping[str, Mapping[str, Any]]) -> dict[StepKey, Edited]:
    """Return the changes that an epoch has to write to move these marks."""
    prefix = f"{escape(environment)}/"
    return {(EPOCH_STEP, prefix + key): (json.dumps(row, ensure_ascii=False), None) for key, row in rows.items()}
