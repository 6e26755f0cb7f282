"""High-water marks that belong to closed epochs of a recovery directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recovery.state import marks
from recovery.state.backend import Backend, DirectoryBackend, Document
from recovery.state.epochs import Edited, StepKey
from recovery.state.ids import escape, unescape
from recovery.state.steps import moment
from recovery.storage.history import few_states_at, has_step
from recovery.storage.states import home


def closed_marks(directory: Path, environment: str) -> dict[str, Any]:
    """The rows of an environment, by key of the mark, as of the newest epoch that all partitions hold.

    Raises the errors of planning: while files do not fit together, it is not known which epoch that is.
    """
    return _rows(directory).get(escape(environment), {})


def settled_marks(backend: Backend, found: Mapping[str, Document]) -> dict[str, Document]:
    """The documents of marks, of all environments, in which those that epochs moved are marks like others, as they have
    to be where there are no epochs. found: the documents of the backend as they are; only a recovery directory has
    more."""
    if not isinstance(backend, DirectoryBackend):
        return {}
    settled = {}
    for environment, rows in _rows(backend.directory).items():
        state_id = f"@{environment}/{marks.DOCUMENT}" if unescape(environment) else marks.DOCUMENT
        before = found.get(state_id) or Document(state_id, 0, None, 0)
        changed_ms = max(before.changed_ms, *(row["changed_ms"] for row in rows.values()))
        settled[state_id] = Document(state_id, before.generation + 1, marks.settled(before.content, rows), changed_ms)
    return settled


def _rows(directory: Path) -> dict[str, dict[str, Any]]:
    """The rows of all environments, by their names as they stand in ids."""
    path = home(directory)
    if not has_step(path, marks.EPOCH_STEP):
        return {}
    found: dict[str, dict[str, Any]] = {}
    for state in few_states_at(path, marks.EPOCH_STEP, moment(directory).cut):
        environment, _, key = state.key.partition("/")
        found.setdefault(environment, {})[key] = json.loads(state.value)
    return found


def changes(environment: str, rows: Mapping[str, Mapping[str, Any]]) -> dict[StepKey, Edited]:
    """What an epoch has to write to move these marks."""
    prefix = f"{escape(environment)}/"
    return {(marks.EPOCH_STEP, prefix + key): (json.dumps(row, ensure_ascii=False), None) for key, row in rows.items()}
