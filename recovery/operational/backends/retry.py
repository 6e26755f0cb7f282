"""Bounded waiting for other writers: how long, and how often."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from recovery.base.intervals import Interval, parse_interval
from recovery.errors import ConfigurationError

T = TypeVar("T")


class Busy(Exception):  # noqa: N818 - it never leaves the package: users see the error made from it
    """An attempt met another writer or a backend that is briefly unavailable; trying again is worthwhile."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a write waits for other writers.

    busy: how long one attempt waits, in seconds or as text like "5s".
    delays: the pauses between attempts, in seconds. There is one attempt more than there are pauses.
    jitter: a random time up to this is added to each pause, so that waiting writers do not all return at the same time.

    The total wait is bounded by `longest_s`. Raises ConfigurationError.
    """

    busy: Interval = 5.0
    delays: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    jitter: Interval = 1.0

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "busy", parse_interval(self.busy))
        set_field(self, "jitter", parse_interval(self.jitter))
        if isinstance(self.delays, str | bytes):
            raise ConfigurationError(f"delays={self.delays!r} is not a sequence of seconds", remedy="Write (1, 2, 4).")
        set_field(self, "delays", tuple(parse_interval(delay) for delay in self.delays))

    @property
    def busy_s(self) -> float:
        """How long one attempt waits, in seconds."""
        return parse_interval(self.busy)

    @property
    def longest_s(self) -> float:
        """The longest time that all attempts and pauses take together, in seconds."""
        return self.busy_s * (len(self.delays) + 1) + sum(self.delays) + parse_interval(self.jitter) * len(self.delays)

    def run(
        self,
        attempt: Callable[[], T],
        *,
        sleep: Callable[[float], None] = time.sleep,
        draw: Callable[[], float] = random.random,
    ) -> T:
        """Return the result of `attempt`; it is tried again if it raises Busy, and only then. Raises the last Busy of
        `attempt`."""
        for delay in self.delays:
            try:
                return attempt()
            except Busy:
                sleep(delay + draw() * parse_interval(self.jitter))
        return attempt()
