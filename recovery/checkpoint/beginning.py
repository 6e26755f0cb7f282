"""Where sources start: the position before the first micro-batch that reads them.

Spark asks a source for its start and logs only where micro-batches end. A source that starts at the end of the existing
data ("latest") answers differently each time, so a run that was killed before it closed an epoch could not begin at
the same place again. The plan of the micro-batch contains the start that Spark read from. As the text of a log of
offsets it makes a position like any other:

- *Micro-batch -1.* Before the very first micro-batch, `offsets/-1` has the starts and `commits/-1` marks this
  micro-batch as done. Spark continues with micro-batch 0 from there, and does not ask the sources.
- A source that is new beside others: the log of the previous micro-batch has its start, in place of "nothing yet".

The plan has no start for a source of Spark's older API (files, for instance). The line of such a source stays "nothing
yet", and Spark asks that source again. The position contains what such sources log about their start themselves (see
`initial_logs`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from recovery.base.ids import NO_BATCH
from recovery.checkpoint.offsets import NO_TICK, NOTHING_READ, OffsetLog, ticking
from recovery.checkpoint.position import HEADER_LINES, initial_logs
from recovery.checkpoint.rows import Content, as_bytes, as_content
from recovery.checkpoint.snapshots import table_offset
from recovery.checkpoint.source_places import SourcePlaces
from recovery.errors import CorruptPartitionError

_COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'
_DIGITS = re.compile(r"[\d:.,+/ TZ-]+")
"""The characters of numbers and times as text: two texts of equal length sort in the order of their values."""


def with_starts(
    planned: OffsetLog, before: OffsetLog | None, starts: Mapping[str, str], places: SourcePlaces
) -> OffsetLog:
    """Return the position before a planned micro-batch, with the starts of sources that no earlier one has read.

    before: the log of the previous micro-batch; None before the first. Sources without a start keep "nothing yet".
    """
    held = before.offsets if before is not None else {}
    ticks = ticking(places, planned)
    offsets = {}
    for label, end in planned.offsets.items():
        offset = held.get(label, NOTHING_READ)
        if label in ticks:
            offset = NO_TICK if offset == NOTHING_READ else offset
        elif offset == NOTHING_READ and label in starts:
            offset = earlier(starts[label], end)
        offsets[label] = offset
    return OffsetLog((before or planned).header, offsets)


def earlier(start: str, end: str) -> str:
    """Return the offset at which a stream that read from `start` and continues from `end` must begin again.

    Spark asks for the start after Spark has decided where the micro-batch ends. A source that starts at the end of the
    existing data may have moved on meanwhile: such a micro-batch reads nothing, and the next micro-batch begins at its
    end.
    """
    if table_offset(start) is not None:
        # Its numbers have no order, and it starts at the oldest snapshot, or at a time.
        return start
    try:
        first, last = msgspec.json.decode(start), msgspec.json.decode(end)
    except msgspec.DecodeError:
        return start
    found = _earlier(first, last)
    return start if found == first else end if found == last else msgspec.json.encode(found).decode()


def _earlier(start: Any, end: Any) -> Any:
    if isinstance(start, dict) and isinstance(end, dict):
        return {key: _earlier(value, end[key]) if key in end else value for key, value in start.items()}
    if isinstance(start, list) and isinstance(end, list) and len(start) == len(end):
        return [_earlier(one, other) for one, other in zip(start, end, strict=True)]
    return end if _is_before(end, start) else start


def _is_before(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return len(one) == len(other) and one < other and all(map(_DIGITS.fullmatch, (one, other)))
    numbers = (int, float)
    is_number = isinstance(one, numbers) and isinstance(other, numbers) and bool not in map(type, (one, other))
    return is_number and one < other


@dataclass(frozen=True, slots=True)
class InputBeginning:
    """The position before the first micro-batch: the checkpoint's files that hold it, and the text of its
    SourcePlaces. identities: what distinguished parts of the sources then, by their names."""

    files: Mapping[str, Content]
    places: str
    identities: Mapping[str, str] = field(default_factory=dict)

    def with_settings(self, setting: Callable[[str], str | None]) -> InputBeginning:
        """Return this position with the settings of another run.

        Spark keeps the settings that states depend on, but no states exist yet. setting: returns the present value of
        one; None: unknown, so the setting keeps its value. Raises CorruptPartitionError.
        """
        name = f"offsets/{NO_BATCH}"
        version, *rest = as_bytes(self.files[name]).decode().split("\n", HEADER_LINES)
        try:
            described = msgspec.json.decode(rest[0])
            described["conf"] = {key: setting(key) or value for key, value in described["conf"].items()}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CorruptPartitionError(f"table beginning does not say where the input begins: {error}") from error
        text = "\n".join([version, msgspec.json.encode(described).decode(), *rest[1:]])
        return replace(self, files={**self.files, name: text})

    def to_text(self) -> str:
        """Return the stored form."""
        files = {path: {"hex": each.hex()} if isinstance(each, bytes) else each for path, each in self.files.items()}
        known = {"identities": dict(self.identities)} if self.identities else {}
        return msgspec.json.encode({"files": files, "places": self.places, **known}).decode()


class _Hex(msgspec.Struct, forbid_unknown_fields=True):
    hex: str


class _StoredBeginning(msgspec.Struct, forbid_unknown_fields=True):
    files: dict[str, str | _Hex]
    places: str
    identities: dict[str, str] = {}


def _content(stored: str | _Hex) -> Content:
    return bytes.fromhex(stored.hex) if isinstance(stored, _Hex) else stored


def recorded_beginning(text: str) -> InputBeginning:
    """Parse the stored form. Raises CorruptPartitionError when the stored form is invalid."""
    try:
        found = msgspec.json.decode(text, type=_StoredBeginning)
        files = {path: _content(each) for path, each in found.files.items()}
    except ValueError as error:
        raise CorruptPartitionError(f"table beginning does not say where the input begins: {error}") from error
    if f"offsets/{NO_BATCH}" not in files:
        raise CorruptPartitionError("table beginning does not say where the input begins: it holds no offsets")
    return InputBeginning(files, found.places, found.identities)


def take_beginning(
    checkpoint: Path, starts: OffsetLog, places: SourcePlaces, identities: Mapping[str, str] | None = None
) -> InputBeginning | None:
    """Return a checkpoint's position before micro-batch 0, which is planned but not begun; None when Spark would find
    all of it again by itself. identities: see `InputBeginning`."""
    logs = initial_logs(checkpoint, places.numbers)
    if not logs and not starts.begun - ticking(places, starts):
        return None
    contents = {
        "metadata": (checkpoint / "metadata").read_bytes(),
        f"offsets/{NO_BATCH}": starts.to_bytes(),
        f"commits/{NO_BATCH}": _COMMIT,
    }
    contents |= {path: (checkpoint / path).read_bytes() for path in logs}
    files = {path: as_content(each) for path, each in contents.items()}
    return InputBeginning(files, places.to_text(), identities or {})
