"""The input and the output: how far each source is read, what it lacks, and what the sink has done."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import msgspec

from recovery.base.reserved import SINK_STEP
from recovery.operational.steps.epoch_input import EpochInputs, position_of
from recovery.sinks.delivery import NOTE_KEY
from recovery.storage.snapshot import Snapshot
from recovery.ui.facts.flows import Look, ShownFlow
from recovery.ui.facts.limits import shown_value


def source_facts(flow: ShownFlow) -> dict[str, Any]:
    """Return {"sources": […], "input", "lag", "sink"} as of the newest epoch.

    sources: {"source", "position"}: the number of the source in the plan, and its position as Spark records it. input:
    what the newest epoch read, as in `history --json --show-input`; None: not known. lag: as in `status --json`. sink:
    {"note", "work"}: what the sink has recorded with the epoch, and what it has done since the epoch before; None: it
    records or counts nothing.
    """
    return flow.reading(None, partial(_sources, flow))


def _sources(flow: ShownFlow, look: Look, at: Snapshot) -> dict[str, Any]:
    positions, read, note = position_of(at), EpochInputs(at).of(at.epoch), at.state(SINK_STEP, NOTE_KEY)
    newest = look.gathered.epochs[-1] if look.gathered.epochs else None
    work = None if newest is None or newest.sink is None else msgspec.to_builtins(newest.sink)
    return flow.answer(look, {
        "sources": [{"source": name, "position": shown_value(_json(text))} for name, text in positions.items()],
        "input": None if read is None else [each.as_json() for each in read],
        "lag": look.status["lag"],
        "sink": {"note": None if note is None else shown_value(_json(note.value)), "work": work},
    }, at.cut)  # fmt: skip


def _json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text if isinstance(text, str) else text.decode(errors="replace")
