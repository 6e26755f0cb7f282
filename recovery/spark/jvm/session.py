"""Start Spark for a recovery run: find Java, keep Spark quiet, and keep the driver's signals from killing it."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recovery.config import DEFAULT_MASTER
from recovery.errors import RecoveryError, SparkUnavailableError
from recovery.host import private
from recovery.host.signals import EndingAfter, handled
from recovery.spark.clusters import BY_BIND_ADDRESS, check_master, is_cluster, is_kubernetes, is_one_process
from recovery.spark.jvm import cache, executors, local_files, prompt_sockets, versions
from recovery.spark.jvm.jars import advice, check_jars, check_loaded
from recovery.spark.jvm.java import choose_java, java_home
from recovery.spark.jvm.launch import Launch, LaunchError, abandon_launch, end, user_options
from recovery.spark.jvm.startup.sitecustomize import SAFE_PATH, SAFE_PATH_MARK
from recovery.spark.jvm.yarn_queue import TAGS, with_own_tag

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "2g",
    # Two tasks should share a file of some hundred KiB, not only one of 4 MiB: the micro-batch waits for the slower.
    "spark.sql.files.openCostInBytes": str(256 << 10),
    # If Spark sorts, a step's loop takes one record batch of its input as a chunk.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
    # Of Spark's two ways to write its checkpoint, this one starts fewer processes for a local file. Both rename a file
    # when it is complete, and neither syncs it; the checkpoint of a run need not outlive the run.
    FILE_MANAGER: versions.FILE_MANAGER,
}
"""Defaults for every master. Executors of a cluster get them too, so none depends on this host."""
SOCKETS = "spark.python.unix.domain.socket.enabled"
DEFAULTS_OF_ONE_HOST = {
    "spark.driver.host": "localhost",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    # Over TCP a task waits some 40 ms until the last packet for its Python worker is sent. On a cluster this is left to
    # the user: a container's directory for temporary files may have a longer path than a socket can have.
    SOCKETS: str(hasattr(socket, "AF_UNIX")).lower(),
}
"""The settings' defaults for masters whose executors run on this host."""
DEFAULTS_OF_CLUSTERS = executors.REPORTED
"""The settings' defaults for masters whose executors may run on other hosts. None depends on this host."""
STARTUP = Path(__file__).resolve().with_name("startup")
"""The directory whose `sitecustomize` runs first in Python processes of the JVM."""
_MADE: weakref.WeakSet[Any] = weakref.WeakSet()
"""The contexts of the sessions that `create_session` has made."""


class _Begun(NamedTuple):
    """A session that is being made. launch: the launch of the JVM; None if this process has a JVM. home: the home of a
    Java that leaves an archive of its classes; None if the JVM leaves none."""

    arguments: tuple[str, str, dict[str, str]]
    settings: SparkConf
    launch: Launch | None
    home: Path | None

    def abandon(self) -> None:
        if self.launch is not None:
            self.launch.abandon()
        if self.home is not None:
            cache.give_up(self.home)


_ahead: list[_Begun] = []
"""What `launching` has begun, until `create_session` takes that launch: one at most."""


@contextlib.contextmanager
def launching(name: str, *, master: str = DEFAULT_MASTER, conf: Mapping[str, str] | None = None) -> Iterator[None]:
    """Start the JVM now that `create_session` needs within this block, if it is called with the same arguments.

    On two cores a run's own imports, and its look at the partitions, then take no time of their own: 0.4 s. A signal
    ends the process and that JVM. Raises nothing: `create_session` does.
    """
    with handled(EndingAfter(abandon_launch)):
        with contextlib.suppress(Exception):
            _check(master, conf or {})
            _ahead.append(_begin(name, master, conf or {}))
        try:
            yield
        finally:
            _abandon_ahead()


def _check(master: str, conf: Mapping[str, str]) -> None:
    """Check the settings, and set the environment of a JVM."""
    from pyspark import SparkContext

    check_master(master, conf)
    check_jars(conf)
    if SparkContext._gateway is not None:
        check_loaded(conf, SparkContext._gateway.jvm.System.getProperty)
    prepare_environment(master=master)


def _begin(name: str, master: str, conf: Mapping[str, str]) -> _Begun:
    """Start a JVM if this process has none."""
    from pyspark import SparkContext

    settings = settings_of(name, master, conf)
    given = settings.get("spark.driver.extraJavaOptions", "")
    home = java_home()
    shared = cache.start_options(home, given)
    ours = [_log4j_options(), shared, f'"-Djava.io.tmpdir={private.home()}"', user_options()]
    settings.set("spark.driver.extraJavaOptions", " ".join(filter(None, [*ours, given])))
    launch = None
    if SparkContext._gateway is None:
        # A process has one JVM: later contexts are made in it.
        launch = Launch(settings, _for_cluster() if is_cluster(master) else _for_python())
    leaves = launch is not None and cache.leaves_archive(shared)
    return _Begun((name, master, dict(conf)), settings, launch, home if leaves else None)


