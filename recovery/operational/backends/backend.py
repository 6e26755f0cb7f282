"""The seam between operational state and the store of documents that keeps it.

A document is JSON under a state id. A document's generation grows by one with every change and never goes back, even
when the document is removed and made again. Every backend makes the same promises: a write is durable when it returns,
and all or nothing; of several concurrent writes, each sees the result of the one before it; damaged data raises an
error and is never taken for missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from recovery.base.clock import Clock
from recovery.errors import CorruptPartitionError
from recovery.operational.backends.retry import Busy, RetryPolicy
from recovery.operational.ids import StateId
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
from recovery.storage.lock import lock_holder
from recovery.storage.store import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Document:
    """One state as currently stored. `content` is JSON's own types; None: it was removed, which leaves a tombstone.

    changed_ms is the wall time of the last change; it never goes back from one generation to the next.
    """

    state_id: StateId
    generation: int
    content: Any
    changed_ms: int


Change = Callable[[Document | None], Any]
"""Returns the new content, given the current document, or None if there never was one. Returning None removes the
document.

The function may be called again if another writer was faster. Returning the current content writes nothing.
"""


class Backend(Protocol):
    """A store of documents."""

    location: str
    """Where the documents are, for people; without credentials."""
    store: Store | None
    """The store with whose partitions the documents lie: its epochs move marks, too. None: a place without epochs."""

    def read(self, ids: Sequence[StateId]) -> dict[StateId, Document]:
        """Return the documents of these ids. Ids that never had one are left out; removed documents have no content."""
        ...

    def list(self, prefix: str = "") -> list[Document]:
        """Return all documents whose id begins with `prefix`, removed ones included, sorted by id."""
        ...

    def update(self, changes: Mapping[StateId, Change]) -> dict[StateId, Document]:
        """Change documents; returns their new values, without documents that never existed. Each change is atomic.

        In the recovery directory all changes are one transaction. Elsewhere changes are made in the order given. Raises
        StateLockedError if other writers kept it waiting for too long.
        """
        ...

    def forget(self, ids: Sequence[StateId]) -> int:
        """Remove documents without a tombstone; returns how many existed."""
        ...

    def place(self, documents: Sequence[Document]) -> None:
        """Store documents of another backend unchanged, generation and time included; atomic as `update` is."""
        ...

    def lock(self, name: str, purpose: str) -> AbstractContextManager[None]:
        """Hold the lock of this name. Raises StateLockedError naming the holder, LeaseLostError if the lock was
        lost."""
        ...


class DirectoryBackend:
    """A `Backend` in a recovery directory, by `recovery.storage.documents`."""

    def __init__(
        self, directory: str | os.PathLike[str], clock: Clock, retry: RetryPolicy, store: Store | None = None
    ) -> None:
        """store: given if owners have other partitions."""
        self.directory = Path(directory)
        self.store: Store | None = store or Store(self.directory)
        self.location = str(directory)
        self._clock = clock
        self._retry = retry
        home(self.directory)

    def read(self, ids: Sequence[StateId]) -> dict[StateId, Document]:
        """Return the documents of these ids, all as of one moment."""
        return {each: document(stored) for each, stored in read_states(home(self.directory), ids).items()}

    def list(self, prefix: str = "") -> list[Document]:
        """Return the documents whose id begins with `prefix`, all as of one moment."""
        return [document(stored) for stored in read_prefix(home(self.directory), prefix)]

    def update(self, changes: Mapping[StateId, Change]) -> dict[StateId, Document]:
        """Change documents in one transaction; return their new values."""

        def as_text(change: Change) -> Callable[[StoredState | None], str | None]:
            def changed(stored: StoredState | None) -> str | None:
                return to_text(change(None if stored is None else document(stored)))

            return changed

        texts = {state_id: as_text(change) for state_id, change in changes.items()}

        def attempt() -> dict[StateId, Document]:
            path, now_ms = home(self.directory), self._clock.wall_ms()
            changed = change_states(path, texts, now_ms, busy_ms=round(self._retry.busy_s * 1000))
            return {each: document(stored) for each, stored in changed.items()}

        return self._patiently(attempt)

    def forget(self, ids: Sequence[StateId]) -> int:
        """Remove documents without a tombstone, in one transaction; return how many existed."""
        return self._patiently(
            lambda: forget_states(home(self.directory), ids, busy_ms=round(self._retry.busy_s * 1000))
        )

    def place(self, documents: Sequence[Document]) -> None:
        """Store documents of another backend unchanged, in one transaction."""
        stored = [StoredState(d.state_id, d.generation, to_text(d.content), d.changed_ms) for d in documents]
        self._patiently(lambda: place_states(home(self.directory), stored, busy_ms=round(self._retry.busy_s * 1000)))

    @contextmanager
    def lock(self, name: str, purpose: str) -> Iterator[None]:
        """Hold the lock of this name. The operating system frees the lock when the process dies."""
        from recovery.operational.locks import LOCKS_NAME, FileLock

        home(self.directory)
        with FileLock(self.directory / LOCKS_NAME, name, purpose, self._retry.longest_s):
            yield

    def _patiently(self, attempt: Callable[[], T]) -> T:
        def once() -> T:
            try:
                return attempt()
            except BusyPartition as error:
                raise Busy(str(error)) from error

        began_s = self._clock.elapsed_s()
        try:
            return self._retry.run(once)
        except Busy as error:
            waited_s = self._clock.elapsed_s() - began_s
            raise still_locked(home(self.directory), waited_s, lock_holder(self.directory)) from error


def same_place(one: Backend, other: Backend) -> bool:
    """Whether two backends hold the same documents. URIs that differ only in their settings count as the same place."""
    if isinstance(one, DirectoryBackend) and isinstance(other, DirectoryBackend):
        return home(one.directory).samefile(home(other.directory))
    return one.location == other.location


def to_text(content: Any) -> str | None:
    """Return content in the stored form. Values that are equal in Python may differ in the stored form: 1, 1.0 and
    true."""
    return None if content is None else json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def document(stored: StoredState) -> Document:
    """Return a stored document with its content as a value. Raises CorruptPartitionError for a document that is no
    JSON."""
    try:
        content = None if stored.content is None else json.loads(stored.content)
    except (ValueError, RecursionError) as error:
        raise CorruptPartitionError(f"the state {stored.state_id!r:.120} cannot be read: {error}") from None
    return Document(stored.state_id, stored.generation, content, stored.changed_ms)
