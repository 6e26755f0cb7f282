"""Something that takes long to read, which callers share: one thread reads it, and nobody waits longer than he may."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from recovery.base.clock import Clock
from recovery.base.threads import limited

T = TypeVar("T")


class _Reading(Generic[T]):
    """One reading: its value or its error, once it has ended."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.ended = threading.Event()
        self.value: T | None = None
        self.error: Exception | None = None
        self.waiting = 0
        """How many callers have asked for it."""


class Shared(Generic[T]):
    """The newest value of something, which a thread of its own reads while somebody asks. Any thread may call this.

    A reading that never ends, as on a disk that hangs, keeps that one thread, and none of the callers.
    """

    def __init__(self, read: Callable[[], T], is_fresh: Callable[[T], bool], clock: Clock, longest_s: float) -> None:
        """is_fresh: whether a value still serves. longest_s: the limit of one reading."""
        self._read, self._is_fresh, self._clock, self._longest_s = read, is_fresh, clock, longest_s
        self._lock = threading.Lock()
        self._value: T | None = None
        self._failure: Exception | None = None
        self._reading: _Reading[T] | None = None

    @property
    def is_there(self) -> bool:
        """Whether there is a value, fresh or not."""
        return self._value is not None

    @property
    def began_s(self) -> float | None:
        """When the reading that goes on began; None: none does."""
        reading = self._reading
        return None if reading is None else reading.began_s

    def begin(self, after: T | None = None) -> None:
        """Begin to read, if no value is fresh. after: a value that does not serve, fresh or not."""
        self._begun(after)

    def get(self, wait_s: float, after: T | None = None) -> T | None:
        """Return a fresh value; after `wait_s`, what the reading before has brought: a value, or an error, which is
        raised; None: there was none. Callers at the same time wait for one reading, also for one that fails. after: as
        for `begin`; it is not returned. Raises what reading raises."""
        reading = self._begun(after)
        if reading is None:
            return self._value
        if not reading.ended.wait(wait_s):
            value, failure = self._value, self._failure
            if failure is not None:
                raise failure.with_traceback(None)
            return None if value is after else value
        if reading.error is not None:
            raise reading.error.with_traceback(None)
        return reading.value

    def _begun(self, after: T | None) -> _Reading[T] | None:
        """Return the reading to wait for; None: the value serves."""
        with self._lock:
            value = self._value
            if self._reading is None:
                if value is not None and value is not after and self._is_fresh(value):
                    return None
                self._reading = _Reading(self._clock.elapsed_s())
                threading.Thread(target=self._work, args=(self._reading,), name="look", daemon=True).start()
            elif after is not None and value is not None and value is not after:
                return None
            self._reading.waiting += 1
            return self._reading

    def _work(self, reading: _Reading[T]) -> None:
        try:
            with limited(self._longest_s):
                reading.value = self._read()
        except Exception as error:
            reading.error = error
        with self._lock:
            self._failure = reading.error
            if reading.error is None:
                self._value = reading.value
            self._reading = None
        reading.ended.set()
