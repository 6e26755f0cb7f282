"""Starting Spark so that it suits a recovery run: found Java, quiet, and not killed by our signals."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar

from recovery.errors import ConfigurationError, SparkUnavailableError
from recovery.signals import STOPPING
from recovery.spark import local_files
from recovery.spark.classes import archive_options, archive_path
from recovery.spark.java import choose_java, java_home

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

_NOISE = re.compile(
    r"WARNING: Using incubator modules|Using Spark's default log4j profile|Using Spark's repl log4j profile"
    r"|Setting default log level to|To adjust logging level use|^Picked up |^WARNING: .*(sun.misc.Unsafe|terminally)"
    r"|^WARNING: (A (terminally|restricted)|Please consider|Use --enable-native|Restricted methods|package )"
)
_END_S = 5
"""How long a JVM may take to end by itself."""
_ONE_HOST = re.compile(r"local(\[[^\]]*\])?|local-cluster\[.*\]|spark://(localhost|127\.[\d.]+)(:\d+)?")
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "2g",
    "spark.driver.host": "localhost",
    "spark.driver.bindAddress": "127.0.0.1",
    # Two tasks are to share a file of some hundred KiB, not only one of 4 MiB: the slower one is waited for.
    "spark.sql.files.openCostInBytes": str(256 << 10),
    # Where Spark sorts, one record batch of a step's input is a chunk of its loop.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
    # Over TCP a task waits some 40 ms until the last packet for its Python worker is on its way.
    "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),
    # Of Spark's two ways to write its checkpoint, the one that starts fewer processes for a local file. Both rename a
    # file when it is complete, and neither syncs it; that of a run need not outlive it.
    FILE_MANAGER: "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
}


def create_session(name: str, *, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> Any:
    """A SparkSession of this process's own. Raises SparkUnavailableError.

    A signal to the process group, or to every process of a unit, does not kill the JVM under a running micro-batch;
    it ends when this process does, however that dies, and when this raises.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    prepare_environment()
    _quieten()
    settings = SparkConf(loadDefaults=False).setMaster(master).setAppName(name)
    for key, value in {**DEFAULTS, **_daemon(), **(conf or {})}.items():
        settings.set(key, value)
    gateway = None
    try:
        given = settings.get("spark.driver.extraJavaOptions", "")
        shared = archive_options(archive_path(java_home()), given)
        settings.set("spark.driver.extraJavaOptions", f"{_log4j_options()} {shared} {given}".strip())
        if SparkContext._gateway is None:
            # A process has one JVM: later contexts are made in it.
            gateway = _launch(settings)
            _forward(gateway.proc.stderr)
        with _signal_kept():
            context = SparkContext(conf=settings, gateway=gateway)
        context.setLogLevel("ERROR")
        session = SparkSession(context)
        local_files.install(session)
    except Exception as error:
        # The text of Java's errors is in the JVM.
        text = str(error).strip() or repr(error)
        if gateway is not None:
            _end(gateway)
        raise SparkUnavailableError(
            f"Spark did not start: {text.splitlines()[0]}",
            cause="Java, the master or a --conf setting; see the lines above.",
            remedy="Check the settings; with --debug the whole error is shown.",
        ) from RuntimeError(text).with_traceback(error.__traceback__)
    except BaseException:
        if gateway is not None:
            _end(gateway)
        raise
    return session


@contextlib.contextmanager
def _signal_kept() -> Iterator[None]:
    """Whoever handles SIGINT goes on doing so: PySpark puts a handler of its own in the place of any."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread() and before is not signal.default_int_handler:
        signal.signal(signal.SIGINT, before)


class _Starting(subprocess.Popen[bytes]):
    """The JVM's process, known from the moment at which it begins: the launch gives it away only when it succeeds."""

    launch: ClassVar[_Starting | None] = None

    def __init__(self, command: Sequence[str], *, env: dict[str, str], **options: Any) -> None:
        self.told = Path(env["_PYSPARK_DRIVER_CONN_INFO_PATH"]).parent
        _Starting.launch = self
        options["preexec_fn"] = _ignore_signals
        super().__init__(command, env={**env, **_for_python(env.get("PYTHONPATH"))}, **options)


