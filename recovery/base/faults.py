"""Crash points: named places of the protocol at which a test can kill the process.

RECOVERY_CRASH_AT names one, with the number of the visit that kills: "close.2.snaps:3" dies by SIGKILL at the third
visit. Without the variable, visiting a point costs one comparison. The names are those of the numbered steps in the
docstrings of `recovery.epochs.closer` and in `recovery.spark.run.execution`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

VARIABLE = "RECOVERY_CRASH_AT"

_target, _, _count = os.environ.get(VARIABLE, "").partition(":")
_visits: Counter[str] = Counter()
_lock = threading.Lock()


def reach(point: str) -> None:
    """Record that the protocol is at `point`; die here if a test asked for that."""
    if not _target or point != _target:
        return
    with _lock:
        _visits[point] += 1
        if _visits[point] == int(_count or 1):
            os.kill(os.getpid(), signal.SIGKILL)
