"""High-water marks: up to where something has been loaded. Pure functions of the document that holds them.

All marks of an environment are one document, so several move together or not at all. Each has a version that
only grows, also over its removal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from recovery.errors import ConfigurationError, HighWaterMarkError, StateValueError
from recovery.state.ids import check
from recovery.state.values import from_json, to_json

DOCUMENT = "hwm"
_NUMBERS = (int, float, Decimal)
_KINDS = (bool, int, float, Decimal, str, bytes, datetime, date)


@dataclass(frozen=True, slots=True)
class Mark:
    """A high-water mark. changed_ms is wall time; `version` counts its changes."""

    key: str
    value: Any
    changed_ms: int
    version: int


def parse_batch(batch: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Keys and values of `[{"key": …, "value": …}, …]`. Raises ConfigurationError, also for a key given twice."""
    wanted: dict[str, Any] = {}
    for entry in batch:
        if not isinstance(entry, Mapping) or set(entry) != {"key", "value"}:
            raise ConfigurationError(
                f"{entry!r:.120} is no entry of a batch", remedy='Write {"key": "orders", "value": 5}.'
            )
        key = check(entry["key"], "key of a mark")
        if key in wanted:
            raise ConfigurationError(f"the key {key!r:.120} is given twice in one batch", remedy="Give each key once.")
        wanted[key] = entry["value"]
    return wanted


def advance(content: Any, wanted: Mapping[str, Any], now_ms: int, *, force: bool) -> dict[str, Any]:
    """The document with the marks moved to the `wanted` values. Raises HighWaterMarkError or StateValueError.

    A mark that is there already stays as it is, with the time of its last change.
    """
    marks = dict(_entries(content))
    for key, value in wanted.items():
        encoded = check_value(value)
        before = marks.get(key, {"version": 0})
        if "value" in before:
            if before["value"] == encoded and type(before["value"]) is type(encoded):
                continue
            if not force:
                check_forward(key, from_json(before["value"]), value)
        marks[key] = {"value": encoded, "changed_ms": now_ms, "version": before["version"] + 1}
    return {"marks": marks}


def remove(content: Any, keys: Iterable[str], now_ms: int) -> dict[str, Any]:
    """The document without the marks of these keys; their versions stay."""
    marks = dict(_entries(content))
    for key in keys:
        if "value" in marks.get(key, {}):
            marks[key] = {"changed_ms": now_ms, "version": marks[key]["version"] + 1}
    return {"marks": marks}


def read(content: Any) -> dict[str, Mark]:
    """The marks that a document holds, by key."""
    return {
        key: Mark(key, from_json(entry["value"]), entry["changed_ms"], entry["version"])
        for key, entry in sorted(_entries(content).items())
        if "value" in entry
    }


def check_value(value: Any) -> Any:
    """`value` as JSON's own types, when it can be a mark: of a type that has an order. Raises StateValueError."""
    encoded = to_json(value)
    plain = from_json(encoded)
    if not isinstance(plain, _KINDS) or (isinstance(plain, float | Decimal) and math.isnan(plain)):
        raise StateValueError(
            f"{type(value).__name__} {value!r:.80} cannot be a high-water mark",
            cause="It has no order.",
            remedy="Use int, float, str, bool, date, datetime, Decimal or bytes. To take a mark away, remove it.",
        )
    return encoded


def check_forward(key: str, before: Any, after: Any) -> None:
    """Raises HighWaterMarkError when the mark would go from `before` to something lower, or of another kind."""
    if not _comparable(before, after):
        raise HighWaterMarkError(
            f"the mark {key!r:.120} is the {type(before).__name__} {before!r:.80}, and cannot be compared with the "
            f"{type(after).__name__} {after!r:.80}",
            cause="The column changed its type, or the key is used for two columns.",
            remedy="Use another key, or set it on purpose: --force, or set_hwm(..., force=True).",
        )
    if after < before:
        raise HighWaterMarkError(f"the mark {key!r:.120} would move back from {before!r:.80} to {after!r:.80}")


def _comparable(before: Any, after: Any) -> bool:
    if isinstance(before, bool) or isinstance(after, bool):
        return isinstance(before, bool) and isinstance(after, bool)
    if isinstance(before, _NUMBERS):
        return isinstance(after, _NUMBERS)
    if isinstance(before, datetime) and isinstance(after, datetime):
        return (before.utcoffset() is None) == (after.utcoffset() is None)
    return type(before) is type(after)


def _entries(content: Any) -> dict[str, Any]:
    return dict(content["marks"]) if content else {}
