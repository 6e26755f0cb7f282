"""Operational state in a store that the caller provides: an object with four methods and a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, runtime_checkable

from recovery.errors import ConfigurationError, StateBackendError, shown
from recovery.places.protocol import Conflict, FoundObject, ObjectVersions, Token

T = TypeVar("T")


@runtime_checkable
class StateStore(Protocol):
    """A store of small objects by path, for `StateManager(backend=…)`: a database, a service, a dict.

    All guarantees rest on the promise of `put`: of several writers that expect the same token, one succeeds.
    Marks, history, scoped state, locks with fencing numbers and digests are built on this store. A method that cannot
    answer raises OSError, which becomes a StateBackendError.
    """

    location: str
    """Where the store is, for people and to tell two stores apart; without credentials."""

    def get(self, path: str) -> tuple[bytes, Any] | None:
        """Return the content of an object and a token that stands for this content; None if there is no object."""
        ...

    def put(self, path: str, content: bytes, expected: Any | None) -> Any | None:
        """Write the whole object durably, if its token is still `expected` (None: if there is no object); return its
        new token. Otherwise write nothing, and return None."""
        ...

    def paths(self, prefix: str) -> Iterable[str]:
        """Return the paths of all objects below the directory `prefix`, "" for all."""
        ...

    def delete(self, path: str) -> None:
        """Remove an object; a missing object is not an error."""
        ...


class StoreObjects:
    """A StateStore as a `DocumentStore`."""

    def __init__(self, store: StateStore) -> None:
        if not isinstance(store, StateStore):
            raise ConfigurationError(
                f"{shown(store)} cannot be a state backend",
                cause="The object lacks location, get, put, paths or delete.",
                remedy="Give a URI, or an object with the methods of recovery.StateStore.",
            )
        self.location = str(store.location)
        self.versions: ObjectVersions | None = None
        self.unseen = ""
        self._store = store

    def get(self, path: str) -> FoundObject | None:
        found = self._ask(lambda: self._store.get(path))
        if found is None:
            return None
        content, token = found
        if not isinstance(content, bytes) or token is None:
            raise StateBackendError(
                f"get({path!r:.120}) gave {shown(found)}, not bytes and a token",
                path=self.location,
                cause="The store does not keep to the protocol of recovery.StateStore.",
                remedy="Correct it.",
            )
        return FoundObject(content, token)

    def put(self, path: str, content: bytes, expected: Token | None) -> Token:
        token = self._ask(lambda: self._store.put(path, content, expected))
        if token is None:
            raise Conflict(path)
        return token

    def paths(self, prefix: str) -> list[str]:
        return sorted(self._ask(lambda: self._store.paths(prefix)))

    def delete(self, path: str) -> None:
        self._ask(lambda: self._store.delete(path))

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except OSError as error:
            raise StateBackendError(str(error), path=self.location) from error
