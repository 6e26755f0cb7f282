"""High-water marks: how far something has been loaded. Pure functions of the document that holds the marks.

All marks of an environment are one document, so several marks move together or not at all. Each mark has a version that
only grows, even when the mark is removed.

A pipeline moves marks with the epoch that holds its loads. Such marks are rows of a reserved step and go back with a
rewind. A row records the version that the document's mark had when the row was written, and counts while that version
is current; a mark that was set later overrides it. So the last writer of a mark wins, and a rewind takes back only what
belongs to epochs.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from recovery.base.untrusted_json import is_moment
from recovery.errors import ConfigurationError, HighWaterMarkError, StateValueError, shown
from recovery.operational.ids import check
from recovery.operational.text_order import disagreement, is_unordered
from recovery.operational.values import from_json, to_json

DOCUMENT = "hwm"
_NUMBERS = (int, float, Decimal)
_KINDS = (bool, int, float, Decimal, str, bytes, datetime, date)


@dataclass(frozen=True, slots=True)
class Mark:
    """A high-water mark. changed_ms is wall time; `version` counts its changes. pipeline: the one whose load moved it
    last; None if it was set otherwise."""

    key: str
    value: Any
    changed_ms: int
    version: int
    pipeline: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the mark as JSON values."""
        return {
            "key": self.key,
            "value": to_json(self.value),
            "type": type(self.value).__name__,
            "changed_ms": self.changed_ms,
            "version": self.version,
            "pipeline": self.pipeline,
        }


