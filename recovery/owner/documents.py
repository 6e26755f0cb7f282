"""What an owner answers about the documents of operational state, which lie with partition 0 (`OwnerCalls`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from recovery.base.intervals import format_interval
from recovery.errors import StateLockedError
from recovery.storage.documents import (
    BusyPartition,
    StoredState,
    change_states,
    forget_states,
    home,
    place_states,
    read_prefix,
    read_states,
    writer_of,
)
from recovery.wire.calls import Changed, Stored


class _OvertakenError(Exception):
    """A document has another generation than the one that a change was made from."""


def read(directory: Path, ids: Sequence[str]) -> list[Stored]:
    """See `OwnerCalls.documents`."""
    return [_stored(each) for each in read_states(home(directory), ids).values()]


def found(directory: Path, prefix: str) -> list[Stored]:
    """See `OwnerCalls.documents_of`."""
    return [_stored(each) for each in read_prefix(home(directory), prefix)]


def change(directory: Path, changes: Sequence[Changed], now_ms: int, busy_ms: int) -> list[Stored] | None:
    """See `OwnerCalls.change_documents`."""

    def changed(wanted: Changed, held: StoredState | None) -> str | None:
        if wanted.seen != (0 if held is None else held.generation):
            raise _OvertakenError
        return wanted.content

    path = home(directory)
    try:
        made = change_states(path, {each.state_id: partial(changed, each) for each in changes}, now_ms, busy_ms=busy_ms)
    except _OvertakenError:
        return None
    except BusyPartition as error:
        raise _busy(path, busy_ms) from error
    return [_stored(each) for each in made.values()]


def forget(directory: Path, ids: Sequence[str], busy_ms: int) -> int:
    """See `OwnerCalls.forget_documents`."""
    path = home(directory)
    try:
        return forget_states(path, ids, busy_ms=busy_ms)
    except BusyPartition as error:
        raise _busy(path, busy_ms) from error


def place(directory: Path, documents: Sequence[Stored], busy_ms: int) -> None:
    """See `OwnerCalls.place_documents`."""
    path = home(directory)
    try:
        place_states(path, [StoredState(*each) for each in map(_fields, documents)], busy_ms=busy_ms)
    except BusyPartition as error:
        raise _busy(path, busy_ms) from error


def _stored(state: StoredState) -> Stored:
    return Stored(state.state_id, state.generation, state.content, state.changed_ms)


def _fields(stored: Stored) -> tuple[str, int, str | None, int]:
    return stored.state_id, stored.generation, stored.content, stored.changed_ms


def _busy(path: Path, busy_ms: int) -> StateLockedError:
    writer = writer_of(path)
    who = "another process" if writer is None else f"process {writer}"
    return StateLockedError(
        f"{who} held the lock of the operational state for {format_interval(busy_ms / 1000)}", path=path
    )
