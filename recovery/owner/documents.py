"""What an owner answers about the documents of operational state, which lie with partition 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec.structs import astuple

from recovery.errors import MissingPartitionsError, RecoveryError
from recovery.planning.copies import Departed
from recovery.storage.documents import (
    BusyPartition,
    StoredState,
    change_states,
    forget_states,
    home,
    place_states,
    read_prefix,
    read_states,
    still_locked,
)
from recovery.storage.moving.departed import read_notes
from recovery.wire.calls import Changed, StateDocument


class _OvertakenError(Exception):
    """A document has another generation than the one that a change was made from."""


class OwnedDocuments:
    """The documents of a directory: `DocumentCalls`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def documents(self, ids: list[str]) -> list[StateDocument]:
        """See `DocumentCalls.documents`."""
        return [_stored(each) for each in read_states(_home(self._directory), ids).values()]

    def documents_of(self, prefix: str) -> list[StateDocument]:
        """See `DocumentCalls.documents_of`."""
        return [_stored(each) for each in read_prefix(_home(self._directory), prefix)]

    def change_documents(self, changes: list[Changed], now_ms: int, busy_ms: int) -> list[StateDocument] | None:
        """See `DocumentCalls.change_documents`."""

        def changed(wanted: Changed, held: StoredState | None) -> str | None:
            if wanted.seen != (0 if held is None else held.generation):
                raise _OvertakenError
            return wanted.content

        texts = {each.state_id: partial(changed, each) for each in changes}
        try:
            with _bounded(self._directory, busy_ms) as path:
                made = change_states(path, texts, now_ms, busy_ms=busy_ms)
        except _OvertakenError:
            return None
        return [_stored(each) for each in made.values()]

    def forget_documents(self, ids: list[str], busy_ms: int) -> int:
        """See `DocumentCalls.forget_documents`."""
        with _bounded(self._directory, busy_ms) as path:
            return forget_states(path, ids, busy_ms=busy_ms)

    def place_documents(self, placed: list[StateDocument], busy_ms: int) -> None:
        """See `DocumentCalls.place_documents`."""
        with _bounded(self._directory, busy_ms) as path:
            place_states(path, [StoredState(*astuple(each)) for each in placed], busy_ms=busy_ms)


@contextmanager
def _bounded(directory: Path, busy_ms: int) -> Iterator[Path]:
    """Yield the partition with the documents, to change them. Raises MissingPartitionsError while the partition moves
    to another owner, StateLockedError if it stays locked for longer than `busy_ms`."""
    path = _home(directory)
    for note in _notes(directory):
        raise _moved(directory, note)
    try:
        yield path
    except BusyPartition as error:
        raise still_locked(path, busy_ms / 1000) from error


def _home(directory: Path) -> Path:
    """Return the partition with the documents. Raises what `home` raises; the error says where the partition went."""
    try:
        return home(directory)
    except RecoveryError:
        for note in _notes(directory):
            raise _moved(directory, note) from None
        raise


def _notes(directory: Path) -> list[Departed]:
    return [note for note in read_notes(directory) if note.index == 0]


def _moved(directory: Path, note: Departed) -> MissingPartitionsError:
    return MissingPartitionsError(
        f"part-0.sqlite3, which holds the operational state, is moving to {note.to}, or has moved",
        path=directory,
        cause="`recovery owners` moved the partition.",
        remedy=f"Run the same command again, or start the same program again; name that owner: --owner {note.to}",
    )


def _stored(state: StoredState) -> StateDocument:
    return StateDocument(state.state_id, state.generation, state.content, state.changed_ms)
