"""What every Python process that Spark starts does first: PySpark is imported from where it is installed.

Spark puts archives in front of the path of its Python processes, in which it carries PySpark and its own classes.
Modules come from there as source, to be compiled by each process, and every task has the list of what is in each read
again. Python imports a module of this name when it starts, before it looks for what it is to run; sessions of ours have
its directory in the `PYTHONPATH` of their JVM. One of the same name behind it on the path has its turn.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import sys
from pathlib import Path

_ARCHIVE = re.compile(r".*[/\\](python[/\\]lib[/\\](pyspark|py4j-[\w.]+-src)\.zip|jars[/\\]spark-core_[\w.-]+\.jar)")
_NAME = "sitecustomize"


def leave_archives() -> None:
    """Take Spark's archives off the path where the same is installed beside them. Before PySpark is imported."""
    path = sys.path.copy()
    sys.path[:] = [each for each in path if not _ARCHIVE.fullmatch(each)]
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "py4j")):
        sys.path[:] = path
    for each in filter(_ARCHIVE.fullmatch, set(path) - set(sys.path)):
        sys.path_importer_cache.pop(each, None)


def _go_on() -> None:
    """Run the module in whose place this one was imported, if there is one."""
    here = Path(__file__).parent
    sys.path[:] = [each for each in sys.path if Path(each) != here]
    spec = importlib.machinery.PathFinder.find_spec(_NAME)
    if spec is not None and spec.loader is not None:
        sys.modules[_NAME] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == _NAME:
    leave_archives()
    _go_on()