def settings_of(name: str, master: str, conf: Mapping[str, str]) -> SparkConf:
    """Return the settings of a session, without the options of the driver's JVM. conf: the user's settings."""
    from pyspark import SparkConf

    settings = SparkConf(loadDefaults=False).setMaster(master).setAppName(name)
    for key, value in {**DEFAULTS, **_of_master(master), **conf}.items():
        settings.set(key, value)
    if master == "yarn":
        settings.set(TAGS, with_own_tag(settings.get(TAGS, "")))
    return settings


def _taken(name: str, master: str, conf: Mapping[str, str]) -> _Begun | None:
    """Take what `launching` has begun with these arguments; None if there is no such launch."""
    if _ahead and _ahead[0].arguments == (name, master, dict(conf)):
        return _ahead.pop()
    _abandon_ahead()
    return None


def _abandon_ahead() -> None:
    while _ahead:
        _ahead.pop().abandon()


def create_session(name: str, *, master: str = DEFAULT_MASTER, conf: Mapping[str, str] | None = None) -> Any:
    """Create a SparkSession with this process's own JVM. Raises SparkUnavailableError, or ConfigurationError for jars
    that are missing and for a setting with an unusable value.

    A signal to the process group, or to every process of a unit, does not kill the JVM under a running micro-batch.
    The JVM ends when this process does, however it ends, and when this function raises.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    conf = conf or {}
    _check(master, conf)
    _quieten()
    gateway = None
    try:
        begun = _taken(name, master, conf) or _begin(name, master, conf)
        if begun.launch is not None:
            gateway = begun.launch.gateway()
            if begun.home is not None:
                atexit.register(cache.leave, gateway, begun.home)
        with _signal_kept():
            context = SparkContext(conf=begun.settings, gateway=gateway)
        context.setLogLevel("ERROR")
        session = SparkSession(context)
        local_files.install(session)
        prompt_sockets.install(session)
        _MADE.add(context)
    except Exception as error:
        # Read the text before the JVM ends: it is kept there.
        text = str(error).strip() or repr(error)
        failed = _not_started(error, text, conf)
        if gateway is not None:
            end(gateway)
        raise failed from RuntimeError(text).with_traceback(error.__traceback__)
    except BaseException:
        if gateway is not None:
            end(gateway)
        raise
    return session


def _not_started(error: Exception, text: str, conf: Mapping[str, str]) -> RecoveryError:
    """Return the error for a session that could not be made. text: the exception's."""
    from recovery.spark.jvm.errors import with_java
    from recovery.spark.jvm.failure_table import STARTING
    from recovery.spark.jvm.failures import failure_of, reason_of

    packages = advice(conf, text)
    known = failure_of(with_java(error), STARTING) if packages is None else None
    if known is not None:
        return known
    cause, remedy = packages or (
        "This process may open too few files: ulimit -n says how many."
        if "Too many open files" in text or "java.security file" in text
        else "Java, the master or a setting of Spark (--conf, --properties-file).",
        "Check the settings; with --debug the whole error is shown.",
    )
    found = text if isinstance(error, LaunchError) else reason_of(text)
    return SparkUnavailableError(f"Spark did not start: {found}", cause=cause, remedy=remedy)


def _of_master(master: str) -> dict[str, str]:
    """Settings that depend on where executors run. On other hosts there are neither this process's directories nor,
    perhaps, this Python."""
    if not is_cluster(master):
        return {**DEFAULTS_OF_ONE_HOST, **daemon(), **_private(master)}
    # Executors connect to spark.driver.host on every cluster.
    return DEFAULTS_OF_CLUSTERS | ({BY_BIND_ADDRESS: "false"} if is_kubernetes(master) else {})


def _private(master: str) -> dict[str, str]:
    """Settings that keep other users of the machine out of the session: its files and sockets lie in a directory of
    this process, and its ports ask for a secret."""
    settings = {}
    if not os.environ.get("SPARK_LOCAL_DIRS"):
        settings["spark.local.dir"] = str(private.home())
    sockets = private.sockets()
    if sockets is None:
        settings[SOCKETS] = "false"
    else:
        settings["spark.python.unix.domain.socket.dir"] = str(sockets)
    if is_one_process(master):
        # With other masters Spark does not generate a secret by itself.
        settings["spark.authenticate"] = "true"
    return settings


@contextlib.contextmanager
def _signal_kept() -> Iterator[None]:
    """Restore the caller's handler of SIGINT, unless it is Python's default: PySpark replaces any handler."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread() and before is not signal.default_int_handler:
        signal.signal(signal.SIGINT, before)


class _Unless(logging.Filter):
    """Drops the messages with which Py4J logs an error that it also raises."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(("Exception while sending command", "There was an exception while exec"))


_unless = _Unless()


