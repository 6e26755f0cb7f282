"""Export files of states: one JSON object per line. The first line identifies the file; the last gives the number of
states."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from recovery.base.printable import one_line
from recovery.base.untrusted_json import MOST
from recovery.errors import CorruptStateError, StateValueError
from recovery.operational.targets import Entry
from recovery.operational.values import parse_json

FORMAT = "recovery-state"
REMEDY = "Make an export again: python -m recovery state export DIR --output-file FILE"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Exported:
    """One state in a file: a document with its generation, or a step's key with its timeout."""

    id: str | None
    step: str | None
    key: str | None
    content: Any
    generation: int
    timeout_ms: int | None


def export_lines(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield the lines of an export file with these states."""
    yield json.dumps({"format": FORMAT, "version": VERSION})
    count = 0
    for entry in entries:
        count += 1
        yield one_line(json.dumps(entry.as_json(), ensure_ascii=False, separators=(",", ":")))
    yield json.dumps({"end": count})


def read_export(lines: Sequence[str]) -> list[Exported]:
    """Return all states of a file. Raises CorruptStateError for a torn file, StateValueError for one that is not an
    export."""
    try:
        first = parse_json(lines[0])
    except StateValueError as error:
        raise StateValueError(f"this is not an export of states: {error.found}", cause="", remedy=REMEDY) from error
    if not isinstance(first, dict) or first.get("format") != FORMAT:
        raise StateValueError("this is not an export of states", cause="", remedy=REMEDY)
    if first.get("version") != VERSION:
        raise StateValueError(
            f"an export of version {first.get('version')}; this version of recovery reads {VERSION}",
            cause="A newer version wrote it.",
            remedy="Use that version.",
        )
    try:
        end = parse_json(lines[-1])
        states = [_read(parse_json(line)) for line in lines[1:-1]]
    except StateValueError as error:
        raise CorruptStateError(f"a line of the export cannot be read: {error.found}", remedy=REMEDY) from error
    if end != {"end": len(states)}:
        raise CorruptStateError(
            "the export ends too early", cause="It was cut off while it was written or copied.", remedy=REMEDY
        )
    return states


def _is_number(value: Any) -> bool:
    return type(value) is int and abs(value) <= MOST


def _read(line: Any) -> Exported:
    if isinstance(line, dict) and "content" in line:
        generation, timeout_ms = line.get("generation", 0), line.get("timeout_ms")
        if isinstance(line.get("id"), str) and _is_number(generation):
            return Exported(line["id"], None, None, line["content"], generation, None)
        keyed = isinstance(line.get("step"), str) and isinstance(line.get("key"), str)
        if keyed and (timeout_ms is None or _is_number(timeout_ms)):
            return Exported(None, line["step"], line["key"], line["content"], 0, timeout_ms)
    raise StateValueError(f"{line!r:.120} is not a state")
