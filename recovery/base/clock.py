"""The clock as an argument, and the recovery clock."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from recovery.base.reserved import CLOCK_STEP
from recovery.base.untrusted_json import Number, decode_json
from recovery.errors import CorruptPartitionError

BOOT_KEY = "boot"

LATEST_MS = 253_370_764_800_000
"""The beginning of the year 9999: Python has no later year, and no clock shows one."""


class Uptime(NamedTuple):
    """How long a machine has been up, in milliseconds, and the id of the boot that it counts from."""

    boot: str
    up_ms: int


class Clock(Protocol):
    """Wall time, for people, and elapsed time, for decisions."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 by this machine's clock, which may jump."""
        ...

    def elapsed_s(self) -> float:
        """Return seconds since an arbitrary moment; never goes back, and no clock change moves it."""
        ...

    def uptime(self) -> Uptime | None:
        """Return the time since the machine started, which successive processes can compare; no clock change moves it.
        None if the system does not provide it."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def elapsed_s(self) -> float:
        return time.monotonic()

    def uptime(self) -> Uptime | None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                return Uptime(boot_id(), time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)
        return None


def boot_id() -> str:
    """Return the id of this start of the machine. Raises OSError if the system does not provide it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class ClockReading(msgspec.Struct, frozen=True):
    """The recovery clock and the machine's uptime at one moment."""

    clock_ms: Number
    boot: str
    up_ms: Number


def _unreadable(why: str) -> CorruptPartitionError:
    return CorruptPartitionError(f"the row of step {CLOCK_STEP} cannot be read: {why}")


class RecoveryClock:
    """The time by which epochs age: it continues across executions and never goes back.

    Within an execution it follows elapsed time, and between executions the machine's uptime, so a jump of the machine's
    clock changes no decision. If the machine was restarted or replaced, only wall time is left; it counts if it went
    forward.
    """

    def __init__(self, clock: Clock, last_ms: int, last_wall_ms: int | None, kept: Mapping[str, str | bytes]) -> None:
        """`last_ms` is the newest recorded reading, `last_wall_ms` the wall time then, or None. `kept` is the newest
        `row`."""
        self._clock = clock
        uptime = clock.uptime()
        reading = decode_json(kept[BOOT_KEY], _unreadable, ClockReading) if BOOT_KEY in kept else None
        if reading is not None and uptime is not None and reading.boot == uptime.boot:
            self._base_ms = max(last_ms, reading.clock_ms + max(0, uptime.up_ms - reading.up_ms))
        else:
            away_ms = 0 if last_wall_ms is None else max(0, clock.wall_ms() - last_wall_ms)
            self._base_ms = last_ms + away_ms
        self._started_s = clock.elapsed_s()

    def now_ms(self) -> int:
        """Return milliseconds on the recovery clock."""
        return self._base_ms + int((self._clock.elapsed_s() - self._started_s) * 1000)

    def row(self, now_ms: int) -> dict[str, str | bytes | None]:
        """Return what an epoch closed at `now_ms` keeps for later executions, by key of step `$clock`."""
        uptime = self._clock.uptime()
        if uptime is None:
            return {BOOT_KEY: None}
        return {BOOT_KEY: msgspec.json.encode(ClockReading(now_ms, uptime.boot, uptime.up_ms)).decode()}
