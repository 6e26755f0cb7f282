"""Taking keys out of texts that name them: errors in the run history."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from recovery.errors import shown

ERASED = "(erased)"
DEEPEST = 100
"""The deepest nesting that is looked into."""


def named_as(key: str) -> tuple[str, ...]:
    """Return the forms in which errors name a key."""
    return tuple(dict.fromkeys((shown(key), f"{key!r:.80}")))


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
