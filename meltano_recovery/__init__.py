"""Meltano's state in this package's operational state: an add-on for Meltano's entry points `meltano.state_backends`.

    state_backend:
      uri: recovery:///srv/db                 a recovery directory
      uri: recovery+s3://bucket/prefix        a backend elsewhere; also recovery+file, recovery+azure, recovery+gs

The state of a state id is the value of the process of this name in the namespace "meltano".
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from meltano.core.error import MeltanoError
from meltano.core.state_store.base import MeltanoState, StateIDLockedError, StateStoreManager

from recovery import ConfigurationError, RecoveryError, StateLockedError, StateManager
from recovery.operational.backends.open import DIRECTORY
from recovery.operational.ids import matches

NAMESPACE = "meltano"
SCHEME = "recovery"


class RecoveryStateStoreManager(StateStoreManager):
    """Meltano's interface to a store of state, on a StateManager.

    In a recovery directory the operating system holds the locks, so Meltano's two settings for them matter only for
    other places. Errors are MeltanoErrors, with their remedy as the instruction.
    """

    label = "recovery"

    def __init__(
        self,
        uri: str,
        lock_timeout_seconds: float | None = None,
        lock_retry_seconds: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        leases = {"lock_timeout_seconds": lock_timeout_seconds, "lock_retry_seconds": lock_retry_seconds}
        with _as_meltano_errors():
            self._state = _opened(uri, {name: value for name, value in leases.items() if value is not None})

    def set(self, state: MeltanoState) -> None:
        """Set the state of a state id; durable when it returns."""
        with _as_meltano_errors():
            self._scoped(state.state_id).set(state.to_dict())

    def get(self, state_id: str) -> MeltanoState | None:
        """Return the state of a state id, None if it has none."""
        with _as_meltano_errors():
            found = self._scoped(state_id).get()
        return None if found is None else _state(state_id, found)

    def delete(self, state_id: str) -> None:
        """Remove the state of a state id."""
        with _as_meltano_errors():
            self._scoped(state_id).delete()

    def get_all(self, pattern: str | None = None) -> Iterable[MeltanoState]:
        """Return all states whose ids a glob selects, with one read."""
        with _as_meltano_errors():
            found = self._state.process_states(NAMESPACE)
        return [_state(state_id, each) for state_id, each in found.items() if matches(state_id, pattern)]

    def get_state_ids(self, pattern: str | None = None) -> Iterable[str]:
        """Return the state ids that a glob selects."""
        return [state.state_id for state in self.get_all(pattern)]

    @contextmanager
    def acquire_lock(self, state_id: str, *, retry_seconds: float = 1) -> Generator[None]:
        """Hold the lock of a state id. Raises StateIDLockedError if others hold it for too long."""
        with _as_meltano_errors(), self._state.lock(f"{NAMESPACE}/{state_id}", f"state of {state_id}"):
            yield

    def _scoped(self, state_id: str) -> Any:
        return self._state.process_state(NAMESPACE, state_id)


def _opened(uri: str, leases: dict[str, float]) -> StateManager:
    scheme, _, rest = uri.partition(":")
    if scheme == SCHEME:
        if not rest.startswith("///") or "?" in rest:
            raise ConfigurationError(
                f"the state backend {uri!r:.120} names no recovery directory",
                cause="Three slashes stand before the path, and nothing follows it.",
                remedy="Write recovery:///srv/db, the directory made by: python -m recovery init /srv/db 1",
            )
        # Not where RECOVERY_STATE_BACKEND leads: Meltano's setting counts.
        return StateManager(rest.removeprefix("//"), backend=DIRECTORY)
    place = uri.removeprefix(f"{SCHEME}+")
    given = "&".join(f"{name}={value}" for name, value in leases.items() if f"{name}=" not in place)
    return StateManager(backend=f"{place}{'&' if '?' in place else '?'}{given}" if given else place)


def _state(state_id: str, found: Any) -> MeltanoState:
    if not isinstance(found, dict) or not found.keys() <= {"completed", "partial"}:
        raise MeltanoError(
            f"the state of {state_id!r:.120} is not in the form of Meltano's",
            instruction="Another program wrote it: set it again, or clear it",
        )
    return MeltanoState(state_id, partial_state=found.get("partial"), completed_state=found.get("completed"))


@contextmanager
def _as_meltano_errors() -> Iterator[None]:
    try:
        yield
    except StateLockedError as error:
        raise StateIDLockedError(str(error)) from error
    except RecoveryError as error:
        raise MeltanoError(f"{type(error).__name__}: {error.found}", instruction=error.remedy) from error
