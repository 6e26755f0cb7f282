"""Spark's daemon for Python workers, importing PySpark from where it is installed.

Sessions of ours name this module as the daemon's. For workers of the session's JVM it repeats what `startup` has done;
executors in other JVMs do not have that environment.

As in Spark's own daemon, nothing may start a thread before it forks.
"""

from __future__ import annotations

from recovery.spark.startup.sitecustomize import leave_archives

if __name__ == "__main__":
    leave_archives()

    import pyspark.daemon

    # Forked workers have it then; it starts no thread, as Arrow and NumPy do.
    import pyspark.worker

    pyspark.daemon.manager()
