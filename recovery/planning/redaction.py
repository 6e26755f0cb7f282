"""Taking keys out of texts that name them: errors in the run history."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from recovery.errors import shown

ERASED = "(erased)"


def named_as(key: str) -> tuple[str, ...]:
    """Return the forms in which errors name a key."""
    return tuple(dict.fromkeys((shown(key), f"{key!r:.80}")))


def redacted(value: Any, words: Collection[str]) -> Any:
    """Return JSON values in which every text with one of these words is replaced as a whole."""
    if isinstance(value, str):
        return ERASED if any(word in value for word in words) else value
    if isinstance(value, list):
        return [redacted(each, words) for each in value]
    if isinstance(value, dict):
        return {name: redacted(each, words) for name, each in value.items()}
    return value
