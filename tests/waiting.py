"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], timeout_s: float = 30) -> None:
    """Wait until the condition holds; fail after timeout_s."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, f"waited {timeout_s:g} s in vain"
        time.sleep(0.01)
