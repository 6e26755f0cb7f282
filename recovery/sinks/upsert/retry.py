"""A step that failed for a reason that passes is tried again.

Each step is one transaction that first looks at what the tables hold. So a step may also be tried again when its commit
was sent and the answer was lost: if it took effect, the next try finds that and changes nothing.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import TypeVar

from recovery.base.wording import counted
from recovery.sinks.upsert.reasons import DATABASE_ERRORS, Again, reason_of

TRIES = 10
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 10.0

Result = TypeVar("Result")


def with_retries(step: Callable[[], Result], is_running: Callable[[], bool], patience_s: float) -> Result:
    """Do a step, up to ten times within `patience_s` seconds as long as it fails for a reason that passes; return the
    step's result. is_running: whether the run has started. Raises the last error, which then says how often it was
    tried."""
    began_s = time.monotonic()
    for number in itertools.count(1):
        try:
            return step()
        except DATABASE_ERRORS as error:
            again = reason_of(error).again
            # A wrong address, or the right to read alone, does not pass.
            if again is Again.NEVER or (again is Again.RUNNING and not is_running()):
                raise
            elapsed_s = time.monotonic() - began_s
            # By lot: of two that have locked each other out, one is first.
            wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (number - 1)) * random.uniform(0.5, 1)
            if number == TRIES or elapsed_s + wait_s > patience_s:
                raise type(error)(
                    f"{error.found} (tried {counted(number, 'time')} in {elapsed_s:.1f} s)",
                    cause=error.cause,
                    remedy=error.remedy,
                ) from error.__cause__
        time.sleep(wait_s)
    raise AssertionError
