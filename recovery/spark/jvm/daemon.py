"""Spark's daemon for Python workers, importing PySpark from where it is installed.

Sessions of ours name this module as the daemon's. For workers of the session's JVM it repeats what `startup` has done;
executors in other JVMs do not have that environment. A worker whose task was ended, which finds its socket closed,
goes without the traceback that Spark's prints. And a worker ends when its daemon does, however that ended.

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

from recovery.spark.jvm.startup.sitecustomize import GONE, leave_archives, leave_signals_to_driver

_PR_SET_PDEATHSIG = 1


def _say(*values: Any, **options: Any) -> None:
    """What Spark's daemon prints, but for a socket that was found closed."""
    if not isinstance(sys.exc_info()[1], GONE):
        builtins.print(*values, **options)


def _ending_with(daemon: int) -> Callable[[], None]:
    """For a worker that was just forked: it ends with its daemon, which forks on one thread only. Spark's daemon ends
    its workers when its JVM has ended; nobody would after a SIGKILL of the daemon itself."""
    control = getattr(ctypes.CDLL(None), "prctl", None)

    def follow() -> None:
        # What workers fork themselves is the user's.
        if control is not None and os.getppid() == daemon:
            control(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return follow


if __name__ == "__main__":
    leave_signals_to_driver()
    leave_archives()

    import pyspark.daemon

    if sys.argv[1:2] in ([], ["pyspark.worker"]):
        # Forked workers have it then; it starts no thread, as Arrow and NumPy do.
        import pyspark.worker

    serve = pyspark.daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> Any:
        try:
            return serve(sock, authenticated)
        except GONE:
            # At once: newer versions of Python tell, too, that what is left to write was not written.
            os._exit(0)

    pyspark.daemon.worker = worker
    pyspark.daemon.print = _say
    os.register_at_fork(after_in_child=_ending_with(os.getpid()))
    pyspark.daemon.manager()
