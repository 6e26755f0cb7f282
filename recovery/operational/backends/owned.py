"""Operational state whose partition 0 lies at an owner on another host: the same documents, over the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from recovery.base.clock import Clock
from recovery.errors import ConfigurationError, StateLockedError
from recovery.operational.backends.backend import Change, DirectoryBackend, Document, document, to_text
from recovery.operational.backends.retry import Busy, RetryPolicy
from recovery.operational.ids import StateId
from recovery.storage.documents import StoredState
from recovery.storage.origin import DOCUMENT, Origin, origins_in, read_origins
from recovery.storage.store import Store
from recovery.wire.calls import Changed, DocumentCalls, StateDocument
from recovery.wire.run_client import Owner

P = ParamSpec("P")
T = TypeVar("T")


class OwnerBackend:
    """A `Backend` at the owner that has partition 0. A change is made here, and counts if nobody was faster."""

    def __init__(self, owner: Owner, clock: Clock, retry: RetryPolicy, store: Store | None = None) -> None:
        """store: the store of the partition, whose epochs move marks."""
        self.location = owner.location
        self.store = store
        self._owner = owner
        self._clock = clock
        self._retry = retry

    def read(self, ids: Sequence[StateId]) -> dict[StateId, Document]:
        """Return the documents of these ids, all as of one moment."""
        return _by_id(self._owner.ask(DocumentCalls.documents, list(ids)))

    def list(self, prefix: str = "") -> list[Document]:
        """Return the documents whose id begins with `prefix`, all as of one moment."""
        return [_document(each) for each in self._owner.ask(DocumentCalls.documents_of, prefix)]

    def update(self, changes: Mapping[StateId, Change]) -> dict[StateId, Document]:
        """Change documents in one transaction; return their new values."""

        def attempt() -> dict[StateId, Document]:
            before = self.read(list(changes))
            wanted = [
                Changed(each, before[each].generation if each in before else 0, to_text(change(before.get(each))))
                for each, change in changes.items()
            ]
            made = self._write(DocumentCalls.change_documents, wanted, self._clock.wall_ms(), self._busy_ms)
            if made is None:
                raise Busy("another writer was faster")
            return _by_id(made)

        return self._patiently(attempt)

    def forget(self, ids: Sequence[StateId]) -> int:
        """Remove documents without a tombstone, in one transaction; return how many existed."""
        return self._patiently(lambda: self._write(DocumentCalls.forget_documents, list(ids), self._busy_ms))

    def place(self, documents: Sequence[Document]) -> None:
        """Store documents of another backend unchanged, in one transaction."""
        stored = [StateDocument(d.state_id, d.generation, to_text(d.content), d.changed_ms) for d in documents]
        self._patiently(lambda: self._write(DocumentCalls.place_documents, stored, self._busy_ms))

    def lock(self, name: str, purpose: str) -> AbstractContextManager[None]:
        """Refuse: only processes of the owner's host can hold its files."""
        raise ConfigurationError(
            f"the lock {name!r:.80} cannot be held from here",
            path=self.location,
            cause="Partition 0, which has the operational state, is at an owner on another host.",
            remedy="Run the command on that host; or give the operational state a place of its own: --state-backend "
            "URI.",
        )

    @property
    def _busy_ms(self) -> int:
        return round(self._retry.busy_s * 1000)

    def _write(self, call: Callable[Concatenate[DocumentCalls, P], T], *arguments: P.args, **named: P.kwargs) -> T:
        """Let the owner write. Raises Busy while another process writes there."""
        try:
            return self._owner.ask(call, *arguments, **named)
        except StateLockedError as error:
            raise Busy(error.found) from error

    def _patiently(self, attempt: Callable[[], T]) -> T:
        try:
            return self._retry.run(attempt)
        except Busy as error:
            if isinstance(error.__cause__, StateLockedError):
                raise error.__cause__ from None
            raise StateLockedError(f"{error}, again and again", path=self.location) from error


def documents_of(store: Store, clock: Clock, retry: RetryPolicy) -> DirectoryBackend | OwnerBackend:
    """Return the operational state that lies with partition 0 of a store."""
    owner = store.home_owner()
    if owner is None:
        return DirectoryBackend(store.directory, clock, retry, store)
    return OwnerBackend(owner, clock, retry, store)


def origins_of(store: Store) -> tuple[Origin, ...]:
    """Return the stores that a store was made from, as `read_origins` does."""
    owner = store.home_owner()
    if owner is None:
        return read_origins(store.directory)
    stored = [StoredState(*msgspec.structs.astuple(each)) for each in owner.ask(DocumentCalls.documents, [DOCUMENT])]
    return origins_in(next(iter(stored), None), Path(owner.location))


def _by_id(found: Sequence[StateDocument]) -> dict[StateId, Document]:
    return {each.state_id: _document(each) for each in found}


def _document(stored: StateDocument) -> Document:
    return document(StoredState(stored.state_id, stored.generation, stored.content, stored.changed_ms))
