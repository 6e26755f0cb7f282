"""What an erasure takes out besides rows: texts of the run history that name a key, and documents by their ids."""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Any

from recovery.errors import shown

ERASED = "(erased)"
_ENVIRONMENT = re.compile("@[^/]*/")
_OWN = ("hwm", "rewinds", "origin")
"""Documents that hold what belongs to no single subject."""
DEEPEST = 100
"""The deepest nesting that is looked into."""


def named_as(key: str) -> tuple[str, ...]:
    """Return the forms in which errors name a key."""
    return tuple(dict.fromkeys((shown(key), f"{key!r:.80}")))


def is_selected(state_id: str, patterns: Collection[str]) -> bool:
    """Return whether one of these globs selects a document of operational state, in whatever environment it is. The run
    history and the documents of marks, rewinds and origin are never selected."""
    name = _ENVIRONMENT.sub("", state_id, count=1)
    if name in _OWN or name.startswith("runs/"):
        return False
    return any(fnmatchcase(name, each) for each in patterns)


def redacted(value: Any, words: Collection[str]) -> Any:
    """Return JSON values in which every text with one of these words is replaced as a whole, and so is what lies deeper
    than any record of a run."""
    return _redacted(value, words, 0)


def _redacted(value: Any, words: Collection[str], depth: int) -> Any:
    if isinstance(value, str):
        return ERASED if any(word in value for word in words) else value
    if depth > DEEPEST:
        return ERASED
    if isinstance(value, list):
        return [_redacted(each, words, depth + 1) for each in value]
    if isinstance(value, dict):
        return {name: _redacted(each, words, depth + 1) for name, each in value.items()}
    return value
