"""Export files of states: one JSON object per line. The first line identifies the file; the last gives the number of
states."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recovery.base.printable import one_line
from recovery.base.untrusted_json import MOST
from recovery.errors import CorruptStateError, StateValueError, shown
from recovery.operational.scopes import FACTS, is_scoped
from recovery.operational.targets import StateEntry, Whole
from recovery.operational.values import from_json, parse_json

FORMAT = "recovery-state"
REMEDY = "Make an export again: python -m recovery state export DIR --output-file FILE"
VERSION = 2
READ = 1, 2
"""Version 1 had the value of scoped state inside its content, beside its facts."""


@dataclass(frozen=True, slots=True)
class ExportedState:
    """One state in a file: a document with its generation and, of scoped state, its facts; or a step's key with its
    timeout."""

    id: str | None
    step: str | None
    key: str | None
    content: Any
    generation: int
    timeout_ms: int | None
    facts: Mapping[str, Any] | None = None

    def whole(self) -> Whole:
        """Return the content with all that belongs to it."""
        return Whole(self.content, self.timeout_ms, self.facts)


def export_lines(entries: Iterable[StateEntry]) -> Iterator[str]:
    """Yield the lines of an export file with these states."""
    yield json.dumps({"format": FORMAT, "version": VERSION})
    count = 0
    for entry in entries:
        count += 1
        yield one_line(json.dumps(entry.as_json(), ensure_ascii=False, separators=(",", ":")))
    yield json.dumps({"end": count})


def read_export(lines: Sequence[str]) -> list[ExportedState]:
    """Return all states of a file. Raises CorruptStateError for a torn file, StateValueError for a file that is not an
    export."""
    try:
        first = parse_json(lines[0])
    except StateValueError as error:
        raise StateValueError(f"this is not an export of states: {error.found}", cause="", remedy=REMEDY) from error
    if not isinstance(first, dict) or first.get("format") != FORMAT:
        raise StateValueError("this is not an export of states", cause="", remedy=REMEDY)
    version = first.get("version")
    if version not in READ:
        raise StateValueError(
            f"an export of version {shown(version)}; this version of recovery reads {READ[0]} to {READ[-1]}",
            cause="A newer version wrote it.",
            remedy="Use that version.",
        )
    try:
        end = parse_json(lines[-1])
        states = [_read(parse_json(line), version) for line in lines[1:-1]]
    except StateValueError as error:
        raise CorruptStateError(f"a line of the export cannot be read: {error.found}", remedy=REMEDY) from error
    if end != {"end": len(states)}:
        raise CorruptStateError(
            "the export ends too early", cause="The file was cut off while it was written or copied.", remedy=REMEDY
        )
    return states


def _is_number(value: Any) -> bool:
    return type(value) is int and abs(value) <= MOST


def _read(line: Any, version: int) -> ExportedState:
    if isinstance(line, dict) and "content" in line:
        generation, timeout_ms = line.get("generation", 0), line.get("timeout_ms")
        if isinstance(line.get("id"), str) and _is_number(generation):
            content, facts = _scoped(line, version) if is_scoped(line["id"]) else (line["content"], None)
            return ExportedState(line["id"], None, None, content, generation, None, facts)
        keyed = isinstance(line.get("step"), str) and isinstance(line.get("key"), str)
        if keyed and (timeout_ms is None or _is_number(timeout_ms)):
            return ExportedState(None, line["step"], line["key"], line["content"], 0, timeout_ms)
    raise StateValueError(f"{line!r:.120} is not a state")


def _scoped(line: Mapping[str, Any], version: int) -> tuple[Any, Mapping[str, Any] | None]:
    """Return the value of scoped state, and its facts."""
    given = line["content"] if version == 1 else line
    if not isinstance(given, dict) or (version == 1 and "value" not in given):
        raise StateValueError(f"{given!r:.120} is not in the form of a value")
    facts = {name: given[name] for name in FACTS if name in given}
    if not all(each is None or _is_number(each) for each in facts.values()):
        raise StateValueError(f"a time of {line['id']!r:.120} is not a number of milliseconds")
    if facts and "previous" in given:
        from_json(given["previous"])
        facts["previous"] = given["previous"]
    # Written by hand, a line has no facts.
    return given["value" if version == 1 else "content"], facts or None
