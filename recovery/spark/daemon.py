"""Spark's daemon for Python workers, importing PySpark from where it is installed.

Sessions of ours name this module as the daemon's. For workers of the session's JVM it repeats what `startup` has done;
executors in other JVMs do not have that environment. And a worker whose task was ended, which finds its socket closed,
goes without the traceback that Spark's prints.

As in Spark's own daemon, nothing may start a thread before it forks.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from recovery.spark.startup.sitecustomize import leave_archives, leave_signals_to_driver

if __name__ == "__main__":
    leave_signals_to_driver()
    leave_archives()

    import pyspark.daemon

    # Forked workers have it then; it starts no thread, as Arrow and NumPy do.
    import pyspark.worker

    serve = pyspark.daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> Any:
        try:
            return serve(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            # At once: newer versions of Python tell, too, that what is left to write was not written.
            os._exit(0)

    pyspark.daemon.worker = worker
    pyspark.daemon.manager()
