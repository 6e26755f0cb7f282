"""Spark's daemon for Python workers, importing PySpark from where it is installed.

Sessions that this package makes name this module as the daemon. For workers of the session's JVM it repeats what
`startup` has done; executors in other JVMs do not have that environment. A worker whose task was ended finds its socket
closed, and exits without the traceback that Spark's daemon prints. A worker ends when its daemon does, however the
daemon ended. What a function or a data source has raised is reported also if its text is not valid UTF-8.

As in Spark's own daemon, nothing may start a thread before it forks.
"""

from __future__ import annotations

import builtins
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from recovery.base.tracebacks import sendable
from recovery.spark.jvm.startup.sitecustomize import GONE, leave_archives, leave_signals_to_driver

_PR_SET_PDEATHSIG = 1


def _say(*values: Any, **options: Any) -> None:
    """Print what Spark's daemon prints, except about a closed socket."""
    if not isinstance(sys.exc_info()[1], GONE):
        builtins.print(*values, **options)


def _ending_with(daemon: int) -> Callable[[], None]:
    """Return a function that makes a newly forked worker end with its daemon, which forks on one thread only. Spark's
    daemon ends its workers when its JVM has ended; nobody would after a SIGKILL of the daemon itself."""
    control = getattr(ctypes.CDLL(None), "prctl", None)

    def follow() -> None:
        # Processes that workers fork belong to the user.
        if control is not None and os.getppid() == daemon:
            control(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return follow


if __name__ == "__main__":
    leave_signals_to_driver()
    leave_archives()

    import pyspark.util

    # First: the modules of workers import this function by its name, and some versions of the daemon import one.
    report = pyspark.util.handle_worker_exception

    def reported(error: BaseException, *given: Any) -> None:
        report(sendable(error), *given)

    pyspark.util.handle_worker_exception = reported

    import pyspark.daemon

    if sys.argv[1:2] in ([], ["pyspark.worker"]):
        # Forked workers then have it imported. It starts no thread, unlike Arrow and NumPy.
        import pyspark.worker

    serve = pyspark.daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> Any:
        try:
            return serve(sock, authenticated)
        except GONE:
            # Skip Python's own exit: newer versions also report output that could not be written.
            os._exit(0)

    pyspark.daemon.worker = worker
    pyspark.daemon.print = _say
    os.register_at_fork(after_in_child=_ending_with(os.getpid()))
    pyspark.daemon.manager()
