"""High-water marks that belong to closed epochs of a recovery directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recovery.state.epochs import Edited, StepKey
from recovery.state.ids import escape
from recovery.state.marks import EPOCH_STEP
from recovery.state.steps import moment
from recovery.storage.history import few_states_at, has_step
from recovery.storage.states import home


def closed_marks(directory: Path, environment: str) -> dict[str, Any]:
    """The rows of an environment, by key of the mark, as of the newest epoch that all partitions hold.

    Raises the errors of planning: while files do not fit together, it is not known which epoch that is.
    """
    return rows_by_environment(directory).get(escape(environment), {})


def rows_by_environment(directory: Path) -> dict[str, dict[str, Any]]:
    """The same of all environments, by their names as they stand in ids."""
    path = home(directory)
    if not has_step(path, EPOCH_STEP):
        return {}
    found: dict[str, dict[str, Any]] = {}
    for state in few_states_at(path, EPOCH_STEP, moment(directory).cut):
        environment, _, key = state.key.partition("/")
        found.setdefault(environment, {})[key] = json.loads(state.value)
    return found


def changes(environment: str, rows: Mapping[str, Mapping[str, Any]]) -> dict[StepKey, Edited]:
    """What an epoch has to write to move these marks."""
    prefix = f"{escape(environment)}/"
    return {(EPOCH_STEP, prefix + key): (json.dumps(row, ensure_ascii=False), None) for key, row in rows.items()}