def _ignore_signals() -> None:
    """In the process that becomes the JVM: a signal that a supervisor sends to all processes of a run is the driver's
    to act on. A JVM leaves alone what was ignored when it began, and it ends with its standard input."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def _launch(settings: SparkConf) -> Any:
    """The gateway to a new JVM, which is gone when this raises.

    A JVM that cannot write where it is reached, because the launch was left, would otherwise never end.
    """
    from pyspark import java_gateway

    usual, java_gateway.Popen = java_gateway.Popen, _Starting
    try:
        return java_gateway.launch_gateway(settings, {"start_new_session": True, "stderr": subprocess.PIPE})
    except BaseException:
        abandon_launch()
        if _Starting.launch is not None:
            _Starting.launch.wait()
        raise
    finally:
        java_gateway.Popen = usual
        _Starting.launch = None


def abandon_launch() -> None:
    """Kill the JVM that is being launched, if one is. Takes no locks, so that a signal handler may call it."""
    process = _Starting.launch
    if process is not None:
        if getattr(process, "pid", None) is not None:
            _kill(process)
        shutil.rmtree(process.told, ignore_errors=True)


def _end(gateway: Any) -> None:
    """End a JVM on which no session could be made, so that the next one begins anew."""
    from pyspark import SparkContext

    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    process = gateway.proc
    try:
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    finally:
        _kill(process)
        process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    # Its own session: Spark's launcher script may have a process beside it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _quieten() -> None:
    """Have PySpark not print what it raises as well: ten kilobytes of JSON for a column's name that is misspelt."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _daemon() -> dict[str, str]:
    """Our daemon for Python workers, where they run this Python, in which it is installed."""
    return {"spark.python.daemon.module": "recovery.spark.daemon"} if _runs_this_python() else {}


def _for_python(path: str | None) -> dict[str, str]:
    """The path of the JVM's Python processes with what they do first, where they run this Python: Spark starts some
    for each source written in Python, with modules of its own."""
    first = str(Path(__file__).resolve().with_name("startup"))
    return {"PYTHONPATH": os.pathsep.join(filter(None, [first, path]))} if _runs_this_python() else {}


def _runs_this_python() -> bool:
    """Whether the Python processes of Spark run the Python of this one, by whatever name it has in its directory."""
    given = shutil.which(os.environ.get("PYSPARK_PYTHON", ""))
    this = Path(sys.executable)
    return given is not None and Path(given).parent == this.parent and this.samefile(given)


def is_on(spark: SparkSession, setting: str) -> bool:
    """Whether a setting that is true or false is true in a session, which takes it in any case of letters."""
    return str(spark.conf.get(setting)).strip().lower() == "true"


def check_master(master: str) -> None:
    """Raises ConfigurationError for masters whose executors may run on other hosts: tasks reach the recovery
    partitions as files of this one."""
    if not _ONE_HOST.fullmatch(master):
        raise ConfigurationError(
            f"master {master!r} is not supported",
            cause="Its executors may run on hosts that do not share this host's files.",
            remedy="Use local[*], local-cluster[...] or a standalone master on the loopback interface.",
        )


def prepare_environment(*paths: str) -> None:
    """Environment that the JVM and its Python workers inherit: Java, this Python, and where to import from.

    Must come before the JVM starts. Raises SparkUnavailableError when no Java is to be had.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Arrow's own allocator keeps some 40 MiB more in each worker, and is no faster for what tasks do.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    package_root = str(Path(__file__).resolve().parents[2])
    given = os.environ.get("PYTHONPATH", "")
    wanted = [*paths, *([] if "site-packages" in package_root else [package_root])]
    known = given.split(os.pathsep) if given else []
    added = [path for path in dict.fromkeys(wanted) if path not in known]
    if added:
        os.environ["PYTHONPATH"] = os.pathsep.join([*added, *known])
    choose_java()


def _log4j_options() -> str:
    """Java options that make Spark log errors only, unless the user has a configuration of their own."""
    if os.environ.get("SPARK_CONF_DIR") or os.environ.get("SPARK_HOME"):
        return ""
    return f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def _forward(stream: IO[bytes]) -> threading.Thread:
    """Pass the JVM's error output on, without the lines that say nothing to anyone; the thread ends with it."""

    def copy() -> None:
        for line in stream:
            text = line.decode(errors="replace")
            # Whoever has taken its place may have closed it, and the JVM waits for what nobody reads.
            with contextlib.suppress(OSError, ValueError):
                if not _NOISE.search(text):
                    sys.stderr.write(text)
                    sys.stderr.flush()

    thread = threading.Thread(target=copy, name="jvm-stderr", daemon=True)
    thread.start()
    return thread
