"""What an owner does for tasks: each call gets a store of its own, and the deltas stay open between calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from recovery.errors import OwnerRefusedError
from recovery.owner.spool import MessageSpool, SpoolMemory
from recovery.storage.reach import reach
from recovery.storage.seam import TaskStore
from recovery.wire.messages import Rows


class TaskService:
    """Serves tasks from the partitions at an address of this host: a `recovery.wire.service.Service`."""

    def __init__(self, address: str, scratch: Path, memory: SpoolMemory | None = None) -> None:
        """address: see `PartitionStore.address`. scratch: a directory for what does not fit into memory. memory: what
        all messages together may take; None: as much as a process of its own may."""
        self._address = address
        self._scratch = scratch
        self._memory = memory or SpoolMemory()

    @contextlib.contextmanager
    def store(self, attempt: int = 0) -> Iterator[TaskStore]:
        """Yield a store for one call. The store's deltas are kept for the next call, until the execution ends. attempt:
        as in `reach`."""
        store, _ = reach(self._address, keep=True, attempt=attempt)
        try:
            yield store
        finally:
            store.release()

    @contextlib.contextmanager
    def aside(self) -> Iterator[MessageSpool]:
        """Yield room for the messages of one apply."""
        spool = MessageSpool(self._scratch, self._memory)
        try:
            yield spool
        finally:
            spool.close()

    def rows(self, call: Rows) -> Iterator[bytes]:
        """Refuse: a long reading would take turns from the tasks of the run."""
        raise OwnerRefusedError(f"the owner of a run does not send rows of step {call.step!r}")
