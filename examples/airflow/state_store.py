"""Airflow's task and asset state store in this package's operational state: a backend for Airflow 3.3 and newer.

    [state_store]
    backend = state_store.RecoveryStoreBackend

This file has to be importable where Airflow's API server runs. RECOVERY_DIRECTORY names the recovery directory, or
RECOVERY_STATE_BACKEND a place that several machines reach, such as s3://bucket/airflow. What Airflow keeps is then in
`recovery state scopes`, and in each copy of the directory.
"""

from __future__ import annotations

import asyncio
import os
from datetime import datetime
from typing import Any

from airflow.state import AssetScope, BaseStoreBackend, StoreScope, TaskScope

from recovery import KeyedState, StateManager


class RecoveryStoreBackend(BaseStoreBackend):
    """Airflow's keys as keys of a KeyedState; values are the JSON texts that Airflow gives. `session` is not needed:
    each call is durable when it returns."""

    def __init__(self) -> None:
        self._state = StateManager(os.environ.get("RECOVERY_DIRECTORY"))

    def get(self, scope: StoreScope, key: str, *, session: Any = None) -> str | None:
        """Return the text of a key, None if it has none."""
        return self._store(scope).get(key)

    def set(
        self, scope: StoreScope, key: str, value: str, *, expires_at: datetime | None = None, session: Any = None
    ) -> None:
        """Set the text of a key; Airflow has already applied its default retention to `expires_at`."""
        self._store(scope).set(key, value, retention=expires_at or "never")

    def delete(self, scope: StoreScope, key: str, *, session: Any = None) -> None:
        """Remove a key."""
        self._store(scope).delete(key)

    def clear(self, scope: StoreScope, *, all_map_indices: bool = False, session: Any = None) -> None:
        """Remove all keys of a scope."""
        self._store(scope).clear(all_map_indices=all_map_indices)

    async def aget(self, scope: StoreScope, key: str, *, session: Any = None) -> str | None:
        """Do as `get`, without blocking the event loop."""
        return await asyncio.to_thread(self.get, scope, key)

    async def aset(
        self, scope: StoreScope, key: str, value: str, *, expires_at: datetime | None = None, session: Any = None
    ) -> None:
        """Do as `set`, without blocking the event loop."""
        await asyncio.to_thread(self.set, scope, key, value, expires_at=expires_at)

    async def adelete(self, scope: StoreScope, key: str, *, session: Any = None) -> None:
        """Do as `delete`, without blocking the event loop."""
        await asyncio.to_thread(self.delete, scope, key)

    async def aclear(self, scope: StoreScope, *, all_map_indices: bool = False, session: Any = None) -> None:
        """Do as `clear`, without blocking the event loop."""
        await asyncio.to_thread(self.clear, scope, all_map_indices=all_map_indices)

    def cleanup(self) -> None:
        """Remove what has expired."""
        self._state.clean_expired()

    def _store(self, scope: StoreScope) -> KeyedState:
        match scope:
            case TaskScope():
                return self._state.task_state_store(scope.dag_id, scope.task_id, scope.run_id, scope.map_index)
            case AssetScope(asset_id=int(asset_id)):
                return self._state.asset_state_store(asset_id=asset_id)
            case AssetScope(name=str(name)):
                return self._state.asset_state_store(name)
            case _:
                return self._state.asset_state_store(uri=scope.uri)
