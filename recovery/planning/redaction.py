"""What an erasure takes out besides rows: texts of the run history and of notes that name a key, and documents by their
ids."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from recovery.errors import shown

ERASED = "(erased)"
_ENVIRONMENT = re.compile("@[^/]*/")
_OWN = ("hwm", "rewinds", "origin")
"""Documents that hold what belongs to no single subject."""
DEEPEST = 100
"""The deepest nesting that is looked into."""
SHORTEST = 4
"""A shorter key is not looked for by itself: too many errors have it by chance. Nor is a number."""
ERRORS = frozenset({"error", "why", "found"})
"""The fields in which people and programs write sentences."""


class NamedAs(NamedTuple):
    """A form in which texts name a key. is_word: only in errors, and only where no letter or digit is beside it."""

    text: str
    is_word: bool = False

    def is_in(self, text: str, is_error: bool = True) -> bool:
        """Return whether a text names the key so."""
        if self.text not in text:
            return False
        if not self.is_word:
            return True
        return is_error and re.search(rf"(?<!\w){re.escape(self.text)}(?!\w)", text) is not None


def named_as(key: str) -> tuple[NamedAs, ...]:
    """Return the forms in which errors name a key: quoted, as the value of its columns, and by itself."""
    if not key:
        # Any error may quote an empty text.
        return (NamedAs(f"key {key!r}"),)
    quoted = shown(key), f"{key!r:.80}"
    words = [f"key {key}"]
    if len(key) >= SHORTEST and not re.fullmatch(r"[\d.,+-]*", key):
        words.append(key)
    columns: list[str] = []
    if key.startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            values = json.loads(key)
            # Errors show the columns as strings, or as the numbers that they are.
            columns = [form[:80] for given in (values, [_number(each) for each in values])
                       for form in (repr(tuple(given)), repr(given))]  # fmt: skip
    return tuple(dict.fromkeys([*map(NamedAs, (*quoted, *columns)), *(NamedAs(word, True) for word in words)]))


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value) else value


def is_selected(state_id: str, patterns: Collection[str]) -> bool:
    """Return whether one of these globs selects a document of operational state, in whatever environment it is. The run
    history and the documents of marks, rewinds and origin are never selected."""
    name = _ENVIRONMENT.sub("", state_id, count=1)
    if name in _OWN or name.startswith("runs/"):
        return False
    return any(fnmatchcase(name, each) for each in patterns)


def redacted(value: Any, words: Collection[NamedAs]) -> Any:
    """Return JSON values in which every text with one of these words is replaced as a whole, and so is what lies deeper
    than any record of a run."""
    return _redacted(value, words, 0, False)


def _redacted(value: Any, words: Collection[NamedAs], depth: int, is_error: bool) -> Any:
    if isinstance(value, str):
        return ERASED if any(word.is_in(value, is_error) for word in words) else value
    if depth > DEEPEST:
        return ERASED
    if isinstance(value, list):
        return [_redacted(each, words, depth + 1, is_error) for each in value]
    if isinstance(value, dict):
        return {name: _redacted(each, words, depth + 1, name in ERRORS) for name, each in value.items()}
    return value