def parse_batch(batch: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the keys and values of `[{"key": …, "value": …}, …]`. Raises ConfigurationError, also for a repeated
    key."""
    wanted: dict[str, Any] = {}
    for entry in batch:
        if not isinstance(entry, Mapping) or set(entry) != {"key", "value"}:
            raise ConfigurationError(
                f"{shown(entry)} is not an entry of a batch", remedy='Write {"key": "orders", "value": 5}.'
            )
        key = check(entry["key"], "key of a mark")
        if key in wanted:
            raise ConfigurationError(f"the key {key!r:.120} is given twice in one batch", remedy="Give each key once.")
        wanted[key] = entry["value"]
    return wanted


def advance(
    content: Any,
    wanted: Mapping[str, Any],
    now_ms: int,
    *,
    force: bool,
    closed: Mapping[str, Any] | None = None,
    pipeline: str | None = None,
) -> dict[str, Any]:
    """Return the document with the marks moved to the `wanted` values. Raises HighWaterMarkError or StateValueError.

    A mark that already has its wanted value keeps the time of its last change, unless `force` takes it from a pipeline.
    `closed` are the rows of epochs. pipeline: the pipeline whose loads move the marks.
    """
    marks, known = dict(_entries(content)), read(content, closed)
    for key, given in wanted.items():
        encoded = check_value(given)
        # NumPy's and pandas' values are Python's from here on.
        value = from_json(encoded)
        if key in known:
            before = known[key].value
            taken = force and known[key].pipeline not in (None, pipeline)
            if is_same_mark(before, value) and not taken:
                continue
            if not force:
                check_forward(key, before, value)
        elif isinstance(value, str) and not force:
            check_order(key, value)
        if isinstance(value, float | Decimal) and math.isinf(value):
            raise StateValueError(
                f"{value!r} cannot be a high-water mark",
                cause="No value is above it, or every value is.",
                remedy="Give a number. To take a mark away, remove it.",
            )
        entry = {"value": encoded, "changed_ms": now_ms, "version": _version(marks, key) + 1}
        marks[key] = entry if pipeline is None else {**entry, "pipeline": pipeline}
    return {"marks": marks}


def remove(content: Any, keys: Iterable[str], now_ms: int) -> dict[str, Any]:
    """Return the document without the marks of these keys; their versions stay."""
    marks = dict(_entries(content))
    for key in keys:
        marks[key] = {"changed_ms": now_ms, "version": _version(marks, key) + 1}
    return {"marks": marks}


def replaced(before: Any, content: Any, closed: Mapping[str, Any], *, force: bool = True) -> dict[str, Any]:
    """Return the document to store when `content` replaces all of `before`. `closed` are the rows of epochs. Raises
    HighWaterMarkError for a mark that cannot be compared with the one that it replaces, unless forced.

    A mark that keeps its value stays unchanged, also a mark of an epoch. The versions of all other marks grow, removed
    ones included; otherwise an epoch's mark that was since set or removed would count again.
    """
    old, new, known = _entries(before), _entries(content), _entries(settled(before, closed))
    if not force:
        _check_types(known, new)
    marks = {}
    for key in sorted({*known, *new}):
        if key in known and _text(known[key]) == _text(new.get(key, {})):
            if key in old:
                marks[key] = {"changed_ms": 0, **old[key], "version": _version(old, key)}
        else:
            entry = new.get(key) or {"changed_ms": known[key].get("changed_ms", 0)}
            marks[key] = {**entry, "version": max(_version(old, key), _version(new, key)) + (key in known)}
    return {"marks": marks}


def _check_types(known: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for key in new.keys() & known.keys():
        if "value" in new[key] and "value" in known[key]:
            # What another program wrote may be replaced by anything.
            with contextlib.suppress(StateValueError):
                before = from_json(known[key]["value"])
                value = from_json(new[key]["value"])
                check_comparable(key, before, value, f"the {type(value).__name__} {_shown(value)}")


def read(content: Any, closed: Mapping[str, Any] | None = None) -> dict[str, Mark]:
    """Return the marks of a document and of the rows of epochs, by key."""
    entries = {**_entries(content), **counting(content, closed or {})}
    return {key: _mark(key, entry) for key, entry in sorted(entries.items()) if "value" in entry}


def _mark(key: str, entry: Mapping[str, Any]) -> Mark:
    """Return the mark of an entry. Raises StateValueError for an entry that another program wrote."""
    changed_ms, version = entry.get("changed_ms"), entry.get("version")
    if not is_moment(changed_ms) or type(version) is not int:
        raise StateValueError(
            f"the mark {key!r:.120} is not in the form of one",
            cause="Another program than recovery wrote the mark.",
            remedy="Set the mark again: python -m recovery hwm set --force DIR KEY VALUE",
        )
    pipeline = entry.get("pipeline")
    return Mark(key, from_json(entry["value"]), changed_ms, version, pipeline if isinstance(pipeline, str) else None)


def checked_row(row: Any) -> dict[str, Any]:
    """Return an epoch's row if it has the form of one. Raises ValueError otherwise."""
    if not isinstance(row, dict) or "value" not in row or not is_moment(row.get("changed_ms")):
        raise ValueError("it is not a mark")
    if type(row.get("version")) is not int:
        raise ValueError("it has no version")
    return row


def is_empty(content: Any) -> bool:
    """Whether a document has no marks left, only the versions of removed ones."""
    return not any("value" in entry for entry in _entries(content).values())


def check_document(content: Any) -> None:
    """Raises StateValueError, or a built-in exception, for a document that does not have the form used here."""
    for key, entry in content["marks"].items():
        for name in ("version", "changed_ms"):
            if type(entry[name]) is not int:
                raise TypeError(f"{name} of the mark {key!r:.80} is not a whole number")
        if "value" in entry:
            check_value(from_json(entry["value"]))


def settled(content: Any, closed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with the marks of epochs that count turned into marks of its own."""
    own = {key: {**row, "version": row["version"] + 1} for key, row in counting(content, closed).items()}
    return {"marks": {**_entries(content), **own}}


def above(content: Any, closed: Mapping[str, Any]) -> Any:
    """Return the document in a form that overrides all these rows of epochs."""
    entries = _entries(content)
    raised = {
        key: {**entries.get(key, {"changed_ms": row["changed_ms"]}), "version": row["version"] + 1}
        for key, row in closed.items()
        if row["version"] >= _version(entries, key)
    }
    return {"marks": {**entries, **raised}} if raised else content


def counting(content: Any, closed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of epochs that count beside a document."""
    entries = _entries(content)
    return {key: row for key, row in closed.items() if row["version"] == _version(entries, key)}


def epoch_row(content: Any, key: str, value: Any, now_ms: int, pipeline: str | None = None) -> dict[str, Any]:
    """Return the row that an epoch holds for a mark that it moves beside this document. Raises StateValueError."""
    row = {"value": check_value(value), "changed_ms": now_ms, "version": _version(_entries(content), key)}
    return row if pipeline is None else {**row, "pipeline": pipeline}


def check_value(value: Any) -> Any:
    """Return `value` as JSON's own types if its type has an order, as a mark needs. Raises StateValueError
    otherwise."""
    encoded = to_json(value)
    plain = from_json(encoded)
    if not isinstance(plain, _KINDS) or (
        plain.is_nan() if isinstance(plain, Decimal) else isinstance(plain, float) and math.isnan(plain)
    ):
        raise StateValueError(
            f"{type(value).__name__} {value!r:.80} cannot be a high-water mark",
            cause="Such a value has no order.",
            remedy="Use int, float, str, bool, date, datetime, Decimal or bytes. To take a mark away, remove it.",
        )
    return encoded


def is_future(value: Any, now: datetime) -> bool:
    """Whether a mark lies in the future, or after today's date everywhere. Until the mark's time, loads skip the rows
    that arrive."""
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value[:10])
        except ValueError:
            return False
    if isinstance(value, datetime):
        # A time without a zone may be in any zone; the furthest one is fourteen hours ahead of UTC.
        return bool(comparable(value) > (now if value.tzinfo else now.replace(tzinfo=None) + timedelta(hours=14)))
    return isinstance(value, date) and value > (now + timedelta(hours=14)).date()


def comparable(value: Any) -> Any:
    """Return a value whose comparisons are those of marks: a moment with its offset alone. Two moments of one zone are
    compared by Python as what its clocks show, and in autumn the clocks show an hour twice. In UTC, a moment at the end
    of the year 9999 may have no date."""
    offset = value.utcoffset() if isinstance(value, datetime) else None
    return value if offset is None else value.replace(tzinfo=timezone(offset))


def is_same_mark(before: Any, after: Any) -> bool:
    """Whether two marks have the same type and value; two moments, whether they are one instant."""
    return type(before) is type(after) and bool(comparable(before) == comparable(after))


def check_comparable(key: str, before: Any, after: Any, what: str) -> None:
    """Raises HighWaterMarkError if the types of `before` and `after` cannot be compared. `what` names `after` in
    messages."""
    if not _comparable(before, after):
        raise HighWaterMarkError(
            f"the mark {key!r:.120} is the {type(before).__name__} {before!r:.80}, and cannot be compared with {what}",
            cause="The type of the column changed, or two columns use this key.",
            remedy="Use another key, or set it anyway: --force, or set_hwm(..., force=True).",
        )


def check_forward(key: str, before: Any, after: Any) -> None:
    """Raises HighWaterMarkError if the mark would move back from `before` or to a type that cannot be compared with
    it."""
    check_comparable(key, before, after, f"the {type(after).__name__} {after!r:.80}")
    if isinstance(after, str):
        check_order(key, after, before)
    if comparable(after) < comparable(before):
        raise HighWaterMarkError(f"the mark {key!r:.120} would move back from {_shown(before)} to {_shown(after)}")


def check_order(key: str, after: str, before: str | None = None) -> None:
    """Raises HighWaterMarkError for a text that, alone or beside the mark `before`, does not sort in the order of its
    values."""
    if is_unordered(after) or (before is not None and disagreement(before, after)):
        beside = "" if before is None else f" beside {before!r:.80}"
        raise HighWaterMarkError(
            f"the mark {key!r:.120} cannot be the text {after!r:.80}{beside}: such texts sort in another order than "
            "the values that they stand for",
            cause="Dates that do not begin with the year, and numbers of different lengths, sort wrongly as text.",
            remedy='Give a date or a number: {"$date": "2024-04-20"}, 20; or set the text anyway: --force, '
            "or set_hwm(..., force=True).",
        )


def _comparable(before: Any, after: Any) -> bool:
    if isinstance(before, bool) or isinstance(after, bool):
        return isinstance(before, bool) and isinstance(after, bool)
    if isinstance(before, _NUMBERS):
        return isinstance(after, _NUMBERS)
    if isinstance(before, datetime) and isinstance(after, datetime):
        return (before.utcoffset() is None) == (after.utcoffset() is None)
    return type(before) is type(after)


def _shown(value: Any) -> str:
    """Return a mark for a message; a moment with its offset, which tells the two readings of a clock apart."""
    return f"{value.isoformat()}" if isinstance(value, datetime) else f"{value!r:.80}"


def _text(entry: Mapping[str, Any]) -> str | None:
    """Return the stored value of an entry: values that are equal in Python, such as 1 and 1.0, may differ in their
    stored values."""
    return json.dumps(entry["value"]) if "value" in entry else None


def _version(entries: Mapping[str, Any], key: str) -> int:
    """Return the version of a mark; 0 also where another program wrote something else, which may be overwritten."""
    version = entries[key].get("version") if key in entries else 0
    return version if type(version) is int else 0


def _entries(content: Any) -> dict[str, Any]:
    """Return the well-formed entries; malformed entries were written by another program and may be overwritten."""
    marks = content.get("marks") if isinstance(content, dict) else None
    return {key: entry for key, entry in marks.items() if isinstance(entry, dict)} if isinstance(marks, dict) else {}
