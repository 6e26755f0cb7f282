"""Time as an argument: what the rest of the package may ask of a clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time, for people, and elapsed time, for decisions."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 by this machine's clock, which may jump."""
        ...

    def elapsed_s(self) -> float:
        """Seconds from an arbitrary moment; never goes back, and no clock change moves it."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def elapsed_s(self) -> float:
        return time.monotonic()


class RecoveryClock:
    """The time by which epochs age: it goes on over executions and never goes back.

    Within an execution it follows elapsed time, so a machine's clock that jumps changes no decision. Between
    executions wall time is all there is; it counts when it went forward.
    """

    def __init__(self, clock: Clock, last_ms: int, last_wall_ms: int | None) -> None:
        """`last_ms` is its newest recorded reading, `last_wall_ms` the wall time then; None when there is none."""
        self._clock = clock
        away_ms = 0 if last_wall_ms is None else max(0, clock.wall_ms() - last_wall_ms)
        self._base_ms = last_ms + away_ms
        self._started_s = clock.elapsed_s()

    def now_ms(self) -> int:
        """Milliseconds on the recovery clock."""
        return self._base_ms + int((self._clock.elapsed_s() - self._started_s) * 1000)
