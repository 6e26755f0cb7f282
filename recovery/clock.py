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
