"""Spark's daemon for Python workers, importing PySpark from where it is installed.

Sessions of ours name this module as the daemon's. It repeats what `startup` does for processes of the JVM of a session:
executors beside it have not its environment. As in Spark's own daemon, nothing may start a thread before it forks.
"""

from __future__ import annotations

from recovery.spark.startup.sitecustomize import leave_archives

if __name__ == "__main__":
    leave_archives()

    import pyspark.daemon

    # Forked workers have it then; it starts no thread, as Arrow and NumPy do.
    import pyspark.worker

    pyspark.daemon.manager()
