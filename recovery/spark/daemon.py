"""Spark's daemon for Python workers, importing PySpark from where it is installed.

Spark puts archives in front of the path of its workers, in which it carries PySpark and its own classes. Modules come
from there as source, to be compiled by every daemon, and every task has the list of what is in each read again.
Sessions of ours name this module as the daemon's. As in Spark's own, nothing may start a thread before it forks.
"""

from __future__ import annotations

import importlib.util
import re
import sys

_ARCHIVE = re.compile(r".*[/\\](python[/\\]lib[/\\](pyspark|py4j-[\w.]+-src)\.zip|jars[/\\]spark-core_[\w.-]+\.jar)")


def leave_archives() -> None:
    """Take Spark's archives off the path where the same is installed beside them. Before PySpark is imported."""
    path = sys.path.copy()
    sys.path[:] = [each for each in path if not _ARCHIVE.fullmatch(each)]
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "py4j")):
        sys.path[:] = path
    for each in filter(_ARCHIVE.fullmatch, set(path) - set(sys.path)):
        sys.path_importer_cache.pop(each, None)


if __name__ == "__main__":
    leave_archives()

    import pyspark.daemon

    # Forked workers have it then; it starts no thread, as Arrow and NumPy do.
    import pyspark.worker

    pyspark.daemon.manager()
