"""What goes over an owner's connections: counts, times of calls, and refusals for the log."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

NEWEST = 1_000
"""The number of calls whose times are kept."""
QUIET_S = 60.0
"""A refusal is logged once in this time; the next line says how often it was repeated."""
MOST_TEXTS = 100
"""Different refusals that are logged in this time. Further ones are not: clients without a secret fill no disk."""


@dataclass(slots=True)
class ServerCounts:
    """What a server has done. Threads add to it without a lock, so a number may be a little low. second_token:
    connections that used another token than the first. file_errors: calls that ended with an error of a file."""

    proven: int = 0
    refused: int = 0
    calls: int = 0
    second_token: int = 0
    reconnections: int = 0
    file_errors: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0


class CallTimes:
    """The times of the newest calls. Any thread may call it."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=NEWEST)

    def add(self, took_s: float) -> None:
        """Take the time of a call."""
        self._newest.append(took_s)

    def percentiles(self, *shares: float) -> list[float | None]:
        """Return the time within which each share of the newest calls was done; None if there were no calls."""
        times = sorted(self._newest.copy())
        return [times[min(len(times) - 1, int(share * len(times)))] if times else None for share in shares]


class Repeats:
    """Lets a text through once in `QUIET_S`, and `MOST_TEXTS` in that time. So a client that tries again and again
    fills no log. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: dict[str, tuple[float, int]] = {}
        """When each text was let through, and how often it came since."""

    def __call__(self, text: str) -> str | None:
        """Return the text, with how often it was kept back before; None to keep it back."""
        now_s = time.monotonic()
        with self._lock:
            said_s, kept_back = self._said.get(text, (None, 0))
            if said_s is not None and now_s - said_s < QUIET_S:
                self._said[text] = said_s, kept_back + 1
                return None
            self._said.pop(text, None)
            if len(self._said) == MOST_TEXTS:
                oldest = next(iter(self._said))
                if now_s - self._said[oldest][0] < QUIET_S:
                    return None
                del self._said[oldest]
            self._said[text] = now_s, 0
        return f"{text} (and {kept_back} times before)" if kept_back else text
