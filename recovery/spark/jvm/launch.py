"""The JVM of this process: launched so that neither its settings nor what it says when it fails are lost or shown to
others, and ended with all that is its own."""

from __future__ import annotations

import contextlib
import errno
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
_FRAME = re.compile(r"^\s+at |^\s+\.\.\. \d+ (more|common frames omitted)")
_REASON = re.compile(
    r'^Exception in thread "[^"]*" |^Caused by: |^Error[: ]|^\[?FATAL|Could not create the Java Virtual Machine'
    r"|Unrecognized |Invalid |UNRESOLVED DEPENDENCIES|unresolved dependency|: not found|Too many open files"
    r"|[Nn]o such file|Cannot allocate memory|Permission denied|^([a-z]\w*\.)+\w+(Exception|Error)\b"
)
_ARGUMENTS, _PROPERTIES = "PYSPARK_SUBMIT_ARGS", "--properties-file"
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)
_RETRY_S = 0.2
_END_S = 5
"""How long a JVM may take to end by itself."""
_KEPT_LINES = 400
_MOST_REASONS = 6
_LONGEST_REASON = 500
_SAID_S = 2
"""How long the last lines of a JVM that has ended are waited for."""


class ErrorOutput:
    """Passes the JVM's error output on, without the lines that say nothing to anyone, and keeps the last ones."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._stream = stream
        self._thread = threading.Thread(target=self._copy, name="jvm-stderr", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the output has ended."""
        self._thread.join(timeout_s)

    def reason(self) -> str:
        """What it says of why the JVM has ended, a line for each reason; empty where it says nothing."""
        self.join(_SAID_S)
        return reason_in(list(self._lines))

    def _copy(self) -> None:
        for line in self._stream:
            text = line.decode(errors="replace")
            if _NOISE.search(text):
                continue
            self._lines.append(text.rstrip("\n"))
            # Whoever has taken its place may have closed it, and the JVM waits for what nobody reads.
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(text)
                sys.stderr.flush()


def reason_in(lines: Sequence[str]) -> str:
    """Of what a process wrote before it ended, the lines that say why; if none does, the last line."""
    said = [line.strip() for line in lines if line.strip() and not _FRAME.match(line)]
    reasons = list(dict.fromkeys(line for line in said if _REASON.search(line)))
    shown = reasons[:_MOST_REASONS] or said[-1:]
    return "\n".join(re.sub(r'^Exception in thread "[^"]*" ', "", line)[:_LONGEST_REASON] for line in shown)


class _Starting(subprocess.Popen[bytes]):
    """The JVM's process, known from the moment at which it begins: the launch gives it away only when it succeeds."""

    launch: ClassVar[_Starting | None] = None
    environment: ClassVar[Mapping[str, str]] = {}
    output: ErrorOutput | None = None

    def __init__(self, command: Sequence[str], *, env: dict[str, str], **options: Any) -> None:
        self.told = Path(env["_PYSPARK_DRIVER_CONN_INFO_PATH"]).parent
        _Starting.launch = self
        options["preexec_fn"] = _ignore_signals
        super().__init__(command, env={**env, **self.environment}, **options)
        assert self.stderr is not None
        self.output = ErrorOutput(self.stderr)


def _ignore_signals() -> None:
    """In the process that becomes the JVM: a signal that a supervisor sends to all processes of a run is the driver's
    to act on. A JVM leaves alone what was ignored when it began, and it ends with its standard input."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


class LaunchError(Exception):
    """The JVM has ended before it could be used; says why, as far as it said so."""


def launch(settings: SparkConf, environment: Mapping[str, str]) -> Any:
    """The gateway to a new JVM, which is gone when this raises. `environment` is added to that of this process.

    A JVM that cannot write where it is reached, because the launch was left, would otherwise never end. Its settings
    reach it in a file that only this user can read: everybody sees its command line.
    """
    from pyspark import java_gateway

    usual, java_gateway.Popen = java_gateway.Popen, _Starting
    _Starting.environment = environment
    try:
        with _submitted(settings):
            gateway = java_gateway.launch_gateway(None, {"start_new_session": True, "stderr": subprocess.PIPE})
        _adopt(gateway)
    except BaseException as error:
        process = _Starting.launch
        abandon_launch()
        if process is not None and getattr(process, "pid", None) is not None:
            process.wait()
            if process.output is not None and isinstance(error, Exception):
                raise LaunchError(process.output.reason() or str(error)) from error
        raise
    finally:
        java_gateway.Popen = usual
        _Starting.launch = None
    return gateway


@contextlib.contextmanager
def _submitted(settings: SparkConf) -> Iterator[None]:
    """The arguments of spark-submit for these settings, as the launch takes them: from the environment."""
    given = os.environ.get(_ARGUMENTS)
    arguments = shlex.split(given or "pyspark-shell")
    values: dict[str, str] = {}
    if _PROPERTIES in arguments[:-1]:
        # One such file replaces the other.
        place = arguments.index(_PROPERTIES)
        values.update(read_properties(Path(arguments[place + 1])))
        del arguments[place : place + 2]
    else:
        # With such a file, Spark reads its own defaults only when it is asked to.
        arguments.insert(0, "--load-spark-defaults")
    file = private.home() / "settings.conf"
    file.unlink(missing_ok=True)
    file.touch(0o600)
    file.write_text(format_properties({**values, **dict(settings.getAll())}), encoding="ascii")
    os.environ[_ARGUMENTS] = shlex.join([_PROPERTIES, str(file), *arguments])
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.environ.pop(_ARGUMENTS)
        if given is not None:
            os.environ[_ARGUMENTS] = given


def _adopt(gateway: Any) -> None:
    """See that the JVM removes this process's directories, that only it may call this process, and that it has a name
    for its user."""
    jvm = gateway.jvm
    for path in private.directories():
        jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(jvm.java.io.File(str(path)))
    private.leave_to(gateway.proc)
    _answer_own_user(gateway)
    if _user_name() is None:
        users = jvm.org.apache.hadoop.security.UserGroupInformation
        users.setLoginUser(users.createRemoteUser(user_name()))


class _Listening(socket.socket):
    """Gives connections of this user alone. A connection that there are no files for comes later."""

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
    """See that nobody else calls the driver's functions: Py4J's server for calls of the JVM, which begins to listen
    with the first stream, asks for no secret, since the JVM's side forgets it when it learns the port."""
    create = gateway._create_callback_server

    def created(*arguments: Any) -> Any:
        server = create(*arguments)
        run = server.run

        def run_for_own_user() -> None:
            given = server.server_socket
            server.server_socket = _Listening(given.family, given.type, given.proto, os.dup(given.fileno()))
            given.close()
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
    """This process's user; its number, where the system has no name for it."""
    return _user_name() or f"uid-{os.geteuid()}"


def user_options() -> str:
    """Java options for a user without a name or a home: Java would take a question mark for both."""
    if _user_name() is not None:
        return ""
    home = os.environ.get("HOME", "")
    usable = home if home and os.access(home, os.W_OK) else private.home()
    return f'-Duser.name={user_name()} "-Duser.home={usable}"'


def abandon_launch() -> None:
    """Kill the JVM that is being launched, if one is. Takes no locks, so that a signal handler may call it."""
    process = _Starting.launch
    if process is not None:
        if getattr(process, "pid", None) is not None:
            _kill(process)
        shutil.rmtree(process.told, ignore_errors=True)
        private.remove()


def end(gateway: Any) -> None:
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
        private.leave_to(None)


def _kill(process: subprocess.Popen[bytes]) -> None:
    # Its own session: Spark's launcher script may have a process beside it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
