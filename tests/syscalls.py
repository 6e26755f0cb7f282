"""Killing a process at every one of its system calls, by tracing it. Linux."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

TRACEME, SYSCALL, SETOPTIONS = 0, 24, 0x4200
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def killed_at(work: Callable[[], None], number: int) -> bool:
    """Do `work` in a child and kill it as it enters its system call `number` (from 1); False when it ended before.

    To be used in a process without threads. Raises AssertionError when the work failed by itself.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _libc.ptrace(TRACEME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            work()
            code = 0
        finally:
            os._exit(code)
    os.waitpid(pid, 0)
    stops = 0
    while True:
        assert _libc.ptrace(SYSCALL, pid, None, None) == 0, os.strerror(ctypes.get_errno())
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, "the work failed by itself"
            return False
        # It stops at the entry of a call and at its exit.
        stops += 1
        if stops == 2 * number - 1:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return True
