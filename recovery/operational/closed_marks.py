"""High-water marks that belong to closed epochs of a recovery directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from recovery.base.reserved import EPOCH_STEP
from recovery.epochs.writer import Edited, StepKey
from recovery.errors import CorruptPartitionError
from recovery.operational import marks
from recovery.operational.backends.backend import Backend, DirectoryBackend, Document
from recovery.operational.ids import StateId, escape, unescape
from recovery.operational.step_edits import moment
from recovery.planning.resume import common_cuts, plan_resume
from recovery.storage.documents import BusyPartition, home
from recovery.storage.history import KeyState, few_states_at, has_step
from recovery.storage.lock import lock_holder
from recovery.storage.scan import scan


def standing_marks(backend: Backend, state_id: StateId) -> dict[str, Any]:
    """`closed_marks` for whoever is about to write the document, and holds its partition.

    Raises BusyPartition while an epoch is closed in that partition and not yet in all: what is written now would count
    more than its marks, which cannot be compared with yet.
    """
    if isinstance(backend, DirectoryBackend) and has_step(home(backend.directory), EPOCH_STEP):
        holder = lock_holder(backend.directory)
        if holder is not None and _is_closing(backend.directory, holder):
            raise BusyPartition("an epoch is being closed")
    return closed_marks(backend, state_id)


def _is_closing(directory: Path, holder: Mapping[str, Any]) -> bool:
    """Whether the run that holds the directory has closed an epoch in the first partition and not yet in all. One that
    a dead run has left there is given up when the next one begins."""
    partitions = plan_resume(scan(directory)).partitions
    shared, _, _ = max(common_cuts(partitions))
    if partitions[0].newest_epoch <= shared:
        return False
    last = partitions[0].executions[-1]
    if (holder["pid"], holder["host"]) != (last.pid, last.host):
        return holder["pid"] is None
    return bool(holder["since_ms"] <= last.started_ms)


def closed_marks(backend: Backend, state_id: StateId) -> dict[str, Any]:
    """The rows that belong to a document of marks, by key of the mark, as of the newest epoch that all partitions hold.
    Only a recovery directory has any.

    Raises the errors of planning: while files do not fit together, it is not known which epoch that is.
    """
    return _rows(backend).get(state_id, {})


def settled_marks(backend: Backend, found: Mapping[StateId, Document]) -> dict[StateId, Document]:
    """The documents of marks, of all environments, in which those that epochs moved are marks like others. found: the
    documents of the backend as they are; those that are right without their epochs are not given."""
    settled = {state_id: settle(state_id, found.get(state_id), rows) for state_id, rows in _rows(backend).items()}
    return {state_id: each for state_id, each in settled.items() if each is not None and each != found.get(state_id)}


def settle(state_id: StateId, document: Document | None, rows: Mapping[str, Any]) -> Document | None:
    """The document in which the marks of epochs, of those that count, are marks like others. It is the same generation:
    nothing was written."""
    before = document or Document(state_id, 0, None, 0)
    counting = marks.counting(before.content, rows)
    if not counting:
        return document
    changed_ms = max(before.changed_ms, *(row["changed_ms"] for row in counting.values()))
    return replace(before, content=marks.settled(before.content, rows), changed_ms=changed_ms)


def above_closed(backend: Backend, document: Document) -> Document:
    """The document as it has to be written for its marks to count more than those that epochs of the backend moved."""
    rows = closed_marks(backend, document.state_id)
    return replace(document, content=marks.above(document.content, rows)) if rows else document


def _rows(backend: Backend) -> dict[StateId, dict[str, Any]]:
    """The rows of all environments, by the id of the document that they belong to."""
    if not isinstance(backend, DirectoryBackend):
        return {}
    directory = backend.directory
    path = home(directory)
    if not has_step(path, EPOCH_STEP):
        return {}
    found: dict[StateId, dict[str, Any]] = {}
    for state in few_states_at(path, EPOCH_STEP, moment(directory).cut):
        environment, _, key = state.key.partition("/")
        state_id = f"@{environment}/{marks.DOCUMENT}" if unescape(environment) else marks.DOCUMENT
        found.setdefault(state_id, {})[key] = _row(path, state)
    return found


def _row(path: Path, state: KeyState) -> dict[str, Any]:
    """Raises CorruptPartitionError for one that no run wrote."""
    try:
        return marks.checked_row(json.loads(state.value))
    except (ValueError, RecursionError) as error:
        raise CorruptPartitionError(
            f"the mark {state.key!r:.120} of an epoch cannot be read: {error}", path=path
        ) from None


def changes(environment: str, rows: Mapping[str, Mapping[str, Any]]) -> dict[StepKey, Edited]:
    """What an epoch has to write to move these marks."""
    prefix = f"{escape(environment)}/"
    return {(EPOCH_STEP, prefix + key): (json.dumps(row, ensure_ascii=False), None) for key, row in rows.items()}