def _quieten() -> None:
    """Keep PySpark and Py4J from printing what they also raise: ten kilobytes of JSON for a misspelt column name, a
    traceback for a lost connection."""
    from pyspark.logger import PySparkLogger

    for each in (None, "py4j.clientserver"):
        logging.getLogger(each).addFilter(_unless)

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def daemon() -> dict[str, str]:
    """The setting for this package's daemon of Python workers, if they run this Python, where it is installed."""
    return {"spark.python.daemon.module": "recovery.spark.jvm.daemon"} if _is_this_python(_workers_python()) else {}


def _for_python() -> dict[str, str]:
    """The environment of the JVM on one host."""
    return _with_startup(_workers_python(), STARTUP)


def _for_cluster() -> dict[str, str]:
    """The environment of the driver's JVM on a cluster. Spark starts Python processes beside the driver too, for
    sources written in Python: by the name that executors run, for which the `PATH` leads to this Python unless the user
    names another one."""
    # On YARN, Spark gives executors the JVM's PYTHONPATH: no other host has this link.
    link = private.home() / STARTUP.name
    if not link.is_symlink():
        link.symlink_to(STARTUP, target_is_directory=True)
    if "PYSPARK_PYTHON" in os.environ:
        return _with_startup(_workers_python(), link)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {"PATH": path, **_with_startup(shutil.which("python3", path=path), link)}


def _with_startup(python: str | None, first: Path) -> dict[str, str]:
    """The `PYTHONPATH` that makes the JVM's Python processes run `startup` first, if `python`, which they run, is the
    Python of this process. Spark starts some Python processes for each source written in Python, with modules of its
    own. first: the directory of `startup`."""
    if not _is_this_python(python):
        return {}
    path = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(first), path])), **_safe_path()}


def _safe_path() -> dict[str, str]:
    """The setting that keeps the JVM's Python processes from importing from the current directory, unless this process
    does so itself: somebody else may have sent what lies there. `startup` takes the setting away again."""
    here = os.getcwd()  # noqa: PTH109 - Path.cwd() is compared as text below
    trusted = any(os.path.realpath(each or here) == os.path.realpath(here) for each in sys.path)
    return {} if trusted or os.environ.get(SAFE_PATH) else {SAFE_PATH: SAFE_PATH_MARK}


def _workers_python() -> str | None:
    return shutil.which(os.environ.get("PYSPARK_PYTHON", ""))


def _is_this_python(python: str | None) -> bool:
    """Whether a path is that of this process's Python, by whatever name it has in its directory."""
    this = Path(sys.executable)
    return python is not None and Path(python).parent == this.parent and this.samefile(python)


def is_made_here(spark: SparkSession) -> bool:
    """Whether `create_session` has made the session, or another session of its context."""
    return spark.sparkContext in _MADE


def settings_in(context: SparkContext) -> dict[str, str]:
    """Return the settings of a context. They are read in one piece: by PySpark's own way each name and each value is a
    call of the JVM."""
    settings = context._jsc.sc().getConf().getAll()
    pairs = context._gateway.jvm.scala.Predef.genericWrapArray(settings).mkString("\0").split("\0")
    # Scala writes a pair as (NAME,VALUE).
    return dict(pair[1:-1].split(",", 1) for pair in pairs)


def is_on(spark: SparkSession, setting: str) -> bool:
    """Whether a boolean setting is true in a session, whatever the case of its letters."""
    return str(spark.conf.get(setting)).strip().lower() == "true"


def prepare_environment(*paths: str, master: str = DEFAULT_MASTER) -> None:
    """Set the environment that the JVM and its Python workers inherit: Java, this Python, and where to import from.

    On a cluster Java alone: hosts have a Python and packages of their own, and --py-files brings modules to them. Must
    come before the JVM starts. Raises SparkUnavailableError if no Java is available.
    """
    # Arrow's own allocator keeps some 40 MiB more in each worker, and is not faster for tasks.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if not is_cluster(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        package_root = str(Path(__file__).resolve().parents[3])
        given = os.environ.get("PYTHONPATH", "")
        wanted = [*paths, *([] if "site-packages" in package_root else [package_root])]
        known = given.split(os.pathsep) if given else []
        added = [path for path in dict.fromkeys(wanted) if path not in known]
        if added:
            os.environ["PYTHONPATH"] = os.pathsep.join([*added, *known])
    choose_java()


def _log4j_options() -> str:
    """Java options that make Spark log errors only, unless the user has a configuration."""
    if os.environ.get("SPARK_CONF_DIR") or os.environ.get("SPARK_HOME"):
        return ""
    return f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def gateway_port(session: SparkSession) -> int:
    """Return the port at which Python reaches the session's JVM."""
    gateway = session.sparkContext._gateway
    assert gateway is not None, "the session has a JVM"
    return int(gateway.gateway_parameters.port)


def jobs_begun(session: SparkSession) -> int:
    """Return how many jobs the session's JVM has begun, of all its sessions."""
    return int(session.sparkContext._jsc.sc().dagScheduler().numTotalJobs())
