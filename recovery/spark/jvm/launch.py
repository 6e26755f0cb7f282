"""Launch and end the JVM of this process. The JVM's settings and error messages are neither lost nor shown to others,
and the JVM ends with everything that belongs to it."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar

from recovery.host import private
from recovery.host.peers import tcp_of_trusted_user
from recovery.host.properties import format_properties, read_properties
from recovery.host.signals import STOPPING

if TYPE_CHECKING:
    from pyspark import SparkConf

_NOISE = re.compile(
    r"WARNING: Using incubator modules|Using Spark's default log4j profile|Using Spark's repl log4j profile"
    r"|Setting default log level to|To adjust logging level use|^Picked up |^WARNING: .*(sun.misc.Unsafe|terminally)"
    r"|^WARNING: (A (terminally|restricted)|Please consider|Use --enable-native|Restricted methods|package )"
)
_RESOLVING = re.compile(
    r"^:: (loading settings|resolving|resolution report|modules in use|evicted modules|retrieving)\b"
    r"|^(Ivy Default Cache set|The jars for the packages stored)|^\S+#\S+ added as a dependency$"
    r"|^\t(confs: |found \S+#|\[SUCCESSFUL |\||-{20}|\d+ artifacts copied|\S+#\S+;\S+ (from|by) )"
)
"""What Ivy says about packages that it finds. What Ivy downloads and what Ivy does not find is shown."""
_FRAME = re.compile(r"^\s+at |^\s+\.\.\. \d+ (more|common frames omitted)")
_REASON = re.compile(
    r'^Exception in thread "[^"]*" |^Caused by: |^Error[: ]|^\[?FATAL|Could not create the Java Virtual Machine'
    r"|Unrecognized |Invalid |UNRESOLVED DEPENDENCIES|unresolved dependency|: not found|Too many open files"
    r"|[Nn]o such file|Cannot allocate memory|Permission denied|^([a-z]\w*\.)+\w+(Exception|Error)\b"
)
_ARGUMENTS, _PROPERTIES = "PYSPARK_SUBMIT_ARGS", "--properties-file"
FIRST_CALL = "pyspark.testing.utils"
"""A module that PySpark imports with a process's first call of the JVM, to see whether there is NumPy. Importing this
module takes half a second, since it imports pandas, which steps need too: there is time for that while the JVM starts.
"""
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)
_RETRY_S = 0.2
_END_S = 5
"""Seconds that a JVM may take to end by itself."""
_KEPT_LINES = 400
_MOST_REASONS = 6
_LONGEST_REASON = 500
_SAID_S = 2
"""Seconds to wait for the last lines of a JVM that has ended."""


class ErrorOutput:
    """Passes the JVM's error output on, without useless lines, and keeps the last ones."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._stream = stream
        self._thread = threading.Thread(target=self._copy, name="jvm-stderr", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the output has ended."""
        self._thread.join(timeout_s)

    def reason(self) -> str:
        """Why the JVM has ended, a line for each reason; empty if the JVM wrote nothing."""
        self.join(_SAID_S)
        return reason_in(list(self._lines))

    def _copy(self) -> None:
        for line in self._stream:
            text = line.decode(errors="replace")
            if _NOISE.search(text) or _RESOLVING.search(text):
                continue
            self._lines.append(text.rstrip("\n"))
            # The object that replaced sys.stderr may be closed. Go on: the JVM blocks on output that nobody reads.
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(text)
                sys.stderr.flush()


def reason_in(lines: Sequence[str]) -> str:
    """The lines that say why a process ended, out of those it wrote; if none does, the last line."""
    said = [line.strip() for line in lines if line.strip() and not _FRAME.match(line)]
    reasons = list(dict.fromkeys(line for line in said if _REASON.search(line)))
    shown = reasons[:_MOST_REASONS] or said[-1:]
    return "\n".join(re.sub(r'^Exception in thread "[^"]*" ', "", line)[:_LONGEST_REASON] for line in shown)


class _Starting(subprocess.Popen[bytes]):
    """The JVM's process, known as soon as it begins: PySpark's launch returns it only on success."""

    launch: ClassVar[_Starting | None] = None
    environment: ClassVar[Mapping[str, str]] = {}
    output: ErrorOutput | None = None
    is_called = False

    def __init__(self, command: Sequence[str], *, env: dict[str, str], **options: Any) -> None:
        self.info_directory = Path(env["_PYSPARK_DRIVER_CONN_INFO_PATH"]).parent
        _Starting.launch = self
        options["preexec_fn"] = _ignore_signals
        super().__init__(command, env={**env, **self.environment}, **options)
        assert self.stderr is not None
        self.output = ErrorOutput(self.stderr)

    def poll(self) -> int | None:
        """Return the exit code; 1 for a JVM that ended with 0 before it was called. PySpark's launch waits forever for
        such a process, as for `spark-submit --version`."""
        code = super().poll()
        return 1 if code == 0 and not self.is_called else code


def _import_meanwhile() -> None:
    with contextlib.suppress(Exception):
        importlib.import_module(FIRST_CALL)


def _ignore_signals() -> None:
    """Ignore signals in the process that becomes the JVM: if a supervisor sends one to all processes of a run, the
    driver acts on that signal. A JVM still ignores what was ignored when it began, and it ends with its standard
    input."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


class LaunchError(Exception):
    """The JVM ended before it could be used. Gives the reason, as far as the JVM wrote one."""


class Launch:
    """A JVM that starts. This thread may do other things before it asks for the gateway; one launch at a time."""

    def __init__(self, settings: SparkConf, environment: Mapping[str, str]) -> None:
        """Start the JVM's process. `environment` is added to this process's.

        The JVM gets its settings in a file that only this user can read: everybody sees its command line.
        """
        from pyspark import java_gateway

        self._gateway: Any = None
        self._error: BaseException | None = None
        self._file = _settings_file()
        began = threading.Event()

        def start(*arguments: Any, **options: Any) -> _Starting:
            process = _Starting(*arguments, **options)
            began.set()
            return process

        def wait() -> None:
            try:
                self._gateway = java_gateway.launch_gateway(
                    None, {"start_new_session": True, "stderr": subprocess.PIPE}
                )
            except BaseException as error:
                self._error = error
            finally:
                began.set()

        usual, java_gateway.Popen = java_gateway.Popen, start
        _Starting.environment = environment
        self._thread = threading.Thread(target=wait, name="jvm-launch", daemon=True)
        try:
            with _submitted(settings, self._file):
                self._thread.start()
                # Nothing else happens in this process while it forks: what another thread did would stay half done.
                began.wait()
        except BaseException:
            if self._thread.is_alive():
                began.wait()
            self.abandon()
            raise
        finally:
            java_gateway.Popen = usual

    def gateway(self) -> Any:
        """Wait until the JVM can be called, and return its gateway. Kills the JVM if this raises.

        Otherwise a JVM whose launch was abandoned would never end: it cannot write where to reach it.
        """
        try:
            _import_meanwhile()
            self._thread.join()
            if self._error is not None:
                raise self._error
            _adopt(self._gateway)
            if _Starting.launch is not None:
                _Starting.launch.is_called = True
        except BaseException as error:
            process = self.abandon()
            if process is not None and process.output is not None and isinstance(error, Exception):
                raise LaunchError(process.output.reason() or str(error)) from error
            raise
        finally:
            self._file.unlink(missing_ok=True)
            _Starting.launch = None
        return self._gateway

    def abandon(self) -> _Starting | None:
        """Kill the JVM, and return its process; None if there was none."""
        process = _Starting.launch
        abandon_launch()
        self._file.unlink(missing_ok=True)
        _Starting.launch = None
        if process is not None and _pid(process) is not None:
            process.wait()
        if self._thread.is_alive():
            # It may load libraries, during which a process must not end. It notices immediately that the JVM is gone.
            self._thread.join(_END_S)
        return process if process is not None and _pid(process) is not None else None


def _settings_file() -> Path:
    file = private.home() / "settings.conf"
    file.unlink(missing_ok=True)
    file.touch(0o600)
    return file


@contextlib.contextmanager
def _submitted(settings: SparkConf, file: Path) -> Iterator[None]:
    """Write these settings to the file, and put spark-submit's arguments into the environment, where the launch reads
    them."""
    given = os.environ.get(_ARGUMENTS)
    arguments = shlex.split(given or "pyspark-shell")
    values: dict[str, str] = {}
    if _PROPERTIES in arguments[:-1]:
        # Spark takes only one such file, so merge the user's into it.
        place = arguments.index(_PROPERTIES)
        values.update(read_properties(Path(arguments[place + 1])))
        del arguments[place : place + 2]
    else:
        # With such a file, Spark reads its own defaults only on request.
        arguments.insert(0, "--load-spark-defaults")
    file.write_text(format_properties({**values, **dict(settings.getAll())}), encoding="ascii")
    os.environ[_ARGUMENTS] = shlex.join([_PROPERTIES, str(file), *arguments])
    try:
        yield
    finally:
        os.environ.pop(_ARGUMENTS)
        if given is not None:
            os.environ[_ARGUMENTS] = given


def _adopt(gateway: Any) -> None:
    """Make the JVM remove this process's directories, let only this user call this process, and give the JVM a name for
    its user."""
    jvm = gateway.jvm
    for path in private.directories():
        jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(jvm.java.io.File(str(path)))
    private.leave_to(gateway.proc)
    _answer_own_user(gateway)
    if _user_name() is None:
        users = jvm.org.apache.hadoop.security.UserGroupInformation
        users.setLoginUser(users.createRemoteUser(user_name()))


class _Listening(socket.socket):
    """Accepts connections of this user only. Without free file descriptors, the server accepts a connection later."""

    __slots__ = ()
    """A class for sockets, so that an existing socket can become one."""

    def accept(self) -> tuple[socket.socket, Any]:
        while True:
            try:
                connected, address = super().accept()
            except OSError as error:
                if error.errno not in _NO_FILES:
                    raise
                time.sleep(_RETRY_S)
                continue
            if tcp_of_trusted_user(connected):
                return connected, address
            connected.close()


def _answer_own_user(gateway: Any) -> None:
    """Let only this user call the driver's functions. Py4J's server for calls of the JVM begins to listen with the
    first stream. That server asks for no secret, because the JVM's side forgets the secret when it learns the port."""
    create = gateway._create_callback_server

    def created(*arguments: Any) -> Any:
        server = create(*arguments)
        run = server.run

        def run_for_own_user() -> None:
            # The same socket stays: PySpark asks it for its port while this thread, the server's own, begins.
            server.server_socket.__class__ = _Listening
            run()

        server.run = run_for_own_user
        return server

    gateway._create_callback_server = created


def _user_name() -> str | None:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None


def user_name() -> str:
    """The name of this process's user, or its number if the system has no name for it."""
    return _user_name() or f"uid-{os.geteuid()}"


def user_options() -> str:
    """Java options for a user without a name or a home: otherwise Java would use a question mark for both."""
    if _user_name() is not None:
        return ""
    home = os.environ.get("HOME", "")
    usable = home if home and os.access(home, os.W_OK) else private.home()
    return f'-Duser.name={user_name()} "-Duser.home={usable}"'


def abandon_launch() -> None:
    """Kill the JVM that is being launched, if one is. Takes no locks, so that a signal handler may call it."""
    process = _Starting.launch
    if process is not None:
        if _pid(process) is not None:
            _kill(process)
        shutil.rmtree(process.info_directory, ignore_errors=True)
        private.remove()


def _pid(process: subprocess.Popen[bytes]) -> int | None:
    """The id of the process; None if it did not begin."""
    return getattr(process, "pid", None)


def end(gateway: Any) -> None:
    """End a JVM on which no session could be made, so that the next session starts a new one."""
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
        private.leave_to(None)


def _kill(process: subprocess.Popen[bytes]) -> None:
    # Kill the whole process group: Spark's launcher script may have a process beside it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
