"""The key by which the tasks of a driver process prove themselves to the process that has their partitions."""

from __future__ import annotations

import os
import secrets

_made: tuple[int, bytes] | None = None


def task_key() -> bytes:
    """Return 32 random bytes that only this process has, always the same."""
    global _made
    if _made is None or _made[0] != os.getpid():
        _made = os.getpid(), secrets.token_bytes(32)
    return _made[1]
