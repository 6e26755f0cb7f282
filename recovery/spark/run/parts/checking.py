"""The full check of all partitions beside a run."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from recovery.spark.run.parts.part import Part
from recovery.storage.scan import log_bytes
from recovery.storage.verify import FullCheck, PartitionCheck, Verdict

CHECK_NICENESS = 10
PATIENCE_S = 15.0
AT_ONCE_BYTES = 16 << 20
"""Size of all partitions together that the full check reads in a few tenths of a second."""


class BackgroundCheck(Part):
    """A full check of all partitions beside the run. The check must pass before the first epoch is closed, and ends the
    run if it finds damage.

    The check gives way to the stream. A check that takes longer than a moment begins after the first micro-batch, when
    somebody waits for it, or after `PATIENCE_S`: the first output after a resume should not wait for a reader of
    everything. The check's threads have a lower priority.
    """

    name = "check"

    def __init__(self, checks: Sequence[FullCheck]) -> None:
        self._checks = checks
        self._may_begin = threading.Event()
        # The size of a file at an owner is not known.
        if all(isinstance(each, PartitionCheck) for each in checks) and _size_bytes(checks) <= AT_ONCE_BYTES:
            self._may_begin.set()
        self._pool = ThreadPoolExecutor(max(1, min(4, len(checks))), thread_name_prefix="check", initializer=_step_back)
        self._futures = [self._pool.submit(self._run, check) for check in self._checks]

    def batch_done(self) -> None:
        """Begin now; harmless if the check has begun."""
        self._may_begin.set()

    def may_close(self) -> None:
        """Wait for the result. Raises CorruptPartitionError naming the first damaged file."""
        self._may_begin.set()
        for future in self._futures:
            future.result().raise_if_damaged()

    def look(self) -> None:
        """Raise the damage found so far, without waiting."""
        for future in self._futures:
            if future.done():
                future.result().raise_if_damaged()

    def end(self, error: BaseException | None = None) -> None:
        """Stop the checks that still run; harmless if all are done."""
        for future, check in zip(self._futures, self._checks, strict=True):
            if not future.done() and not future.cancel():
                check.cancel()
        self._may_begin.set()
        self._pool.shutdown()

    def _run(self, check: FullCheck) -> Verdict:
        self._may_begin.wait(PATIENCE_S)
        return check.run()


def _size_bytes(checks: Sequence[FullCheck]) -> int:
    """Number of bytes to read; 0 for a missing file, which is reported when it is opened."""
    size_bytes = 0
    for each in checks:
        with contextlib.suppress(OSError):
            size_bytes += each.path.stat().st_size + log_bytes(each.path)
    return size_bytes


def _step_back() -> None:
    """Lower the calling thread's priority, where threads have their own, as on Linux."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), CHECK_NICENESS)
