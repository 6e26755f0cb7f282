"""Run first in every Python process that Spark starts: import PySpark from where it is installed, replace Spark's own
daemon with this package's, and end a process that serves only the JVM when the JVM ends, without a traceback.

Spark puts archives with PySpark and its own classes in front of the path of its Python processes. Each process compiles
the modules in them from source, and every task reads the list of their contents again. Python imports a module of this
name when it starts, before it looks for what to run; sessions that this package makes have its directory in the
`PYTHONPATH` of their JVM. A module of the same name behind it on the path still runs.

Signals that a supervisor sends to all processes of a run are left to the driver.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import re
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

_ARCHIVE = re.compile(r".*[/\\](python[/\\]lib[/\\](pyspark|py4j-[\w.]+-src)\.zip|jars[/\\]spark-core_[\w.-]+\.jar)")
_NAME = "sitecustomize"
_DAEMON_FILE = f"{os.sep}pyspark{os.sep}daemon.py"
SAFE_PATH, SAFE_PATH_MARK = "PYTHONSAFEPATH", "recovery"
"""The variable that keeps the current directory from the path, and the value by which the session sets it."""
_CLOSED_WITHIN_MS = 1000
_PACKAGE = "recovery"
_DAEMON, _OWN_DAEMON = "pyspark.daemon", f"{_PACKAGE}.spark.jvm.daemon"
_WATCH = "end-with-parent"
_POLL_S = 1.0
GONE = (BrokenPipeError, ConnectionResetError)
"""Errors of a process that writes to a JVM which needs nothing more from it, or has ended."""


def leave_archives() -> None:
    """Remove Spark's archives from the path if the same packages are installed. Call this before importing PySpark."""
    path = sys.path.copy()
    sys.path[:] = [each for each in path if not _ARCHIVE.fullmatch(each)]
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "py4j")):
        sys.path[:] = path
    for each in filter(_ARCHIVE.fullmatch, set(path) - set(sys.path)):
        sys.path_importer_cache.pop(each, None)


def leave_signals_to_driver() -> None:
    """Keep SIGTERM and Ctrl-C from ending this process and the workers that it forks: the driver gets them, too, and
    ends the run when the micro-batch is done, for which it needs its workers.

    Spark can still end a daemon by closing its standard input, a worker by SIGKILL, or by SIGHUP when its daemon ends,
    and any other process by SIGTERM with its standard input closed. Programs that users start do not inherit handlers,
    unlike ignored signals.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end_with_input)
    set_handler = signal.signal

    @functools.wraps(set_handler)
    def set_other_than_sparks(number: signal.Signals, handler: object) -> object:
        sparks = sys._getframe(1).f_code.co_filename.endswith(_DAEMON_FILE)
        if sparks and number in (signal.SIGTERM, signal.SIGINT):
            handler = _stay
        return set_handler(number, handler)  # type: ignore[arg-type]

    signal.signal = set_other_than_sparks  # type: ignore[assignment]


def _stay(*_: object) -> None:
    """The handler of Spark's daemon and of its workers: do nothing."""


def _end_with_input(number: int, _: object) -> None:
    """The handler of other processes: end if standard input is closed. Spark closes the process's input just after its
    SIGTERM, and nobody else does."""
    watched = select.poll()
    watched.register(0, 0)
    if watched.poll(_CLOSED_WITHIN_MS):
        os._exit(128 + number)


def end_with_parent() -> None:
    """End this process when its parent ends, whatever it is doing: a source's planner seldom reads its socket.

    The operating system's own way (PR_SET_PDEATHSIG) follows the parent's thread, and threads of a JVM come and go.
    """
    if any(thread.name == _WATCH for thread in threading.enumerate()):
        return
    parent = os.getppid()

    def watch() -> None:
        _wait_for_end(parent)
        os._exit(1)

    threading.Thread(target=watch, name=_WATCH, daemon=True).start()


def _wait_for_end(parent: int) -> None:
    try:
        waiting = select.poll()
        waiting.register(os.pidfd_open(parent), select.POLLIN)
        # By then the number may have been another process's.
        if os.getppid() == parent:
            waiting.poll()
    except (AttributeError, OSError):
        while os.getppid() == parent:
            time.sleep(_POLL_S)


def _leave_quietly() -> None:
    """Print nothing when the JVM has closed the connection: it does so in healthy runs, too."""
    shown, unraisable = sys.excepthook, sys.unraisablehook

    def show(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not issubclass(kind, GONE):
            shown(kind, error, trace)

    def show_unraisable(found: Any) -> None:
        if not issubclass(found.exc_type, GONE):
            unraisable(found)

    sys.excepthook, sys.unraisablehook = show, show_unraisable


def serves_a_jvm(arguments: list[str]) -> bool:
    """Whether these are the arguments of a Python that Spark has started."""
    return arguments[1:2] == ["-m"] and arguments[2].startswith("pyspark.")


def _prepare(arguments: list[str]) -> None:
    """Prepare this Python for the module of Spark's that its arguments name, if any."""
    if not serves_a_jvm(arguments):
        return
    if arguments[2] == _DAEMON:
        # When the JVM plans sources, it ignores the setting for the daemon.
        if importlib.util.find_spec(_PACKAGE) is not None:
            safely = ["-P"] if sys.flags.safe_path else []
            os.execv(sys.executable, [arguments[0], *safely, "-m", _OWN_DAEMON, *arguments[3:]])
        return
    _leave_quietly()
    end_with_parent()


def _go_on() -> None:
    """Run the `sitecustomize` in whose place this module was imported, if there is one."""
    here = Path(__file__).parent
    sys.path[:] = [each for each in sys.path if Path(each) != here]
    spec = importlib.machinery.PathFinder.find_spec(_NAME)
    if spec is not None and spec.loader is not None:
        sys.modules[_NAME] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == _NAME:
    leave_signals_to_driver()
    leave_archives()
    if os.environ.get(SAFE_PATH) == SAFE_PATH_MARK:
        # Programs that workers start are the user's.
        del os.environ[SAFE_PATH]
    _prepare(sys.orig_argv)
    _go_on()
