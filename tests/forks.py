"""Pythons that start in milliseconds: forks of one process that has imported the package and done nothing yet.

For tests of what a process does. One that is about its start, its memory or its own command line starts a real one.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[1]
NUMBER = struct.Struct("=q")
IMPORTED = """
    apsw pyarrow pyarrow.parquet recovery.places.arrow recovery.places.opening tests.stores
    tests.syscalls
"""
"""Besides the commands: what processes of tests import."""


class Forked(subprocess.Popen):
    """`Popen([sys.executable, *words])`, without Python's start. words: `-m`, a module and its arguments, or `-c`, code
    and its arguments. Variables that Python reads when it starts do not count, nor do options of Popen but for the
    streams, `cwd` and `env`."""

    _reply: socket.socket

    def _execute_child(self, args: Sequence[object], *given: Any) -> None:
        """Start the process: what Popen would do with these file descriptors, at the same places in all versions."""
        cwd, env = given[4], given[5]
        ends = given[9:15]
        read, write, errors = ends[0], ends[3], ends[5]
        asked = {
            "words": [os.fspath(each) if isinstance(each, os.PathLike) else str(each) for each in args],
            "env": dict(os.environ if env is None else env), "cwd": os.fspath(cwd or Path.cwd()),
        }  # fmt: skip
        content = json.dumps(asked).encode()
        streams = [own if end == -1 else end for own, end in enumerate((read, write, errors))]
        self._reply, theirs = socket.socketpair()
        with theirs, _asking:
            template = _template()
            socket.send_fds(template, [NUMBER.pack(len(content))], [*streams, theirs.fileno()])
            template.sendall(content)
        self._child_created = True
        (self.pid,) = NUMBER.unpack(self._reply.recv(NUMBER.size, socket.MSG_WAITALL))
        self._close_pipe_fds(*ends)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG and not select.select([self._reply], [], [], 0)[0]:
            return 0, 0
        (status,) = NUMBER.unpack(self._reply.recv(NUMBER.size, socket.MSG_WAITALL))
        self._reply.close()
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None, *_: object) -> int | None:
        with self._waitpid_lock:
            if self.returncode is None:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
        return self.returncode


def run(
    words: Sequence[object], *, input: str | None = None, timeout_s: float = 60, **options: Any
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of such a process, which captures text."""
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    if input is not None:
        given["stdin"] = subprocess.PIPE
    with Forked(words, **given) as process:
        try:
            printed, said = process.communicate(input, timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, printed, said)


_asking = threading.Lock()
_templates: list[subprocess.Popen[bytes]] = []


def run_code(
    code: str, *arguments: object, timeout_s: float = 60, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python source in such a process, as `tests.stores.run_python` does in one that starts as any Python."""
    return run(["-c", code, *arguments], timeout_s=timeout_s, env={**os.environ, **(env or {})}, **options)


@cache
def _template() -> socket.socket:
    """The way to the process that is forked; that one ends with this one."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "tests.forks", str(theirs.fileno())]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        _templates.append(subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT, env=environment))
    return ours


# ---- in the process that is forked


def _served(asked: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Wait for requests; return what is asked, in the process that is to do it."""
    while True:
        size, given, _, _ = socket.recv_fds(asked, NUMBER.size, 4)
        if not size:
            os._exit(0)
        content = asked.recv(*NUMBER.unpack(size), socket.MSG_WAITALL)
        if not os.fork():
            # This one keeps its child's exit code for whoever started it.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            pid = os.fork()
            if not pid:
                return json.loads(content), given
            for each in given[:3]:
                os.close(each)
            with socket.socket(fileno=given[3]) as reply, contextlib.suppress(OSError):
                reply.sendall(NUMBER.pack(pid))
                reply.sendall(NUMBER.pack(os.waitpid(pid, 0)[1]))
            os._exit(0)
        for each in given:
            os.close(each)


def _become(task: dict[str, Any], given: list[int]) -> None:
    """Look like a process that has just started."""
    for own, each in enumerate(given[:3]):
        os.dup2(each, own)
    os.closerange(3, max(given) + 1)
    os.environ.clear()
    os.environ.update(task["env"])
    time.tzset()
    os.chdir(task["cwd"])
    from recovery.base import faults

    faults._target, _, faults._count = os.environ.get(faults.VARIABLE, "").partition(":")
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    sys.stdin = open(0, encoding=encoding, errors=errors or "strict", closefd=False)  # noqa: SIM115
    sys.stdout = _output(1, encoding, errors or "strict", lines=os.isatty(1))
    sys.stderr = _output(2, encoding, errors or "backslashreplace", lines=True)


def _output(number: int, encoding: str, errors: str, *, lines: bool) -> TextIO:
    buffering = 1 if lines else -1
    return open(number, "w", encoding=encoding, errors=errors, closefd=False, buffering=buffering)


def _do(words: list[str], cwd: str) -> None:
    how, what, *arguments = words
    sys.argv = ["-c" if how == "-c" else what, *arguments]
    sys.path[0] = "" if how == "-c" else cwd
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), module.__dict__)


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _main() -> None:
    import importlib

    from recovery.cli import COMMANDS, main

    for name in COMMANDS:
        main.commands[name]
    for name in IMPORTED.split():
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, _reap)
    # What a child inherits, it need not look at when it ends.
    gc.collect()
    gc.freeze()
    task, given = _served(socket.socket(fileno=int(sys.argv[1])))
    _become(task, given)
    _do(task["words"], task["cwd"])


if __name__ == "__main__":
    _main()
