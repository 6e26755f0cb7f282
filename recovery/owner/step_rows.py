"""The states of a step in one partition, or what changed in them, as Arrow record batches of bounded size."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pyarrow

from recovery.errors import StateValueError
from recovery.planning.resume import Cut
from recovery.storage.history import KeyChange, KeyState, changes_between, states_at

MOST_ROWS = 10_000
MOST_CHARS = 4 << 20
"""The most characters of a record batch; only a batch of one row is larger."""
LONGEST_MS = (1 << 63) // 1000 - 1

STATE_ARROW = pyarrow.schema([
    ("key", pyarrow.string()),
    ("state", pyarrow.string()),
    ("epoch", pyarrow.int64()),
    ("timeout", pyarrow.timestamp("us", tz="UTC")),
])  # fmt: skip
CHANGE_ARROW = pyarrow.schema([(name, pyarrow.string()) for name in ("key", "change", "before", "after")])
_KINDS = {(True, False): "added", (False, True): "removed", (False, False): "changed"}


Batches = Generator[pyarrow.RecordBatch, None, None]


def step_rows(path: Path, step: str, cut: Cut, since: Cut | None = None) -> Batches:
    """Yield the states of a step as of a cut; with `since`, an older cut, the keys whose state has changed since then.

    The states are read in one transaction, which ends with the generator. Raises like
    `recovery.storage.history.states_at`, and StateValueError for a value that is not text.
    """
    if since is None:
        states = states_at(path, step, cut)
        return _batches(((s.key, _text(step, s), s.epoch, _micros(s.timeout_ms)) for s in states), STATE_ARROW)
    return change_rows(step, changes_between(path, step, since, cut))


def change_rows(step: str, changes: Iterable[KeyChange]) -> Batches:
    """Yield changes of a step's states as record batches. Raises StateValueError for a value that is not text."""
    return _batches(
        (
            (c.key, _KINDS[c.before is None, c.after is None], _text(step, c.before), _text(step, c.after))
            for c in changes
        ),
        CHANGE_ARROW,
    )


def _text(step: str, state: KeyState | None) -> str | None:
    if state is None:
        return None
    if isinstance(state.value, bytes):
        raise StateValueError(f"the value of step {step!r} key {state.key!r:.80} is not text", remedy="")
    return state.value


def _micros(timeout_ms: int | None) -> int | None:
    """Return a timeout in microseconds for a timestamp column, limited to the column's range."""
    return None if timeout_ms is None else min(max(timeout_ms, -LONGEST_MS), LONGEST_MS) * 1000


def _batches(rows: Iterable[tuple[Any, ...]], schema: pyarrow.Schema) -> Batches:
    chunk: list[tuple[Any, ...]] = []
    chars = 0
    for row in rows:
        size = sum(len(value) for value in row if isinstance(value, str))
        if chunk and (len(chunk) == MOST_ROWS or chars + size > MOST_CHARS):
            yield _batch(chunk, schema)
            chunk, chars = [], 0
        chunk.append(row)
        chars += size
    if chunk:
        yield _batch(chunk, schema)


def _batch(chunk: list[tuple[Any, ...]], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    columns = zip(*chunk, strict=True)
    arrays = [pyarrow.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
