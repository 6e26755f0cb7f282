"""Who works for tasks, and when: a limit for the whole service, and turns of the directories that it serves.

At most two calls per processor run at a time. A directory may always have one call under way, whatever the others do;
besides, a turn that becomes free goes to the waiting directory that has the fewest. So a flow that floods its
directory, or whose disk hangs, cannot keep the tasks of another flow out.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator

from recovery.wire.traffic import CallTimes

CALLS_PER_PROCESSOR = 2


class TurnPool:
    """The turns that the directories of a service share."""

    def __init__(self, most: int | None = None) -> None:
        """most: how many there are; None: by the processors of this host."""
        self._left = CALLS_PER_PROCESSOR * (os.cpu_count() or 1) if most is None else most
        """Turns that are free; below zero, where directories had a call of their own beyond them."""
        self._lock = threading.Lock()
        self._queues: dict[Turns, deque[threading.Event]] = {}
        """What each call waits for, by directory."""

    def acquire(self, turns: Turns) -> None:
        """Wait for a turn of a directory."""
        gate = threading.Event()
        with self._lock:
            if turns.running == 0 or (self._left > 0 and not self._queues):
                self._begin(turns)
                return
            self._queues.setdefault(turns, deque()).append(gate)
            turns.waiting += 1
        gate.wait()

    def release(self, turns: Turns) -> None:
        """Give a turn back, and let in whose turn it is."""
        with self._lock:
            turns.running -= 1
            self._left += 1
            if turns.running == 0 and turns in self._queues:
                self._let_in(turns)
            elif self._left > 0 and self._queues:
                self._let_in(min(self._queues, key=lambda each: each.running))

    def _begin(self, turns: Turns) -> None:
        turns.running += 1
        self._left -= 1

    def _let_in(self, turns: Turns) -> None:
        queue = self._queues[turns]
        gate = queue.popleft()
        if not queue:
            del self._queues[turns]
        turns.waiting -= 1
        self._begin(turns)
        gate.set()


class Turns:
    """The turns of the tasks of one directory."""

    def __init__(self, pool: TurnPool | None = None) -> None:
        """pool: what other directories share, too; None: there are none."""
        self.times = CallTimes()
        """From when a call asks for a turn until it gives the turn back."""
        self.waiting = 0
        """The number of calls that wait for a turn. As `running`, of the pool."""
        self.running = 0
        self.average_bytes: dict[str, float] = {}
        """Size of a state by step, as far as known: how many are read at a time."""
        self._pool = pool or TurnPool()

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for a turn, and have it until the block ends."""
        began_s = time.monotonic()
        self._pool.acquire(self)
        try:
            yield
        finally:
            self._pool.release(self)
            self.times.add(time.monotonic() - began_s)
